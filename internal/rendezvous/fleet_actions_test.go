package rendezvous

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"
)

func (f *fleet) pick() *modelLeader {
	if len(f.leaders) == 0 {
		f.newLeader()
	}
	return f.leaders[rapid.SampledFrom(slices.Sorted(maps.Keys(f.leaders))).Draw(f.draws, "leader")]
}

// pickPod picks one that lives.
func (f *fleet) pickPod() *pod {
	alive := slices.DeleteFunc(f.uids(), func(uid string) bool { return f.pods[uid].dead })
	if len(alive) == 0 {
		f.t.Skip("nobody lives")
	}
	return f.pods[rapid.SampledFrom(alive).Draw(f.draws, "pod")]
}

func (f *fleet) newLeader() {
	if len(f.leaders) >= 2 {
		return
	}
	f.born++
	l := &modelLeader{id: f.born, machine: NewMachine(10*time.Second, fmt.Sprint("leader ", f.born))}
	f.leaders[l.id] = l
	_ = f.handle(l, GangExpected{f.gang()})
}

func (f *fleet) killLeader() {
	l := f.pick()
	f.kill(l)
}

func (f *fleet) kill(l *modelLeader) {
	delete(f.leaders, l.id)
	if l.writing != nil && l.result == nil {
		f.late = append(f.late, lateWrite{l.id, *l.writing})
	}
	for _, uid := range f.uids() {
		f.drop(f.pods[uid], l)
	}
}

// nobodyLeads has all operators go away for longer than a hold lasts, and the world train on.
func (f *fleet) nobodyLeads() {
	for _, id := range slices.Sorted(maps.Keys(f.leaders)) {
		f.kill(f.leaders[id])
	}
	for range holdTime/time.Second + 1 {
		f.pass(time.Second)
		for _, uid := range f.uids() {
			f.move(f.pods[uid])
		}
	}
	for _, uid := range f.uids() {
		if p := f.pods[uid]; !p.dead && !p.left && !p.process.still && p.process.runs && p.process.waiting == waitingParked {
			f.t.Fatalf("nobody leads, and it stands at the barrier: %s", &p.worker)
		}
	}
}

func (f *fleet) tellGang() { _ = f.handle(f.pick(), GangExpected{f.gang()}) }

// addPod makes a worker. Every leader knows it before it can be in a world: a gang names all pods of the
// attempt that may run.
func (f *fleet) addPod() {
	if len(f.pods) >= 7 {
		return
	}
	f.makePod()
	for _, id := range slices.Sorted(maps.Keys(f.leaders)) {
		_ = f.handle(f.leaders[id], GangExpected{f.gang()})
	}
}

func (f *fleet) leave() {
	p := f.pickPod()
	p.want.Leaving = ReasonScaledDown
	if rapid.Bool().Draw(f.draws, "hurry") {
		p.want.LeaveBy = f.now.Add(30 * time.Second)
	}
}

// killPod ends the processes of a worker, without a word.
func (f *fleet) killPod() { f.end(f.pickPod()) }

func (f *fleet) end(p *pod) {
	p.dead = true
	if p.leader != nil {
		f.drop(p, p.leader)
	}
}

// notice has the controller learn what has become of pods.
func (f *fleet) notice() {
	for _, uid := range f.uids() {
		p := f.pods[uid]
		switch {
		case !p.dead && p.released && (p.want.Leaving != "" || p.left):
			f.end(p) // it was deleted
		case !p.dead && !p.want.LeaveBy.IsZero() && f.now.After(p.want.LeaveBy):
			f.end(p) // it was killed
		case p.dead && p.want.Lost == "":
			p.want.Lost, p.want.Ended = "it has ended", true
		case p.dead:
			delete(f.pods, uid)
		}
	}
}

// suspect has the controller take a worker for lost that may live.
func (f *fleet) suspect() {
	if p := f.pickPod(); p.want.Lost == "" {
		p.want.Lost = "its node does not answer"
	}
}

// standStill freezes a process, or lets it go on.
func (f *fleet) standStill() {
	p := f.pickPod()
	if p.process.still {
		p.wake()
		return
	}
	p.process.still = true
}

func (f *fleet) failProgram() {
	if p := f.pickPod(); p.trains() && !p.process.still {
		p.fail(rapid.SampledFrom([]string{"ValueError: bad", "connection reset by peer"}).Draw(f.draws, "fault"))
	}
}

func (f *fleet) exitProgram() {
	if p := f.pickPod(); p.in().Round > 0 && rapid.IntRange(0, 3).Draw(f.draws, "exits") == 0 {
		p.exits(1)
	}
}

func (f *fleet) snapshot() {
	if p := f.pickPod(); p.trains() && !p.process.still && !p.process.stepping {
		p.save()
	}
}
