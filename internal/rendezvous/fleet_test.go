package rendezvous

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// TestChangesAgainstModel plays random histories of worlds that change: workers come, leave, are lost and
// cut off, programs fail, operators die at any point. The agents are the real ones, as far as they decide
// anything, and step k of a world is made when all of its ranks have begun it.
//
// What must hold at every moment:
//   - a round has one digest, and nobody learns of it before it is durable;
//   - no step is made in a world once a later one has made one;
//   - all ranks that make a step together have the same state, and the same history of steps, which is that of the record;
//   - a rank of a round is to write the same shares, whoever says so;
//   - a planned change begins after the very last step of the world before;
//   - when nobody has led for as long as a hold lasts, nobody stands at a barrier any more;
//   - who is a spare trains once somebody is lost or leaves, in the very next world, and not before;
//   - a recovery goes back no further than the newest state that one of those has who go on;
//   - once a step was made, nothing begins as if none had been while anybody lives who has a state, whoever is heard first, and
//     however long nobody else is;
//   - no program is charged more often than it has failed, whoever leads, and wherever it was started anew;
//   - nobody is lost on the word of two peers who could be reached all the time, whatever one of them says; nor on the
//     word of two that nobody is at its port, as long as its agent runs, wherever it can be reached, or its world has made
//     two steps since its session ended; nor because one alone says that it cannot get the state from it.
//
// And in the end, when nothing fails any more: a leader that is left alone has a world that trains, with
// as many workers as are wanted, unless it says that no snapshot is left.
func TestChangesAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { newFleet(t).play(t) })
}

// TestDecisionsCanWait plays the same histories with operators that decide after some of the joins, reports and
// ends of sessions only, and after others together with what follows.
func TestDecisionsCanWait(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(t)
		f.waits = func() bool { return rapid.Bool().Draw(t, "waits") }
		f.play(t)
	})
}

// play plays a history, and checks its end.
func (f *fleet) play(t *rapid.T) {
	actions := map[string]func(*rapid.T){
		"go well":       f.with((*fleet).goWell),
		"go very well":  f.with((*fleet).goWell),
		"go on":         f.with((*fleet).goOn),
		"new leader":    f.with((*fleet).newLeader),
		"kill leader":   f.with((*fleet).killLeader),
		"tell gang":     f.with((*fleet).tellGang),
		"add pod":       f.with((*fleet).addPod),
		"leave":         f.with((*fleet).leave),
		"kill pod":      f.with((*fleet).killPod),
		"notice":        f.with((*fleet).notice),
		"suspect":       f.with((*fleet).suspect),
		"fault":         f.with((*fleet).failProgram),
		"exit":          f.with((*fleet).exitProgram),
		"spend":         f.with(func(f *fleet) { f.spent = !f.spent }),
		"snapshot":      f.with((*fleet).snapshot),
		"alter":         f.with((*fleet).alter),
		"relabel":       f.with((*fleet).relabel),
		"full disk":     f.with(func(f *fleet) { p := f.pickPod(); p.full = !p.full }),
		"stand still":   f.with((*fleet).standStill),
		"cut off":       f.with((*fleet).cutOff),
		"part":          f.with((*fleet).part),
		"freeze":        f.with((*fleet).freeze),
		"reject":        f.with((*fleet).reject),
		"wall":          f.with((*fleet).wall),
		"lie":           f.with((*fleet).lie),
		"hang up":       f.with((*fleet).hangUp),
		"connect":       f.with((*fleet).connect),
		"deliver":       f.with((*fleet).deliver),
		"report":        f.with((*fleet).reportState),
		"steps":         f.with((*fleet).steps),
		"write":         f.with((*fleet).writeSome),
		"pass time":     f.with((*fleet).passTime),
		"nobody leads":  f.with((*fleet).nobodyLeads),
		"hear some":     f.with((*fleet).hearSome),
		"other version": f.with((*fleet).otherVersion),
	}
	maps.Copy(actions, f.more)
	t.Repeat(actions)
	f.t, f.draws = t, t
	f.settle()
}

