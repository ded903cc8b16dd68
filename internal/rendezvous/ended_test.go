package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/share"
)

// onlyHolder is a world of p00 and p01 that begins with what p02 alone has, whose program has failed and whose agent stays. The two have an
// older snapshot, and get nothing from p02 yet.
func onlyHolder(t *testing.T) (f *fleet, l *modelLeader, newest uint64) {
	t.Helper()
	f = emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
	l, newest = f.soleHolder(true)
	f.entersFrom(l, newest)
	return f, l, newest
}

// entersFrom has the program of p02 fail, and the others enter a world that begins with the state after a step, and get nothing of it.
func (f *fleet) entersFrom(l *modelLeader, step uint64) {
	f.t.Helper()
	f.target = 2
	_ = f.handle(l, GangExpected{f.gang()})
	f.pods["p00"].starved, f.pods["p01"].starved = true, true
	f.pods["p02"].exits(1)
	f.until(l, "the others have entered the next world", func() bool { return l.machine.world.record.Round == 2 && l.machine.world.formed() })
	if w := l.machine.world; w.record.FromStep != step || w.record.Workers != 2 || w.ranks.rank("p02") >= 0 {
		f.t.Fatalf("the next world is %+v, and p02 has the state after step %d", w.record, step)
	}
}

// feed has those get what they lack that were starved.
func (f *fleet) feed() {
	for _, p := range f.pods {
		p.starved = false
		p.wake()
	}
}

// leftSoon says what is wrong where the second world is not left for one that goes on from an older state, by which nobody
// is lost or left out but who has ended.
func (f *fleet) leftSoon(l *modelLeader, newest uint64) string {
	told := f.now
	for f.now.Sub(told) < 20*time.Second && (f.record.Round < 3 || f.done[3] <= f.record.FromStep) {
		if f.turn(l); f.record.Round == 3 {
			f.feed() // one of the two has that state
		}
	}
	if wrong := f.goesOn(l, 2); wrong != "" {
		return wrong
	}
	if f.record.Round != 3 || f.record.FromStep == 0 || f.record.FromStep >= newest || f.record.Reason != ReasonRetried {
		return fmt.Sprintf("the one that has ended had the state after step %d, and the next world is %+v", newest, f.record)
	}
	for _, uid := range []string{"p00", "p01"} {
		if mem := l.machine.members[uid]; f.lossOf(l, uid) != "" || mem.isAside() || mem.aside.times > 0 {
			return fmt.Sprintf("%s is lost, or left out: %q, %+v", uid, f.lossOf(l, uid), mem.aside)
		}
	}
	f.turns(l, 20) // until its cost is told
	said := func(c Change) bool {
		return c.Round == 3 && strings.Contains(c.Message, "p02 ended before all had got it")
	}
	if changes := l.machine.Observe(f.now).Changes; !slices.ContainsFunc(changes, said) {
		return fmt.Sprintf("nothing says why: %+v", changes)
	}
	return ""
}

