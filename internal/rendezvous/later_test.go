package rendezvous

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// outlived is a world of three whose programs have nothing live to go on from. All hold a snapshot, and a later one is durable that nobody
// holds any more.
func outlived(t *testing.T) (f *fleet, l *modelLeader, held, durable uint64) {
	t.Helper()
	f, l = stored(t, Storage{Interval: time.Hour, Keep: 3, Own: true})
	f.minimum = 1
	for _, uid := range f.uids() {
		f.pods[uid].vague = true
	}
	saved := func() uint64 {
		f.turns(l, 8)
		f.settleSteps()
		for _, uid := range f.uids() {
			f.pods[uid].save(lifecycle.Staging{})
		}
		return uint64(len(f.pods["p00"].process.state))
	}
	f.turns(l, 12)
	held = saved()
	durable = saved()
	f.checkpointed(1, durable)
	for _, uid := range f.uids() {
		p := f.pods[uid]
		p.snapshots = slices.DeleteFunc(p.snapshots, func(s Snapshot) bool { return s.Step != held })
	}
	f.turns(l, 4)
	if newest, ok := l.machine.newestSnapshot(); !ok || newest.Step != held || held >= durable || l.machine.durable.Snapshot.Step != durable {
		t.Fatalf("they hold step %d, %t, and %+v is durable", newest.Step, ok, l.machine.durable)
	}
	return f, l, held, durable
}

// checkpointed has the state of p00 after a step of a round be durable, and p00 say so.
func (f *fleet) checkpointed(round, step uint64) {
	p := f.pods["p00"]
	s := Snapshot{Round: round, Step: step, Bytes: 8 * step, Hash: [32]byte{byte(step)}}
	c := checkpointed{fmt.Sprintf("job/%d-%d", round, step), s, slices.Clone(p.process.state[:step]), nil}
	f.shelf.kept = append(f.shelf.kept, c)
	p.durable = Durable{s, c.path}
}

// What the storage has later than anybody holds is brought; those who bring it keep what they hold.
func TestALaterCheckpointIsGoneBackTo(t *testing.T) {
	f, l, held, durable := outlived(t)
	made := l.machine.furthest()
	f.shelf.silent = "503 Slow Down"
	f.lose(l, "p02")
	f.until(l, "it is brought", func() bool { r := l.machine.restoring; return r.of != nil && r.who != "" })
	f.turns(l, 5)
	for _, uid := range []string{"p00", "p01"} {
		if !slices.ContainsFunc(f.pods[uid].snapshots, func(s Snapshot) bool { return s.Step == held }) {
			t.Errorf("%s holds %+v", uid, f.pods[uid].snapshots)
		}
	}
	if phase, why := l.machine.doing(); phase != PhaseRecovering {
		t.Errorf("it is %s: %s", phase, why)
	}
	f.shelf.silent = ""
	f.goesOnFrom(l, durable, 2)
	for _, c := range l.machine.Observe(f.now).Changes {
		if c.Round == l.machine.base.Round && c.StepsLost > made-durable+1 {
			t.Errorf("%+v, and %d steps were made", c, made)
		}
	}
}

// Where nothing comes of it what is held serves: the checkpoint is damaged, or there no more, nobody can bring it, the storage has no answer, or
// hangs, or knows of none that is later.
func TestWhatIsHeldServesWhereNothingLaterComes(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(f *fleet)
		atMost  time.Duration
		atLeast time.Duration
	}{
		"it is damaged":           {func(f *fleet) { f.shelf.damaged = []string{f.shelf.kept[len(f.shelf.kept)-1].path} }, 20 * time.Second, 0},
		"it is gone":              {func(f *fleet) { f.shelf.kept = nil }, 20 * time.Second, 0},
		"an older one is there":   {func(f *fleet) { f.shelf.kept = []checkpointed{older(f)} }, 20 * time.Second, 0},
		"nobody can":              {func(f *fleet) { f.shelf.broken = "403 Forbidden" }, 20 * time.Second, 0},
		"the storage is away":     {func(f *fleet) { f.shelf.silent = "no route to host" }, 3 * time.Minute, stuckTime},
		"it hangs, and says none": {func(f *fleet) { f.shelf.hang = map[string]bool{"p00": true, "p01": true} }, 3 * time.Minute, stuckTime},
	} {
		t.Run(name, func(t *testing.T) {
			f, l, held, _ := outlived(t)
			c.spoil(f)
			f.lose(l, "p02")
			began := f.now
			for range 1000 {
				if f.turn(l); l.machine.world.record.Round > 1 {
					break
				}
			}
			waited := f.now.Sub(began)
			f.goesOnFrom(l, held, 2)
			if waited > c.atMost || waited < c.atLeast {
				t.Errorf("it has taken %s", waited)
			}
		})
	}
}

