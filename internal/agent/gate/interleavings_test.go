package gate

import (
	"fmt"
	"testing"
)

// TestEveryDelayAtTheGate plays every order in which the processes of a world, their agents and the operator
// can make their accesses while a barrier is armed. A process that is late at some point is one whose turn
// does not come there, so each point is delayed for as long as the others can do anything.
//
// What must hold: no step is made beyond what Arm has returned, a barrier takes at most one attempt more
// than there are processes, and every order ends with all processes parked after the same step.
func TestEveryDelayAtTheGate(t *testing.T) {
	for name, row := range map[string]struct {
		processes int
		// first is the step of the first attempt, ahead how many steps may be made before a process hears
		// of the barrier.
		first, ahead uint64
		// divided has other things happen in the middle of Arm.
		divided bool
		// once is true when nobody parks before the last attempt.
		once bool
	}{
		"one process":                     {processes: 1, first: 1, ahead: 3, divided: true},
		"two processes":                   {processes: 2, first: 1, ahead: 3},
		"two, ahead of them":              {processes: 2, first: 3, ahead: 2, once: true},
		"two, in the middle of Arm":       {processes: 2, first: 1, ahead: 3, divided: true},
		"two, before their first step":    {processes: 2, first: 0, ahead: 1, divided: true, once: true},
		"three processes":                 {processes: 3, first: 1, ahead: 2},
		"three, with the barrier far off": {processes: 3, first: 3, ahead: 1, once: true},
	} {
		t.Run(name, func(t *testing.T) {
			page, err := New(row.processes)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = page.Close() }()
			o := orders{t: t, page: page, ahead: row.ahead, divided: row.divided, seen: map[moment]bool{}}
			for i := range row.processes {
				slot, err := Open(page.File(), i)
				if err != nil {
					t.Fatal(err)
				}
				o.slots = append(o.slots, slot)
			}
			o.explore(moment{attempt: 1, step: row.first})
			for at := range points {
				if o.waitedFor[at] == 0 && (at != waking || !row.once) {
					t.Errorf("in none of %d states all the others wait for a process that is %s", len(o.seen), at)
				}
			}
		})
	}
}

// point is where a process is in the gate.
type point int

const (
	between   point = iota // before entered is stored
	announced              // between entered and the look at stop
	stepping               // after the look, before done is stored
	parking                // before it says that it is parked
	waking                 // told to go, before the look at stop
	points
	parked = points
)

func (p point) String() string {
	return [...]string{"before entered", "before its look", "in the step", "parking", "waking", "parked"}[p]
}

// most is the largest world of the test.
const most = 3

// worker is a process and what its agent knows.
type worker struct {
	// stop, entered, done and armed are what the page holds.
	stop, entered, done, armed uint64
	at                         point
	// attempt is the barrier that the agent was told of last, step where; waits is true once the process
	// has said that it is parked.
	attempt, step uint64
	waits         bool
	// arming is the next access of an Arm that is divided, 0 for none; begun what the last has read.
	arming int
	begun  uint64
	// told is what the operator was told last.
	told report
}

type report struct {
	attempt, stop uint64
	parked        bool
}

// moment is a state of everything.
type moment struct {
	workers [most]worker
	// attempt and step are the newest barrier.
	attempt, step uint64
}

// orders explores.
type orders struct {
	t         *testing.T
	page      *Page
	slots     []*Slot
	ahead     uint64
	divided   bool
	seen      map[moment]bool
	waitedFor [points]int
	path      []string
}

// explore plays all that can follow.
func (o *orders) explore(m moment) {
	if o.seen[m] {
		return
	}
	o.seen[m] = true
	processes, others, late := 0, 0, between
	for i := range o.slots {
		for _, who := range []struct {
			name string
			move func(*moment, int) bool
		}{{"process", o.process}, {"agent", o.agent}, {"operator hears", o.hear}} {
			next := m
			o.load(&next)
			if !who.move(&next, i) {
				continue
			}
			o.save(&next)
			if who.name == "process" {
				processes, late = processes+1, m.workers[i].at
			} else {
				others++
			}
			o.path = append(o.path, fmt.Sprintf("%s %d: %s", who.name, i, next.workers[i].at))
			o.explore(next)
			o.path = o.path[:len(o.path)-1]
		}
	}
	switch {
	case processes == 1 && others == 0:
		o.waitedFor[late]++
	case processes+others == 0:
		o.checkEnd(&m)
	}
}

// load writes a moment to the page, save reads it back.
func (o *orders) load(m *moment) {
	for i, slot := range o.slots {
		w := &m.workers[i]
		slot.mem.store(slot.stop, wordStop, w.stop)
		slot.mem.store(slot.line, wordEntered, w.entered)
		slot.mem.store(slot.line, wordDone, w.done)
		o.page.armed[i] = w.armed
	}
}

func (o *orders) save(m *moment) {
	for i, slot := range o.slots {
		w := &m.workers[i]
		w.stop = slot.Stop()
		w.entered, w.done = slot.mem.load(slot.line, wordEntered), slot.mem.load(slot.line, wordDone)
		w.armed = o.page.armed[i]
	}
}