// A world that begins with a state that nobody has any more who has not ended is left once that is known and who lacks it has tried, and the
// next one begins with an older state: nobody tries for long to get what is gone.
func TestAWorldWithoutItsStateIsLeft(t *testing.T) {
	ends := func(f *fleet) {
		f.end(f.pods["p02"])
		f.pods["p02"].want.Lost, f.pods["p02"].want.Ended = "it has ended", true
	}
	for name, play := range map[string]func(f *fleet, l *modelLeader){
		"it is known at once": func(f *fleet, _ *modelLeader) { ends(f) },
		"it is named no more": func(f *fleet, _ *modelLeader) {
			f.end(f.pods["p02"])
			f.nameNoMore("p02")
		},
		"it is named no more, and its end is known later": func(f *fleet, l *modelLeader) {
			f.end(f.pods["p02"])
			delete(f.pods, "p02")
			_ = f.handle(l, GangExpected{f.gang()})
			f.turns(l, 10)
			f.over = []string{"p02"}
		},
		"it is known once it has not been reached for long": func(f *fleet, l *modelLeader) {
			f.end(f.pods["p02"])
			f.lasting(l, 22*time.Second)
			if said := l.machine.members["p00"].report.Unreached; len(said) == 0 {
				f.t.Fatal("nobody says that it is not reached")
			}
			ends(f)
		},
		"its node is gone, and its session is not": func(f *fleet, _ *modelLeader) {
			p := f.pods["p02"]
			p.dead, p.vanished, p.leader, p.queue = true, true, nil, nil
			p.want.Lost, p.want.Ended = "its node was deleted", true
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, l, newest := onlyHolder(t)
			play(f, l)
			if f.record.Round != 2 || l.machine.broken != nil {
				t.Fatalf("it is left before anybody knows of an end: %+v", f.record)
			}
			_ = f.handle(l, GangExpected{f.gang()})
			if tried := len(l.machine.members["p00"].report.Unreached) > 0; (l.machine.broken != nil) != tried {
				t.Errorf("somebody has tried: %t; it is left for %+v", tried, l.machine.broken)
			}
			if wrong := f.leftSoon(l, newest); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}

// It is not left while somebody may have its state, or nobody lacks it.
func TestAWorldIsKeptWhileSomebodyHasItsState(t *testing.T) {
	for name, play := range map[string]func(f *fleet, l *modelLeader){
		"its agent lives": func(*fleet, *modelLeader) {},
		"it is not heard": func(f *fleet, _ *modelLeader) {
			f.cut(f.pods["p02"], true)
			f.drop(f.pods["p02"], f.pods["p02"].leader)
		},
		"nobody knows what has become of it": func(f *fleet, l *modelLeader) {
			f.end(f.pods["p02"])
			delete(f.pods, "p02")
			_ = f.handle(l, GangExpected{f.gang()})
		},
		"it is said of another one": func(f *fleet, _ *modelLeader) { f.over = []string{"p03"} },
		"another one has got it": func(f *fleet, l *modelLeader) {
			f.pods["p00"].starved, f.pods["p00"].process.still = false, true
			f.until(l, "p00 has it", func() bool { return l.machine.members["p00"].report.Snapshots[0].Step == f.record.FromStep })
			f.lose(l, "p02")
		},
		"all have got it": func(f *fleet, l *modelLeader) {
			for _, uid := range []string{"p00", "p01"} {
				f.pods[uid].starved, f.pods[uid].process.still = false, true
			}
			f.until(l, "they have it", func() bool {
				return !slices.ContainsFunc([]string{"p00", "p01"}, func(uid string) bool {
					return l.machine.members[uid].report.Snapshots[0].Step != f.record.FromStep
				})
			})
			f.lose(l, "p02")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, l, _ := onlyHolder(t)
			play(f, l)
			_ = f.handle(l, GangExpected{f.gang()})
			f.turns(l, 12)
			if f.record.Round != 2 || l.machine.broken != nil {
				t.Errorf("the world is left: %+v, %+v", f.record, l.machine.broken)
			}
		})
	}
}

// Nor while another holder has it that is in the world itself.
func TestACopyServesAWorldWhoseHolderHasEnded(t *testing.T) {
	f := emptyFleet(t)
	f.minimum, f.target, f.hang = 1, 3, 10*time.Minute
	l, newest := f.soleHolder(true)
	of := f.pods["p02"]
	f.pods["p00"].keep(of.snapshots[0], of.states[of.snapshots[0]])
	f.turns(l, 2)
	f.entersFrom(l, newest)
	f.lose(l, "p02")
	f.feed()
	f.turns(l, 12)
	if wrong := f.goesOn(l, 2); wrong != "" || f.record.Round != 2 {
		t.Errorf("p00 has the state as well, and %+v: %s", f.record, wrong)
	}
}

// Of a state in parts those that all need must be there, and of what differs by rank the worker's own, or that which serves it.
func TestPartsThatAreGone(t *testing.T) {
	f, l := shared(t, 3)
	m := l.machine
	w := m.world
	const layout = ".2.0123456789abcdef"
	part := func(key string) Snapshot {
		return Snapshot{Round: 1, Step: 4, Bytes: 1, Hash: [32]byte{key[0], key[1]}, Part: key + layout}
	}
	s0, s1, r0, r2 := part("s0"), part("s1"), part("r0"), part("r2")
	for name, c := range map[string]struct {
		ended []string
		has   map[string][]Snapshot // of the world
		live  []string
		gone  bool
	}{
		"a share":                                  {ended: []string{"h1"}, gone: true},
		"a share that a member has":                {ended: []string{"h1"}, has: map[string][]Snapshot{"p01": {s1}}},
		"a share that is with another holder":      {ended: []string{"h0"}},
		"all with that share":                      {ended: []string{"h0", "h2"}, gone: true},
		"what is a rank's own, which it has":       {ended: []string{"h3"}, has: map[string][]Snapshot{"p02": {r2}}},
		"what is a rank's own":                     {ended: []string{"h3"}, gone: true},
		"what is a rank's own that has its state":  {ended: []string{"h3"}, live: []string{"p02"}},
		"all, where everybody has its state":       {ended: []string{"h0", "h1", "h2", "h3"}, live: []string{"p00", "p01", "p02"}},
		"all, where one has not":                   {ended: []string{"h0", "h1", "h2", "h3"}, live: []string{"p00", "p01"}, gone: true},
		"one of whom nobody knows what it has had": {ended: []string{"h9"}},
	} {
		w.told, w.ended, w.live = nil, map[string]bool{}, map[string]bool{}
		w.snapshot, w.parts = &Snapshot{Round: 1, Step: 4, Hash: [32]byte{1}}, []Snapshot{s0, s1, r0, r2}
		w.holders, w.givers = nil, nil
		for i, parts := range [][]Snapshot{{s0, r0}, {s1}, {s0, r0}, {r2}} {
			w.holders = append(w.holders, holding{holder{fmt.Sprint("10.0.1.", i), Server{Port: 5000}}, parts})
			w.givers = append(w.givers, giver{fmt.Sprint("h", i), fmt.Sprint("h", i)})
		}
		for _, uid := range c.ended {
			w.ended[uid] = true
		}
		for _, uid := range c.live {
			w.live[uid] = true
		}
		for _, uid := range f.uids() {
			m.members[uid].report.Snapshots, m.members[uid].report.Unreached = c.has[uid], nil
			for i, g := range w.givers {
				if w.ended[g.uid] {
					m.members[uid].report.Unreached = append(m.members[uid].report.Unreached, Unreached{w.holders[i].Address, w.holders[i].Server, "refused"})
				}
			}
		}
		w.record.FromStep = m.furthest()
		if why := m.endedSupply(); (why != "") != c.gone {
			t.Errorf("%s: %q", name, why)
		}
		for _, uid := range f.uids() {
			m.members[uid].report.Unreached = nil
		}
		if why := m.endedSupply(); why != "" {
			t.Errorf("%s, and nobody says that it is not reached: %q", name, why)
		}
	}
	w.told, w.parts, w.live = nil, nil, nil
	for ended, gone := range map[string]bool{"h0": false, "h0 h2": false, "h0 h1 h2 h3": true} {
		w.ended, m.members["p00"].report.Unreached = map[string]bool{}, nil
		for i, g := range w.givers {
			if w.ended[g.uid] = strings.Contains(ended, g.uid); w.ended[g.uid] {
				m.members["p00"].report.Unreached = append(m.members["p00"].report.Unreached, Unreached{w.holders[i].Address, w.holders[i].Server, "refused"})
			}
		}
		if why := m.endedSupply(); (why != "") != gone || gone && !strings.Contains(why, "the state after step 4") {
			t.Errorf("of those who hold one file %s have ended: %q", ended, why)
		}
	}
}

// Whoever does not reach one that has ended says so of what it lacks: where somebody else has that, what nobody has is not lacking.
func TestOnlyWhatIsGoneIsMissed(t *testing.T) {
	f, l := shared(t, 3)
	m := l.machine
	w := m.world
	part := func(key string) Snapshot {
		return Snapshot{Round: 1, Step: 4, Bytes: 1, Hash: [32]byte{key[0], key[1]}, Part: key + ".2.0123456789abcdef"}
	}
	d0, d1 := part("d0"), part("d1")
	w.told, w.ended, w.live = nil, map[string]bool{"h0": true, "h1": true}, map[string]bool{}
	w.snapshot, w.parts = &Snapshot{Round: 1, Step: 4, Hash: [32]byte{1}}, []Snapshot{d0, d1}
	w.holders, w.givers = nil, nil
	for i, parts := range [][]Snapshot{{d0}, {d1}, {d1}} {
		w.holders = append(w.holders, holding{holder{fmt.Sprint("10.0.1.", i), Server{Port: 5000}}, parts})
		w.givers = append(w.givers, giver{fmt.Sprint("h", i), fmt.Sprint("h", i)})
	}
	w.record.FromStep = m.furthest()
	for _, uid := range f.uids() {
		m.members[uid].report.Snapshots, m.members[uid].report.Unreached = nil, nil
	}
	for i, left := range []bool{true, false} {
		m.members["p01"].report.Unreached = []Unreached{{w.holders[i].Address, w.holders[i].Server, "refused"}}
		if why := m.endedSupply(); (why != "") != left {
			t.Errorf("h%d is not reached: %q", i, why)
		}
	}
}

// Of two who say that they are where a holder is nobody knows which has ended.
func TestTwoAtTheSamePlaceAreNoGivers(t *testing.T) {
	_, l := shared(t, 3)
	m := l.machine
	at := []holding{{holder: m.members["p00"].holder()}, {holder: m.members["p02"].holder()}}
	if got := m.giversOf(at); got[0].uid != "p00" || got[1].name != "p02" {
		t.Fatalf("the holders are %+v", got)
	}
	m.members["p01"].endpoint, m.members["p01"].serves = m.members["p00"].endpoint, m.members["p00"].serves
	if got := m.giversOf(at); got[0] != (giver{}) || got[1].uid != "p02" {
		t.Errorf("the holders are %+v", got)
	}
}

// Shards that only one has who has ended are brought from the storage, and nobody waits for longer than until somebody says that it does not
// reach who had them. Before that everybody may have what it wants of them, though no report says so.
func TestShardsThatAreGone(t *testing.T) {
	for _, got := range []bool{false, true} {
		t.Run(fmt.Sprintf("one has got its own %t", got), func(t *testing.T) {
			f, l := restoredFleet(t)
			f.entersFrom(l, 7)
			if got {
				f.pods["p00"].starved, f.pods["p00"].process.still = false, true
				f.until(l, "p00 has its shards", func() bool { return l.machine.members["p00"].report.Supplied })
			}
			ended := f.now
			f.lose(l, "p02")
			f.turns(l, 3)
			if l.machine.broken != nil || f.record.Round > 2 {
				t.Fatal("the world is left before anybody has tried")
			}
			for f.record.Round == 2 && l.machine.broken == nil {
				f.turn(l)
			}
			if took, why := f.now.Sub(ended), l.machine.broken.why; took > 20*time.Second || !strings.Contains(why, "p02 ended before all had got it") {
				t.Errorf("it took %s until the world was left: %s", took, why)
			}
			f.feed()
			f.goesOnFrom(l, 7, 2)
		})
	}
}

// Of a shard that the next world cuts otherwise a worker gets those blocks that it wants, of which no report tells: while they come from others,
// and what was with one who has ended is there, the world goes on, and no step is lost.
func TestBlocksThatAreHereOutliveTheirHolder(t *testing.T) {
	f, l := cutUp(t, 7)
	f.hang = 10 * time.Minute
	m := l.machine
	copied := copiedOnce(f, l)
	f.turns(l, 6)
	f.settleSteps()
	ranks := m.world.ranks.uids
	stay, ends := []string{ranks[0], ranks[4], ranks[6]}, ranks[2]
	slow, blocks := true, map[string]history{}
	for _, uid := range stay {
		p := f.pods[uid]
		whole := p.fetch
		p.fetch = func(of, s Snapshot, holders []lifecycle.Holder) (history, bool, []lifecycle.Unreached) {
			key, _ := share.Parse(s.Part)
			if !key.Shard || s.Step <= copied.Step {
				return whole(of, s, holders)
			}
			if d := f.pods[ends]; blocks[uid] == nil && d != nil && !d.dead { // all come at once, and these are small
				for _, one := range d.snapshots {
					if one.Step == s.Step && one.Round == s.Round && strings.HasPrefix(one.Part, "d2.") {
						blocks[uid] = d.states[one]
					}
				}
			}
			switch {
			case key.Index == 2 && blocks[uid] != nil:
				return blocks[uid], true, nil
			case slow:
				return nil, false, []lifecycle.Unreached{}
			}
			return whole(of, s, holders)
		}
	}
	for _, uid := range []string{ranks[1], ranks[2], ranks[3], ranks[5]} {
		f.pods[uid].want.Leaving = ReasonNodeTainted
	}
	f.target = 3
	_ = f.handle(l, GangExpected{f.gang()})
	f.until(l, "the next world is entered, and the blocks are there", func() bool {
		return m.world.record.Round == 2 && m.world.formed() && blocks[stay[0]] != nil && blocks[stay[1]] != nil
	})
	f.end(f.pods[ends])
	f.nameNoMore(ends)
	_ = f.handle(l, GangExpected{f.gang()})
	f.turns(l, 6)
	slow = false
	f.turns(l, 60)
	if w := m.world; w.record.Round != 2 || w.record.FromStep <= copied.Step || f.done[2] <= w.record.FromStep {
		t.Errorf("the world is %+v, and steps up to %d were made in the first one: %s", w.record, f.done[1], m.State())
	}
}

// That a holder is not reached that has ended says nothing of who does not reach it.
func TestNobodyIsLeftOutForWhoHasEnded(t *testing.T) {
	_, l, _ := onlyHolder(t)
	m := l.machine
	p02 := m.members["p02"]
	m.members["p00"].report.Unreached = []Unreached{{p02.endpoint.Address, p02.serves, "i/o timeout"}}
	if said := m.hearUnreached(); len(said["p00"]) != 1 {
		t.Fatalf("it says %+v", said)
	}
	p02.want.Ended = true
	if said := m.hearUnreached(); len(said) > 0 {
		t.Errorf("it says %+v of who has ended", said)
	}
}
