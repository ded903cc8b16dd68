package rendezvous

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// brokenWorld is a machine whose world of two workers a and b, each with two processes, everybody has left. Of each
// process it is given the step that its state is of; -1 says that it is not clean.
func brokenWorld(steps map[string][]int) (*Machine, *plan) {
	m := NewMachine(0, "leader")
	m.gang = Gang{Minimum: 1, Target: 4, ProcessesPerWorker: 2, BarrierTimeout: time.Minute}
	p := &plan{}
	for _, uid := range slices.Sorted(maps.Keys(steps)) {
		want := Member{UID: uid, Name: uid}
		r := Report{Round: 1, Out: true}
		for _, step := range steps[uid] {
			one := Process{Waiting: WaitingAborted, Done: uint64(max(step, 7)), Clean: step >= 0, CleanStep: uint64(max(step, 0))}
			r.Processes = append(r.Processes, one)
		}
		m.members[uid] = &member{want: want, connected: true, report: r}
		p.members = append(p.members, want)
	}
	m.world = &world{record: Record{Round: 1}, ranks: newRankTable(assignRanks(nil, p.members)), parted: map[string]parting{}}
	m.broken = &recovery{failed: map[string]bool{}}
	return m, p
}

// A worker keeps its state only if all of its processes have it; one of them is enough to give it away.
func TestWorkersOfTwoProcesses(t *testing.T) {
	for name, row := range map[string]struct {
		steps   map[string][]int
		keep    []string
		step    uint64
		saver   string
		without bool
	}{
		"all have the same":           {steps: map[string][]int{"a": {8, 8}, "b": {8, 8}}, keep: []string{"a", "b"}, step: 8},
		"one process is ahead":        {steps: map[string][]int{"a": {7, 7}, "b": {7, 8}}, step: 8, saver: "b"},
		"one worker is ahead":         {steps: map[string][]int{"a": {8, 8}, "b": {7, 7}}, keep: []string{"a"}, step: 8, saver: "a"},
		"one process is not clean":    {steps: map[string][]int{"a": {7, -1}, "b": {7, 7}}, keep: []string{"b"}, step: 7, saver: "a"},
		"nobody is clean":             {steps: map[string][]int{"a": {-1, -1}, "b": {-1, -1}}, without: true},
		"before the first step":       {steps: map[string][]int{"a": {-1, -1}, "b": {0, 0}}, without: true},
		"one process was never heard": {steps: map[string][]int{"a": {7}, "b": {7, 7}}, keep: []string{"b"}, step: 7, saver: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			m, p := brokenWorld(row.steps)
			next, serves := m.goOnLive(time.Unix(1e9, 0), p)
			if serves == row.without {
				t.Fatalf("live state serves: %v", serves)
			}
			if row.without {
				return
			}
			if got := m.broken.saver; got != row.saver || (next == nil) != (row.saver != "") {
				t.Errorf("%q is asked to save, want %q; the plan is %v", got, row.saver, next)
			}
			if keep := slices.Sorted(maps.Keys(p.live)); p.fromStep != row.step || !slices.Equal(keep, row.keep) {
				t.Errorf("%v go on after step %d, want %v after step %d", keep, p.fromStep, row.keep, row.step)
			}
		})
	}
}

// Who gives the state over the links of the next world is a worker all of whose processes have it, and all the processes of another one get it
// from such, also those that have it.
func TestOnlyAWholeWorkerHandsItsStateOver(t *testing.T) {
	for name, row := range map[string]struct {
		steps map[string][]int
		gives []string
		step  uint64
	}{
		"one process is not clean":       {map[string][]int{"a": {8, 8}, "b": {8, -1}}, []string{"a"}, 8},
		"one worker is behind":           {map[string][]int{"a": {7, 7}, "b": {8, 8}, "c": {8, 8}}, []string{"b", "c"}, 8},
		"of none all processes have it":  {map[string][]int{"a": {-1, 8}, "b": {8, -1}}, nil, 8},
		"one process was never heard":    {map[string][]int{"a": {8}, "b": {8, 8}}, []string{"b"}, 8},
		"those who do are a step behind": {map[string][]int{"a": {7, 8}, "b": {7, 7}}, []string{"b"}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			m, p := brokenWorld(row.steps)
			for _, mem := range m.members {
				mem.report.HandsOver = true
			}
			for _, l := range m.lives(p.members) {
				if l.step != row.step {
					continue
				}
				if gives := slices.Sorted(maps.Keys(l.keep)); !slices.Equal(gives, row.gives) || m.handsOver(p.members, l.keep, l.step) != (len(gives) > 0) {
					t.Errorf("%v give the state after step %d, want %v", gives, l.step, row.gives)
				}
				return
			}
			t.Errorf("nobody has the state after step %d", row.step)
		})
	}
}

