package rendezvous

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/share"
)

// shards are the files of a state of which each process has its own shard.
func (w *worker) shards(s Snapshot) []Snapshot {
	key := share.Key{Rank: true, Index: int(w.process.rank), Of: int(w.process.workers), Layout: fmt.Sprintf("%016x", w.process.workers)}
	own := s
	own.Part = key.String()
	key.Rank, key.Shard = false, true
	s.Part = key.String()
	s.Hash[0] ^= byte(1 + key.Index) // no two of them are the same
	return []Snapshot{own, s}
}

// copy gets what others have alone.
func (w *worker) copy(copies *prefetch) {
	w.copying = Snapshot{}
	if w.uncopied = (Uncopied{}); copies == nil {
		return
	}
	w.copying = Snapshot{Round: copies.Snapshot.Round, Step: copies.Snapshot.Step}
	if w.full && len(copies.Parts) > 0 {
		w.uncopied = Uncopied{w.copying.Round, w.copying.Step, "no space left on device"}
	}
	if len(copies.Parts) > 0 {
		w.toCopy = w.copying
		w.dropNeedless(w.latest())
	}
	named := false // the state with which its world has begun is of its history, also where it was not in the round before
	if in := w.machine.In(); in != nil && in.World.Snapshot != nil {
		named = in.World.Snapshot.Round == w.copying.Round && in.World.Snapshot.Step == w.copying.Step
	}
	last, known := w.lasts[w.copying.Round]
	if !named && (!known || w.copying.Step > last) || w.full || w.copyless || w.process.still {
		return
	}
	w.gather(lifecycle.World{Snapshot: pointer(snapshotTo(copies.Snapshot)), Parts: partsTo(copies.Parts), Holders: holdersTo(copies.Holders)}, nil, nil)
}

// latest is the state that has come last.
func (w *worker) latest() Snapshot {
	if len(w.snapshots) == 0 {
		return Snapshot{}
	}
	return Snapshot{Round: w.snapshots[0].Round, Step: w.snapshots[0].Step}
}

// dropNeedless drops the shards of others that are older than what is relied on, as the agent's store does.
func (w *worker) dropNeedless(came Snapshot) {
	w.snapshots = slices.DeleteFunc(slices.Clone(w.snapshots), func(held Snapshot) bool {
		of := Snapshot{Round: held.Round, Step: held.Step}
		older := of.Round < w.relied.Round || of.Round == w.relied.Round && of.Step < w.relied.Step
		return w.guests[held] && share.IsShard(held.Part) && of != came && older && of != w.copying
	})
}

func pointer[T any](of T) *T { return &of }

// copied is the state of which copies are being made, if there is one.
func (w *worker) copied() []Snapshot {
	if w.copying.Round == 0 {
		return nil
	}
	return []Snapshot{w.copying}
}

// gather gets those of the parts of a world's snapshot that have these keys, or all; some of each for which there are ranges.
func (w *worker) gather(world lifecycle.World, keys []string, ranges [][][2]uint64) (ok bool, unreached []lifecycle.Unreached) {
	for i, s := range filesOf(*world.Snapshot, world.Parts) {
		if keys != nil && !slices.Contains(keys, s.Part) || slices.Contains(w.snapshots, s) && !w.altered[s] {
			continue
		}
		w.verify(s)
		has := slices.DeleteFunc(slices.Clone(world.Holders), func(h lifecycle.Holder) bool { return !slices.Contains(h.Parts, i) })
		if w.fetch == nil {
			return false, nil
		}
		state, ok, unreached := w.fetch(named(*world.Snapshot), s, has)
		if !ok {
			return false, unreached
		}
		if at := slices.Index(keys, s.Part); at >= 0 && at < len(ranges) && ranges[at] != nil {
			if w.excerpts == nil {
				w.excerpts = map[Snapshot]history{}
			}
			w.excerpts[s] = state
			continue
		}
		if w.guests == nil {
			w.guests = map[Snapshot]bool{}
		}
		w.guests[s] = true
		w.keep(s, state)
	}
	return true, nil
}

func (w *worker) shardsFetched(f lifecycle.FetchShards) lifecycle.Fetched {
	if ok, unreached := w.gather(f.World, f.Parts, f.Ranges); !ok {
		return lifecycle.Fetched{Round: f.Round, Why: "nobody has it", Unreached: unreached != nil, Holders: unreached}
	}
	return lifecycle.Fetched{Round: f.Round}
}

