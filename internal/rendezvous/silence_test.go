package rendezvous

import (
	"fmt"
	"time"
)

// long has a world of so many workers, each on a node of its own, make steps of 30 s.
func (f *fleet) long(pods int) *modelLeader {
	f.target, f.hang = int32(pods), 10*time.Minute
	l := f.training(pods)
	for _, uid := range f.uids() {
		f.pods[uid].stepTime = 30 * time.Second
		f.tellState(f.pods[uid])
	}
	return l
}

// lasts has so many seconds pass in which no step is made, and says after how many the first worker was lost; 0 when
// none was.
func (f *fleet) lasts(l *modelLeader, seconds int) int {
	for i := range seconds {
		f.slow(l, "", 1)
		if len(l.machine.losses) > 0 {
			return i + 1
		}
	}
	return 0
}

// longStepUnheard: the world trains on, and the operator says that it does not hear the worker. Then it does again.
func longStepUnheard(f *fleet) string {
	l := f.long(3)
	f.cut(f.pods["p02"], false)
	f.drop(f.pods["p02"], l)
	f.slow(l, "", 100)
	if seen := l.machine.Observe(f.now).Members["p02"]; !seen.CutOff || seen.Silent || seen.Witnesses == "" {
		return fmt.Sprintf("it is observed as %+v", seen)
	}
	before := f.done[1]
	f.turns(l, 10)
	f.pods["p02"].unheard = false
	f.turns(l, 2)
	switch seen := l.machine.Observe(f.now).Members["p02"]; {
	case f.done[1] <= before:
		return "the world makes no steps"
	case seen.CutOff || !seen.Connected:
		return fmt.Sprintf("it is heard again, and observed as %+v", seen)
	}
	return f.losses(l)
}

// longStepApart: two peers on other nodes say so, and the others go on without waiting for the end of a step.
func longStepApart(f *fleet) string {
	l := f.long(3)
	f.cut(f.pods["p02"], true)
	if after := f.lasts(l, 60); after < 5 || after > 7 {
		return fmt.Sprintf("it is lost after %d s", after)
	}
	f.turns(l, 30)
	if w := l.machine.world; w == nil || w.record.Workers != 2 || f.done[w.record.Round] <= w.record.FromStep {
		return fmt.Sprintf("the others do not go on: %+v", f.record)
	}
	return ""
}

// apartFromOne: the only peer may lie, and the world may be in the middle of a step.
func apartFromOne(f *fleet) string {
	l := f.long(2)
	f.cut(f.pods["p01"], true)
	if after := f.lasts(l, 120); after < 90 || after > 95 {
		return fmt.Sprintf("it is lost after %d s", after)
	}
	return ""
}

// apartSomewhere: all that there are are asked.
func apartSomewhere(f *fleet) string {
	l := f.long(3)
	for _, uid := range f.uids() {
		f.pods[uid].want.Node = ""
	}
	_ = f.handle(l, GangExpected{f.gang()})
	f.cut(f.pods["p02"], true)
	if after := f.lasts(l, 120); after < 90 || after > 95 {
		return fmt.Sprintf("it is lost after %d s", after)
	}
	return ""
}

// frozenNode: two workers on one node stop, and their sessions stay.
func frozenNode(f *fleet) string {
	l := f.long(6)
	f.pods["p02"].frozen, f.pods["p05"].frozen = true, true
	if after := f.lasts(l, 60); after < 5 || after > 7 {
		return fmt.Sprintf("the first is lost after %d s", after)
	}
	if len(l.machine.losses) != 2 {
		return fmt.Sprintf("%d are lost", len(l.machine.losses))
	}
	return ""
}

// notReadyAndReached: the cluster and its operator do not hear the node, and its peers do.
func notReadyAndReached(f *fleet) string {
	l := f.long(3)
	f.cut(f.pods["p02"], false)
	f.pods["p02"].want.NodeNotReady = true
	_ = f.handle(l, GangExpected{f.gang()})
	f.slow(l, "", 200)
	return f.losses(l)
}

// notReady: no agent knows probes.
func notReady(f *fleet) string {
	l := f.long(3)
	for _, uid := range f.uids() {
		f.pods[uid].reach = nil
	}
	f.pods["p02"].frozen, f.pods["p02"].want.NodeNotReady = true, true
	_ = f.handle(l, GangExpected{f.gang()})
	if after := f.lasts(l, 120); after < 90 || after > 95 {
		return fmt.Sprintf("it is lost after %d s", after)
	}
	return ""
}

// liar: one of two peers says that it cannot reach the worker that the operator does not hear.
func liar(f *fleet) string {
	l := f.long(3)
	f.liar = "p00"
	f.cut(f.pods["p02"], false)
	f.slow(l, "", 100)
	return f.losses(l)
}

// unproved: nobody knows anything, until the world counts as hung.
func unproved(f *fleet) string {
	l := f.long(3)
	for _, uid := range f.uids() {
		f.pods[uid].reach = nil
	}
	f.pods["p02"].frozen = true
	if after := f.lasts(l, 700); after < 600 || after > 605 {
		return fmt.Sprintf("it is lost after %d s", after)
	}
	return ""
}
