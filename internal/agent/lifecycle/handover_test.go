package lifecycle

import (
	"strings"
	"testing"
)

// A world without a snapshot is entered where the state is handed over in it, by a process that knows of that.
func TestOnlyWhoKnowsOfItEntersAHandover(t *testing.T) {
	for name, row := range map[string]struct {
		handover, able bool
		want           string
	}{
		"all is well":         {true, true, "give0(3) tell"},
		"the program is old":  {true, false, "deny0"},
		"there is no handing": {false, true, "refuse"},
	} {
		m := New(epoch, DefaultLimits(30e9), Shape{Programs: 1, Processes: 1})
		m.Step(epoch, with(Heard{Directive: Directive{Term: 1}}, func(d *Directive) { d.Standby = true }))
		connected := says(0, Connected)
		connected.HandsOver = row.able
		m.Step(epoch, connected)
		m.Step(epoch, says(0, Joined))
		if m.HandsOver() != row.able {
			t.Errorf("%s: it says %v of it", name, m.HandsOver())
		}
		world := worldOf("b")
		world.Processes, world.Parent, world.FromStep, world.Restore, world.Handover = 1, 2, 7, true, row.handover
		got := text(m.Step(epoch, Heard{Directive: Directive{Term: 1, Round: 3, World: world}}))
		if !strings.HasSuffix(got, row.want) {
			t.Errorf("%s: %q, want %q at its end", name, got, row.want)
		}
	}
}

// Of a worker whose processes share a model nobody has a state before all of them have got theirs, nor an older one once one of them has got
// something of the newer.
func TestAWorkerHasAStateOnceAllOfItsProcessesHave(t *testing.T) {
	type left struct {
		step  uint64
		clean bool
	}
	for name, row := range map[string]struct {
		before, after [2]left
		clean         bool
		step          uint64
	}{
		"all have got it":               {[2]left{{8, true}, {8, true}}, [2]left{{9, true}, {9, true}}, true, 9},
		"one has got a part":            {[2]left{{8, true}, {8, true}}, [2]left{{9, true}, {0, false}}, false, 0},
		"one has got it, one nothing":   {[2]left{{8, true}, {8, true}}, [2]left{{9, true}, {8, true}}, false, 0},
		"none has got anything":         {[2]left{{8, true}, {8, true}}, [2]left{{8, true}, {8, true}}, true, 8},
		"none, and one had nothing":     {[2]left{{8, true}, {9, false}}, [2]left{{8, true}, {9, false}}, false, 0},
		"none, and they had not theirs": {[2]left{{8, true}, {9, true}}, [2]left{{8, true}, {9, false}}, false, 0},
	} {
		m := New(epoch, DefaultLimits(30e9), Shape{Programs: 2, Processes: 2})
		m.Step(epoch, with(Heard{Directive: Directive{Term: 1}}, func(d *Directive) { d.Standby = true }))
		for i := range 2 {
			connected := local(i)
			connected.HandsOver = true
			m.Step(epoch, connected)
			if m.HandsOver() != (i == 1) {
				t.Errorf("%s: with %d processes it says %v of handovers", name, i+1, m.HandsOver())
			}
			m.Step(epoch, says(i, Joined))
		}
		for round, lefts := range [][2]left{row.before, row.after} {
			world := worldOf("b")
			world.Processes = 2
			if round > 0 {
				world.Parent, world.FromStep, world.Restore, world.Handover = 1, 9, true, true
			}
			d := Directive{Term: 1, Round: uint64(round + 1), World: world}
			given := text(m.Step(epoch, Heard{Directive: d}))
			if !strings.Contains(given, "give0") || !strings.Contains(given, "give1") {
				t.Fatalf("%s: round %d is not given to both: %q", name, d.Round, given)
			}
			d.Abort = &Abort{Reason: "a worker was lost"}
			m.Step(epoch, Heard{Directive: d})
			for i, l := range lefts {
				said := says(i, Aborted)
				said.Step, said.Clean = l.step, l.clean
				m.Step(epoch, said)
			}
		}
		for i := range 2 {
			if at := m.Process(i); at.Clean != row.clean || at.Step != row.step || at.Waiting != WaitsAborted {
				t.Errorf("%s: process %d stands so: %+v", name, i, at)
			}
		}
	}
}

// What a process has from before its world is said to be a state where it is of the history of that world, as far as is known here, or of the
// world that this worker was in before. Who passes through two worlds of which it gets nothing takes along what was of the history of the first.
func TestAnOlderStateIsOfTheHistory(t *testing.T) {
	type round struct{ number, parent, from, left uint64 } // left is the step after which the process leaves it
	for name, row := range map[string]struct {
		rounds []round
		want   bool
	}{
		"its own":                             {[]round{{1, 0, 0, 8}}, true},
		"of the world before":                 {[]round{{1, 0, 0, 8}, {2, 1, 9, 8}}, true},
		"through two":                         {[]round{{1, 0, 0, 8}, {2, 1, 9, 8}, {3, 2, 9, 8}}, true},
		"it was left out of one":              {[]round{{1, 0, 0, 8}, {3, 2, 9, 8}}, true}, // the operator knows whether it counts
		"it was left out of one, before":      {[]round{{1, 0, 0, 8}, {3, 2, 9, 8}, {4, 3, 9, 8}}, false},
		"it was left out of one twice":        {[]round{{1, 0, 0, 8}, {3, 2, 9, 8}, {5, 4, 9, 8}}, false},
		"it was left out, and got it then":    {[]round{{1, 0, 0, 8}, {3, 2, 9, 8}, {4, 3, 9, 9}}, true},
		"it was left out after it had nought": {[]round{{1, 0, 0, 8}, {2, 1, 9, 8}, {4, 3, 9, 8}}, true},
		"a newcomer":                          {[]round{{2, 1, 9, 0}}, false},
	} {
		m := New(epoch, DefaultLimits(30e9), Shape{Programs: 1, Processes: 1})
		m.Step(epoch, with(Heard{Directive: Directive{Term: 1}}, func(d *Directive) { d.Standby = true }))
		connected := says(0, Connected)
		connected.HandsOver = true
		m.Step(epoch, connected)
		m.Step(epoch, says(0, Joined))
		for i, r := range row.rounds {
			world := worldOf("b")
			world.Processes, world.Parent, world.FromStep = 1, r.parent, r.from
			world.Restore, world.Handover = r.from > 0, r.from > 0
			d := Directive{Term: 1, Round: r.number, World: world}
			if got := text(m.Step(epoch, Heard{Directive: d})); i > 0 && !strings.Contains(got, "give0") {
				t.Fatalf("%s: round %d is not given: %q", name, r.number, got)
			}
			d.Abort = &Abort{Reason: "a worker was lost"}
			m.Step(epoch, Heard{Directive: d})
			left := says(0, Aborted)
			left.Step, left.Clean = r.left, true
			m.Step(epoch, left)
		}
		if at := m.Process(0); at.Clean != row.want || at.Waiting != WaitsAborted {
			t.Errorf("%s: %+v, want a state: %v", name, at, row.want)
		}
	}
}