type fleet struct {
	// storage is what the gang says of it, shelf the storage itself; nil for none.
	storage *Storage
	shelf   *shelf
	// more are further things that may happen.
	more map[string]func(*rapid.T)
	t    rapid.TB
	// draws is where choices come from; nil in a schedule, which makes none.
	draws   *rapid.T
	now     time.Time
	record  Record
	digests map[uint64]string
	// rounds are the records of all rounds.
	rounds map[uint64]Record
	// ranked are the members of rounds, by their digests.
	ranked  map[string][]string
	owners  map[uint64]int
	past    []Record
	leaders map[int]*modelLeader
	born    int
	late    []lateWrite

	// waits says whether a leader decides later what a report has made possible; nil when none does.
	waits func() bool

	pods map[string]*pod
	// over are those who have ended, and are named as members no more.
	over            []string
	made            int
	minimum, target int32
	// spares is how many are to be kept beside a world of target.
	spares int32
	hang   time.Duration
	// spent is true once the program may fail no more.
	spent bool
	// liar is the uid of a worker that says of all others that it cannot reach them, or that nobody is at their ports.
	liar string
	// lies is true while it says the latter.
	lies bool
	// halved is true while pods reach those alone whose numbers are even, or odd, as theirs.
	halved bool
	// shares is true when agents and programs know shares of a state. racks is in how many racks their nodes are, 0 for none
	// that is known, relabelled how often the nodes were moved to others, staged what the ranks of a round were told to write.
	shares bool
	// sharded is true when programs have their own shards of a state.
	sharded bool
	// hands is true when most programs give their state to others over the links of their world. met are the rounds whose ranks were all there.
	hands bool
	met   map[uint64]bool
	// older is true of operators that know nothing of that.
	older      bool
	racks      int
	relabelled int
	staged     map[place]Staging
	sizes      []int32
	strategy   Strategy
	// disk is where programs that are started anew find their state; nil when they keep none. deaf is how many of them
	// look at no gate: one of so many, or 0 for none.
	disk *disk
	deaf int
	// begun is who has begun a step of a round, by rank, with which state.
	begun map[moment]map[int32]part
	// done is how many steps were made in a round; stepped is the last round that made one.
	done    map[uint64]uint64
	stepped uint64
	// lastEnded is when a rank has ended a step of a round last, firstBegun when the last of them has begun its
	// first.
	lastEnded, firstBegun map[uint64]time.Time
	// stood is how long each process stood still before its first step in a round.
	stood map[uint64][]time.Duration
}

// place is a rank of a round.
type place struct {
	round uint64
	rank  int32
}

// moment is a step of a round.
type moment struct{ round, step uint64 }

// part is what a rank puts into a step.
type part struct {
	uid   string
	state history
}

// pod is a worker with its agent and its session.
type pod struct {
	worker
	want Member
	dead bool
	// told is true once an operator has taken the last report of an agent that has ended.
	told bool
	// vanished is true for one that has ended with its node: nobody answers there.
	vanished bool
	// unheard is true while no operator can be reached from it, apart while none of its peers can, frozen while
	// nothing runs there. awayAt is when its peers could not reach it last, liedAt when it lied last, before it became
	// honest again.
	unheard, apart, frozen bool
	awayAt, liedAt         time.Time
	// starved is true while it gets no snapshot from anybody, though all connect to each other.
	starved bool
	// rejected is true while the network refuses who is to connect to it, rejectedAt when that began or ended last.
	rejected   bool
	rejectedAt time.Time
	leader     *modelLeader
	queue      []delivery
}

func emptyFleet(t rapid.TB) *fleet {
	return &fleet{
		t: t, now: time.Unix(1e9, 0), digests: map[uint64]string{}, rounds: map[uint64]Record{}, owners: map[uint64]int{}, past: []Record{{}},
		ranked: map[string][]string{}, leaders: map[int]*modelLeader{}, pods: map[string]*pod{}, minimum: 1, target: 4, hang: 20 * time.Second,
		begun: map[moment]map[int32]part{}, done: map[uint64]uint64{}, staged: map[place]Staging{}, met: map[uint64]bool{},
		lastEnded: map[uint64]time.Time{}, firstBegun: map[uint64]time.Time{}, stood: map[uint64][]time.Duration{},
	}
}

func newFleet(t *rapid.T) *fleet {
	return newFleetOf(t, rapid.SampledFrom([]Strategy{InPlace, InPlace, Restart}).Draw(t, "strategy"))
}

func newFleetOf(t *rapid.T, strategy Strategy) *fleet {
	f := emptyFleet(t)
	f.draws, f.strategy = t, strategy
	f.minimum = int32(rapid.IntRange(1, 2).Draw(t, "minimum"))
	if f.strategy == Restart && rapid.IntRange(0, 3).Draw(t, "disk") > 0 {
		f.disk, f.deaf = &disk{}, rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "deaf")
	}
	f.shares = f.strategy == InPlace && rapid.Bool().Draw(t, "shares")
	f.hands = f.strategy == InPlace && rapid.Bool().Draw(t, "hands")
	if f.shares {
		f.racks = rapid.IntRange(0, 3).Draw(t, "racks")
	}
	if rapid.Bool().Draw(t, "sizes") {
		f.sizes = []int32{1, 2, 4}
	}
	f.spares = int32(max(0, rapid.IntRange(-2, 2).Draw(t, "spares")))
	for range int32(rapid.IntRange(int(f.minimum), 3).Draw(t, "workers")) + f.spares {
		f.makePod()
	}
	return f
}

