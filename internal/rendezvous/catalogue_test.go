package rendezvous

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// shared is a world of so many workers that write their state in shares.
func shared(t *testing.T, workers int) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.shares, f.minimum, f.target = true, 1, int32(workers)
	return f, f.training(workers)
}

// keys are the shares and the parts of ranks of a step that a worker holds.
func (w *worker) keys(step uint64) (shares, ranks []int) {
	for _, s := range w.snapshots {
		if key, ok := share.Parse(s.Part); ok && s.Step == step {
			if key.Rank {
				ranks = append(ranks, key.Index)
			} else {
				shares = append(shares, key.Index)
			}
		}
	}
	slices.Sort(shares)
	return shares, ranks
}

// periodic has these workers write what is theirs of the state that they have.
func (f *fleet) periodic(uids ...string) {
	for _, uid := range uids {
		p := f.pods[uid]
		p.save(p.stages())
	}
}

// Those who stay write the state of the barrier together, and the newcomer gets it from all of them.
func TestAWorldGrowsFromShares(t *testing.T) {
	f, l := shared(t, 3)
	f.turns(l, 4)
	f.makePod()
	f.target = 4
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 30)
	w := l.machine.world
	if w == nil || w.record.Workers != 4 || l.machine.furthest() <= w.record.FromStep {
		t.Fatalf("the world is %+v: %s", w, l.machine.State())
	}
	for i, uid := range []string{"p00", "p01", "p02"} {
		if shares, _ := f.pods[uid].keys(w.record.FromStep); !slices.Equal(shares, []int{i}) {
			t.Errorf("%s has written the shares %v", uid, shares)
		}
	}
	if shares, ranks := f.pods["p03"].keys(w.record.FromStep); !slices.Equal(shares, []int{0, 1, 2}) || len(ranks) != 1 {
		t.Errorf("the newcomer has got the shares %v and what differs by rank of %v", shares, ranks)
	}
}

// Where there are more workers than copies of shares those without a share write nothing: not the whole state either.
func TestWorkersWithoutAShareWriteNothing(t *testing.T) {
	_, l := shared(t, defaultCopies*share.Most+3)
	without, whole := 0, 0
	for _, uid := range l.machine.world.ranks.uids {
		d, ok := l.machine.Directive(uid)
		if !ok || d.World == nil {
			t.Fatalf("%s is told nothing", uid)
		}
		if d.World.Staging == nil {
			without++
			if d.World.Writer {
				t.Errorf("%s has no share, and writes everything", uid)
			}
		} else if d.World.Writer {
			whole++
		}
	}
	if without != 3 || whole < defaultCopies {
		t.Errorf("%d have no share, and %d write a state that is too small for shares", without, whole)
	}
}

// One that cannot write its share leaves it to another worker to write everything, at once.
func TestAShareThatCannotBeWritten(t *testing.T) {
	f, l := shared(t, 3)
	f.turns(l, 4)
	f.pods["p00"].full = true
	f.makePod()
	f.target = 4
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 30)
	if w := l.machine.world; w == nil || w.record.Workers != 4 {
		t.Errorf("the world is %+v, though two workers have room: %s", w, l.machine.State())
	}
}

// Who could not take the snapshot of a barrier is not asked again as long as there are others: the change would never come.
func TestAnotherOneTakesTheSnapshotNextTime(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target = 1, 2
	l := f.training(2)
	f.pods["p00"].full = true
	f.makePod()
	f.target = 3
	_ = f.handle(l, GangExpected{f.gang()})
	for range 60 {
		f.turns(l, 4)
	}
	if w := l.machine.world; w == nil || w.record.Workers != 3 {
		t.Errorf("the world is %+v, though one worker has room: %s", w, l.machine.State())
	}
}

