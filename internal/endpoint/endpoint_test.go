package endpoint

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// api is an API server that refuses the first writes.
type api struct {
	client.Client
	refuses, writes atomic.Int32
}

func (a *api) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	if a.refuses.Add(-1) >= 0 {
		return errors.New("etcdserver: leader changed")
	}
	a.writes.Add(1)
	return nil
}

// A leader whose first writes fail goes on to try.
func TestTheSliceIsWrittenInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &api{}
		server.refuses.Store(3)
		leader := &Leader{Client: server, Address: "10.0.0.1", Port: 8443}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- leader.Start(ctx) }()
		time.Sleep(3*tryAgain + time.Millisecond)
		synctest.Wait()
		if n := server.writes.Load(); n != 1 {
			t.Errorf("%d writes after three that failed", n)
		}
		time.Sleep(writeEvery)
		synctest.Wait()
		if n := server.writes.Load(); n != 2 {
			t.Errorf("%d writes after %s more", n, writeEvery)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
