package controller

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// whenParked does something in the moment in which all processes stand at a barrier.
func (t *simTraining) whenParked(what func()) {
	for _, pod := range t.workers() {
		if a := t.agents[pod.UID]; a.process.round > 0 && a.process.waiting != lifecycle.WaitsParked {
			t.after(time.Millisecond, func() { t.whenParked(what) })
			return
		}
	}
	what()
}

// outage has the API server answer nobody for two minutes, from the moment in which a world stands that is to grow.
func (t *simTraining) outage() {
	defer t.stop()
	const lasts = 2 * time.Minute
	t.step, t.lastStep, t.memoryInterval = 500*time.Millisecond, 1000, 20
	t.do(func() { t.begin(2, 2) })
	if !t.await(5*time.Minute, "the gang trains", t.trainsWith(2)) {
		return
	}
	parked := 0
	t.do(func() {
		t.scale(3)
		t.whenParked(func() {
			t.say("the API server answers nobody for %s", lasts)
			t.silent, parked = true, len(t.history.committed)
			t.after(lasts, func() { t.silent = false })
		})
	})
	if !t.await(5*time.Minute, "the world stands", func() bool { return t.silent }) || !t.pass(lasts-10*time.Second, nil) {
		return
	}
	t.do(func() {
		if made := len(t.history.committed) - parked; time.Duration(made)*t.step < lasts*3/4 {
			t.fail("promise 8: %d steps of %s were made in %s without the API server", made, t.step, lasts)
		}
	})
	if !t.await(10*time.Minute, "it grows", t.trainsWith(3)) || !t.await(time.Hour, "the job completes", t.complete) {
		return
	}
	t.do(func() {
		if t.restarts() > 0 || t.history.again > 0 {
			t.fail("%d restarts are counted, and %d steps were made again", t.restarts(), t.history.again)
		}
	})
}

// TestAWorldThatStandsOutlivesTheAPIServer: it trains on after the hold, and grows once somebody answers; nothing is lost.
func TestAWorldThatStandsOutlivesTheAPIServer(t *testing.T) {
	for seed := range uint64(2) {
		synctest.Test(t, func(t *testing.T) { newSimTraining(t, 100+seed).outage() })
	}
}

// aloneOn is the agent of a worker that shares its node with no other.
func (t *simTraining) aloneOn() *simAgent {
	on := map[string]int{}
	for _, pod := range t.workers() {
		on[pod.Spec.NodeName]++
	}
	for _, pod := range t.workers() {
		if on[pod.Spec.NodeName] == 1 {
			return t.agents[pod.UID]
		}
	}
	t.fail("no worker is alone on its node")
	return nil
}

// simPartition is how a node is cut off, for how long, and whether its worker is lost by that, or its world stands still.
type simPartition struct {
	fromOperators, toOperators, fromPeers bool
	lasts                                 time.Duration
	lost, stands                          bool
}

// simMoment is for how long a node may be cut off from everybody, at whatever moment, without its worker being missed: nothing is heard of
// it for a beat longer than that at most, and that is less than heartbeatTimeout (5 s). Were it a second more, its agent would hang up while
// there is nobody to reach, look for an operator less and less often, and might be back too late.
const simMoment = 3 * time.Second

// ways are those who are kept apart.
func (t *simTraining) ways(c simPartition) []map[string]bool {
	var ways []map[string]bool
	for way, cut := range map[*map[string]bool]bool{&t.deaf: c.fromOperators, &t.mute: c.toOperators, &t.alone: c.fromPeers} {
		if cut {
			ways = append(ways, *way)
		}
	}
	return ways
}

// partition has a node cut off in the middle of a step of 30 s.
func (t *simTraining) partition(c simPartition) {
	defer t.stop()
	t.step, t.lastStep, t.memoryInterval = 30*time.Second, 40, 5
	t.do(func() { t.begin(2, 3) })
	if !t.await(10*time.Minute, "the gang trains", t.trainsWith(3)) || !t.pass(3*time.Minute+10*time.Second, nil) {
		return
	}
	var round uint64
	made := 0
	t.do(func() {
		round, made = t.history.record.Round, len(t.history.committed)
		if a := t.aloneOn(); a != nil {
			t.cutFor(c.lasts, a.pod.Spec.NodeName, "is cut off", t.ways(c)...)
		}
	})
	if c.lost && !t.await(c.lasts, "the others go on without it", t.trainsWith(2)) || !t.pass(c.lasts+time.Minute, nil) {
		return
	}
	t.do(func() {
		made = len(t.history.committed) - made
		switch {
		case c.lost:
		case t.history.record.Round != round || t.restarts() > 0:
			t.fail("promise 9: %d restarts are counted, round %d has become round %d, and nobody was lost", t.restarts(), round, t.history.record.Round)
		case !c.stands && time.Duration(made+2)*t.step*5/4 < c.lasts:
			t.fail("promise 8: %d steps of %s were made in %s", made, t.step, c.lasts)
		}
	})
	if !t.await(3*time.Hour, "the job completes", t.complete) {
		return
	}
	t.do(func() {
		if n := uint64(len(t.history.committed)); n != t.lastStep || t.history.again > 1 {
			t.fail("the job is complete after %d steps of %d, and %d were made again", n, t.lastStep, t.history.again)
		}
		if program := value(t.now().Status.Restarts.Program); program > 0 {
			t.fail("promise 9: %d restarts are the program's", program)
		}
	})
}

// TestLongStepsOutlivePartitions: a step takes 30 s, so nobody says anything of a world for longer than anybody waits for
// a word. Who reaches its peers trains on; who reaches nobody is left behind, and takes nothing along but the step under way.
func TestLongStepsOutlivePartitions(t *testing.T) {
	for name, c := range map[string]simPartition{
		"from the operators":                  {lasts: 4 * time.Minute, fromOperators: true, toOperators: true},
		"it hears them, and is not heard":     {lasts: 4 * time.Minute, toOperators: true},
		"it is heard, and does not hear them": {lasts: 4 * time.Minute, fromOperators: true},
		"from the other nodes, for a moment":  {lasts: 20 * time.Second, fromPeers: true, stands: true},
		"from everybody, for a moment":        {lasts: simMoment, fromOperators: true, toOperators: true, fromPeers: true, stands: true},
		"from everybody, for long":            {lasts: 10 * time.Minute, fromOperators: true, toOperators: true, fromPeers: true, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(2) {
				synctest.Test(t, func(t *testing.T) { newSimTraining(t, 200+seed).partition(c) })
			}
		})
	}
}
