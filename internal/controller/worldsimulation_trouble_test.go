package controller

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// live has one job go through random trouble, and come to its end when there is no more.
func (t *simTraining) live() {
	defer t.finish()
	var chaos time.Duration
	t.do(func() {
		t.step = pickOne(t.fleetSim, 10*time.Millisecond, 100*time.Millisecond, 500*time.Millisecond, 3*time.Second, 30*time.Second, 10*time.Minute)
		chaos = min(max(300*t.step, 40*time.Second), max(10*time.Minute, 15*t.step))
		t.lastStep, t.memoryInterval = uint64(chaos/t.step)+uint64(t.dice.IntN(50)), uint64(1+t.dice.IntN(20))
		least := int32(1 + t.dice.IntN(3))
		t.timeless = t.chance(0.5)
		t.spares = max(0, int32(t.dice.IntN(5))-2)
		t.say("steps of %s, %d of them, %d spares, trouble for %s", t.step, t.lastStep, t.spares, chaos)
		t.begin(least, least+int32(t.dice.IntN(3)))
	})
	if !t.await(5*time.Minute, "the gang trains", func() bool { return t.history.stepped > 0 || t.history.record.Round > 0 && t.step > time.Minute }) {
		return
	}
	t.do(func() { t.chaos = true; t.troubles(chaos / 15) })
	if !t.pass(chaos, t.complete) {
		return
	}
	t.do(t.calm)
	if !t.await(2*time.Hour+4*time.Duration(t.lastStep)*t.step, "the job completes", t.complete) {
		return
	}
	t.do(t.checkEnd)
}

// finish ends everything.
func (t *simTraining) finish() {
	t.do(t.retire)
	t.stop()
}

// checkEnd: promise 9, what was planned counts as no failure, and what the infrastructure did is not the program's.
func (t *simTraining) checkEnd() {
	status := t.now().Status
	if n := int(value(status.Restarts.Program)); n > t.faults {
		t.fail("promise 9: %d restarts are the program's, which has failed %d times", n, t.faults)
	}
	if t.restarts() > 0 && t.harms == 0 {
		t.fail("promise 9: %d restarts are counted, and nobody was harmed", t.restarts())
	}
	writes, unclear, err := t.history.writes.Check()
	if err != nil {
		t.fail("the record: %v", err)
	}
	t.counts["writes of the record"] += writes
	t.counts["unclear writes of it"] += unclear
	if n := uint64(len(t.history.committed)); n != t.lastStep {
		t.fail("promise 5: the job is complete after %d steps of %d", n, t.lastStep)
	}
}

// calm ends all trouble.
func (t *simTraining) calm() {
	t.calmDown()
	t.silent = false
	clear(t.mute)
	clear(t.deaf)
	clear(t.alone)
	for _, pod := range t.workers() {
		t.agents[pod.UID].wake()
	}
	t.retire()
	t.exchangeAll()
	if len(t.server.nodes()) < 3 {
		t.after(time.Minute, t.mendNodes)
	}
}

func (t *simTraining) mendNodes() {
	for _, name := range []string{"node-0", "node-1", "node-2"} {
		if t.server.create(nodeCalled(name, "2")) != nil {
			continue // it is there
		}
		for _, pod := range t.server.pods() {
			if a := t.agents[pod.UID]; a != nil && a.ended && pod.Spec.NodeName == name {
				t.kubelets.exitBy(pod, 137, "ContainerStatusUnknown") // its kubelet is back, and finds no container
			}
		}
	}
}

// exchangeAll has steps go on that waited for the network.
func (t *simTraining) exchangeAll() {
	for _, pod := range t.workers() {
		if p := &t.agents[pod.UID].process; p.trains() && p.given {
			t.exchange(p.round, p.done+1)
		}
	}
}

func (t *simTraining) troubles(every time.Duration) {
	if !t.chaos {
		return
	}
	t.trouble()
	t.after(t.span(every/20, 3*every), func() { t.troubles(every) })
}