func (f *fleet) with(do func(*fleet)) func(*rapid.T) {
	return func(t *rapid.T) {
		f.t, f.draws = t, t
		do(f)
	}
}

func (f *fleet) makePod() {
	uid := fmt.Sprintf("p%02d", f.made)
	p := &pod{
		worker: newWorker(uid, func() time.Time { return f.now }, f.strategy),
		want:   Member{UID: uid, Name: uid, Ordinal: int32(f.made), Node: fmt.Sprint("n", f.made%3)},
	}
	p.reach = func(asked Probe) (reached, refused bool) { return f.reaches(p, asked) }
	p.shelf, p.disk = f.shelf, f.disk
	p.looks = f.deaf == 0 || f.made%f.deaf != f.deaf-1
	p.fetch = func(of, s Snapshot, holders []lifecycle.Holder) (history, bool, []lifecycle.Unreached) {
		return f.fetch(p, of, s, holders)
	}
	p.shares, p.sharded, p.wholes = f.shares, f.sharded, f.made%4 == 3
	p.hands = f.hands && !f.sharded && f.made%6 != 5
	p.vague, p.certificate = f.draws != nil && f.made%5 == 4, [32]byte{byte(f.made + 1)}
	f.pods[uid] = p
	f.made++
}

// fetch gets a snapshot from the pods that the directive names, and says which of them could not be reached.
func (f *fleet) fetch(p *pod, of, s Snapshot, holders []lifecycle.Holder) (state history, ok bool, unreached []lifecycle.Unreached) {
	for _, h := range holders {
		other := f.pods[strings.TrimPrefix(h.Address, "10.0.0.")]
		switch {
		case other == nil || p.starved || f.notReached(p) || f.notReached(other) || other.rejected || p.uid == f.liar || f.areHalves(p, other):
			unreached = append(unreached, lifecycle.Unreached{Address: h.Address, Port: h.Port, Certificate: h.Certificate, Why: "i/o timeout"})
		case other.altered[s]:
			other.verify(s)
		case slices.Contains(other.snapshots, s) || other.restored.Found && (other.restored.Snapshot == of || slices.Contains(other.restoredParts, s)):
			return other.states[s], true, nil
		}
	}
	return nil, false, unreached
}

func (f *fleet) gang() Gang {
	gang := Gang{
		Attempt: 1, ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second, BarrierTimeout: 10 * time.Second,
		GrowthWindow: 2 * time.Second, Minimum: f.minimum, Target: f.target, Spares: f.spares,
		Sizes: f.sizes, Strategy: f.strategy, MayRestart: !f.spent, HangTimeout: f.hang, Durable: f.record, Storage: f.storage,
		RegroupTimeout: time.Minute, Ended: f.over,
	}
	if f.draws != nil {
		gang.Durable = rapid.SampledFrom(f.past).Draw(f.draws, "durable")
	}
	for _, uid := range f.uids() {
		want := f.pods[uid].want
		want.Rack = f.rackOf(want.Node)
		gang.Members = append(gang.Members, want)
	}
	return gang
}

// rackOf is the rack that a node is labelled with.
func (f *fleet) rackOf(node string) string {
	if f.racks == 0 {
		return ""
	}
	number, _ := strconv.Atoi(strings.TrimPrefix(node, "n"))
	return fmt.Sprint("r", (number+f.relabelled)%3%f.racks)
}

// relabel has the nodes be in other racks.
func (f *fleet) relabel() { f.relabelled++ }

func (f *fleet) uids() []string { return slices.Sorted(maps.Keys(f.pods)) }

// drop ends the session between a pod and a leader.
func (f *fleet) drop(p *pod, l *modelLeader) {
	if p == nil || p.leader != l {
		return
	}
	p.leader, p.queue = nil, nil
	if l.left == nil {
		l.left = map[string]leftSession{}
	}
	l.left[p.uid] = leftSession{}
	if f.leaders[l.id] == l {
		_ = f.handle(l, SessionLost{p.uid})
	}
}

func (f *fleet) hangUp() {
	if p := f.pickPod(); p.leader != nil {
		f.drop(p, p.leader)
	}
}

func (f *fleet) connect() { f.connectTo(f.pickPod(), f.pick()) }