// takeShards has the process begin to load a state in shards: it has what differs by rank, and asks for those shards of the world
// before of which it needs some.
func (w *worker) takeShards(give lifecycle.Give) {
	p, world := &w.process, give.Start.World
	if world.Snapshot.Step != world.FromStep {
		w.broken = fmt.Errorf("%s: round %d goes on after step %d with the snapshot of step %d", w.uid, give.Start.Round, world.FromStep, world.Snapshot.Step)
	}
	p.state, p.wants, p.loads = nil, []string{}, nil
	var ranges [][][2]uint64
	for _, s := range filesOf(*world.Snapshot, world.Parts) {
		key, _ := share.Parse(s.Part)
		switch {
		case key.Rank:
			p.state = slices.Clone(w.states[s])
		case key.Index*world.Workers < (world.WorkerRank+1)*key.Of && world.WorkerRank*key.Of < (key.Index+1)*world.Workers:
			p.wants = append(p.wants, s.Part)
			all := world.WorkerRank*key.Of <= key.Index*world.Workers && (key.Index+1)*world.Workers <= (world.WorkerRank+1)*key.Of
			if ranges = append(ranges, nil); !all && !w.wholes {
				ranges[len(ranges)-1] = [][2]uint64{{1, 2}}
			}
		}
	}
	w.pending = append(w.pending, lifecycle.Said{Connection: p.connection, What: lifecycle.Wants, Parts: p.wants, Ranges: ranges})
}

// handed tells the process where what it has asked for is. It takes its time to open that: much may come between.
func (w *worker) handed(hand lifecycle.Hand) {
	if p := &w.process; p.wants != nil && hand.Round == p.round {
		p.loads = &hand
	}
}

// load has the process load what it was told of.
func (w *worker) load() {
	p := &w.process
	if p.loads == nil || p.still {
		return
	}
	for _, s := range filesOf(*p.loads.World.Snapshot, p.loads.World.Parts) {
		switch {
		case !slices.Contains(p.wants, s.Part), !w.wholes && w.excerpts[s] != nil && slices.Equal(w.excerpts[s], p.state):
		case !slices.Contains(w.snapshots, s) || !slices.Equal(w.states[s], p.state):
			w.broken = fmt.Errorf("%s: round %d goes on with the shard %v that is not there, or of another state", w.uid, p.round, s)
		}
	}
	p.wants, p.loads = nil, nil
	w.look()
}

// dropExcerpts is what an agent does once its process has made a step.
func (w *worker) dropExcerpts() {
	if in := w.machine.In(); in != nil && w.process.round == in.Round && w.process.done > in.World.FromStep {
		w.excerpts = nil
	}
}

// TestShardsAgainstModel plays the histories of TestChangesAgainstModel with programs that have their own shards of the state.
func TestShardsAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newFleetOf(t, InPlace)
		f.shares, f.sharded = false, true
		for _, p := range f.pods {
			p.shares, p.sharded = false, true
		}
		f.play(t)
	})
}

// cutUp is a world of so many workers whose state is in shards.
func cutUp(t *testing.T, workers int) (*fleet, *modelLeader) {
	t.Helper()
	f := emptyFleet(t)
	f.sharded, f.minimum, f.target = true, 1, int32(workers)
	return f, f.training(workers)
}

// All ranks write the state of the barrier, whoever stays, and all who go on load what they need of it: so nothing is lost.
func TestAWorldInShardsBecomesSmaller(t *testing.T) {
	f, l := cutUp(t, 4)
	f.turns(l, 4)
	f.pods["p01"].want.Leaving, f.target = ReasonScaledDown, 3
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 30)
	w := l.machine.world
	if w == nil || w.record.Round != 2 || w.record.Workers != 3 || w.record.FromStep != f.done[1] || l.machine.furthest() <= w.record.FromStep {
		t.Fatalf("the world is %+v after %d steps: %s", w, f.done[1], l.machine.State())
	}
	if _, err := f.pods["p00"], f.pods["p00"].broken; err != nil {
		t.Error(err)
	}
}