func older(f *fleet) checkpointed {
	last := f.shelf.kept[len(f.shelf.kept)-1]
	return checkpointed{"job/1-1", Snapshot{Round: 1, Step: 1, Bytes: 8, Hash: [32]byte{1}}, last.state[:1], nil}
}

// What is in memory is preferred where it is as new, and nobody asks the storage.
func TestMemoryIsPreferred(t *testing.T) {
	f, l, held, _ := outlived(t)
	f.shelf.kept = nil
	f.pods["p00"].durable, l.machine.durable = Durable{}, Durable{}
	f.checkpointed(1, held)
	f.turns(l, 2)
	asked := f.shelf.asked
	f.lose(l, "p02")
	f.goesOnFrom(l, held, 2)
	if f.shelf.asked != asked {
		t.Errorf("%d were asked for it", f.shelf.asked-asked)
	}
}

// Bringing costs at most what it saves, as far as that is known: it is not given up while the steps would take longer.
func TestHowLongALaterCheckpointIsBrought(t *testing.T) {
	f, l, held, durable := outlived(t)
	took := 4 * time.Minute / time.Duration(durable-held)
	for _, uid := range f.uids() {
		f.pods[uid].stepTime = took
	}
	f.turns(l, 2)
	f.shelf.hang = map[string]bool{"p00": true, "p01": true}
	f.lose(l, "p02")
	began := f.now
	for f.now.Sub(began) < 3*time.Minute {
		f.turn(l)
	}
	if l.machine.broken == nil || l.machine.broken.gaveUp {
		t.Fatalf("after %s it is %s", f.now.Sub(began), l.machine.State())
	}
	for f.now.Sub(began) < 6*time.Minute && l.machine.world.record.Round == 1 {
		f.turn(l)
	}
	f.goesOnFrom(l, held, 2)
}

// One alone has the state that it has made live, and cannot save it for the other one, whose programs were started anew: the world goes back to the
// same step, as the storage has it, and not to an older snapshot. It was as if the checkpoint had been thrown away then, and the attempt
// ended when what was left in memory was gone.
func TestALiveStateThatCannotBeGivenIsInTheStorage(t *testing.T) {
	f, l, held, _ := outlived(t)
	f.minimum = 2
	f.pods["p00"].vague, f.pods["p00"].full = false, true
	f.turns(l, 4)
	f.settleSteps()
	step := uint64(len(f.pods["p00"].process.state))
	f.checkpointed(1, step)
	f.turnWithoutSteps(l)
	f.lose(l, "p02")
	f.goesOnFrom(l, step, 2)
	if step <= held {
		t.Errorf("the steps are %d and %d", held, step)
	}
	f.pods["p00"].full = false
	f.minimum = 1
	f.lose(l, "p01")
	if f.turns(l, 100); l.machine.fatal != "" {
		t.Error(l.machine.fatal)
	}
}

// What was durable of an earlier round may be of steps that were thrown away, and made again: nobody mixes that with what others have live.
func TestWhatWasMadeAgainIsNotMixed(t *testing.T) {
	_, l, _, durable := outlived(t)
	m := l.machine
	m.world.record.Round, m.world.record.Parent = 5, 4
	m.broken = &recovery{}
	m.restoring = m.newRestoring("")
	m.restoring.of = m.broken
	for round, want := range map[uint64]bool{0: false, 2: false, 3: false, 4: true, 5: true} {
		found := Snapshot{Round: round, Step: durable}
		m.restoring.found = &found
		if got := m.isMixable(found); got != want {
			t.Errorf("of round %d, after round 5 that has followed on round 4: mixable %t", round, got)
		}
	}
	m.restoring.found = &Snapshot{Round: 3, Step: durable}
	if !m.isMixable(Snapshot{Round: 2, Step: durable}) {
		t.Error("what members hold is of the history of the world")
	}
}

