package endpoint

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// api is an API server that refuses the first writes.
type api struct {
	client.Client
	refuses, writes int
}

func (a *api) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	if a.refuses > 0 {
		a.refuses--
		return errors.New("etcdserver: leader changed")
	}
	a.writes++
	return nil
}

// A leader whose first writes fail goes on to try.
func TestTheSliceIsWrittenInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &api{refuses: 3}
		leader := &Leader{Client: server, Address: "10.0.0.1", Port: 8443}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- leader.Start(ctx) }()
		time.Sleep(3*tryAgain + time.Millisecond)
		synctest.Wait()
		if server.writes != 1 {
			t.Errorf("%d writes after three that failed", server.writes)
		}
		time.Sleep(writeEvery)
		synctest.Wait()
		if server.writes != 2 {
			t.Errorf("%d writes after %s more", server.writes, writeEvery)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