// Who has all of a state goes on alone with it where nobody can save it, also where a process of another worker is a step further.
func TestAWholeWorkerGoesOnAloneBesideAHalfNewOne(t *testing.T) {
	m, p := brokenWorld(map[string][]int{"a": {8, 7}, "b": {7, 7}})
	m.broken.failed["a"], m.broken.failed["b"] = true, true
	next, serves := m.goOnLive(time.Unix(1e9, 0), p)
	if next == nil || !serves || next.fromStep != 7 || len(next.members) != 1 || next.members[0].UID != "b" || !next.live["b"] {
		t.Errorf("live state serves: %v; the plan is %+v", serves, next)
	}
}

// How long members may be asked to save a state is not counted anew for one that nobody can save.
func TestSaversOfAnOlderStateHaveSoMuchTime(t *testing.T) {
	m, p := brokenWorld(map[string][]int{"a": {8, -1}, "b": {7, 7}, "c": {7, 7}, "d": {7, 7}, "e": {-1, -1}})
	m.gang.Target = 5
	m.broken.failed["a"] = true
	now := time.Unix(1e9, 0)
	asked := map[string]bool{}
	for range 100 {
		now = now.Add(10 * time.Second)
		if next, _ := m.goOnLive(now, p); next != nil {
			break
		}
		asked[m.broken.saver] = true
	}
	if took := now.Sub(time.Unix(1e9, 0)); len(asked) > saversAtMost || took > saversAtMost*m.gang.BarrierTimeout+20*time.Second {
		t.Errorf("%v were asked in %s", asked, took)
	}
}

// What the processes that follow have is not known yet.
func TestAProcessThatHasYetToLeaveIsWaitedFor(t *testing.T) {
	m, p := brokenWorld(map[string][]int{"a": {8, 8}, "b": {8, -1}})
	m.broken.began = time.Unix(1e9, 0)
	m.members["b"].report.Processes[1].Waiting = waitingNone
	if next, serves := m.goOnLive(m.broken.began, p); next != nil || !serves || m.broken.saver != "" {
		t.Errorf("it is planned already: %+v, %v, %q saves", next, serves, m.broken.saver)
	}
	if _, serves := m.goOnLive(m.broken.began.Add(outTimeout), p); !serves || m.broken.saver != "a" {
		t.Errorf("it is waited for still: %v, %q saves", serves, m.broken.saver)
	}
}

// An error that the saver has reported before it was asked counts for nothing until its next report must have come, which
// takes longer in a large job.
func TestAnErrorFromBeforeIsNoAnswer(t *testing.T) {
	for members, patience := range map[int]time.Duration{2: 2 * time.Second, MaxWorkers: 20 * time.Second} {
		m, p := brokenWorld(map[string][]int{"a": {8, 8}, "b": {7, 7}})
		m.members["a"].report.SnapshotError = "the volume was full"
		for i := range members - 2 {
			m.members[fmt.Sprint(i)] = &member{}
		}
		began := time.Unix(1e9, 0)
		m.goOnLive(began, p)
		if m.goOnLive(began.Add(patience-time.Millisecond), p); m.broken.failed["a"] {
			t.Errorf("of %d: it counts as failed before its next report", members)
		}
		if m.goOnLive(began.Add(patience), p); !m.broken.failed["a"] {
			t.Errorf("of %d: it is waited for after %s", members, patience)
		}
	}
}

// Who was taken for lost, and is back, has what it has done: that its collective broke when the others left says nothing
// against its state.
func TestWhoseCollectiveBrokeWhileItWasAwayKeepsItsState(t *testing.T) {
	for fault, step := range map[string]uint64{"": 8, "RuntimeError: connection reset by peer": 8, "ValueError: bad": 7} {
		m, p := brokenWorld(map[string][]int{"a": {7, 7}, "b": {8, 8}})
		b := m.members["b"]
		b.lostIn, b.report.Processes[0].Fault = 1, fault
		if fault != "" {
			b.report.Processes[0].Waiting = waitingFault
		}
		if _, serves := m.goOnLive(time.Unix(1e9, 0), p); !serves || p.fromStep != step {
			t.Errorf("with the fault %q: the world goes on after step %d (%v), want %d", fault, p.fromStep, serves, step)
		}
	}
}

// Who failed in a round that was burned since, as the world before it lives, failed once: in that one.
func TestALossInABurnedRoundIsOneOfTheWorldThatLives(t *testing.T) {
	m, _ := brokenWorld(map[string][]int{"a": {8, 8}, "b": {8, 8}})
	for _, loss := range []Loss{
		{UID: "a", Program: true, Round: 1}, {UID: "a", Program: true, Round: 4}, {UID: "b", Round: 4}, {UID: "a", Program: true, Round: 3}, {UID: "a"},
	} {
		m.addLoss(loss)
	}
	var rounds []string
	for _, loss := range m.losses {
		rounds = append(rounds, fmt.Sprint(loss.UID, loss.Round))
	}
	if want := []string{"a1", "b4", "a3", "a0"}; !slices.Equal(rounds, want) || len(m.out.Lost) != 4 {
		t.Errorf("the losses are %v, want %v; %d are counted", rounds, want, len(m.out.Lost))
	}
}