// A worker is about to be killed, and nothing comes of the shares: it is let go in time all the same.
func TestALeaveInAHurryDoesNotWaitForShares(t *testing.T) {
	f, l := shared(t, 3)
	f.turns(l, 4)
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	for !l.machine.isStandby("p03", l.machine.members["p03"]) {
		f.turn(l)
	}
	f.settleSteps()
	leaver := f.pods["p00"]
	leaver.want.Leaving, leaver.want.LeaveBy = ReasonEvicted, f.now.Add(leaveMargin+1500*time.Millisecond)
	_ = f.handle(l, GangExpected{f.gang()})
	for f.record.Round == 1 && f.now.Before(leaver.want.LeaveBy) {
		f.turn(l)
		for _, uid := range []string{"p01", "p02"} {
			f.pods[uid].process.still = f.pods[uid].process.waiting == waitingParked
		}
	}
	if left := leaver.want.LeaveBy.Sub(f.now); f.record.Round != 2 || f.record.Workers != 2 || left < leaveMargin-time.Second {
		t.Errorf("%s before the worker is killed: %+v", left, f.record)
	}
}

// Where nobody's live state serves the world goes back to the newest state of which every share is there.
func TestAStateWithoutAShareIsNone(t *testing.T) {
	for name, row := range map[string]struct {
		// writers are those who write the newer of two states, lost are those who are lost.
		writers, lost []string
		newer         bool
	}{
		"all have written it":           {[]string{"p00", "p01", "p02"}, []string{"p02"}, true},
		"a copy of each share is there": {[]string{"p00", "p01", "p02"}, []string{"p00"}, true},
		"one was not done":              {[]string{"p00", "p01"}, []string{"p00"}, false},
		"none was done":                 {nil, []string{"p01"}, false},
		"nobody has one of the shares":  {[]string{"p00"}, []string{"p01"}, false},
		"two of three nodes have ended": {[]string{"p00", "p01", "p02"}, []string{"p00", "p01"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := shared(t, 3)
			for _, p := range f.pods {
				p.vague = true
			}
			f.turns(l, 3)
			f.settleSteps()
			older := f.done[1]
			f.periodic("p00", "p01", "p02")
			f.turns(l, 3)
			f.settleSteps()
			newer := f.done[1]
			f.periodic(row.writers...)
			f.turns(l, 2)
			for _, uid := range row.lost {
				f.end(f.pods[uid])
				f.pods[uid].want.Lost, f.pods[uid].want.Ended = "it has ended", true
			}
			_ = f.handle(l, GangExpected{f.gang()})
			f.turns(l, 30)
			want := older
			if row.newer {
				want = newer
			}
			if len(row.lost) == 2 {
				if l.machine.fatal == "" {
					t.Errorf("it goes on, from step %d", l.machine.world.record.FromStep)
				}
				return
			}
			if w := l.machine.world; w == nil || w.record.Round != 2 || w.record.FromStep != want {
				t.Errorf("the world goes on after %+v, want %d: %s", w.record, want, l.machine.State())
			}
		})
	}
}

// settleSteps brings all processes to the same step.
func (f *fleet) settleSteps() {
	for range 20 {
		behind := false
		for _, uid := range f.uids() {
			if p := f.pods[uid]; p.process.stepping {
				f.move(p)
				behind = true
			}
		}
		if !behind {
			return
		}
	}
}

// Agents that know no parts, and programs that do not, write everything as before.
func TestAnOlderAgentWritesEverything(t *testing.T) {
	f, l := shared(t, 2)
	f.periodic("p00", "p01")
	f.turns(l, 2)
	f.shares, f.target = false, 3
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 30)
	w := l.machine.world
	if w == nil || w.record.Workers != 3 || w.snapshot == nil || w.parts != nil || w.staging != nil {
		t.Fatalf("the world is %+v", w)
	}
	if shares, _ := f.pods["p02"].keys(w.record.FromStep); shares != nil {
		t.Errorf("the older one has got the shares %v", shares)
	}
}