func (f *fleet) connectTo(p *pod, l *modelLeader) {
	if p.leader != nil {
		f.drop(p, p.leader)
	}
	if p.told || p.unheard || p.frozen {
		return
	}
	p.leader = l
	f.told(p, f.handle(l, p.join(1)))
}

func (f *fleet) told(p *pod, refused *Refusal) {
	switch {
	case p.leader == nil:
	case refused != nil:
		f.drop(p, p.leader)
	case p.left:
		p.told = true
		f.drop(p, p.leader)
	default:
		if d, ok := p.leader.machine.Directive(p.uid); ok {
			p.queue = append(p.queue, delivery{d, p.reported})
		}
	}
}

func (f *fleet) reportState() {
	if p := f.pickPod(); p.leader != nil {
		f.tellState(p)
	}
}

func (f *fleet) tellState(p *pod) {
	if p.unheard || p.frozen {
		return
	}
	p.look()
	f.told(p, f.handle(p.leader, AgentReported{p.uid, p.report()}))
}

func (f *fleet) deliver() {
	if p := f.pickPod(); len(p.queue) > 0 {
		f.deliverTo(p)
	}
}

func (f *fleet) deliverTo(p *pod) {
	d := p.queue[0]
	p.queue = p.queue[1:]
	if p.left || p.unheard || p.frozen {
		return
	}
	obeyed, err := p.heed(d)
	if err != nil {
		f.t.Fatal(err)
	}
	if !obeyed {
		f.drop(p, p.leader)
	}
}

func (f *fleet) passTime() {
	f.pass(time.Duration(rapid.IntRange(1, 4000).Draw(f.draws, "ms")) * time.Millisecond)
}

func (f *fleet) pass(d time.Duration) {
	f.now = f.now.Add(d)
	for _, id := range slices.Sorted(maps.Keys(f.leaders)) {
		_ = f.handle(f.leaders[id], TimePassed{})
	}
	for _, uid := range f.uids() {
		p := f.pods[uid]
		if f.notReached(p) || p.rejected {
			p.awayAt = f.now
		}
		if p.dead || p.frozen {
			continue
		}
		if p.pass(); p.broken != nil {
			f.t.Fatal(p.broken)
		}
	}
}

// give has a leader take an event.
func (f *fleet) give(l *modelLeader, ev Event) Effects {
	if f.older {
		ev = heardByOlder(ev)
	}
	switch ev.(type) {
	case AgentJoined, AgentReported, SessionLost:
		if f.waits != nil && f.waits() {
			return l.machine.Absorb(f.now, ev)
		}
	}
	return l.machine.Handle(f.now, ev)
}

// heardByOlder is an event as a leader hears it that knows of no handovers.
func heardByOlder(ev Event) Event {
	switch known := ev.(type) {
	case AgentJoined:
		known.Report.HandsOver, known.Report.Handover = false, false
		return known
	case AgentReported:
		known.Report.HandsOver, known.Report.Handover = false, false
		return known
	}
	return ev
}

// handle gives an event to a leader and checks what it may say afterwards.
func (f *fleet) handle(l *modelLeader, ev Event) *Refusal {
	if answer, ok := ev.(RecordAnswered); ok {
		answer.Secret = []byte{1}
		ev = answer
	}
	before := l.machine.State()
	out := f.give(l, ev)
	f.noteLeft(l, ev)
	if f.waits == nil { // or it may follow on what was put off
		followed(f.t, before, ev, l.machine.State())
	}
	for _, n := range out.Notes {
		f.t.Logf("leader %d: %s", l.id, n.Text)
	}
	f.checkSilence(l)
	f.checkCharges(l)
	if out.Write != nil {
		if l.writing != nil {
			f.t.Fatalf("leader %d asks for a write while one is under way", l.id)
		}
		l.writing, l.result = out.Write, nil
		if ranks := l.machine.writing.ranks; ranks != nil {
			f.ranked[ranks.digest] = ranks.uids
		}
		f.checkPlan(l)
	}
	for _, e := range out.End {
		f.drop(f.pods[e.UID], l)
	}
	for i := range l.machine.changes {
		if c := &l.machine.changes[i]; c.Pause != 0 && !slices.Contains(f.stood[c.Round], c.Pause) {
			f.t.Fatalf("leader %d tells a pause of %s before round %d, and the processes stood still for %v", l.id, c.Pause, c.Round, f.stood[c.Round])
		}
	}
	for _, uid := range f.uids() {
		d, ok := l.machine.Directive(uid)
		if !ok {
			continue
		}
		f.check(l, d)
		if p := f.pods[uid]; (out.Publish || slices.Contains(out.Tell, uid)) && p.leader == l {
			p.queue = append(p.queue, delivery{d, p.reported})
		}
	}
	f.checkUnderway(l)
	f.checkParked(l)
	return out.Refuse
}

