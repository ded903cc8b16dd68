package agent

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/socket"
	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// A state that was brought back for the first world of an attempt is held before that world is entered: it is told of once it
// can be believed, for a report that cannot be true ends the session.
func TestAStateOfALaterRoundIsToldOnceThatIsEntered(t *testing.T) {
	held := []checkpoint.Snapshot{{ID: checkpoint.ID{Round: 1, Step: 64}}, {ID: checkpoint.ID{Round: 0, Step: 8}}}
	if told := report(standing{}, nil, held, "").GetSnapshots(); len(told) != 1 || told[0].GetStep() != 8 {
		t.Errorf("in no round it tells of %v", told)
	}
	in := lifecycle.Start{Round: 2}
	if told := report(standing{in: &in}, nil, held, "").GetSnapshots(); len(told) != 2 {
		t.Errorf("in round 2 it tells of %v", told)
	}
}

// How long a process works in a step is told by process, and not of a world that it has yet to enter.
func TestOwnTimesAreToldByProcess(t *testing.T) {
	in := lifecycle.Start{Round: 2}
	states := []socket.State{{OwnTime: time.Second}, {OwnTime: time.Minute}}
	s := standing{in: &in, started: true, processes: make([]processStanding, 2)}
	told := report(s, states, nil, "").GetProcesses()
	if told[0].GetOwnNanos() != 1e9 || told[1].GetOwnNanos() != 60e9 {
		t.Errorf("told are %v", told)
	}
	s.processes[0].Entering = true
	if told := report(s, states, nil, "").GetProcesses(); told[0].GetOwnNanos() != 0 || told[1].GetOwnNanos() != 60e9 {
		t.Errorf("before it has entered told are %v", told)
	}
}

func TestWhatIsSuppliedIsReported(t *testing.T) {
	if report(standing{}, nil, nil, "").GetSupplied() || !report(standing{supplied: true}, nil, nil, "").GetSupplied() {
		t.Error("the report says something else")
	}
}

// A world has begun here once all processes of the worker have made a step of it, and not before.
func TestWhenAllProcessesHaveMadeAStep(t *testing.T) {
	of := func(done uint64) socket.State { return socket.State{Progress: gate.Progress{Done: done}} }
	s := standing{in: &lifecycle.Start{Round: 3, World: lifecycle.World{FromStep: 7}}, processes: make([]processStanding, 2)}
	for name, c := range map[string]struct {
		states   []socket.State
		standing lifecycle.Standing
		want     bool
	}{
		"both":                    {[]socket.State{of(8), of(9)}, lifecycle.Standing{}, true},
		"one":                     {[]socket.State{of(8), of(7)}, lifecycle.Standing{}, false},
		"one in the world before": {[]socket.State{of(8), of(9)}, lifecycle.Standing{Entering: true}, false},
		"one waits for shards":    {[]socket.State{of(8), of(9)}, lifecycle.Standing{Loads: true}, false},
		"none is known":           {nil, lifecycle.Standing{}, false},
	} {
		s.processes[1].Standing = c.standing
		if round, begun := begunIn(s, c.states); begun != c.want || begun && round != 3 {
			t.Errorf("%s: round %d, %t", name, round, begun)
		}
	}
	if _, begun := begunIn(standing{}, []socket.State{of(8)}); begun {
		t.Error("in no world")
	}
}