// What several have of the same key is that of most of them.
func TestReplicasThatDiffer(t *testing.T) {
	a, b, c := &member{connected: true}, &member{connected: true}, &member{connected: true}
	key := share.Key{Of: 2, Layout: "0123456789abcdef"}
	one, other := Snapshot{Part: key.String(), Hash: [32]byte{1}}, Snapshot{Part: key.String(), Hash: [32]byte{2}}
	all := files{one: {a}, other: {b, c}}
	if all.chosen() != other {
		t.Error("the one that fewer hold is chosen")
	}
	second := key
	second.Index = 1
	rank := share.Key{Rank: true, Of: 2, Layout: key.Layout}
	keys := map[share.Key]files{key: all, second: {Snapshot{Part: second.String()}: {a}}, rank: {Snapshot{Part: rank.String()}: {a}}}
	s, ok := together(fit{of: 2, layout: key.Layout}, keys)
	if !ok || s.parts[0] != other || s.copies != 1 || len(s.parts) != 3 {
		t.Errorf("%+v, %v", s, ok)
	}
	delete(keys, rank)
	if _, ok := together(fit{of: 2, layout: key.Layout}, keys); ok {
		t.Error("it is whole without the description of any rank")
	}
}

// A state with a share that only one node has is not what members keep, as long as an older one is safe.
func TestWhatIsKeptIsSafe(t *testing.T) {
	f, l := shared(t, 4)
	write := func(uids ...string) uint64 {
		f.turns(l, 2)
		f.settleSteps()
		f.periodic(uids...)
		f.turns(l, 2)
		return f.pods[uids[0]].snapshots[0].Step
	}
	relied := func(what string, step uint64) {
		t.Helper()
		if kept := l.machine.relied; kept == nil || kept.Step != step {
			t.Errorf("%s: %+v is kept, want step %d", what, kept, step)
		}
	}
	first := write("p00", "p01", "p02", "p03")
	relied("all have written it", first)
	if memory := l.machine.Observe(f.now).Memory; memory.Copies != 2 || memory.Asked != 2 || memory.Step != first {
		t.Errorf("in memory there is %+v", memory)
	}
	second := write("p00", "p02") // all shares between them, each once
	if newest, _ := l.machine.newestSnapshot(); newest.Step != second {
		t.Fatalf("%+v can be had", newest)
	}
	relied("two have not written it", first)
	third := write("p00", "p02")
	relied("nor the next", third)
	relied("all have written one again", write("p00", "p01", "p02", "p03"))
}

// Two who have written something else of the same state are named.
func TestReplicasThatDifferAreNamed(t *testing.T) {
	f, l := shared(t, 3)
	f.turns(l, 2)
	f.settleSteps()
	f.periodic("p00", "p01", "p02")
	f.turns(l, 2)
	if said := l.machine.Observe(f.now).Differ; said != "" {
		t.Fatalf("all are the same, and it says %q", said)
	}
	p := f.pods["p01"]
	for i := range p.snapshots {
		if key, ok := share.Parse(p.snapshots[i].Part); ok && !key.Rank {
			p.snapshots[i].Hash[0] ^= 1
			break
		}
	}
	f.turns(l, 4)
	said := l.machine.Observe(f.now).Differ
	if !strings.Contains(said, " against ") || !strings.Contains(said, p.want.Name+" on "+p.want.Node) {
		t.Errorf("it says %q", said)
	}
}