// furthest is how far the programs of a round are: started anew, they begin where their own state is, which may be further than
// the world has come.
func (f *fleet) furthest(round uint64) uint64 {
	furthest := f.done[round]
	for _, p := range f.pods {
		if p.in().Round == round {
			furthest = max(furthest, p.process.done)
		}
	}
	return furthest
}

// noteLeft notes how far the world is at the latest when somebody is heard of it first since a session ended, and the leader has
// looked at that.
func (f *fleet) noteLeft(l *modelLeader, ev Event) {
	w := l.machine.world
	if w == nil {
		return
	}
	for uid, left := range l.left {
		switch ev := ev.(type) {
		case AgentReported:
			p := f.pods[ev.UID]
			left.word = left.word || p != nil && p.uid != uid && p.in().Round == w.record.Round && w.ranks.rank(p.uid) >= 0
		case TimePassed:
			if left.word && !left.heard {
				left.heard, left.step = true, f.furthest(w.record.Round)
			}
		}
		l.left[uid] = left
	}
}

func (f *fleet) check(l *modelLeader, d Directive) {
	if owner, ok := f.owners[d.Term]; !ok || owner != l.id {
		f.t.Fatalf("leader %d speaks with term %d, which it does not own", l.id, d.Term)
	}
	if d.Round > 0 && f.digests[d.Round] != d.World.Digest {
		f.t.Fatalf("leader %d publishes round %d with %.6s, durable is %.6s", l.id, d.Round, d.World.Digest, f.digests[d.Round])
	}
	if d.World == nil || d.World.Staging == nil {
		return
	}
	at, staging := place{d.Round, d.World.WorkerRank}, *d.World.Staging
	if told, ok := f.staged[at]; ok && (told.Of != staging.Of || !slices.Equal(told.Shares, staging.Shares)) {
		f.t.Fatalf("leader %d has rank %d of round %d write %v, and it was told to write %v", l.id, at.rank, at.round, staging, told)
	}
	f.staged[at] = staging
}

// checkPlan looks at the next world that a leader wants.
func (f *fleet) checkPlan(l *modelLeader) {
	w := l.machine.writing
	if w.plan == nil || l.machine.term != f.record.Term {
		return // or it is another leader's turn, and the write will fail
	}
	next := w.Next
	made := f.done[next.Parent]
	switch {
	case next.Workers < f.minimum || next.Workers > f.target:
		f.t.Fatalf("round %d has %d workers", next.Round, next.Workers)
	case f.sizes != nil && !slices.Contains(f.sizes, next.Workers):
		f.t.Fatalf("round %d has %d workers", next.Round, next.Workers)
	case w.plan.change != nil && next.FromStep != made:
		f.t.Fatalf("round %d is planned, and begins after step %d of %d", next.Round, next.FromStep, made)
	case f.disk != nil && next.FromStep > 0 && (next.FromStep != made || uint64(len(f.disk.state)) != made):
		f.t.Fatalf("round %d begins after step %d of %d, and its programs find the state after step %d", next.Round, next.FromStep, made, len(f.disk.state))
	case w.plan.lost+next.FromStep > max(made, next.FromStep):
		f.t.Fatalf("round %d begins after step %d of %d and loses %d", next.Round, next.FromStep, made, w.plan.lost)
	}
	if w.plan.broken != nil && f.strategy == InPlace && !f.sharded {
		f.checkLive(l, next, w.plan)
	}
	if w.plan.broken != nil && f.strategy == InPlace {
		f.checkStored(l, next, w.plan)
	}
	f.checkSpares(l, next, w.plan)
	f.checkStart(next)
}

// checkStart checks that no world begins as the first of its attempt, once that has made steps, while anybody has a later state of the
// last one or of the one before it. What those have who were in none of the two for long is not looked for without a world.
func (f *fleet) checkStart(next Record) {
	if next.Parent != 0 || f.stepped == 0 || f.strategy != InPlace {
		return
	}
	for _, uid := range f.uids() {
		p := f.pods[uid]
		round := p.in().Round
		if p.dead || p.left || round == 0 || round != f.record.Round && round != f.record.Parent {
			continue
		}
		// Whoever has only loaded what an attempt begins with, in a world that not all have entered, has no more than is brought again.
		later := func(s Snapshot) bool { return s.Step > next.FromStep }
		if p.process.runs && uint64(len(p.process.state)) > next.FromStep || slices.ContainsFunc(p.snapshots, later) {
			f.t.Fatalf("round %d begins after step %d as if it were the first, round %d has made %d steps, and there is %s",
				next.Round, next.FromStep, f.stepped, f.done[f.stepped], &p.worker)
		}
	}
}

