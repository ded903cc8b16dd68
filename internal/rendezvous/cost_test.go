package rendezvous

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// throng is a job of so many workers on nodes of eight, whose world trains, with a standby beside it.
type throng struct {
	*Machine
	now  time.Time
	gang Gang
}

func newThrong(tb testing.TB, members, processes int) *throng {
	c := &throng{Machine: NewMachine(10*time.Second, "one"), now: time.Unix(1000, 0)}
	c.gang = Gang{JobUID: "uid", Attempt: 1, Minimum: 1, Target: int32(members), ProcessesPerWorker: int32(processes), HangTimeout: 10 * time.Minute}
	for i := range members + 1 {
		c.gang.Members = append(c.gang.Members, Member{
			UID: fmt.Sprintf("uid-%d", i), Name: fmt.Sprintf("digits-1-%d", i), Ordinal: int32(i), Node: fmt.Sprintf("node-%d", i/8),
		})
	}
	c.Handle(c.now, GangExpected{c.gang})
	c.confirm()
	for i := range c.gang.Members {
		report := Report{Term: 1, Standby: true}
		for range processes {
			report.Processes = append(report.Processes, Process{Elastic: true, Waiting: waitingJoin})
		}
		c.Absorb(c.now, AgentJoined{UID: c.gang.Members[i].UID, Attempt: 1, Endpoint: Endpoint{"10.0.0.1", 1}, Serves: Server{Port: 1}, Report: report})
	}
	c.Settled(c.now)
	c.confirm()
	c.report(1, Process{Elastic: true, ProgramPhase: phaseStep, Entered: 2, Done: 1})
	if c.world == nil || !c.world.formed() || !c.hasBegun() {
		tb.Fatalf("the world of %d does not train", members)
	}
	return c
}

// confirm answers the write under way.
func (c *throng) confirm() { c.Handle(c.now, RecordAnswered{Found: c.writing.Next, Secret: []byte{1}}) }

// report has every member of the world say the same of its processes.
func (c *throng) report(term uint64, p Process) {
	for rank, uid := range c.world.ranks.uids {
		report := Report{
			Term: term, Round: c.world.record.Round, Digest: c.world.record.MembersDigest, WorkerRank: uint32(rank), StepTime: time.Second,
			Out: p.Waiting.left(),
		}
		for range c.gang.ProcessesPerWorker {
			report.Processes = append(report.Processes, p)
		}
		c.Absorb(c.now, AgentReported{UID: uid, Report: report})
	}
}

// restore has a world of all of them begin with a snapshot in parts, each of which is with two or with everybody: nobody has a
// state of its own left.
func (c *throng) restore(tb testing.TB, everybody bool) {
	w := c.world
	for _, mem := range c.members {
		mem.parts = true
	}
	for rank, uid := range w.ranks.uids {
		mem := c.members[uid]
		mem.endpoint.Address, mem.want.Node = fmt.Sprintf("10.%d.%d.1", rank/256, rank%256), fmt.Sprintf("node-%d", rank/8)
	}
	staging := c.stagings(w.ranks.uids, &w.record)
	c.breakWorld(c.now, &recovery{reason: ReasonWorkerLost, judged: true, planned: true})
	c.report(1, Process{Elastic: true, Entered: 2, Done: 1, Waiting: WaitingAborted})
	for rank, uid := range w.ranks.uids {
		part := func(key share.Key) {
			key.Of, key.Layout = share.Most, "0123456789abcdef"
			s := Snapshot{Round: w.record.Round, Step: 1, Bytes: 1 << 20, Part: key.String()}
			s.Hash[0], s.Hash[1] = byte(key.Index), byte(key.Index>>8)
			mem := c.members[uid]
			mem.report.Snapshots = append(mem.report.Snapshots, s)
		}
		if len(staging[rank].Shares) > 0 {
			part(share.Key{Rank: true, Index: rank})
		}
		for i := range share.Most {
			if everybody || slices.Contains(staging[rank].Shares, i) {
				part(share.Key{Index: i})
			}
		}
	}
	for range 3 {
		if c.Handle(c.now, TimePassed{}); c.writing != nil {
			c.confirm()
		}
	}
	if c.world == w || len(c.world.parts) == 0 || len(c.world.live) > 0 {
		tb.Fatalf("the world does not begin with a snapshot in parts: %s, %s", c.State(), c.fatal)
	}
	for rank, uid := range c.world.ranks.uids {
		mem := c.members[uid]
		mem.report.Round, mem.report.Digest, mem.report.WorkerRank = c.world.record.Round, c.world.record.MembersDigest, uint32(rank)
	}
}

