package agent_test

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// A worker that has not reached a holder of its world's snapshot for long says which, and why, and leaves that world. In the next
// one it says so no more.
func TestAHolderThatIsNotReached(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := &rendezvousv1.Holder{Address: "127.0.0.1", Port: uint32(nobody.Addr().(*net.TCPAddr).Port), Certificate: bytes.Repeat([]byte{7}, 32)}
	_ = nobody.Close()
	old, fresh := agenttest.New(t), agenttest.New(t)
	content := []byte("state after step 3")
	growing(t, old, content)
	snapshot := old.Last().GetSnapshots()[0]

	fresh.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
	w := startWorker(t, fresh, []string{"CONCERTINA_MEMORY=" + t.TempDir(), "AGENT_TEST_SUPPLY=1ms"}, "sleep")
	w.file("pid0")
	s := w.speak(0)
	s.say(wire.Join{Type: wire.TypeJoin})
	d := second(fresh, 1, true)
	d.World.Snapshot, d.World.Holders = snapshot, admitted(fresh.Hellos()[0], snapshot, gone)
	fresh.Direct(d)
	report := fresh.Await("that it left the world", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && r.GetOut() })
	if said := report.GetUnreached(); len(said) != 1 || !bytes.Equal(said[0].GetCertificate(), gone.GetCertificate()) ||
		said[0].GetAddress() != gone.GetAddress() || said[0].GetPort() != gone.GetPort() || !strings.Contains(said[0].GetError(), "connection refused") {
		t.Errorf("of the holder that it has not reached it says %v", said)
	}

	d = second(fresh, 1, true)
	right := old.Hellos()[0]
	d.Round, d.World.Snapshot = 3, snapshot
	d.World.Holders = admitted(fresh.Hellos()[0], snapshot, &rendezvousv1.Holder{
		Address: right.GetAddress(), Port: right.GetSnapshotPort(), Certificate: right.GetSnapshotCertificate(),
	})
	fresh.Direct(d)
	fresh.Await("the snapshot, and no word of the holder", func(r *rendezvousv1.Report) bool {
		return holds(1, 3)(r) && r.GetRound() == 3 && len(r.GetUnreached()) == 0
	})
}
