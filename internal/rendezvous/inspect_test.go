package rendezvous

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Who asks in the middle of a change finds what it waits for.
func TestInspectionSaysWhatAChangeWaitsFor(t *testing.T) {
	f, l := parkedPair(t)
	in := l.machine.Inspect(f.now)
	if in.Phase != PhaseResizing || in.Stage != StageRecord || in.Waits != "the record of round 2 is being written" || !strings.Contains(in.Why, "joined by p02") {
		t.Errorf("it is %s, in stage %s: %s (%s)", in.Phase, in.Stage, in.Waits, in.Why)
	}
	if w := in.Write; w == nil || !w.Asked || w.Round != 2 || w.Term != in.Term {
		t.Errorf("the write is %+v", w)
	}
	if b := in.Barrier; b == nil || !b.Arrived || b.Attempt == 0 || b.Step == 0 || b.Hold == 0 || b.OldestHold.IsZero() {
		t.Errorf("the barrier is %+v", b)
	}
	if w := in.World; w == nil || w.Round != 1 || w.Workers != 2 || w.Entered != 2 || w.Step != in.Barrier.Step {
		t.Errorf("the world is %+v", w)
	}
	if c := in.Count; c.Expected != 3 || c.Connected != 3 || c.InWorld != 2 || c.Standby != 1 || c.Awaited != 0 {
		t.Errorf("the members are %+v", c)
	}
	for _, one := range in.Members {
		if stands := one.Waiting == "parked" && one.Barrier == in.Barrier.Attempt && one.Done == in.Barrier.Step; stands != one.InWorld || one.LastSeen.IsZero() {
			t.Errorf("%s is %+v", one.Name, one)
		}
	}

	// One is let go: the change waits for it.
	p := f.pods["p01"]
	report := l.machine.members["p01"].report
	report.Processes = []Process{report.Processes[0]}
	report.Processes[0].Waiting = waitingNone
	l.machine.Absorb(f.now, AgentReported{UID: p.uid, Report: report})
	l.machine.writing, l.machine.change.arrived = nil, false
	in = l.machine.Inspect(f.now)
	if want := fmt.Sprintf("not all processes stand after step %d: waits for p01", in.Barrier.Step); in.Stage != StageBarrier || in.Waits != want {
		t.Errorf("in stage %s: %q, want %q", in.Stage, in.Waits, want)
	}
	if in.Count.Awaited != 1 || in.Members[0].Name != "p01" || !in.Members[0].Awaited {
		t.Errorf("%d are awaited, and the first is %+v", in.Count.Awaited, in.Members[0])
	}
}

// A first world waits for whoever is not ready.
func TestInspectionOfAJobWithoutAWorld(t *testing.T) {
	m := NewMachine(time.Second, "one")
	now := time.Unix(1000, 0)
	m.Handle(now, GangExpected{Gang{JobUID: "uid", Attempt: 1, Members: []Member{{UID: "a", Name: "digits-0"}, {UID: "b", Name: "digits-1", Starting: true}}}})
	if in := m.Inspect(now); in.Waits != "the first world waits for digits-0" || in.World != nil || in.Count.Expected != 2 || in.Phase != PhaseForming {
		t.Errorf("it says %+v", in)
	}
}

// The largest job has a page that a person can read.
func TestInspectionIsBounded(t *testing.T) {
	m := NewMachine(time.Second, "one")
	now := time.Unix(1000, 0)
	gang := Gang{JobUID: "uid", Attempt: 1}
	for i := range MaxWorkers {
		gang.Members = append(gang.Members, Member{UID: fmt.Sprintf("uid-%d", i), Name: fmt.Sprintf("digits-1-%d", i), Node: fmt.Sprintf("node-%d", i)})
	}
	m.Handle(now, GangExpected{gang})
	for range maxLosses {
		m.addLoss(Loss{UID: "uid-1", Name: "digits-1-1", Message: strings.Repeat("long\n", 1<<12), At: now})
	}
	in := m.Inspect(now)
	text, err := json.Marshal(in)
	if err != nil || len(text) > 128<<10 {
		t.Errorf("the page has %d bytes, %v", len(text), err)
	}
	if len(in.Members) != maxShown || in.NotShown != MaxWorkers-maxShown || in.Count.Expected != MaxWorkers || len(in.Waits) > 200 {
		t.Errorf("%d members are shown, %d are not; %s", len(in.Members), in.NotShown, in.Waits)
	}
}

func BenchmarkLookAt10000(b *testing.B) {
	m := NewMachine(time.Second, "one")
	now := time.Unix(1000, 0)
	gang := Gang{JobUID: "uid", Attempt: 1}
	for i := range MaxWorkers {
		gang.Members = append(gang.Members, Member{UID: fmt.Sprintf("uid-%d", i), Name: fmt.Sprintf("digits-1-%d", i)})
	}
	m.Handle(now, GangExpected{gang})
	m.Handle(now, RecordAnswered{Found: m.writing.Next, Secret: []byte{1}})
	for i := range gang.Members {
		m.Absorb(now, AgentJoined{UID: gang.Members[i].UID, Attempt: 1, Endpoint: Endpoint{"10.0.0.1", 1}, Report: Report{Term: 1, Standby: true, Processes: []Process{{Elastic: true, Waiting: waitingJoin}}}})
	}
	m.Settled(now)
	m.Handle(now, RecordAnswered{Found: m.writing.Next})
	b.Run("glance", func(b *testing.B) {
		for b.Loop() {
			m.Glance()
		}
	})
	b.Run("underway", func(b *testing.B) {
		for b.Loop() {
			m.Underway()
		}
	})
	b.Run("observe", func(b *testing.B) {
		for b.Loop() {
			m.Observe(now)
		}
	})
	b.Run("inspect", func(b *testing.B) {
		for b.Loop() {
			m.Inspect(now)
		}
	})
}