// All of a later checkpoint but its manifest is in the storage: that is waited for, and not for long.
func TestALaterManifestIsWaitedFor(t *testing.T) {
	for _, comes := range []bool{true, false} {
		f, l, held, _ := outlived(t)
		f.shelf.kept, f.shelf.away = nil, true
		f.pods["p00"].durable, l.machine.durable = Durable{}, Durable{}
		f.settleSteps()
		step := uint64(len(f.pods["p00"].process.state))
		l.machine.uploading = &uploading{snapshot: Snapshot{Round: 1, Step: step}, by: "p00", puts: []put{{done: true}}, since: f.now, writing: f.now}
		f.lose(l, "p02")
		f.turns(l, 20)
		if l.machine.world.record.Round > 1 {
			t.Fatalf("it is not waited for: %+v", l.machine.world.record)
		}
		if comes {
			f.checkpointed(1, step)
			f.goesOnFrom(l, step, 2)
			continue
		}
		began := f.now
		f.goesOnFrom(l, held, 2)
		if waited := f.now.Sub(began); waited > 2*stuckTime {
			t.Errorf("it has taken %s", waited)
		}
	}
}

// joins has workers come that are standbys by the time that it returns.
func (f *fleet) joins(l *modelLeader, count int) {
	f.t.Helper()
	for range count {
		f.makePod()
	}
	for _, p := range f.pods {
		p.vague = true
	}
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 8)
}

// A standby whose agent knows no parts is needed: it is in the world that follows, whether the later checkpoint can be brought or not.
func TestWhoKnowsNoPartsIsNeeded(t *testing.T) {
	for name, broken := range map[string]string{"it can be brought": "", "it cannot": "403 Forbidden"} {
		t.Run(name, func(t *testing.T) {
			f, l, held, durable := outlived(t)
			f.minimum, f.spares = 3, 1
			f.joins(l, 1)
			for _, uid := range []string{"p00", "p01", "p02"} {
				l.machine.members[uid].parts = true
			}
			f.shelf.broken = broken
			f.lose(l, "p02")
			f.goesOnFrom(l, map[bool]uint64{true: durable, false: held}[broken == ""], 3)
		})
	}
}

// It turns out to be in parts, of which nothing can be begun with then: what is held serves.
func TestWhoKnowsNoPartsIsNeededForWhatIsInParts(t *testing.T) {
	f, l, held, _ := outlived(t)
	f.minimum, f.spares = 3, 1
	f.joins(l, 1)
	m := l.machine
	for _, uid := range []string{"p00", "p01", "p02"} {
		m.members[uid].parts = true
	}
	f.shelf.hang = map[string]bool{"p00": true, "p01": true, "p03": true}
	f.lose(l, "p02")
	f.until(l, "it is brought", func() bool { r := m.restoring; return r.of != nil && r.who != "" })
	r := m.restoring
	r.found, r.parts = &r.aim.Snapshot, []Snapshot{r.aim.Snapshot}
	if !m.isLeftOut(m.members["p03"]) {
		t.Error("it would be in a world of which it does not know the state")
	}
	f.shelf.silent = "it is not asked any more"
	f.goesOnFrom(l, held, 3)
}

// Those who hold the state in memory are to be killed while the storage hangs: the others go on with it before.
func TestWhoHoldsTheStateIsAboutToGo(t *testing.T) {
	for name, goes := range map[string]func(f *fleet, p *pod){
		"killed in a minute": func(f *fleet, p *pod) { p.want.Leaving, p.want.LeaveBy = ReasonEvicted, f.now.Add(time.Minute) },
		"killed in a while":  func(f *fleet, p *pod) { p.want.Leaving, p.want.LeaveBy = ReasonEvicted, f.now.Add(2*time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			f, l, held, _ := outlived(t)
			f.minimum, f.spares = 2, 2
			f.joins(l, 2)
			f.shelf.hang = map[string]bool{}
			for _, uid := range f.uids() {
				f.shelf.hang[uid] = true
			}
			goes(f, f.pods["p00"])
			goes(f, f.pods["p01"])
			by := f.pods["p00"].want.LeaveBy
			f.lose(l, "p02")
			for f.now.Before(by) && l.machine.world.record.Round == 1 {
				f.turn(l)
			}
			f.goesOnFrom(l, held, 2)
		})
	}
}

