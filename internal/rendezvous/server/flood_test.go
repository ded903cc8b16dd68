package server

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) add(_, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, line)
}

// with are the lines that contain something.
func (l *lines) with(what string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.text {
		if strings.Contains(line, what) {
			found = append(found, line)
		}
	}
	return found
}

// A member that reports as fast as it can is read as fast as others are, and named once. The others of its job, and
// those of another job, train and are answered meanwhile.
func TestAFloodIsItsSendersAlone(t *testing.T) {
	log := &lines{}
	f := serve(t, func(o *Options) { o.Logger = funcr.New(log.add, funcr.Options{}) })
	f.Expect(digits, gangOf(1, "a", "b"))
	letters := rendezvous.JobKey{Namespace: "team", Name: "letters"}
	f.Expect(letters, gangOf(1, "c"))
	hello := first(f.pod("a"))
	flooder := f.open(t, "token-a")
	began := time.Now()
	hello.Standby = true
	if err := flooder.Send(hello); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer f.stop()
	var heard atomic.Uint64
	all.Go(func() {
		for directive, err := flooder.Receive(); err == nil; directive, err = flooder.Receive() {
			heard.Store(directive.GetSequence())
		}
	})
	all.Go(func() {
		sequence := uint64(2)
		for flooder.Send(&rendezvousv1.Report{Sequence: sequence, Standby: true}) == nil {
			sequence++
		}
	})
	waitFor(t, "the flooder is named", func() bool { return len(log.with("faster than it is read")) > 0 })

	other := f.pod("c")
	other.Job = "letters"
	b, c := f.agent(t, "b"), rendezvoustest.Start(f.config(other))
	t.Cleanup(c.Stop)
	for _, agent := range []*rendezvoustest.Agent{b, c} {
		await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
	}
	for step := uint64(1); step <= 20; step++ {
		b.Step(step)
		c.Step(step)
		f.eventually(t, "the other job has made its step", func(rendezvous.Observation) bool { return f.Observe(letters).Progress.Step == step })
	}
	f.eventually(t, "the other member has been heard", func(o rendezvous.Observation) bool { return o.Members["uid-b"].InWorld })

	last := heard.Load()
	if most := reportBurst + uint64(maxReportRate*(time.Since(began).Seconds()+1)); last > most {
		t.Errorf("%d reports of the flooder were read, want at most %d", last, most)
	}
	named := log.with("faster than it is read")
	if len(named) != 1 || !strings.Contains(named[0], `"job"="team/digits"`) || !strings.Contains(named[0], `"pod"="a"`) {
		t.Errorf("the log says %q", named)
	}
	wantMetricsCount(t, f, "concertina_rendezvous_floods_total", 1)
}

func wantMetricsCount(t *testing.T, f *fixture, name string, want float64) {
	t.Helper()
	for labels, metric := range f.series(t, name) {
		if got := metric.GetCounter().GetValue(); got != want {
			t.Errorf("%s%s is %v, want %v", name, labels, got, want)
		}
		return
	}
	t.Errorf("there is no %s", name)
}