// silence has two minutes pass in which nobody is heard but one.
func (c *throng) silence(but string) {
	mem := c.members[but]
	mem.report.Processes[0].ProgramPhase = phaseStep
	for range 12 {
		c.now = c.now.Add(10 * time.Second)
		c.Absorb(c.now, AgentReported{UID: mem.want.UID, Report: mem.report})
	}
}

// troubles are what may befall a world, in which each decision asks of each worker what it is about: with how many
// processes each, and how many workers are lost by it.
var troubles = []struct {
	name            string
	processes, lost int
	begin           func(*throng)
}{
	{"none", 1, 0, func(*throng) {}},
	{"nobody is heard but a standby", 1, 0, func(c *throng) { c.silence(c.gang.Members[MaxWorkers].UID) }},
	{"all but one are silent, on nodes that are not ready", 1, MaxWorkers - 1, func(c *throng) {
		for i := range c.gang.Members {
			c.gang.Members[i].NodeNotReady = true
		}
		c.Handle(c.now, GangExpected{c.gang})
		c.silence(c.world.ranks.uids[MaxWorkers-1])
	}},
	{"all but one were never heard by a new leader", 1, MaxWorkers - 1, func(c *throng) {
		for _, uid := range c.world.ranks.uids[:MaxWorkers-1] {
			c.members[uid].joined, c.members[uid].connected = false, false
		}
		c.silence(c.world.ranks.uids[MaxWorkers-1])
	}},
	{"all have left it, with the state of eight processes", 8, 0, func(c *throng) {
		c.breakWorld(c.now, &recovery{reason: ReasonWorkerLost, judged: true, planned: true})
		c.report(1, Process{Elastic: true, Entered: 2, Done: 1, Waiting: WaitingAborted, Clean: true, CleanStep: 1})
		c.members[c.world.ranks.uids[0]].report.Processes[0].Clean = false
	}},
}

// In the largest world a decision looks at all of its members once, and not for each of them: in these that would take
// minutes, with the job's lock held.
func TestTheLargestWorldInTrouble(t *testing.T) {
	for _, row := range troubles {
		t.Run(row.name, func(t *testing.T) {
			c := newThrong(t, MaxWorkers, row.processes)
			row.begin(c)
			c.Handle(c.now, TimePassed{})
			if lost, _ := c.lostOnes(); lost != row.lost {
				t.Errorf("%d are lost, want %d", lost, row.lost)
			}
			observed := 0
			for _, seen := range c.Observe(c.now).Members {
				if seen.LostIn == c.world.record.Round {
					observed++
				}
			}
			if observed != row.lost {
				t.Errorf("the controller is told of %d losses, want %d", observed, row.lost)
			}
			if c.broken != nil && row.processes > 1 && c.broken.saver == "" {
				t.Error("nobody is asked for the state")
			}
		})
	}
}