// process makes the next access of a process. Those of Slot.Enter are made one by one.
func (o *orders) process(m *moment, i int) bool {
	w, slot := &m.workers[i], o.slots[i]
	k := w.done + 1
	switch w.at {
	case between:
		if w.armed == 0 && w.done >= o.ahead {
			return false // the barrier reaches it here
		}
		slot.mem.announce(slot.line, wordEntered, k)
		w.at = announced
	case announced:
		if stop := slot.Stop(); stop != 0 && stop < k {
			w.at = parking
			return true
		}
		if w.armed > 0 && k > w.armed {
			o.fail("process %d makes step %d, and Arm has returned %d", i, k, w.armed)
		}
		w.at = stepping
	case stepping:
		for j := range o.slots {
			other := &m.workers[j]
			if other.done < k && (other.at != stepping || other.done+1 != k) {
				return false // a step takes all ranks
			}
		}
		slot.Done(k, k)
		w.at = between
	case parking:
		w.at, w.waits = parked, true
		o.attend(w)
	case waking:
		w.at = between
		if stop := slot.Stop(); stop != 0 && stop <= w.done {
			w.at = parking
		}
	default:
		return false
	}
	return true
}

// agent takes the newest barrier, or goes on with Arm.
func (o *orders) agent(m *moment, i int) bool {
	w := &m.workers[i]
	switch {
	case w.arming > 0:
		o.arm(w, i)
	case w.attempt == m.attempt:
		return false
	case o.divided:
		w.attempt, w.step, w.arming = m.attempt, m.step, 1
		o.arm(w, i)
	default:
		w.attempt, w.step = m.attempt, m.step
		o.page.Arm(i, w.step)
		w.armed = o.page.armed[i]
	}
	o.attend(w)
	return true
}

// arm makes the next access of Arm; TestArmIsDividedTruly compares the two.
func (o *orders) arm(w *worker, i int) {
	mem, armed := o.page.mem, o.page.armed[i]
	switch w.arming {
	case 1:
		w.begun, w.arming = o.page.begun(i), 2
	case 2:
		w.begun = max(w.step, w.begun, armed, 1)
		mem.announce(agentLine(i), wordStop, w.begun)
		if w.arming = 3; armed > 0 {
			w.arming = 5
		}
	case 3:
		entered := mem.load(programLine(i), wordEntered)
		if w.arming = 5; entered > w.begun {
			w.begun, w.arming = entered, 4
		}
	case 4:
		mem.announce(agentLine(i), wordStop, w.begun)
		w.arming = 5
	}
	if w.arming == 5 {
		o.page.armed[i], w.armed = w.begun, w.begun
		w.arming, w.begun = 0, 0
	}
}

// TestArmIsDividedTruly compares the accesses of arm with Page.Arm, when nothing happens between them.
func TestArmIsDividedTruly(t *testing.T) {
	page, err := New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = page.Close() }()
	slot, err := Open(page.File(), 0)
	if err != nil {
		t.Fatal(err)
	}
	o := orders{t: t, page: page, slots: []*Slot{slot}}
	for i := range 4 * 4 * 4 {
		w := worker{entered: uint64(i % 4), armed: uint64(i / 4 % 4), step: uint64(i / 16), arming: 1}
		w.stop = w.armed
		m := moment{workers: [most]worker{w}}
		o.load(&m)
		page.Arm(0, w.step)
		want := m
		o.save(&want)
		o.load(&m)
		for m.workers[0].arming > 0 {
			o.arm(&m.workers[0], 0)
		}
		o.save(&m)
		if got, want := m.workers[0], want.workers[0]; got.stop != want.stop || got.armed != want.armed {
			t.Errorf("%+v: stop %d, armed %d; Arm makes it %d, %d", w, got.stop, got.armed, want.stop, want.armed)
		}
	}
}

// attend lets a process go on that is parked before the barrier, as the agent does after each event.
func (o *orders) attend(w *worker) {
	if w.waits && w.arming == 0 && w.done < w.armed {
		w.waits, w.at = false, waking
	}
}

// hear tells the operator what is new of a process. It raises the barrier to where one stops.
func (o *orders) hear(m *moment, i int) bool {
	w := &m.workers[i]
	if w.arming > 0 {
		return false
	}
	now := report{attempt: w.attempt, stop: w.armed, parked: w.waits}
	if entered := o.page.Progress(i).Entered; w.armed > 0 && entered > w.armed {
		o.fail("process %d is reported to have begun step %d, and Arm has returned %d", i, entered, w.armed)
	}
	if now == w.told {
		return false
	}
	w.told = now
	if now.stop <= m.step {
		return true
	}
	m.attempt, m.step = m.attempt+1, now.stop
	if m.attempt > uint64(len(o.slots))+1 {
		o.fail("the barrier is raised to step %d in attempt %d", m.step, m.attempt)
	}
	return true
}

// checkEnd checks a moment after which nothing moves.
func (o *orders) checkEnd(m *moment) {
	for i := range o.slots {
		w := &m.workers[i]
		if want := (report{m.attempt, m.step, true}); w.at != parked || w.done != m.step || w.told != want {
			o.fail("nothing moves, and process %d is %s with %d steps done: %+v; the barrier is at step %d",
				i, w.at, w.done, w.told, m.step)
		}
	}
}

func (o *orders) fail(format string, args ...any) {
	for _, line := range o.path {
		o.t.Log(line)
	}
	o.t.Fatalf(format, args...)
}