// trouble has one thing go wrong, or somebody change his mind.
func (t *simTraining) trouble() {
	workers := t.workers()
	if len(workers) == 0 {
		return
	}
	pod := pickOne(t.fleetSim, workers...)
	a := t.agents[pod.UID]
	switch t.dice.IntN(18) {
	case 0, 1, 2:
		t.scale(value(t.now().Spec.Workers.Min) + int32(t.dice.IntN(4)))
	case 3:
		t.crash()
	case 4:
		t.counts["long absences"]++
		t.say("the operator ends for long")
		t.stopOperator()
		t.after(t.span(10*time.Second, 3*time.Minute), t.takeOver)
	case 5:
		t.secondLeader()
	case 6:
		t.harm(0, "%s ends without a word", pod.Name)
		t.faults++ // nobody knows who has killed it
		t.kubelets.exit(pod, 137)
	case 7:
		t.harm(2*time.Minute, "somebody deletes %s", pod.Name)
		_ = t.server.delete(pod, nil)
	case 8:
		t.failProgram(a)
	case 9:
		t.standStill(a)
	case 10:
		t.cut(pod.Spec.NodeName, "neither hears the operators nor is heard by them", t.mute, t.deaf)
	case 11:
		t.cut(pod.Spec.NodeName, "does not reach the other nodes", t.alone)
	case 12:
		t.silence()
	case 13:
		t.loseANode(pod.Spec.NodeName)
	case 14:
		t.setClock(pickOne(t.fleetSim, slices.Sorted(maps.Keys(t.clocks))...))
	case 15:
		t.cut(pod.Spec.NodeName, "hears the operators, and is not heard by them", t.mute)
	case 16:
		t.cut(pod.Spec.NodeName, "is heard by the operators, and does not hear them", t.deaf)
	case 17:
		t.hearSome(workers)
	}
}

// hearSome has the operator end, and the next one hear some of the nodes first, and the others later: within a moment, or long after
// agents should have found it. One of the workers may end before it leads.
func (t *simTraining) hearSome(workers []*corev1.Pod) {
	t.counts["heard first"]++
	nodes := map[string]bool{}
	for _, pod := range workers {
		nodes[pod.Spec.NodeName] = true
	}
	d := pickOne(t.fleetSim, t.span(time.Second, 7*time.Second), t.span(20*time.Second, 40*time.Second))
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		if t.chance(0.6) {
			t.cutFor(d, node, "finds the next operator late", t.mute, t.deaf)
		}
	}
	if t.chance(0.4) {
		pod := pickOne(t.fleetSim, workers...)
		t.harm(0, "%s ends while nobody leads", pod.Name)
		t.faults++
		t.kubelets.exit(pod, 137)
	}
	t.crash()
}

// secondLeader has another operator begin to lead, while the first does not know it: its rendezvous speaks on.
func (t *simTraining) secondLeader() {
	if t.older != nil || t.operator.dead {
		return
	}
	t.counts["second leaders"]++
	t.say("another operator begins to lead")
	t.older = t.operator
	t.older.queue.ShutDown()
	t.startOperator()
	t.after(t.span(time.Second, 40*time.Second), t.retire)
}

func (t *simTraining) retire() {
	if t.older != nil {
		t.say("operator %d ends", t.older.number)
		if !t.older.dead {
			t.older.stop()
		}
		t.older = nil
	}
}

func (t *simTraining) failProgram(a *simAgent) {
	if !a.process.trains() || a.process.still {
		return
	}
	t.faults++
	if t.chance(0.5) {
		t.harm(0, "the program of %s raises", a.pod.Name)
		a.fail("ValueError: bad")
		return
	}
	t.harm(0, "the program of %s ends", a.pod.Name)
	a.exit(1)
}

// standStill freezes a process for a while.
func (t *simTraining) standStill(a *simAgent) {
	d := t.span(100*time.Millisecond, 5*time.Minute)
	t.harm(d+time.Minute, "the process of %s stands still for %s", a.pod.Name, d)
	a.process.still = true
	t.faults++
	t.after(d, a.wake)
}

// cut has a node reach some others no more, for a while, in both directions or in one.
func (t *simTraining) cut(node, how string, ways ...map[string]bool) {
	t.faults++
	t.cutFor(t.span(100*time.Millisecond, 2*time.Minute), node, how, ways...)
}

func (t *simTraining) cutFor(d time.Duration, node, how string, ways ...map[string]bool) {
	t.harm(d+time.Minute, "node %s %s, for %s", node, how, d)
	for _, way := range ways {
		way[node] = true
	}
	t.after(d, func() {
		for _, way := range ways {
			delete(way, node)
		}
		t.exchangeAll()
	})
}

// silence has the API server answer nobody for a while: promise 8, the world trains on.
func (t *simTraining) silence() {
	if t.silent {
		return
	}
	d := t.span(time.Second, 3*time.Minute)
	t.counts["API server silent"]++
	t.say("the API server answers nobody for %s", d)
	t.silent = true
	t.after(d, func() { t.silent = false })
}

func (t *simTraining) isSilent() bool { return t != nil && t.silent }

func (t *simTraining) loseANode(name string) {
	for _, node := range t.server.nodes() {
		if node.Name == name {
			t.harm(time.Minute, "node %s is lost", name)
			t.loseNode(node)
			t.after(t.span(time.Second, time.Minute), t.mendNodes)
		}
	}
}