// A group has half of the time; whoever writes everything alone has the rest.
func TestHowLongAGroupIsWaitedFor(t *testing.T) {
	f, l := shared(t, 3)
	now := f.now
	g := l.machine.group(now, now.Add(time.Minute), l.machine.world.ranks.uids)
	if g == nil || len(g.uids) != 3 || g.stagingOf("p01").Shares[0] != 1 || g.stagingOf("nobody") != nil {
		t.Fatalf("%+v", g)
	}
	half := l.machine.gang.BarrierTimeout / 2
	if why := l.machine.failing(now.Add(half-time.Second), g); why != "" {
		t.Errorf("it is given up early: %s", why)
	}
	if why := l.machine.failing(now.Add(half), g); why == "" {
		t.Error("it is waited for too long")
	}
	var none *group
	if none.has("p01") || none.stagingOf("p01") != nil {
		t.Error("nobody writes something")
	}
	if l.machine.group(now, now.Add(time.Minute), []string{"p00"}) != nil {
		t.Error("one is a group")
	}
}

// A worker that has left the world has no rank, and may still make a snapshot durable: it asks like the first.
func TestWhoHasLeftAsksForParts(t *testing.T) {
	part := func(index int) Snapshot { return Snapshot{Step: 4, Part: share.Key{Index: index, Of: 2}.String()} }
	all := []holding{{holder{Address: "a"}, []Snapshot{part(0)}}, {holder{Address: "b"}, []Snapshot{part(1)}}}
	parts := []Snapshot{part(0), part(1)}
	if asked := holdersFor(-1, parts, all); len(asked) != 2 || asked[0].Address != "a" {
		t.Errorf("it asks %+v", asked)
	}
}

// How many copies there are to be is a matter of the world: a number that is changed meanwhile is that of the next one, so no
// state of this one lacks any.
func TestMoreCopiesAreThoseOfTheNextWorld(t *testing.T) {
	f, l := shared(t, 3)
	f.turns(l, 4)
	f.periodic("p00", "p01", "p02")
	f.turns(l, 4)
	before := l.machine.memory()
	gang := f.gang()
	gang.Copies = 3
	_ = f.handle(l, GangExpected{gang})
	if got := l.machine.memory(); got.Asked != before.Asked || got.Possible != before.Possible {
		t.Errorf("the world has %+v, it had %+v", got, before)
	}
}

// Of the same states the same is told, and once: whose shares differ does not depend on which is looked at first.
func TestSharesThatDifferAreToldOnce(t *testing.T) {
	f, l := shared(t, 3)
	m := l.machine
	key := share.Key{Of: 3, Layout: "0123456789abcdef"}
	hold := func(uids ...string) files {
		held := files{}
		for i, uid := range uids {
			held[Snapshot{Step: 4, Part: key.String(), Bytes: uint64(i + 1)}] = []*member{m.members[uid]}
		}
		return held
	}
	c := catalogue{parted: map[fit]map[share.Key]files{
		{round: 1, step: 4}: {key: hold("p00", "p01")}, {round: 1, step: 8}: {key: hold("p00", "p02")}, {round: 1, step: 12}: {key: hold("p00", "p01")},
	}}
	for range 20 {
		m.out.Notes = nil
		m.compare(c)
	}
	if len(m.differing) != 2 || len(m.out.Notes) > 0 || f.record.Round != 1 {
		t.Errorf("it is told of %q, and again: %v", m.differing, m.out.Notes)
	}
	if want := "after step 8"; len(m.differ) < len(want) || m.differ[:len(want)] != want {
		t.Errorf("the last one is %q", m.differ)
	}
}

// The next leader publishes a world again that half of its members have entered: the others write their shares like the first,
// or no state of that world would ever be whole.
func TestAWorldThatIsPublishedAgainWritesAllShares(t *testing.T) {
	f, l := shared(t, 2)
	f.parkedBefore(l)
	f.publishTo(l, "p00")
	f.kill(l)
	f.newLeader()
	l = f.leaders[f.born]
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 30)
	if w := l.machine.world; w == nil || w.record.Round != 2 || w.adopted {
		t.Fatalf("the world was not published again: %+v, %s", w, l.machine.State())
	}
	for _, uid := range f.uids() {
		if in := f.pods[uid].in(); in.Round != 2 || len(in.World.Staging.Shares) == 0 {
			t.Errorf("%s is in round %d, and writes %+v of a snapshot", uid, in.Round, in.World.Staging)
		}
	}
}