// Nor for each word about a holder: in the largest world all may miss the same one, and everybody some of the others.
func TestTheLargestWorldThatMissesItsHolders(t *testing.T) {
	for _, missed := range []int{1, 32} {
		c := newThrong(t, MaxWorkers, 1)
		c.breakWorld(c.now, &recovery{reason: ReasonWorkerLost})
		uids := c.world.ranks.uids
		for i, uid := range uids {
			mem := c.members[uid]
			mem.endpoint.Address, mem.serves.Port, mem.want.Node = uid, 1, fmt.Sprint("n", i)
			c.world.holders = append(c.world.holders, holding{holder: mem.holder()})
			mem.report.Round, mem.report.Digest = c.world.record.Round, c.world.record.MembersDigest
		}
		for i, uid := range uids {
			for n := range missed {
				other := uids[(i*n+n)%len(uids)] // the first and others
				c.members[uid].report.Unreached = append(c.members[uid].report.Unreached, Unreached{other, Server{Port: 1}, "i/o timeout"})
			}
		}
		for range 2 {
			if said := c.hearUnreached(); len(said) < MaxWorkers-1 {
				t.Fatalf("%d have said whom they miss", len(said))
			}
		}
		by := len(c.members[uids[0]].aside.by)
		if gone := c.unreached(); by != MaxWorkers-1 || len(gone[uids[0]]) != by || missed == 1 && len(gone) != 1 {
			t.Errorf("all miss one: %d do, and %d are not reached", by, len(gone))
		}
	}
}

// BenchmarkTrouble is what one decision costs there.
func BenchmarkTrouble(b *testing.B) {
	for _, row := range troubles {
		b.Run(row.name, func(b *testing.B) {
			c := newThrong(b, MaxWorkers, row.processes)
			row.begin(c)
			for b.Loop() {
				c.Handle(c.now, TimePassed{})
			}
		})
	}
}

// BenchmarkEvent is what one event costs that no decision follows on.
func BenchmarkEvent(b *testing.B) {
	for _, members := range []int{1000, MaxWorkers} {
		c := newThrong(b, members, 1)
		step := uint64(1)
		b.Run(fmt.Sprintf("step/%d", members), func(b *testing.B) {
			for b.Loop() {
				step++
				uid := c.world.ranks.uids[step%uint64(members)]
				r := c.members[uid].report
				r.Processes = []Process{{Elastic: true, ProgramPhase: phaseStep, Entered: step + 1, Done: step}}
				c.Absorb(c.now, AgentReported{UID: uid, Report: r})
			}
		})
		b.Run(fmt.Sprintf("join/%d", members), func(b *testing.B) {
			for b.Loop() {
				step++
				uid := c.world.ranks.uids[step%uint64(members)]
				c.Absorb(c.now, AgentJoined{UID: uid, Attempt: 1, Endpoint: Endpoint{"10.0.0.1", 1}, Serves: Server{Port: 1}, Report: c.members[uid].report})
			}
		})
		b.Run(fmt.Sprintf("tick/%d", members), func(b *testing.B) {
			for b.Loop() {
				c.now = c.now.Add(time.Millisecond)
				for _, mem := range c.members {
					mem.lastSeen = c.now
					break
				}
				c.heardAt, c.stepAt = c.now, c.now
				c.Handle(c.now, TimePassed{})
			}
		})
	}
}

// What a member is told of the snapshot that its world begins with takes no more memory in a large world than in a small one, and once a
// step was made it is told nothing of that: it would be said with each report.
func TestDirectivesCostWhatTheySay(t *testing.T) {
	var allocs []float64
	for _, members := range []int{100, 1000} {
		c := newThrong(t, members, 1)
		c.restore(t, true)
		uid := c.world.ranks.uids[members-1]
		if d, ok := c.Directive(uid); !ok || len(d.World.Parts) != share.Most+1 || len(d.World.Holders) < maxHoldersOfPart || d.World.Holders[0].Ticket == nil {
			t.Fatalf("it is told of %d parts and of %d holders", len(d.World.Parts), len(d.World.Holders))
		}
		allocs = append(allocs, testing.AllocsPerRun(100, func() { _, _ = c.Directive(uid) }))
		c.report(1, Process{Elastic: true, ProgramPhase: phaseStep, Entered: 3, Done: 2})
		if d, ok := c.Directive(uid); !ok || len(d.World.Parts)+len(d.World.Holders)+len(d.World.Peers) > 0 {
			t.Errorf("after a step it is told of %d parts, %d holders and %d peers", len(d.World.Parts), len(d.World.Holders), len(d.World.Peers))
		}
		if later := testing.AllocsPerRun(100, func() { _, _ = c.Directive(uid) }); later > 5 {
			t.Errorf("after a step a directive takes %v allocations", later)
		}
	}
	if allocs[0] > 80 || allocs[1] > allocs[0] {
		t.Errorf("in worlds of 100 and of 1000 a directive takes %v allocations", allocs)
	}
}

