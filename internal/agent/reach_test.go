package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// An agent finds out for the operator whether that of a peer answers: as long as it runs, and not when it only keeps
// its sockets, or has ended. Only then nobody is at its port. It serves no snapshots.
func TestAPeerIsProbed(t *testing.T) {
	asks, hears := agenttest.New(t), agenttest.New(t)
	startWorker(t, asks, nil, "sleep")
	peer := startWorker(t, hears, nil, "sleep")
	hears.AwaitSessions(1)
	hello := hears.Hellos()[0]
	ask := func(number uint64, certificate []byte) (reached, refused bool) {
		asks.Direct(&rendezvousv1.Directive{Term: 1, Probes: []*rendezvousv1.Probe{{
			Number: number, Address: hello.GetAddress(), Port: hello.GetSnapshotPort(), Certificate: certificate,
		}}})
		report := asks.Await("an answer", func(r *rendezvousv1.Report) bool {
			return len(r.GetProbed()) == 1 && r.GetProbed()[0].GetNumber() == number
		})
		return report.GetProbed()[0].GetReached(), report.GetProbed()[0].GetRefused()
	}
	if reached, refused := ask(1, hello.GetSnapshotCertificate()); !reached || refused {
		t.Error("an agent that runs is not reached")
	}
	if reached, refused := ask(2, make([]byte, 32)); reached || refused {
		t.Error("somebody else is taken for the agent")
	}
	peer.signal(syscall.SIGSTOP)
	eventually(t, "all threads of the agent to stop", func() bool { return stopped(t, peer.command.Process.Pid) })
	if reached, refused := ask(3, hello.GetSnapshotCertificate()); reached || refused {
		t.Error("an agent that is stopped is reached")
	}
	peer.signal(syscall.SIGCONT)
	if reached, refused := ask(4, hello.GetSnapshotCertificate()); !reached || refused {
		t.Error("an agent that goes on is not reached")
	}
	peer.signal(syscall.SIGKILL)
	<-peer.ended
	if reached, refused := ask(5, hello.GetSnapshotCertificate()); reached || !refused {
		t.Error("of an agent that has ended it is not said that nobody is at its port")
	}

	// An answer is told as long as it is asked for.
	asks.Direct(&rendezvousv1.Directive{Term: 1})
	asks.Forget()
	asks.Await("no answer", func(r *rendezvousv1.Report) bool { return len(r.GetProbed()) == 0 })
}

// stopped says whether all threads of a process stand still. A signal to stop reaches them one after another.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("the threads of process %d are not to be found: %v", pid, err)
	}
	for _, thread := range threads {
		if status, err := os.ReadFile(thread); err == nil && !strings.Contains(string(status), "\nState:\tT") {
			return false
		}
	}
	return true
}