// What is fetched before a world is published is what its worker needs whatever its programs say; of the shards it is told then.
func TestShardsAreNotFetchedAhead(t *testing.T) {
	f, l := cutUp(t, 4)
	f.turns(l, 3)
	leaver := f.pods["p01"]
	leaver.want.Leaving, f.target = ReasonScaledDown, 4
	f.makePod()
	_ = f.handle(l, GangExpected{f.gang()})
	ahead, told := 0, 0
	for range 40 {
		f.turn(l)
		for _, uid := range f.uids() {
			d, ok := l.machine.Directive(uid)
			if !ok {
				continue
			}
			if d.Prefetch != nil {
				ahead++
				if inShards(d.Prefetch.Parts) {
					t.Fatalf("%s is to fetch %v", uid, d.Prefetch.Parts)
				}
			}
			if d.World != nil && inShards(d.World.Parts) {
				told = max(told, len(d.World.Parts))
			}
		}
	}
	if told != 5 {
		t.Errorf("%d were to fetch something before, and of %d parts somebody was told: %s", ahead, told, l.machine.State())
	}
}

// A state of which a rank could not write its shard is none: the world stays as it is, and nobody leaves it.
func TestAWorldInShardsThatCannotBeSaved(t *testing.T) {
	f, l := cutUp(t, 3)
	f.turns(l, 4)
	f.pods["p02"].full = true
	f.pods["p01"].want.Leaving, f.target = ReasonScaledDown, 2
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 12)
	if w := l.machine.world; w.record.Round != 1 || w.calledOff == "" {
		t.Errorf("the world is %+v: %s", w.record, l.machine.State())
	}
}

// Whoever is lost takes its shard along, unless another node has a copy: the others go back to the newest state that has all.
func TestALossInShards(t *testing.T) {
	f, l := cutUp(t, 3)
	f.turns(l, 3)
	f.settleSteps()
	f.periodic("p00", "p01", "p02")
	f.turns(l, 3)
	copied := l.machine.memory()
	if copied.Copies != 2 || copied.Step == 0 || l.machine.copying != nil {
		t.Fatalf("the copies: %+v, %+v", copied, l.machine.copying)
	}
	for _, uid := range f.uids() {
		if shares, _ := f.pods[uid].keys(copied.Step); len(shares) != 2 {
			t.Errorf("%s holds the shards %v", uid, shares)
		}
	}
	f.settleSteps()
	f.pods["p00"].full, f.pods["p01"].full = true, true // nobody can make copies any more
	for _, uid := range []string{"p00", "p01", "p02"} {
		p := f.pods[uid]
		was := p.full
		p.full = false
		p.save(p.stages())
		p.full = was
	}
	f.pods["p02"].starved = true
	f.turns(l, 1)
	f.end(f.pods["p02"])
	f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	_ = f.handle(l, GangExpected{f.gang()})
	f.pods["p00"].full, f.pods["p01"].full = false, false
	f.turns(l, 30)
	if w := l.machine.world; w == nil || w.record.Round != 2 || w.record.FromStep != copied.Step {
		t.Errorf("the world goes on after %+v, want %d: %s", w.record, copied.Step, l.machine.State())
	}
}

// Where nobody is lost the world goes on after the last step that all have made, though each has only its own shard.
func TestABrokenWorldInShards(t *testing.T) {
	for name, row := range map[string]struct {
		spoil func(f *fleet)
		back  bool
	}{
		"all have the state": {func(*fleet) {}, false},
		"one cannot write":   {func(f *fleet) { f.pods["p01"].full = true }, true},
		"one is not clean":   {func(f *fleet) { f.pods["p01"].vague = true }, true},
		"one has made a step more": {func(f *fleet) {
			p := f.pods["p01"]
			p.process.done++
			p.process.state = append(p.process.state, 1)
			p.process.entered++
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, l := cutUp(t, 3)
			f.turns(l, 3)
			f.settleSteps()
			f.periodic("p00", "p01", "p02")
			f.turns(l, 4)
			f.settleSteps()
			older, newest := l.machine.memory().Step, f.done[1]
			if older == 0 || older >= newest {
				t.Fatalf("it is at step %d, and the snapshot is of step %d", newest, older)
			}
			row.spoil(f)
			f.pods["p00"].fail("RuntimeError: connection reset by peer")
			f.turns(l, 30)
			want := newest
			if row.back {
				want = older
			}
			if w := l.machine.world; w == nil || w.record.Round < 2 {
				t.Errorf("the world goes on after %+v, want %d: %s", w.record, want, l.machine.State())
			} else if got := fromStepOf(f, 2); got != want {
				t.Errorf("round 2 goes on after step %d, want %d", got, want)
			}
		})
	}
}

