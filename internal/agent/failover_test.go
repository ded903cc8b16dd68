package agent_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/ticket"
)

// relay is a network between two agents, on which the first connection comes to a halt in the middle of what the holder
// sends.
type relay struct {
	t        *testing.T
	listener net.Listener
	holder   string
	// halted is closed when so many bytes have come through; proceed says whether more do, or the connection breaks.
	after   int64
	halted  chan struct{}
	proceed chan bool
	// later counts the connections after the first one.
	mu    sync.Mutex
	conns int
}

func newRelay(t *testing.T, holder string, after int64) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, listener: listener, holder: holder, after: after, halted: make(chan struct{}), proceed: make(chan bool, 1)}
	var all sync.WaitGroup
	all.Go(func() {
		for first := true; ; first = false {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			r.conns++
			r.mu.Unlock()
			all.Go(func() { r.pass(near, first) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		select {
		case r.proceed <- false:
		default:
		}
		all.Wait()
	})
	return r
}

func (r *relay) port() uint32 { return uint32(r.listener.Addr().(*net.TCPAddr).Port) }

func (r *relay) connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns
}

// pass carries one connection.
func (r *relay) pass(near net.Conn, halts bool) {
	far, err := net.Dial("tcp", r.holder)
	if err != nil {
		_ = near.Close()
		return
	}
	var asks sync.WaitGroup
	asks.Go(func() { _, _ = io.Copy(far, near) })
	if halts {
		_, _ = io.CopyN(near, far, r.after)
		close(r.halted)
		if <-r.proceed {
			_, _ = io.Copy(near, far)
		}
	} else {
		_, _ = io.Copy(near, far)
	}
	_, _ = near.Close(), far.Close()
	asks.Wait()
}

// keepsSecrets checks that nothing that the worker has said so far shows any of them.
func (w *worker) keepsSecrets(secrets map[string][]byte) {
	w.t.Helper()
	said := w.text()
	for what, secret := range secrets {
		for _, shape := range []string{
			string(secret), hex.EncodeToString(secret), fmt.Sprintf("%q", secret), fmt.Sprintf("%d", secret),
			base64.RawStdEncoding.EncodeToString(secret), base64.RawURLEncoding.EncodeToString(secret),
		} {
			if strings.Contains(said, strings.Trim(shape, `"`)) {
				w.t.Errorf("%s is in the log as %q", what, shape)
			}
		}
	}
}

// The operator is replaced while a newcomer fetches the snapshot that its world begins with. The new one has other keys for
// tickets. Whether the transfer goes on or breaks, the newcomer gets its snapshot with the tickets that it has, and no
// program is at fault.
func TestTheOperatorIsReplacedDuringATransfer(t *testing.T) {
	for name, goesOn := range map[string]bool{"the transfer goes on": true, "the transfer breaks": false} {
		t.Run(name, func(t *testing.T) {
			old, fresh := agenttest.New(t), agenttest.New(t)
			content := bytes.Repeat([]byte("weights "), 1<<20)
			holder, survivor, _ := growing(t, old, content)
			hello, snapshot := old.Hellos()[0], old.Last().GetSnapshots()[0]

			fresh.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
			newcomer := startWorker(t, fresh, []string{"CONCERTINA_MEMORY=" + t.TempDir()}, "sleep")
			newcomer.file("pid0")
			s := newcomer.speak(0)
			s.say(wire.Join{Type: wire.TypeJoin})
			fresh.Await("the standby", func(r *rendezvousv1.Report) bool {
				return r.GetStandby() && waits(rendezvousv1.Waiting_WAITING_JOIN)(r)
			})
			network := newRelay(t, net.JoinHostPort(hello.GetAddress(), strconv.Itoa(int(hello.GetSnapshotPort()))), 1<<20)
			d := second(old, 1, true)
			d.World.Snapshot = snapshot
			d.World.Holders = admitted(fresh.Hellos()[0], snapshot, &rendezvousv1.Holder{
				Address: "127.0.0.1", Port: network.port(), Certificate: hello.GetSnapshotCertificate(),
			})
			admittance := d.World.Holders[0].GetTicket()
			fresh.Direct(d)
			select {
			case <-network.halted:
			case <-time.After(agenttest.Patience):
				t.Fatal("nothing is fetched")
			}

			// The operator is gone, and another one leads, which gives tickets of its own.
			old.Leave()
			fresh.Leave()
			key := ticket.KeyOf([]byte("a secret of the next operator"), [32]byte(hello.GetSnapshotCertificate()))
			next := second(old, 0, false)
			next.Term, next.TicketKey = 2, key
			old.Direct(next)
			d.Term = 2
			d.World.Holders[0].Ticket = ticket.Issue(key, 2, ticket.Grant{
				Fetcher: [32]byte(fresh.Hellos()[0].GetSnapshotCertificate()), Round: snapshot.GetRound(), Step: snapshot.GetStep(),
			}, time.Now().Add(time.Hour))
			fresh.Direct(d)
			old.Return()
			fresh.Return()
			obeyed := func(r *rendezvousv1.Report) bool { return r.GetTerm() == 2 && r.GetRound() == 2 }
			old.Await("the holder obeys the next operator", obeyed)
			fresh.Await("the newcomer obeys the next operator", obeyed)
			if got := hears[wire.World](survivor); got.Round != 2 || got.Restore {
				t.Errorf("the survivor's world is %+v", got)
			}
			network.proceed <- goesOn

			got := hears[wire.World](s)
			text, err := os.ReadFile(got.Snapshot)
			if err != nil || !bytes.Equal(text, content) || got.Round != 2 || !got.Restore || got.FromStep != 3 {
				t.Errorf("the newcomer's world is %+v, its snapshot has %d bytes, %v", got, len(text), err)
			}
			report := fresh.Await("the world", func(r *rendezvousv1.Report) bool {
				return obeyed(r) && waits(rendezvousv1.Waiting_WAITING_UNSPECIFIED)(r) && holds(1, 3)(r)
			})
			if one := report.GetProcesses()[0]; one.GetFault() != nil || one.GetExit() != nil || report.GetOut() {
				t.Errorf("the newcomer reports %v", report)
			}
			if n := network.connections(); goesOn && n != 1 || !goesOn && n < 2 {
				t.Errorf("the snapshot came over %d connections", n)
			}
			if !holder.alive("pid0") || !newcomer.alive("pid0") {
				t.Error("a program has ended")
			}
			for _, w := range []*worker{holder, newcomer} {
				w.keepsSecrets(map[string][]byte{
					"the pod's token": []byte(agenttest.Token), "its key": keyOf(hello.GetSnapshotCertificate()), "its next key": key,
					"its ticket": admittance, "its next ticket": d.World.Holders[0].GetTicket(), "a private key": []byte("PRIVATE KEY"),
				})
			}
		})
	}
}