// Somebody stays who holds it: that another one goes is no reason to give up what is later.
func TestOneWhoHoldsTheStateStays(t *testing.T) {
	f, l, _, durable := outlived(t)
	f.shelf.silent = "503 Slow Down"
	f.pods["p00"].want.Leaving, f.pods["p00"].want.LeaveBy = ReasonEvicted, f.now.Add(30*time.Second)
	f.lose(l, "p02")
	f.turns(l, 10)
	if b := l.machine.broken; b == nil || b.gaveUp {
		t.Fatalf("it was given up; it is %s", l.machine.State())
	}
	f.shelf.silent = ""
	f.goesOnFrom(l, durable, 1)
}

// Who is being killed, is lost, or is not in touch, is nobody from whom what is held can be had later on.
func TestWhoHoldsTheStateForLonger(t *testing.T) {
	for name, goes := range map[string]func(*Machine, *member){
		"is being killed": func(_ *Machine, mem *member) { mem.report.Terminating = true },
		"is lost":         func(m *Machine, mem *member) { mem.lostIn, mem.report.Stays = m.world.record.Round, false },
		"is given up":     func(_ *Machine, mem *member) { mem.want.Lost = "its node is gone" },
		"hung up":         func(_ *Machine, mem *member) { mem.connected = false },
	} {
		f, l, held, _ := outlived(t)
		m := l.machine
		m.broken = &recovery{}
		p := &plan{members: []Member{m.members["p00"].want}}
		for _, uid := range []string{"p01", "p02"} {
			goes(m, m.members[uid])
		}
		if !m.staysHeld(f.now, p, held) {
			t.Errorf("%s: one stays", name)
		}
		if goes(m, m.members["p00"]); m.staysHeld(f.now, p, held) {
			t.Errorf("%s: nobody stays", name)
		}
	}
}

// One alone brings it when too few are left: the time in which it could not be gone on from does not count, and nobody is said to be missing
// once there are enough.
func TestALaterCheckpointIsBroughtOnceEnoughAreThere(t *testing.T) {
	f, l, _, durable := outlived(t)
	f.minimum = 2
	_ = f.handle(l, GangExpected{f.gang()})
	f.shelf.hang = map[string]bool{"p00": true}
	f.lose(l, "p02")
	f.until(l, "it is brought", func() bool { return l.machine.restoring.of != nil })
	f.lose(l, "p00")
	for began := f.now; f.now.Sub(began) < 2*leastPatience; {
		f.turn(l)
	}
	if state := l.machine.State(); state != StateRegrouping {
		t.Fatalf("it is %s", state)
	}
	f.joins(l, 1)
	f.goesOnFrom(l, durable, 2)
}

// A manifest is waited for once enough are there: nobody says that others are missing.
func TestAManifestIsWaitedForOnceEnoughAreThere(t *testing.T) {
	f, l, _, _ := outlived(t)
	f.shelf.kept, f.shelf.away, f.minimum = nil, true, 2
	f.pods["p00"].durable, l.machine.durable = Durable{}, Durable{}
	_ = f.handle(l, GangExpected{f.gang()})
	f.settleSteps()
	step := uint64(len(f.pods["p00"].process.state))
	l.machine.uploading = &uploading{snapshot: Snapshot{Round: 1, Step: step}, by: "p00", puts: []put{{done: true}}, since: f.now, writing: f.now}
	f.lose(l, "p01")
	f.lose(l, "p02")
	f.until(l, "too few are left", func() bool { return l.machine.State() == StateRegrouping })
	f.joins(l, 1)
	if phase, why := l.machine.doing(); phase != PhaseRecovering {
		t.Errorf("it is %s: %s; %+v", phase, why, l.machine.world.record)
	}
	f.checkpointed(1, step)
	f.goesOnFrom(l, step, 2)
}

// Nobody could bring what was later, and what was held is gone then: what could be done without is needed, and is tried once more.
func TestWhatCouldNotBeBroughtIsNeeded(t *testing.T) {
	f, l, _, durable := outlived(t)
	f.shelf.broken = "no space left on device"
	f.lose(l, "p02")
	f.until(l, "a world is written", func() bool { return l.writing != nil && l.machine.writing != nil && l.machine.writing.plan != nil })
	l.writing, f.shelf.broken = nil, ""
	for _, uid := range f.uids() {
		if p := f.pods[uid]; !p.dead {
			p.snapshots = nil
			f.tellState(p)
		}
	}
	_ = f.handle(l, RecordAnswered{Err: errors.New("the API server has taken none of it")})
	f.goesOnFrom(l, durable, 2)
}