// checkLive checks that nothing is thrown away in a recovery that one of those has who go on.
func (f *fleet) checkLive(l *modelLeader, next Record, plan *plan) {
	if len(plan.broken.failed) > 0 {
		return // who should have given its state to others could not, or not in time
	}
	for i := range plan.members {
		p := f.pods[plan.members[i].UID]
		if p == nil || p.dead || l.machine.isLost(l.machine.members[p.uid]) {
			continue
		}
		if t := &p.process; t.runs && t.round == next.Parent && t.clean && t.made() > next.FromStep && p.isOfHistory(l.machine.writing.Prev) {
			f.t.Fatalf("round %d begins after step %d, and %s has the state after step %d", next.Round, next.FromStep, p.uid, t.made())
		}
	}
}

// isOfHistory says whether what a process has left a world with is known to be of the history of that: it was in each of the worlds since it
// has made its last step, or was left out of one, just before this.
func (p *pod) isOfHistory(r Record) bool {
	t := &p.process
	return t.origin == r.Round || t.origin > 0 && p.machine.Before() == t.before && (t.jumps == 0 ||
		t.jumps == 1 && t.missed == r.Round && t.before == r.Grandparent && t.made() <= r.ParentFromStep)
}

// apply is the compare-and-swap.
func (f *fleet) apply(owner int, w Write) RecordAnswered {
	if !w.Prev.Equal(f.record) {
		return RecordAnswered{Found: f.record, Err: ErrDeposed}
	}
	next := w.Next
	if next.Term < f.record.Term || next.Round < f.record.Round {
		f.t.Fatalf("the record would go back: %+v to %+v", f.record, next)
	}
	if next.Term > f.record.Term {
		f.owners[next.Term] = owner
	}
	f.record = next
	f.digests[next.Round], f.rounds[next.Round] = next.MembersDigest, next
	f.done[next.Round] = max(f.done[next.Round], next.FromStep)
	f.past = append(f.past, next)
	return RecordAnswered{Found: next}
}

// writeSome lets a write go on, come to nothing, or land late.
func (f *fleet) writeSome() {
	l := f.pick()
	switch {
	case len(f.late) > 0 && rapid.Bool().Draw(f.draws, "late"):
		w := f.late[0]
		f.late = f.late[1:]
		f.apply(w.owner, w.write)
	case l.writing == nil:
	case rapid.IntRange(0, 3).Draw(f.draws, "clear") > 0:
		f.finishWrite(l)
	default:
		if rapid.Bool().Draw(f.draws, "lands") {
			f.apply(l.id, *l.writing)
		} else {
			f.late = append(f.late, lateWrite{l.id, *l.writing})
		}
		l.writing = nil
		_ = f.handle(l, RecordAnswered{Err: errors.New("timeout")})
	}
}

func (f *fleet) finishWrite(l *modelLeader) {
	answer := f.apply(l.id, *l.writing)
	l.writing = nil
	_ = f.handle(l, answer)
}

// steps lets some processes get on.
func (f *fleet) steps() {
	for range rapid.IntRange(1, 8).Draw(f.draws, "moves") {
		f.move(f.pickPod())
	}
}

// move lets a process begin its next step, or end the one it is in if all ranks have begun it.
func (f *fleet) move(p *pod) {
	at, first := moment{p.process.round, p.process.done + 1}, p.begun.IsZero()
	switch {
	case p.dead || p.frozen || p.process.still:
	case p.process.runs && p.process.leaving:
		p.saveAndLeave()
	case p.process.handing:
		f.handOver(p)
	case !p.trains():
	case p.process.stepping:
		switch {
		case len(f.begun[at]) < int(p.process.workers) || f.isParted(at.round):
		case !p.process.writing && (at.step+uint64(p.process.rank))%3 == 0:
			p.process.writing = true // and it may be interrupted there
		default:
			f.lastEnded[at.round] = f.now
			p.endStep()
		}
	case p.enterStep():
		if first {
			f.firstBegun[at.round] = f.now
			if !p.before.IsZero() {
				f.stood[at.round] = append(f.stood[at.round], p.begun.Sub(p.before))
			}
		}
		f.begin(p, at)
	}
}

// handoverLimit is how long a process waits for others when the state is to be handed over. No hang is looked for before that is done.
const handoverLimit = 30 * time.Second

