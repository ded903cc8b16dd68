package rendezvous

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// handing is a job whose state takes a while to be handed over, with leaders in processes of their own.
type handing struct {
	*sharing
	socket *os.File
}

func newHanding(t *testing.T) *handing {
	t.Helper()
	socket, address := listen(t)
	h := &handing{socket: socket, sharing: &sharing{
		t: t, team: newTeam(t, 0), clean: "yes", attempt: 1, binary: buildAgent(t), address: address,
		bytes: 64 << 20, steps: filepath.Join(t.TempDir(), "steps"), command: sharesProgram,
	}}
	return h
}

// join makes one more pod, and starts its agent. A leader expects all pods that there are.
func (h *handing) join() *sharer {
	h.t.Helper()
	team := h.team
	pod := newPod(h.t, team.key.Namespace, fmt.Sprintf("digits-1-%d", len(team.pods)))
	team.pods = append(team.pods, pod)
	team.tokens[pod.Name] = newToken(h.t, team.key.Namespace, pod, identity.Audience)
	h.start()
	return h.workers[len(h.workers)-1]
}

// lead starts a leader.
func (h *handing) lead(kill string) *leader {
	return startLeader(h.t, h.team.key.Namespace, h.socket, kill, changesVariable+"=yes")
}

// made are the steps that were made, in their order.
func (h *handing) made() []int {
	h.t.Helper()
	text, err := os.ReadFile(h.steps)
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	var steps []int
	for line := range strings.Lines(string(text)) {
		var step int
		if _, err := fmt.Sscan(line, &step); err == nil {
			steps = append(steps, step)
		}
	}
	return steps
}

// goesOn waits until a world of so many workers has made some steps, and returns its record.
func (h *handing) goesOn(workers int32) rendezvous.Record {
	h.t.Helper()
	var found rendezvous.Record
	eventually(h.t, fmt.Sprintf("%d workers train", workers), func() bool {
		found = durable(h.t.Context(), h.t, h.team.key)
		return found.Workers == workers && len(h.made()) > int(found.FromStep)+5
	})
	return found
}

// fetching is the size of the file that a worker is fetching into; 0 when there is none.
func (w *sharer) fetching(t *testing.T) (size int64) {
	t.Helper()
	_ = filepath.WalkDir(w.memory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(entry.Name(), "fetch-") {
			if info, err := entry.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil // what is gone by now is fetched
	})
	return size
}

// TestALeaderDiesInATransfer: a newcomer fetches the state of a world that stands for it, from real agents and programs, and
// the leader is killed. The next one has it join after the very step at which the world stood: nobody is lost, and no step
// is made twice.
func TestALeaderDiesInATransfer(t *testing.T) {
	for name, dies := range map[string]func(*handing, *leader){
		"when the newcomer has some of it": func(h *handing, l *leader) {
			newcomer := h.join()
			eventually(h.t, "it fetches", func() bool { return newcomer.fetching(h.t) > 0 })
			newcomer.signal(syscall.SIGSTOP)
			l.killWithin(h.t, 0)
			if size := newcomer.fetching(h.t); size == 0 || size >= int64(h.bytes)*3/2 {
				h.t.Fatalf("it is not in the middle of it: it has %d bytes", size)
			}
			newcomer.signal(syscall.SIGCONT)
			h.lead(killNever)
		},
		"when the newcomer has some of it, and stands until another leads": func(h *handing, l *leader) {
			newcomer := h.join()
			eventually(h.t, "it fetches", func() bool { return newcomer.fetching(h.t) > 0 })
			newcomer.signal(syscall.SIGSTOP)
			l.killWithin(h.t, 0)
			before := durable(h.t.Context(), h.t, h.team.key).Term
			h.lead(killNever)
			eventually(h.t, "another leads", func() bool { return durable(h.t.Context(), h.t, h.team.key).Term > before })
			newcomer.signal(syscall.SIGCONT)
		},
		"when the round of the newcomer is durable, and nobody knows": func(h *handing, l *leader) {
			l.killWithin(h.t, 0)
			l = h.lead(killDurable)
			h.join()
			l.awaitKill(h.t)
			h.lead(killNever)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHanding(t)
			for range 2 {
				h.join()
			}
			leader := h.lead(killNever)
			h.goesOn(2)
			dies(h, leader)
			grown := h.goesOn(3)
			if grown.Reason != rendezvous.ReasonCapacityAvailable {
				t.Errorf("round %d was made because of %s", grown.Round, grown.Reason)
			}
			for i, step := range h.made() {
				if step != i+1 {
					t.Fatalf("step %d is made after %d steps; %d workers begin after step %d", step, i, grown.Workers, grown.FromStep)
				}
			}
			for _, w := range h.workers { // all of them live: when one is killed, the others fail, rightly
				if text := w.text(); strings.Contains(text, "started anew") || strings.Contains(text, "Traceback") {
					t.Errorf("a program has failed:\n%s", text)
				}
			}
		})
	}
}

// signal sends one to a worker's agent alone.
func (w *sharer) signal(what syscall.Signal) { _ = syscall.Kill(w.cmd.Process.Pid, what) }