// fromStepOf is after which step a round began.
func fromStepOf(f *fleet, round uint64) uint64 {
	for _, record := range append(f.past, f.record) {
		if record.Round == round {
			return record.FromStep
		}
	}
	return 0
}

// A world in shards grows no larger than one that can write its state, unless it has to be: nobody could write one any more.
func TestAWorldInShardsGrowsNoFurtherThanItCanWrite(t *testing.T) {
	f, l := cutUp(t, 2)
	m := l.machine
	f.turns(l, 2)
	if got := m.legalSize(500); got != 2 {
		t.Fatalf("%d of 2", got)
	}
	for name, row := range map[string]struct {
		minimum, process int32
		sizes            []int32
		want             int32
	}{
		"eight processes":     {1, 8, nil, 16},
		"one process":         {1, 1, nil, 128},
		"sizes":               {1, 8, []int32{2, 8, 17, 32}, 8},
		"too many in any":     {1, 8, []int32{20, 40}, 20},
		"more are to be":      {18, 8, nil, 18},
		"more than all there": {1, 200, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m.gang.Target, m.gang.Minimum, m.gang.ProcessesPerWorker, m.gang.Sizes = 900, row.minimum, row.process, row.sizes
			if got := m.legalSize(500); got != row.want {
				t.Errorf("%d, want %d", got, row.want)
			}
		})
	}
}

// Another leader knows by the controller that the state is in shards, and makes the first world of an attempt no larger than can write it;
// once it has seen a world it goes by that.
func TestAnotherLeaderKnowsOfShards(t *testing.T) {
	f := emptyFleet(t)
	f.target = 200
	f.newLeader()
	m := f.leaders[f.born].machine
	m.gang = normal(Gang{Minimum: 2, Target: 200})
	if got := m.legalSize(200); got != 200 {
		t.Errorf("%d of a state that may be in one piece", got)
	}
	m.gang.Sharded = true
	if got := m.legalSize(200); got != share.MostShards {
		t.Errorf("%d of a state in shards", got)
	}
	m.cutKnown = true
	if got := m.legalSize(200); got != 200 {
		t.Errorf("%d of a state that is in shards no more", got)
	}
}

// Copies of one state are waited for, and those of a newer one are made after that; not for ever.
func TestCopiesThatDoNotCome(t *testing.T) {
	f, l := cutUp(t, 2)
	f.turns(l, 3)
	f.settleSteps()
	f.pods["p00"].starved, f.pods["p01"].starved = true, true
	f.periodic("p00", "p01")
	f.turns(l, 2)
	m := l.machine
	first := m.copying
	if first == nil || len(first.orders["p00"]) != 1 || len(first.orders["p01"]) != 1 {
		t.Fatalf("what is copied: %+v", first)
	}
	f.settleSteps()
	f.periodic("p00", "p01")
	f.turns(l, 2)
	if m.copying != first || !sameState(*m.relied, first.Snapshot) {
		t.Errorf("what is copied is %+v, and %+v is relied on", m.copying, m.relied)
	}
	m.copyShards(f.now.Add(copyTimeout))
	if m.copying == nil || m.copying.Step <= first.Step {
		t.Errorf("what is copied is %+v still", m.copying)
	}
}

// A state with copies stays the one that is relied on until another has them, however long that takes.
func TestTheLastStateWithCopiesIsKept(t *testing.T) {
	f, l := cutUp(t, 2)
	m := l.machine
	copied := copiedOnce(f, l)
	f.pods["p01"].copyless = true
	write := func() {
		f.settleSteps()
		f.periodic("p00", "p01")
		f.turns(l, 3)
		m.copyShards(f.now.Add(copyTimeout))
		m.unrelied, m.look = true, true
		f.turns(l, 1)
	}
	for range 4 {
		write()
		if m.relied == nil || !sameState(*m.relied, copied.Snapshot) {
			t.Fatalf("%+v is relied on, and %+v has copies", m.relied, copied)
		}
	}
	f.pods["p01"].copyless = false
	write()
	if got := m.memory(); got.Copies != 2 || got.Step <= copied.Step {
		t.Errorf("%+v is relied on still", got)
	}
}