// handOver has a process of a world whose state is handed over give what it has, or get it from another one that has it by now. They meet
// before.
func (f *fleet) handOver(p *pod) {
	if p.process.waits.IsZero() {
		p.process.waits = f.now
	}
	round := p.process.round
	var from *pod
	there := 0
	for _, uid := range f.uids() {
		o := f.pods[uid]
		if t := &o.process; o.dead || !t.runs || t.round != round || t.waiting != waitingNone || !t.meets {
			continue
		}
		there++
		switch {
		case o.process.lacks:
		case from != nil && !slices.Equal(from.process.state, o.process.state):
			f.t.Fatalf("the state of round %d is handed over: %s has %v, %s has %v", round, from.uid, from.process.state, uid, o.process.state)
		case !o.frozen && !o.process.still:
			from = o
		}
	}
	f.met[round] = f.met[round] || there == int(p.process.workers)
	met := f.met[round] && !f.isParted(round)
	switch {
	case met && !p.process.lacks:
		p.process.handing = false
	case met && from != nil && !p.process.came:
		p.process.came = true
	case !met || from == nil:
		if f.now.Sub(p.process.waits) > handoverLimit {
			p.fail("RuntimeError: the state could not be had from peers: Operation timed out!")
		}
	default:
		p.process.state = slices.Clone(from.process.state)
		p.process.handing, p.process.lacks = false, false
		p.process.settled()
	}
}

// begin notes that a rank has begun a step.
func (f *fleet) begin(p *pod, at moment) {
	ranks := f.begun[at]
	if ranks == nil {
		ranks = map[int32]part{}
		f.begun[at] = ranks
	}
	maps.DeleteFunc(ranks, func(_ int32, one part) bool {
		// What has failed or gone away in the middle of a step takes its part with it.
		o := f.pods[one.uid]
		return o == nil || o.dead || !o.process.runs || o.process.round != at.round || !o.process.stepping
	})
	for _, one := range ranks {
		if f.pods[one.uid].process.meets != p.process.meets {
			return // they do not find each other
		}
	}
	ranks[p.process.rank] = part{p.uid, p.process.state}
	if len(ranks) < int(p.process.workers) {
		return
	}
	if f.stepped > at.round {
		f.t.Fatalf("step %d of round %d is made, after steps of round %d", at.step, at.round, f.stepped)
	}
	f.stepped = at.round
	for rank, one := range ranks {
		if mine := p.process.state; !slices.Equal(one.state, mine) || uint64(len(mine)) != at.step-1 {
			f.t.Fatalf("step %d of round %d: rank %d has the state %v and rank %d has %v", at.step, at.round, rank, one.state, p.process.rank, mine)
		}
	}
	if f.strategy == InPlace {
		f.checkHistory(at.round, p.process.state)
	}
	f.done[at.round] = max(f.done[at.round], at.step)
}

// checkHistory checks that a world goes on from the steps of those before it that it counts, by what the records say.
func (f *fleet) checkHistory(round uint64, state history) {
	of := f.rounds[round]
	for step := uint64(len(state)); step > 0; step-- {
		for step <= of.FromStep {
			if of.Parent == 0 {
				return // it is the first of an attempt
			}
			of = f.rounds[of.Parent]
		}
		if state[step-1] != of.Round {
			f.t.Fatalf("round %d goes on with %v, and step %d of its history was made in round %d", round, state, step, of.Round)
		}
	}
}

// goWell lets one leader and the living get on for a while.
func (f *fleet) goWell() {
	l := f.pick()
	_ = f.handle(l, GangExpected{f.gang()})
	for range rapid.IntRange(1, 12).Draw(f.draws, "turns") {
		f.turn(l)
	}
}

// goOn is long enough for every timeout to pass.
func (f *fleet) goOn() {
	l := f.pick()
	for range 90 {
		f.turn(l)
	}
}

// turn is a moment in which nothing fails.
func (f *fleet) turn(l *modelLeader) {
	if l.writing != nil {
		f.finishWrite(l)
	}
	for _, uid := range f.uids() {
		p := f.pods[uid]
		if p == nil || p.dead {
			continue
		}
		f.meet(l, p)
	}
	for range 3 {
		for _, uid := range f.uids() {
			f.move(f.pods[uid])
		}
	}
	f.pass(300 * time.Millisecond)
}

// meet has a worker and a leader hear each other.
func (f *fleet) meet(l *modelLeader, p *pod) {
	if p.leader != l {
		f.connectTo(p, l)
	} else {
		f.tellState(p)
	}
	for len(p.queue) > 0 {
		f.deliverTo(p)
	}
}

