package server

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/codes"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// mine makes the rendezvous panic the next time that it notes something of a job with these words.
type mine struct{ words atomic.Pointer[string] }

func (m *mine) set(words string) { m.words.Store(&words) }

// serveMined serves with a mine under the job digits.
func serveMined(t *testing.T) (*fixture, *mine) {
	t.Helper()
	m := &mine{}
	logger := funcr.New(func(_, line string) {
		words := m.words.Load()
		if words != nil && strings.Contains(line, digits.String()) && strings.Contains(line, *words) && m.words.CompareAndSwap(words, nil) {
			panic("a mistake")
		}
	}, funcr.Options{})
	return serve(t, func(o *Options) { o.Logger = logger }), m
}

// A panic in one job ends no session of another. The job is taken over anew: its world is adopted, and trains on.
func TestAPanicInOneJobIsThatOfNoOther(t *testing.T) {
	f, m := serveMined(t)
	letters := rendezvous.JobKey{Namespace: "team", Name: "letters"}
	other := gangOf(1, "x")
	f.Expect(letters, other)
	x := f.elastic(t, "x", func(c *rendezvoustest.Config) { c.Hello.Job = letters.Name })
	await(t, x, inRound(1))
	gang := gangOf(1, "a", "b")
	gang.Minimum, gang.Target = 1, 2
	m.set("is formed")
	f.Expect(digits, gang)
	a, b := f.elastic(t, "a", nil), f.elastic(t, "b", nil)
	for _, agent := range []*rendezvoustest.Agent{a, b} {
		s := await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Term == 2 && s.Round == 1 })
		if s.Violation != "" || s.Last == nil {
			t.Errorf("an agent of the job that has fallen: %q, its session ended with %v", s.Violation, s.Last)
		}
	}
	f.eventually(t, "the world is adopted, and trains", func(o rendezvous.Observation) bool {
		return o.Round == 1 && o.Phase == rendezvous.PhaseTraining && o.Elastic && o.Members["uid-a"].InWorld && o.Members["uid-b"].InWorld
	})
	if s := x.Snapshot(); s.Last != nil || s.Term != 1 {
		t.Errorf("the other job's agent is in term %d, its session ended with %v", s.Term, s.Last)
	}
	if falls := counted(t, f, "concertina_rendezvous_panics_total"); falls != 1 {
		t.Errorf("%v panics are counted", falls)
	}
}

// counted is the value of a counter.
func counted(t *testing.T, f *fixture, name string) float64 {
	t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// What a job has asked to be written before it fell is another leader's, whenever it becomes durable: nobody is told of
// that round, and its number is not used again.
func TestWhatWasWrittenBeforeAPanicIsAnothersRound(t *testing.T) {
	f, m := serveMined(t)
	gang := gangOf(1, "a", "b")
	f.Expect(digits, gang)
	f.eventually(t, "the term is taken", func(o rendezvous.Observation) bool { return !o.Adopting })
	hold := make(chan struct{})
	f.recorder.mu.Lock()
	f.recorder.hold = hold
	f.recorder.mu.Unlock()
	a, b := f.elastic(t, "a", nil), f.elastic(t, "b", nil)
	f.eventually(t, "all are there", func(o rendezvous.Observation) bool {
		return o.Members["uid-a"].Standby && o.Members["uid-b"].Standby
	})
	m.set("cannot be")
	wantCode(t, f.converse(t, "token-a", liar(f.pod("a"))), codes.Unavailable, "takes it over anew")
	close(hold)
	for _, agent := range []*rendezvoustest.Agent{a, b} {
		s := await(t, agent, inRound(2))
		if s.Violation != "" || s.Worlds[1] != nil || s.Term < 2 {
			t.Errorf("an agent is in term %d, has been told of %v: %q", s.Term, s.Worlds, s.Violation)
		}
	}
}

// liar is a first report that no agent sends.
func liar(hello *rendezvousv1.Hello) *rendezvousv1.Report {
	report := first(hello)
	report.Term, report.Round, report.MembersDigest = 1, 1<<40, strings.Repeat("0", 64)
	return report
}

// Who is let go while its job waits to be taken over is let go then.
func TestAJobThatHasFallenIsReleased(t *testing.T) {
	f, m := serveMined(t)
	gang := gangOf(1, "a")
	m.set("is published")
	f.Expect(digits, gang)
	a := f.elastic(t, "a", nil)
	await(t, a, func(s rendezvoustest.Snapshot) bool { return s.Last != nil })
	f.Release(digits, "")
	f.Expect(digits, gang)
	await(t, a, func(s rendezvoustest.Snapshot) bool { return s.Over })
}

// A job that falls again and again is taken over later each time, and after a while as soon as the first time.
func TestAJobThatFallsAgainIsTakenOverLater(t *testing.T) {
	var f fallen
	now := time.Unix(1e9, 0)
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if wait := f.wait(now); wait != want*time.Second {
			t.Errorf("after fall %d it waits for %s, want %s", i+1, wait, want*time.Second)
		}
		now = now.Add(time.Minute)
	}
	if wait := f.wait(now.Add(calmAfter)); wait != firstFall {
		t.Errorf("after a while it waits for %s", wait)
	}
}