// copiedOnce is a state that has all its copies.
func copiedOnce(f *fleet, l *modelLeader) Memory {
	f.t.Helper()
	f.turns(l, 3)
	f.settleSteps()
	f.periodic(f.uids()...)
	f.turns(l, 3)
	copied := l.machine.memory()
	if copied.Copies != 2 || copied.Step == 0 {
		f.t.Fatalf("the copies: %+v", copied)
	}
	return copied
}

// Who has not made its copies of one state gets those of the next only where nobody else can.
func TestWhoMakesNoCopiesIsAskedLast(t *testing.T) {
	f, l := cutUp(t, 4)
	m := l.machine
	_ = copiedOnce(f, l)
	f.pods["p01"].copyless = true
	f.settleSteps()
	f.periodic(f.uids()...)
	f.turns(l, 3)
	if c := m.copying; c == nil || len(c.orders["p01"]) == 0 {
		t.Fatalf("what is copied: %+v", c)
	}
	f.settleSteps()
	f.periodic(f.uids()...)
	f.turns(l, 2)
	m.copyShards(f.now.Add(copyTimeout))
	if c := m.copying; c == nil || len(c.orders["p01"]) > 0 || len(c.orders) == 0 {
		t.Fatalf("what is copied: %+v", c)
	}
	f.turns(l, 3)
	if got := m.memory(); got.Copies != 2 || m.copying != nil {
		t.Errorf("the copies: %+v, %+v", got, m.copying)
	}
}

// A worker that serves nothing gives and takes no copies, so its node is none of those that may have some.
func TestCopiesAreNotMissedWhereNothingIsServed(t *testing.T) {
	_, l := cutUp(t, 2)
	m := l.machine
	if got := m.copiesPossible(); got != 2 {
		t.Fatalf("on %d nodes", got)
	}
	m.members["p01"].serves.Port = 0
	if got := m.copiesPossible(); got != 1 {
		t.Errorf("on %d nodes, and one serves nothing", got)
	}
}

// Who says that it cannot make its copies is not waited for: others make them at once, where there are some, beside what they make already.
func TestWhoSaysThatItMakesNoCopiesIsReplaced(t *testing.T) {
	f, l := cutUp(t, 4)
	m := l.machine
	_ = copiedOnce(f, l)
	f.settleSteps()
	f.periodic(f.uids()...)
	f.pods["p01"].full, f.pods["p02"].copyless = true, true
	f.turns(l, 1)
	c := m.copying
	if c == nil {
		t.Fatal("nothing is copied")
	}
	first := map[string][]Snapshot{"p00": c.orders["p00"], "p02": c.orders["p02"], "p03": c.orders["p03"]}
	f.turns(l, 4)
	if len(c.orders["p01"]) > 0 || !m.members["p01"].isFull(f.now) {
		t.Errorf("what is copied: %+v", c.orders)
	}
	for uid, orders := range first {
		for _, part := range orders {
			if !slices.Contains(c.orders[uid], part) {
				t.Errorf("%s is to get %v, and was to get %v", uid, c.orders[uid], part)
			}
		}
	}
	f.pods["p02"].copyless = false
	f.turns(l, 4)
	if got := m.memory(); got.Copies != 2 || got.Step != c.Step || m.copying == c {
		t.Errorf("the copies: %+v, %+v", got, m.copying)
	}
}

// Where nobody else can it is asked on, and what it has said once is said once.
func TestNobodyElseMakesCopies(t *testing.T) {
	f, l := cutUp(t, 2)
	m := l.machine
	_ = copiedOnce(f, l)
	f.settleSteps()
	f.periodic(f.uids()...)
	f.pods["p01"].full = true
	f.turns(l, 4)
	c := m.copying
	if c == nil || len(c.orders["p01"]) != 1 || m.hearUncopied(f.now, c) {
		t.Fatalf("what is copied: %+v", c)
	}
	f.pods["p01"].full = false
	f.turns(l, 4)
	if got := m.memory(); got.Copies != 2 || got.Step != c.Step {
		t.Errorf("the copies: %+v", got)
	}
}