// What was given up is not tried again, and a newer one is that has become durable before a world has begun without it.
func TestANewerCheckpointIsTriedAfterOneThatWasGivenUp(t *testing.T) {
	for name, newer := range map[string]bool{"a newer one": true, "the same": false} {
		t.Run(name, func(t *testing.T) {
			f, l, held, durable := outlived(t)
			f.settleSteps()
			step := uint64(len(f.pods["p00"].process.state))
			f.shelf.hang = map[string]bool{"p00": true, "p01": true}
			f.lose(l, "p02")
			for began := f.now; f.now.Sub(began) < 2*leastPatience && (l.writing == nil || l.machine.writing.plan == nil); {
				f.turn(l)
			}
			if l.writing == nil || !l.machine.broken.gaveUp || step <= durable {
				t.Fatalf("nothing was given up, or step %d is not later than %d", step, durable)
			}
			if newer {
				f.answers()
				f.checkpointed(1, step)
				f.tellState(f.pods["p00"])
			}
			l.writing = nil
			_ = f.handle(l, RecordAnswered{Err: errors.New("the API server has taken none of it")})
			f.goesOnFrom(l, map[bool]uint64{true: step, false: held}[newer], 2)
		})
	}
}

// The storage has an answer for none of several: each says so once, and is not waited for as long as the first.
func TestNobodyOfSeveralHasAnAnswer(t *testing.T) {
	f, l, held, _ := outlived(t)
	f.target, f.spares = 6, 3
	f.joins(l, 3)
	f.target, f.spares = 5, 0
	_ = f.handle(l, GangExpected{f.gang()})
	f.shelf.silent = "no route to host"
	f.lose(l, "p02")
	began := f.now
	for range 2000 {
		if f.turn(l); l.machine.world.record.Round > 1 {
			break
		}
	}
	if waited := f.now.Sub(began); waited < stuckTime || waited > stuckTime+15*time.Second {
		t.Errorf("it has taken %s", waited)
	}
	f.goesOnFrom(l, held, l.machine.world.record.Workers)
	if l.machine.world.record.Workers < 4 {
		t.Errorf("there are %d", l.machine.world.record.Workers)
	}
}

// All of a later checkpoint is there, and too few are left to begin with it; a newer one becomes durable. That is not brought instead: agents have
// no room for both, and nothing may come of it.
func TestWhatHasComeIsNotDroppedForWhatIsNewer(t *testing.T) {
	f, l, _, durable := outlived(t)
	f.minimum = 2
	_ = f.handle(l, GangExpected{f.gang()})
	f.shelf.hang = map[string]bool{"p00": true}
	f.lose(l, "p02")
	f.until(l, "it is brought", func() bool { r := l.machine.restoring; return r.of != nil && r.who == "p00" })
	f.lose(l, "p01")
	f.answers()
	f.until(l, "it is there", func() bool { return l.machine.restoring.over })
	step := uint64(len(f.pods["p00"].process.state))
	if step <= durable {
		t.Fatalf("the steps are %d and %d", durable, step)
	}
	f.checkpointed(1, step)
	f.turns(l, 3)
	f.shelf.hang = map[string]bool{"p00": true, "p03": true}
	f.joins(l, 1)
	f.goesOnFrom(l, durable, 2)
}

// The manifest of a newer checkpoint is about to be written: the one before it is not brought meanwhile, only to be dropped.
func TestANewerManifestComesBeforeAnOlderCheckpoint(t *testing.T) {
	f, l, _, durable := outlived(t)
	f.shelf.away = true
	f.settleSteps()
	step := uint64(len(f.pods["p00"].process.state))
	if step <= durable {
		t.Fatalf("the steps are %d and %d", durable, step)
	}
	l.machine.uploading = &uploading{snapshot: Snapshot{Round: 1, Step: step}, by: "p00", puts: []put{{done: true}}, since: f.now, writing: f.now}
	asked := f.shelf.asked
	f.lose(l, "p02")
	f.turns(l, 10)
	if l.machine.world.record.Round > 1 || f.shelf.asked != asked {
		t.Errorf("%d were asked for it; there is %+v", f.shelf.asked-asked, l.machine.world.record)
	}
	f.checkpointed(1, step)
	f.goesOnFrom(l, step, 2)
}