// The loss of a rack takes no state along: each share is in another one as well.
func TestSharesAreInSeveralRacks(t *testing.T) {
	f := emptyFleet(t)
	f.shares, f.racks, f.minimum, f.target = true, 2, 1, 3
	l := f.training(3) // on n0 and n2, and on n1 between them
	in := map[int]map[string]bool{}
	for _, uid := range l.machine.world.ranks.uids {
		d, _ := l.machine.Directive(uid)
		for _, share := range d.World.Staging.Shares {
			if in[share] == nil {
				in[share] = map[string]bool{}
			}
			in[share][l.machine.members[uid].want.Rack] = true
		}
	}
	for share, racks := range in {
		if len(racks) != 2 {
			t.Errorf("share %d is in the racks %v", share, racks)
		}
	}
	if len(in) != 3 {
		t.Errorf("there are %d shares", len(in))
	}
	if named := l.machine.world.record.Named(); len(named) != 3 || named[0].Rack != "r0" || named[1].Rack != "r1" || named[2].Rack != "r0" {
		t.Errorf("the record names %v", named)
	}
}

// Whoever labels nodes anew while a leader ends that publishes a world changes nothing of who writes what there.
func TestRacksThatChangeWhileAWorldIsPublished(t *testing.T) {
	f := emptyFleet(t)
	f.shares, f.racks, f.minimum, f.target = true, 2, 1, 2
	l := f.training(2)
	f.parkedBefore(l)
	f.publishTo(l, "p00")
	f.kill(l)
	f.relabel()
	f.newLeader()
	l = f.leaders[f.born]
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 30)
	if w := l.machine.world; w == nil || w.record.Round != 2 || w.adopted {
		t.Fatalf("the world was not published again: %+v, %s", w, l.machine.State())
	}
	var all []int
	for _, uid := range f.uids() {
		all = append(all, f.pods[uid].in().World.Staging.Shares...)
	}
	if slices.Sort(all); !slices.Equal(all, []int{0, 0, 1, 1, 2, 2}) {
		t.Errorf("the shares that are written are %v", all)
	}
}

// oneNode is a world of three workers that write their state in shares, on one node.
func oneNode(t *testing.T) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.shares, f.target = true, 3
	for range 3 {
		f.makePod()
	}
	for _, p := range f.pods {
		p.want.Node = "n0"
	}
	f.newLeader()
	l := f.leaders[f.born]
	f.turns(l, 8)
	return f, l
}

// A state that lacks what differs by the rank of a member is not safe, though each of its shares is on as many nodes as there are.
// It is relied on once a newer one can be had: nobody is waited for for ever.
func TestAStateWithoutAMembersPartIsNotSafe(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		f, l := oneNode(t)
		if adopted {
			f.kill(l)
			f.newLeader()
			l = f.leaders[f.born]
			f.turns(l, 4)
		}
		write := func(uids ...string) uint64 {
			f.turns(l, 2)
			f.settleSteps()
			f.periodic(uids...)
			f.turns(l, 2)
			return f.pods[uids[0]].snapshots[0].Step
		}
		all := write("p00", "p01", "p02")
		if write("p00", "p01"); l.machine.relied == nil || l.machine.relied.Step != all {
			t.Errorf("adopted %v: %+v is kept, and all have written step %d", adopted, l.machine.relied, all)
		}
		if next := write("p00", "p01"); l.machine.relied == nil || l.machine.relied.Step != next {
			t.Errorf("adopted %v: %+v is kept, and the next is of step %d", adopted, l.machine.relied, next)
		}
	}
}