// While copies of shards are made each report is answered with whom to ask: that looks at those who have them, and not at all members.
func TestCopiesCostWhatTheySay(t *testing.T) {
	var allocs []float64
	for _, members := range []int{20, 100} {
		c := newThrong(t, members, 1)
		c.cutUp(t)
		uid := c.world.ranks.uids[members-1]
		if d, ok := c.Directive(uid); !ok || d.Copies == nil || len(d.Copies.Parts) == 0 || len(d.Copies.Holders) == 0 || d.Copies.Holders[0].Ticket == nil {
			t.Fatalf("it is told %+v", d.Copies)
		}
		allocs = append(allocs, testing.AllocsPerRun(100, func() { _, _ = c.Directive(uid) }))
	}
	if allocs[1] > allocs[0]+10 {
		t.Errorf("in worlds of 20 and of 100 a directive takes %v allocations", allocs)
	}
}

// cutUp has each member of the world write its own shard of a state, of which others are to make copies.
func (c *throng) cutUp(tb testing.TB) {
	c.report(1, Process{Elastic: true, Sharded: true, ProgramPhase: phaseStep, Entered: 3, Done: 2})
	w := c.world
	for _, mem := range c.members {
		mem.parts = true
	}
	for rank, uid := range w.ranks.uids {
		mem := c.members[uid]
		mem.endpoint.Address, mem.want.Node = fmt.Sprintf("10.%d.%d.1", rank/256, rank%256), fmt.Sprintf("node-%d", rank/8)
		key := share.Key{Rank: true, Index: rank, Of: len(w.ranks.uids), Layout: "0123456789abcdef"}
		own := Snapshot{Round: w.record.Round, Step: 2, Bytes: 1 << 20, Part: key.String()}
		key.Rank, key.Shard = false, true
		shard := own
		shard.Part, shard.Hash[0] = key.String(), 1
		mem.report.Snapshots = []Snapshot{own, shard}
	}
	c.Handle(c.now, TimePassed{})
	if c.copying == nil || len(c.copying.orders) < len(w.ranks.uids)/2 {
		tb.Fatalf("no copies are made: %s, %+v", c.State(), c.copying)
	}
}

// BenchmarkCopies is what it costs to say what a member should do while copies of shards are made.
func BenchmarkCopies(b *testing.B) {
	for _, members := range []int{100, 1000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			c := newThrong(b, members, 1)
			c.cutUp(b)
			b.ReportAllocs()
			b.ResetTimer()
			before := used(b)
			for i := range b.N {
				if d, ok := c.Directive(c.world.ranks.uids[i%members]); !ok || d.Copies == nil {
					b.Fatal("nothing is said")
				}
			}
			b.ReportMetric(float64(used(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkDirective is what it costs to say what a member should do, which is said with each report, in a world that begins with a
// snapshot in parts.
func BenchmarkDirective(b *testing.B) {
	for _, members := range []int{100, 1000, MaxWorkers} {
		for _, everybody := range []bool{false, true} {
			for _, begun := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d/everybody=%t/begun=%t", members, everybody, begun), func(b *testing.B) {
					c := newThrong(b, members, 1)
					if c.restore(b, everybody); begun {
						c.report(1, Process{Elastic: true, ProgramPhase: phaseStep, Entered: 3, Done: 2})
					}
					b.ReportAllocs()
					b.ResetTimer()
					before := used(b)
					for i := range b.N {
						if _, ok := c.Directive(c.world.ranks.uids[i%members]); !ok {
							b.Fatal("nothing is said")
						}
					}
					b.ReportMetric(float64(used(b)-before)/float64(b.N), "cpu-ns/op")
				})
			}
		}
	}
}