// settle leaves one leader alone with a controller that does its work, and expects a world that trains.
func (f *fleet) settle() {
	for _, id := range slices.Sorted(maps.Keys(f.leaders)) {
		f.kill(f.leaders[id])
	}
	f.late = nil
	if f.storage != nil {
		settled := *f.storage
		settled.Park = ""
		f.storage, f.shelf.away, f.shelf.silent = &settled, false, ""
	}
	f.stopLying()
	for _, uid := range f.uids() {
		p := f.pods[uid]
		p.full, p.unheard, p.apart, p.frozen, p.rejected = false, false, false, false, false
		p.wake()
		if p.want.Lost != "" && !p.dead {
			f.end(p) // a pod that was taken for lost is killed in the end
		}
	}
	f.newLeader()
	l := f.leaders[f.born]
	before, since := uint64(0), 0
	for turn := range 900 {
		f.notice()
		for f.staying() < int(f.target+f.spares) {
			f.makePod()
		}
		for _, uid := range f.uids() {
			if p := f.pods[uid]; p.left {
				f.end(p)
			}
		}
		_ = f.handle(l, GangExpected{f.gang()})
		f.turn(l)
		o := l.machine.Observe(f.now)
		if o.Fatal != "" {
			f.checkFatal(l, o.Fatal)
			return
		}
		step := o.Progress.Step
		if f.disk != nil {
			step = f.done[o.Round] // some say nothing
		}
		switch {
		case o.Phase != PhaseTraining || o.Adopting || l.machine.world.record.Workers != f.target:
			since = turn
		case since == turn-1:
			before = step
		case step >= before+10:
			return
		}
	}
	for _, uid := range f.uids() {
		f.t.Log(&f.pods[uid].worker)
	}
	o := l.machine.Observe(f.now)
	f.t.Fatalf("nothing fails any more, and the job does not get on: %s (%s), %d workers, step %d then %d, losses %v",
		o.Phase, o.Why, l.machine.base.Workers, before, o.Progress.Step, o.Losses)
}

// staying counts the pods that nobody wants to leave.
func (f *fleet) staying() int {
	n := 0
	for _, p := range f.pods {
		if p.want.Leaving == "" && !p.dead {
			n++
		}
	}
	return n
}

// checkFatal checks that an attempt is given up only when it has to be.
func (f *fleet) checkFatal(l *modelLeader, why string) {
	if !strings.Contains(why, "no snapshot is left") && !strings.Contains(why, "in every worker alike") {
		f.t.Fatalf("the attempt is given up: %s", why)
	}
	// What the storage has of the history is gone back to: a checkpoint that is whole, and of steps that the history of the world has, by
	// what was made in the model.
	if f.shelf != nil && strings.Contains(why, "no snapshot") && !strings.Contains(why, "no worker could bring") && f.shelf.broken == "" {
		for _, c := range f.shelf.kept {
			if !slices.Contains(f.shelf.damaged, c.path) && f.serves(l, &c) {
				f.t.Fatalf("%s, and the storage has %s", why, c.path)
			}
		}
	}
	if b := l.machine.broken; !f.sharded && strings.Contains(why, "no snapshot is left") && (b == nil || len(b.failed) == 0) { // or nobody could save it
		for _, uid := range f.uids() {
			p, r := f.pods[uid], l.machine.world.record
			if t := &p.process; !p.dead && !p.left && t.runs && t.clean && t.round == r.Round && t.made() > 0 && p.isOfHistory(r) &&
				!l.machine.isLost(l.machine.members[uid]) {
				f.t.Fatalf("%s, and %s has the state after step %d", why, uid, t.made())
			}
		}
	}
	if strings.Contains(why, "no snapshot") {
		for _, uid := range f.uids() {
			whole := func(s Snapshot) bool { return s.Part == "" }
			if p := f.pods[uid]; !p.dead && !p.left && p.in().Round == l.machine.world.record.Round && slices.ContainsFunc(p.snapshots, whole) {
				f.t.Fatalf("%s, and %s has %v", why, uid, p.snapshots)
			}
		}
	}
}

// serves says whether the job could go on from a checkpoint: somebody who is there knows of it, and it is of the history of the world, as
// the states in the model tell it.
func (f *fleet) serves(l *modelLeader, c *checkpointed) bool {
	known, of := false, history(nil)
	for _, uid := range f.uids() {
		p := f.pods[uid]
		known = known || !p.dead && !p.left && (p.durable.Path == c.path || p.restored.Found && p.restored.Path == c.path)
		if p.in().Round == l.machine.world.record.Round && len(p.process.state) > len(of) {
			of = p.process.state
		}
	}
	return known && len(c.state) > 0 && len(c.state) <= len(of) && slices.Equal(c.state, of[:len(c.state)])
}
