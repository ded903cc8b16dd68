package snapshots

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// silence is a holder that is connected to, and says nothing; connected gives who has come.
func silence(t *testing.T) (at checkpoint.Holder, connected func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	t.Cleanup(func() {
		_ = listener.Close()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return checkpoint.Holder{Address: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port}, func() {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
}

// Each process of a worker says what it needs: what all of them wait for ends when another world begins, and the next fetch waits for none, also
// where that world begins with the same state.
func TestAnotherWorldEndsWhatAllProcessesWaitFor(t *testing.T) {
	for name, same := range map[string]bool{"it begins with the same state": true, "it begins with none": false} {
		t.Run(name, func(t *testing.T) {
			_, f, whole, holders := holding(t)
			at, connected := silence(t)
			named := whole.State()
			of := checkpoint.Snapshot{ID: checkpoint.ID{Round: named.Round, Step: named.Step, Part: "d1.2.0123456789abcdef"}, Bytes: 4 << 20}
			f.Enter(2, 4, false, &named)
			var came []chan error
			for i := range uint64(3) {
				done := make(chan error, 1)
				want := from(of, []checkpoint.Holder{at})
				want[0].Only = []checkpoint.Range{{From: i << 20, To: (i + 1) << 20}}
				f.Fetch(want, func(err error) { done <- err })
				came = append(came, done)
			}
			connected()
			next := make(chan error, 1)
			if same {
				f.Enter(3, 4, false, &named)
				f.Fetch(from(whole, holders), func(err error) { next <- err })
			} else {
				f.Enter(3, 0, true, nil)
				f.Fetch(nil, func(err error) { next <- err })
			}
			if err := <-next; err != nil {
				t.Errorf("the next world's fetch ends with %v", err)
			}
			for i, done := range came {
				if err := <-done; err == nil || !strings.Contains(err.Error(), "another world has begun") {
					t.Errorf("what process %d waits for ends with %v", i, err)
				}
			}
		})
	}
}

// paused is a way to a holder on which the first connection brings so many bytes, says so, and goes on when it is told to.
func paused(t *testing.T, at checkpoint.Holder, bytes int64) (way checkpoint.Holder, reached, goOn chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reached, goOn = make(chan struct{}), make(chan struct{})
	var serving sync.WaitGroup
	serve := func(conn net.Conn, pauses bool) {
		defer func() { _ = conn.Close() }()
		to, err := net.Dial("tcp", at.String())
		if err != nil {
			return
		}
		serving.Go(func() {
			_, _ = io.Copy(to, conn)
			_ = to.Close()
		})
		if pauses {
			_, _ = io.CopyN(conn, to, bytes)
			close(reached)
			<-goOn
		}
		_, _ = io.Copy(conn, to)
	}
	serving.Go(func() {
		for pauses := true; ; pauses = false {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serve(conn, pauses) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	way = at
	way.Port = listener.Addr().(*net.TCPAddr).Port
	return way, reached, goOn
}

// Once all processes have made a step nobody waits for shards: what still brings some ends, and so does what waits behind it. What is fetched
// ahead is for the next world, and goes on.
func TestWhoHasMadeAStepWaitsForNoShards(t *testing.T) {
	holder, other, whole, at := holding(t)
	data := bytes.Repeat([]byte("state"), 2<<20)
	if err := os.WriteFile(filepath.Join(holder.Folder(), "x.part"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	holder.Take(1, 4, []File{{Part: "d1.2.0123456789abcdef", Name: "x.part", Bytes: uint64(len(data))}}, false)
	holder.settled()
	way, reached, goOn := paused(t, at[0], 3<<20)
	want := from(holder.List()[0], []checkpoint.Holder{way})
	want[0].Only = []checkpoint.Range{{From: 1 << 20, To: 9 << 20}}
	named := want[0].State()
	other.Enter(2, 4, false, &named)
	done := make(chan error, 2)
	for range cap(done) {
		other.Fetch(want, func(err error) { done <- err })
	}
	<-reached
	for !other.store.HasExcerpts() {
		runtime.Gosched()
	}
	other.FetchAhead(from(whole, at))
	other.Began(1)
	if !other.store.HasExcerpts() || len(done) > 0 {
		t.Error("that is of a world that is over, and something has ended")
	}
	other.Began(2)
	close(goOn)
	for range cap(done) {
		if err := <-done; err == nil || !strings.Contains(err.Error(), "all processes have made a step without it") {
			t.Errorf("what nobody waits for ends with %v", err)
		}
	}
	other.awaits(whole.ID)
	other.settled()
	if names, _ := filepath.Glob(filepath.Join(other.Folder(), "fetch-*")); len(names) > 0 || other.store.HasExcerpts() {
		t.Errorf("there are %v", names)
	}
}
