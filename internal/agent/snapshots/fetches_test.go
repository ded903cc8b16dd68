package snapshots

import (
	"net"
	"strings"
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

// Each process of a worker says what it needs: what all of them wait for ends when another world begins, and the next fetch waits for none.
func TestAnotherWorldEndsWhatAllProcessesWaitFor(t *testing.T) {
	const what = "d1.2.0123456789abcdef"
	f := open(t, t.TempDir())
	at, connected := silence(t)
	of := checkpoint.Snapshot{ID: checkpoint.ID{Round: 1, Step: 4, Part: what}, Bytes: 4 << 20}
	named := of.State()
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
	f.Enter(3, 0, true, nil)
	next := make(chan error, 1)
	f.Fetch(nil, func(err error) { next <- err })
	if err := <-next; err != nil {
		t.Errorf("the next world's fetch ends with %v", err)
	}
	for i, done := range came {
		if err := <-done; err == nil || !strings.Contains(err.Error(), "another world has begun") {
			t.Errorf("what process %d waits for ends with %v", i, err)
		}
	}
}