// goesBack is a world of three workers that has lost one, and is about to go back to the snapshot that all have written: the
// record of the next world is being written.
func goesBack(t *testing.T, lose func(*fleet, *modelLeader)) (*fleet, *modelLeader) {
	t.Helper()
	f, l := shared(t, 3)
	for _, p := range f.pods {
		p.vague = true
	}
	f.turns(l, 2)
	f.settleSteps()
	f.periodic(f.uids()...)
	f.turns(l, 2)
	lose(f, l)
	for range 100 {
		if w := l.machine.writing; w != nil && w.plan != nil {
			return f, l
		}
		f.turn(l)
	}
	t.Fatalf("no next world is asked for: %s", l.machine.State())
	return nil, nil
}

// away has the session of a worker drop, and not come back.
func (f *fleet) away(l *modelLeader, uid string) {
	f.pods[uid].unheard = true
	f.drop(f.pods[uid], l)
}

// The session of a worker drops just when the world is published that begins with a snapshot: it has its own part of that all
// the same, and nobody is sent to it for another.
func TestAWorkerThatIsAwayBeginsWithItsPart(t *testing.T) {
	for _, gone := range []string{"p00", "p01"} {
		f, l := goesBack(t, func(f *fleet, _ *modelLeader) { f.pods["p02"].exits(1) })
		f.away(l, gone)
		f.finishWrite(l)
		w := l.machine.world
		if w.record.Round != 2 || w.snapshot == nil || w.parts == nil {
			t.Fatalf("the world is %+v", w)
		}
		for rank, uid := range w.ranks.uids {
			first := l.machine.place(uid, int32(rank)).Parts[0]
			if own := f.pods[uid].rankPart(first.Step); own >= 0 && !slices.Contains(f.pods[uid].snapshots, first) {
				t.Errorf("%s is away, and %s of rank %d begins with %s", gone, uid, rank, first.Part)
			}
		}
		newcomers := neededBy(9, w.parts)[0]
		if slices.Contains(f.pods[gone].snapshots, newcomers) {
			t.Errorf("%s is away, and others are to fetch %s", gone, newcomers.Part)
		}
		f.pods[gone].unheard = false
		if f.turns(l, 20); f.done[2] <= w.record.FromStep {
			t.Errorf("%s was away, and the world makes no step", gone)
		}
	}
}

// Who alone has a share is away just when the world is published: it is not, and is made anew when that worker is back.
func TestAWorldIsNotPublishedWithoutItsSnapshot(t *testing.T) {
	f, l := goesBack(t, func(f *fleet, l *modelLeader) { f.lose(l, "p02") })
	f.away(l, "p00")
	f.finishWrite(l)
	if w := l.machine.world; w.record.Round != 1 {
		t.Fatalf("the world begins with %+v, which is made of %v", w.snapshot, w.parts)
	}
	f.pods["p00"].unheard = false
	f.turns(l, 20)
	if w := l.machine.world; w.record.Round < 3 || w.record.FromStep == 0 || f.done[w.record.Round] <= w.record.FromStep {
		t.Errorf("the world is %+v", w.record)
	}
}

// rankPart is the rank of whose own part of a step a worker holds; -1 for none.
func (w *worker) rankPart(step uint64) int {
	if _, ranks := w.keys(step); len(ranks) > 0 {
		return ranks[0]
	}
	return -1
}

// Whose session drops at the barrier is asked to write its share like the others: what differs by its rank nobody else has.
func TestAWorkerThatIsAwayWritesItsShare(t *testing.T) {
	f, l := shared(t, 3)
	m := l.machine
	f.drop(f.pods["p01"], l)
	if g := m.group(f.now, f.now.Add(time.Minute), m.world.ranks.uids); !g.has("p01") {
		t.Errorf("those who write it are %+v", g)
	}
	late := f.now.Add(m.gang.HeartbeatTimeout + m.reconnectGrace)
	if g := m.group(late, late.Add(time.Minute), m.world.ranks.uids); g.has("p01") {
		t.Errorf("it has been away for long, and those who write it are %+v", g)
	}
}
