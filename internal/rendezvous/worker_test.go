package rendezvous

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/share"
)

// worker is a pod with the agent's own machine in it. Around that stands what the machine leaves to others:
// the session's translation of messages, the gate page, a keeper of snapshots, and one process that follows
// docs/program-protocol.md.
type worker struct {
	uid     string
	now     func() time.Time
	machine *lifecycle.Machine
	process trainee
	// told counts the connections of processes.
	connections uint64
	lastStep    uint64
	// ended is when its process has ended its last step, before what that was when the process was given its
	// world, and begun when it has begun its first step there.
	ended, before, begun time.Time
	// certificate is by which it serves and fetches snapshots.
	certificate [32]byte
	restarts    bool
	// disk is where programs that are started anew find their state; nil for others. looks is true of those that look
	// at the gate after each step.
	disk  *disk
	looks bool
	// shares is true of agents and programs that know shares of a state.
	shares bool
	// sharded is true of programs with their own shards of a state. copying is that of which copies are being made.
	sharded bool
	copying Snapshot
	// hands is true of programs that give their state to others over the links of their world, and get it so.
	hands bool
	// vague is true of programs that never say that their state is clean, such as those of an older SDK.
	vague bool

	snapshots []Snapshot
	// trouble is why it takes none.
	trouble string
	// size is how large its state is.
	size share.Size
	// altered are those of them whose files are not what they were: they are dropped once somebody looks.
	altered map[Snapshot]bool
	states  map[Snapshot]history
	// lasts is the last step of each round of the history of the world that the agent is in.
	lasts         map[uint64]uint64
	snapshotError string
	full          bool
	copyless      bool     // it makes no copies
	toCopy        Snapshot // the state of which it was to make some last
	// uncopied is why it makes none.
	uncopied Uncopied
	// guests are the files that it has got from others.
	guests map[Snapshot]bool
	// excerpts are the shards of which it has got some for the world that it is in, until its process has made a step there: nobody knows of them. wholes is true of programs that always ask for all
	// of a shard, such as those of an older SDK.
	excerpts map[Snapshot]history
	wholes   bool
	// shelf is the job's storage; nil for none. durable and restored are what it has done there.
	shelf   *shelf
	durable Durable
	// scores are what its program has said of states that were evaluated, scored is the one that is to be kept; marked is what the score
	// is of that lies beside durable.
	// pins are parts that it is to put, and keeps for that.
	pins        []Snapshot
	scores      []Score
	scoredState Snapshot
	listed      Listed
	scored      bool
	score       float64
	marked      Snapshot
	// puts are the parts that it has put, restoredParts those of restored, portion all that it was to bring.
	puts, restoredParts, portion []Snapshot
	restored                     Restored
	// restoredOf are all parts of restored, where it has not brought all.
	restoredOf []Snapshot
	// uploadError is what its uploader waits for.
	uploadError string
	// pretends is after which step it says to have the state, of each world that it has left; nil where it tells the truth.
	pretends *uint64
	// fetch gets a snapshot from another agent; nil for one that has nobody to ask.
	fetch func(of, s Snapshot, holders []lifecycle.Holder) (state history, ok bool, unreached []lifecycle.Unreached)
	// relied is the state that the operator says is relied on.
	relied Snapshot

	// failures is how often its process has raised, or ended with another code than 0; restarted how often it was started
	// anew after that.
	failures, restarted int
	// lastWords is what the process before the last had said of why it failed.
	lastWords string
	// released is true once the operator has let this worker go, left once its agent has ended.
	released, left bool
	refused        bool
	// reported is when its last report was sent. ignorant agents know no holds.
	reported time.Time
	ignorant bool
	// reach says whether another agent can be reached from here, or nobody is at its port; nil for an agent that knows no probes. answers
	// are what it has found out, for the term probedIn.
	reach    func(Probe) (reached, refused bool)
	answers  []Probed
	probedIn uint64
	// stepTime is how long it says that a step takes, ownTime how long it works in one.
	stepTime, ownTime time.Duration
	// worlds are all worlds that it was ever told of, by round.
	worlds map[uint64]string
	// broken says which rule of the protocol was broken by what the agent has told its process.
	broken error
	// pending are the events that effects have led to.
	pending []lifecycle.Event
}

// trainee is a training process, with its words of the gate page.
type trainee struct {
	runs       bool
	connection uint64
	// given is the round of the last world that the agent has given it, which may not have arrived: what the
	// process says is taken to speak of that.
	given uint64
	// round is that of the world that it was given last, with its place there.
	round         uint64
	rank, workers int32
	// entered and done are its own words of the page, stop the agent's; armed is what the agent remembers
	// of it.
	entered, done, stop, armed uint64
	// state is what it has computed: the history of rounds in which its steps were made.
	state   history
	waiting Waiting
	fault   string
	// stepping is true while it is in a step, with its part of it given, and writing once it changes its state
	// there. clean is what it has said of that state when it left its world.
	stepping, writing, clean bool
	// leaving is true once it was told to save and to end.
	leaving bool
	// handing is true while the state of its world has yet to be handed over, lacks while it has not got that, came once some of it has
	// come. had is true where its own was one that could be gone on from before: one that is as far as that which it is to get may not
	// be the same, and nobody could tell.
	handing, lacks, came, had bool
	// origin is the last world that it has had the state of, before the one that it was given before its own. missed is the first one
	// that it was given since of which it was not in the world before, and jumps how many these are.
	origin, before, missed uint64
	jumps                  int
	// waits is since when it has waited for others there; the zero time before.
	waits time.Time
	// meets is true in a world of which it was told that its state is handed over: it meets nobody there who was not.
	meets bool
	// wants are the shards that it waits for; nil for none. loads is where its agent has said that they are, until it has loaded them.
	wants []string
	loads *lifecycle.Hand
	// still ones make no step and hear nothing; inbox is what they have been told meanwhile.
	still bool
	inbox []func()
}

// history is a state: the round in which each step was made.
type history []uint64

// ask has the agent find out whether others can be reached, each probe once.
func (w *worker) ask(d *Directive) {
	before := w.answers
	w.answers = nil
	for _, p := range d.Probes {
		i := slices.IndexFunc(before, func(a Probed) bool { return a.Number == p.Number })
		switch {
		case w.probedIn == d.Term && i >= 0:
			w.answers = append(w.answers, before[i])
		case w.reach != nil:
			reached, refused := w.reach(p)
			w.answers = append(w.answers, Probed{p.Number, reached, refused})
		}
	}
	w.probedIn = d.Term
}

func newWorker(uid string, now func() time.Time, strategy Strategy) worker {
	shape := lifecycle.Shape{Programs: 1, Processes: 1}
	if strategy == Restart {
		shape.Strategy = lifecycle.Restart
	}
	return worker{
		uid: uid, now: now, restarts: strategy == Restart, lastStep: 1 << 40,
		machine: lifecycle.New(now(), lifecycle.DefaultLimits(30*time.Second), shape),
		states:  map[Snapshot]history{}, altered: map[Snapshot]bool{}, worlds: map[uint64]string{},
	}
}

// delivery is a directive on its way, and when the report was sent that it answers.
type delivery struct {
	Directive
	sent time.Time
}

// obey gives the agent a directive that answers a report of this moment.
func (w *worker) obey(d Directive) (bool, error) { return w.heed(delivery{d, w.now()}) }

// heed gives the agent a directive. It returns false when the agent refuses it, and an error when the
// directive breaks the protocol, or what the agent makes of it does.
func (w *worker) heed(d delivery) (bool, error) {
	if d.Round != 0 && d.World == nil {
		return false, fmt.Errorf("%s: round %d without a world", w.uid, d.Round)
	}
	w.refused = false
	if w.ignorant {
		d.Hold = 0
	}
	w.step(lifecycle.Heard{Directive: heardBy(d.Directive), Sent: d.sent})
	if w.broken != nil || w.refused {
		return false, w.broken
	}
	w.released = w.released || d.Released
	if d.Relied != nil {
		w.relied = Snapshot{Round: d.Relied.Round, Step: d.Relied.Step}
	}
	w.copy(d.Copies)
	w.ask(&d.Directive)
	w.store(&d.Directive)
	if d.Round != 0 {
		if known, ok := w.worlds[d.Round]; ok && known != d.World.Digest {
			return false, fmt.Errorf("%s: round %d is %s and was %s", w.uid, d.Round, d.World.Digest, known)
		}
		w.worlds[d.Round] = d.World.Digest
	}
	return true, nil
}

// step gives the agent an event, and does what follows, as the agent's loop does.
func (w *worker) step(event lifecycle.Event) {
	w.pending = append(w.pending, event)
	w.flush()
}

// flush gives the agent what has happened, in that order.
func (w *worker) flush() {
	for len(w.pending) > 0 && !w.left {
		next := w.pending[0]
		w.pending = w.pending[1:]
		effects := w.machine.Step(w.now(), next)
		for len(effects) > 0 {
			effect := effects[0]
			effects = append(effects[1:], w.carryOut(effect)...)
		}
	}
}

// pass lets the agent's deadlines come.
func (w *worker) pass() {
	w.load()
	for range 10 {
		if due, ok := w.machine.Deadline(); !ok || due.After(w.now()) || w.left {
			return
		}
		w.step(lifecycle.Tick{})
	}
	w.broken = fmt.Errorf("%s: its deadline does not move", w.uid)
}

func (w *worker) carryOut(effect lifecycle.Effect) []lifecycle.Effect {
	p := &w.process
	switch effect := effect.(type) {
	case lifecycle.Start:
		w.start()
	case lifecycle.Remember:
		w.lastWords = w.process.fault
		w.restarted++
	case lifecycle.Refuse:
		w.refused = true
	case lifecycle.Terminate:
		p.tell(func() { w.exit(128 + 15) })
	case lifecycle.Kill:
		w.exit(exitKilled)
	case lifecycle.Checkpoint:
		w.pending = append(w.pending, lifecycle.Checkpointed(effect))
	case lifecycle.Leave:
		w.left = true
	case lifecycle.Arm:
		p.stop = max(effect.Step, p.armed, 1)
		if !w.fresh() {
			p.stop = max(p.stop, p.begun())
		}
		p.armed = p.stop
		return w.machine.Step(w.now(), lifecycle.Armed{Slot: 0, Stop: p.stop})
	case lifecycle.Lift:
		p.stop, p.armed = 0, 0
	case lifecycle.Interrupt:
		p.stop, p.armed = 1, 1
		w.say(effect.Connection, w.abort)
	case lifecycle.Enter:
		w.enter(effect)
	case lifecycle.Keep:
		w.lasts[effect.Round] = max(w.lasts[effect.Round], effect.Step)
	case lifecycle.Fetch:
		w.pending = append(w.pending, w.fetched(effect))
	case lifecycle.FetchShards:
		w.pending = append(w.pending, lifecycle.HasShards{FetchShards: effect, Fetched: w.shardsFetched(effect)})
	case lifecycle.Hand:
		w.say(effect.Connection, func() { w.handed(effect) })
	case lifecycle.Give:
		if effect.Connection == p.connection {
			p.stop, p.armed, p.given = 0, 0, effect.Start.Round
			p.entered, p.done = effect.Start.World.FromStep, effect.Start.World.FromStep
			w.before, w.begun = w.ended, time.Time{}
			p.tell(func() { w.take(effect) })
		}
	case lifecycle.Deny:
		w.say(effect.Connection, func() { w.exit(1) })
	case lifecycle.Word:
		w.say(effect.Connection, func() { w.hear(effect) })
	}
	return nil
}

// say tells the process something, if it is the one on that connection.
func (w *worker) say(connection uint64, what func()) {
	if connection == w.process.connection {
		w.process.tell(what)
	}
}

// tell has a process do something, once it is able to.
func (p *trainee) tell(what func()) {
	if p.still {
		p.inbox = append(p.inbox, what)
		return
	}
	what()
}

// wake lets a process hear what it was told while it stood still.
func (w *worker) wake() {
	for w.process.still = false; len(w.process.inbox) > 0; {
		next := w.process.inbox[0]
		w.process.inbox = w.process.inbox[1:]
		next()
	}
	w.flush()
}

// start starts a process that imports an SDK: it connects, and asks for a world.
func (w *worker) start() {
	w.connections++
	if w.disk != nil {
		w.startAnew()
		return
	}
	w.process = trainee{runs: true, connection: w.connections, waiting: waitingJoin, still: w.process.still}
	w.speak(lifecycle.Connected, 0)
	w.speak(lifecycle.Joined, 0)
}

func (w *worker) speak(what lifecycle.What, step uint64) {
	w.pending = append(w.pending, lifecycle.Said{
		Slot: 0, Connection: w.process.connection, What: what, Step: step, Clean: w.process.clean, Shares: w.shares, Sharded: w.sharded, HandsOver: w.hands,
	})
}

// leaves has the process leave its world, for what it waits for then.
func (w *worker) leaves(what lifecycle.What, waiting Waiting) {
	p := &w.process
	made := p.done
	if p.lacks {
		made = p.made()
	}
	p.clean = !w.vague && !p.writing && (!p.lacks || p.had && !p.came)
	p.waiting, p.stepping, p.writing, p.handing, p.lacks = waiting, false, false, false, false
	w.speak(what, made)
}

// made is how many steps its state has, whatever its world begins after.
func (p *trainee) made() uint64 { return uint64(len(p.state)) }

// exit ends the process.
func (w *worker) exit(code int) {
	if !w.process.runs {
		return
	}
	w.process.runs, w.process.inbox = false, nil
	if code != 0 {
		w.failures++
	}
	w.pending = append(w.pending, lifecycle.Exited{Code: code})
}

// fail is an exception in the training function, exits an end of its own.
func (w *worker) fail(text string) {
	w.process.fault = text
	w.failures++
	w.leaves(lifecycle.Faulted, waitingFault)
	w.flush()
}

func (w *worker) exits(code int) {
	w.exit(code)
	w.flush()
}

// enter is what the keeper does: only snapshots of the history of the new world stay.
func (w *worker) enter(e lifecycle.Enter) {
	lasts := map[uint64]uint64{e.Round: math.MaxUint64}
	for round, last := range w.lasts {
		if e.Continues {
			lasts[round] = min(last, e.World.FromStep)
		}
	}
	w.snapshotError, w.lasts = "", lasts
	maps.DeleteFunc(w.excerpts, func(s Snapshot, _ history) bool {
		return e.World.Snapshot == nil || s.Round != e.World.Snapshot.Round || s.Step != e.World.Snapshot.Step
	})
	w.snapshots = slices.DeleteFunc(slices.Clone(w.snapshots), func(s Snapshot) bool {
		named := e.World.Snapshot != nil && s.Round == e.World.Snapshot.Round && s.Step == e.World.Snapshot.Step
		return !named && (!e.Continues || s.Step > e.World.FromStep)
	})
}

// filesOf are the files that a snapshot is made of.
func filesOf(s lifecycle.Snapshot, parts []lifecycle.Part) []Snapshot {
	if parts == nil {
		return []Snapshot{named(s)}
	}
	var files []Snapshot
	for _, p := range parts {
		files = append(files, Snapshot{Round: s.Round, Step: s.Step, Bytes: p.Bytes, Hash: p.Hash, Part: p.Key})
	}
	return files
}

func named(s lifecycle.Snapshot) Snapshot {
	return Snapshot{Round: s.Round, Step: s.Step, Bytes: s.Bytes, Hash: s.Hash}
}

// fetched gets the snapshot of a world from one of its holders.
func (w *worker) fetched(f lifecycle.Fetch) lifecycle.Event {
	for i, s := range filesOf(*f.World.Snapshot, f.World.Parts) {
		if share.IsShard(s.Part) {
			continue // the process says which it wants
		}
		w.verify(s)
		if slices.Contains(w.snapshots, s) {
			continue
		}
		holders := f.Holders
		if f.World.Parts != nil {
			holders = slices.DeleteFunc(slices.Clone(holders), func(h lifecycle.Holder) bool { return !slices.Contains(h.Parts, i) })
		}
		state, ok, unreached := history(nil), false, []lifecycle.Unreached(nil)
		if w.fetch != nil {
			state, ok, unreached = w.fetch(named(*f.World.Snapshot), s, holders)
		}
		if !ok {
			return lifecycle.Fetched{Round: f.Round, Why: "nobody has it", Unreached: unreached != nil, Holders: unreached}
		}
		w.keep(s, state)
	}
	return lifecycle.Fetched{Round: f.Round}
}

// verify drops a snapshot whose file was altered.
func (w *worker) verify(s Snapshot) {
	if w.altered[s] {
		delete(w.altered, s)
		w.snapshots = slices.DeleteFunc(slices.Clone(w.snapshots), func(held Snapshot) bool { return held == s })
	}
}

func (w *worker) keep(s Snapshot, state history) {
	w.states[s] = state
	w.snapshots = append([]Snapshot{s}, w.snapshots...)
	w.dropNeedless(w.latest())
	// Of two states, or one and that which is relied on.
	steps := []Snapshot{{Round: s.Round, Step: s.Step}}
	holds := func(of Snapshot) bool {
		return slices.ContainsFunc(w.snapshots, func(held Snapshot) bool { return held.Round == of.Round && held.Step == of.Step })
	}
	beside := 0
	if of := w.scoredState; of.Round > 0 && of != steps[0] && of != w.relied && of != w.copying && holds(of) {
		steps, beside = append(steps, of), 1
	}
	if w.copying != steps[0] && w.copying.Round > 0 {
		steps = append(steps, w.copying)
	}
	if w.relied != steps[0] && !slices.Contains(steps, w.relied) && slices.ContainsFunc(w.snapshots, func(held Snapshot) bool { return held.Round == w.relied.Round && held.Step == w.relied.Step }) {
		steps = append(steps, w.relied)
	}
	w.snapshots = slices.DeleteFunc(w.snapshots, func(held Snapshot) bool {
		of := Snapshot{Round: held.Round, Step: held.Step}
		if len(steps) < 2+beside+len(w.copied()) && !slices.Contains(steps, of) {
			steps = append(steps, of)
		}
		return !slices.Contains(steps, of)
	})
}

// take has the process enter a world. Who does not load a snapshot must have just the state that the world
// begins with, and must stand at the barrier after it, or have left its world with that state: in the middle
// of a step it has none.
func (w *worker) take(give lifecycle.Give) {
	p, world := &w.process, give.Start.World
	switch {
	case slices.ContainsFunc(world.Parts, func(part lifecycle.Part) bool { return share.IsShard(part.Key) }):
		w.takeShards(give)
	case w.sharded && !world.Restore:
		w.broken = fmt.Errorf("%s: round %d is to go on with shards that are cut otherwise", w.uid, give.Start.Round)
	case world.Handover && world.Restore:
		if world.Snapshot != nil || world.FromStep == 0 || !w.hands {
			w.broken = fmt.Errorf("%s: the state of round %d is to be handed over, after step %d, and there is %v", w.uid, give.Start.Round, world.FromStep, world.Snapshot)
		}
	case world.Restore && world.Snapshot == nil || !world.Restore && p.waiting == waitingJoin:
		if world.FromStep != 0 {
			w.broken = fmt.Errorf("%s: round %d begins after step %d without a snapshot", w.uid, give.Start.Round, world.FromStep)
		}
		p.state = nil
	case world.Restore:
		s := named(*world.Snapshot)
		if s.Step != world.FromStep {
			w.broken = fmt.Errorf("%s: round %d goes on after step %d with the snapshot of step %d", w.uid, give.Start.Round, world.FromStep, s.Step)
		}
		files := filesOf(*world.Snapshot, world.Parts)
		p.state = slices.Clone(w.states[files[0]])
		for _, file := range files[1:] {
			if !slices.Equal(w.states[file], p.state) {
				w.broken = fmt.Errorf("%s: round %d goes on with parts of different states", w.uid, give.Start.Round)
			}
		}
	case p.waiting != waitingParked && !p.clean || uint64(len(p.state)) != world.FromStep:
		w.broken = fmt.Errorf("%s: round %d goes on after step %d of round %d with the state that each has, and this one has made %d there and waits as %d",
			w.uid, give.Start.Round, world.FromStep, p.round, len(p.state), p.waiting)
	}
	p.had = (p.clean || p.waiting == waitingParked || p.waiting == waitingJoin) && (!world.Handover || !world.Restore || p.made() < world.FromStep)
	p.waiting, p.fault, p.stepping, p.writing, p.clean = waitingNone, "", false, false, false
	if p.before = p.round; world.Parent != p.before {
		p.missed = give.Start.Round
		p.jumps++
	}
	p.waits = time.Time{}
	p.meets, p.handing, p.lacks, p.came = world.Handover, world.Handover, world.Handover && world.Restore, false
	p.round, p.rank, p.workers = give.Start.Round, int32(world.WorkerRank), int32(world.Workers)
	p.settled()
}

// settled notes of which world a process has the state.
func (p *trainee) settled() {
	if !p.lacks {
		p.origin, p.jumps = p.round, 0
	}
}

// abort has the process leave its world, unless it has done so.
func (w *worker) abort() {
	if p := &w.process; p.runs && (p.waiting == waitingNone || p.waiting == waitingParked) {
		p.writing = p.writing || p.wants != nil // it has loaded some of its state, and not all
		p.wants, p.loads = nil, nil
		w.leaves(lifecycle.Aborted, WaitingAborted)
	}
}

// hear has the process hear a word.
func (w *worker) hear(word lifecycle.Word) {
	p := &w.process
	switch {
	case !p.runs:
	case word.Say == lifecycle.SayGo && p.waiting == waitingParked:
		p.waiting = waitingNone
		w.park()
	case word.Say == lifecycle.SayLeave && p.waiting == waitingParked:
		p.leaving = true
	case word.Say == lifecycle.SaySave:
		if p.waiting == waitingParked || p.clean {
			w.save(word.Staging)
		}
		w.speak(lifecycle.Saved, word.Step)
	case word.Say == lifecycle.SayRaise && p.waiting == waitingFault:
		w.exit(1)
	case word.Say == lifecycle.SayEnd && p.waiting == waitingFinished:
		w.exit(0)
	}
}

// save takes a snapshot of what is done, or writes a part of one. The agent takes it over, if it belongs to the history of
// its world.
func (w *worker) save(staging lifecycle.Staging) {
	if w.full {
		w.snapshotError = "no space left on device"
		return
	}
	p := &w.process
	step := uint64(len(p.state))
	s := Snapshot{Round: p.given, Step: step, Bytes: 8 * step, Hash: sha256.Sum256(fmt.Append(nil, p.state))}
	files := []Snapshot{s}
	switch {
	case w.sharded:
		files = w.shards(s)
	case staging.Of > 0:
		layout := "0123456789abcdef"
		s.Part = share.Key{Rank: true, Index: int(p.rank), Of: staging.Of, Layout: layout}.String()
		files = []Snapshot{s}
		for _, i := range staging.Shares {
			s.Part = share.Key{Index: i, Of: staging.Of, Layout: layout}.String()
			files = append(files, s)
		}
	}
	for _, file := range files {
		if last, known := w.lasts[file.Round]; known && step <= last && !slices.Contains(w.snapshots, file) {
			w.keep(file, slices.Clone(p.state))
		}
	}
}

// stages is what the process writes of a snapshot while it trains.
func (w *worker) stages() lifecycle.Staging {
	if in := w.machine.In(); w.shares && in != nil && w.process.round == in.Round {
		return in.World.Staging
	}
	return lifecycle.Staging{}
}

// begun is the last step that the process has begun, as the agent reads it in the page.
func (p *trainee) begun() uint64 {
	if p.armed > 0 {
		return min(p.entered, p.armed)
	}
	return p.entered
}

// park stops a process that may not go on, between two steps. It has written the number of the next by then.
func (w *worker) park() {
	if p := &w.process; p.stop != 0 && p.done >= p.stop && !w.fresh() {
		p.entered, p.waiting = p.done+1, waitingParked
		w.speak(lifecycle.Parked, p.done)
	}
}

// look has a process that is between two steps look at the gate.
func (w *worker) look() {
	if w.trains() && !w.process.stepping {
		w.park()
		w.flush()
	}
}

// enterStep says whether the process begins its next step. It writes the number of the step first.
func (w *worker) enterStep() bool {
	if !w.trains() || w.process.stepping {
		return false
	}
	w.process.entered = w.process.done + 1
	w.look()
	w.process.stepping = w.trains()
	if w.process.stepping && w.begun.IsZero() {
		w.begun = w.now()
	}
	return w.process.stepping
}

// endStep ends the step that the process is in.
func (w *worker) endStep() {
	p := &w.process
	p.stepping, p.writing = false, false
	p.done++
	w.ended = w.now()
	p.state = append(slices.Clone(p.state), p.round)
	w.look()
}

// trains says whether the process is in a world, and in a step or between two.
func (w *worker) trains() bool {
	return w.process.runs && w.process.round > 0 && w.process.waiting == waitingNone && w.process.wants == nil && !w.process.handing
}

// in is the world that the agent is in; one of round 0 for none.
func (w *worker) in() lifecycle.Start {
	if in := w.machine.In(); in != nil {
		return *in
	}
	return lifecycle.Start{}
}

// String is what the process does, for a test that fails.
func (w *worker) String() string {
	p := &w.process
	return fmt.Sprintf("%s: agent in round %d, left %v; process runs %v, still %v, round %d, step %d of %d, stop %d, waits as %d",
		w.uid, w.in().Round, w.left, p.runs, p.still, p.round, p.done, p.entered, p.stop, p.waiting)
}

// report is the agent's whole state, as it is sent now.
func (w *worker) report() Report {
	m := w.machine
	w.reported = w.now()
	w.dropExcerpts()
	r := Report{
		Term: m.Term(), Refused: m.Refused(), Hold: m.Hold(), Before: m.Before(), Terminating: m.Terminating(), Standby: m.Ready(), Out: m.Out(),
		Snapshots: slices.Clone(w.snapshots), SnapshotError: w.snapshotError,
		Probed: slices.Clone(w.answers), StepTime: w.stepTime, Durable: w.durable, Restored: w.restored, UploadError: w.uploadError, SnapshotTrouble: w.trouble, Size: w.size,
		Scored: w.scored, Score: w.score, Scores: slices.Clone(w.scores), Listed: w.listed,
		Put: slices.Clone(w.puts), RestoredParts: w.restoredParts, RestoredOf: w.restoredOf, Uncopied: w.uncopied,
		Stays: m.Stays(), Supplied: m.Supplied(), HandsOver: m.HandsOver(), Restarts: m.Restarts(),
	}
	for _, u := range m.Unreached() {
		r.Unreached = append(r.Unreached, Unreached{u.Address, Server{uint32(u.Port), u.Certificate}, u.Why})
	}
	if f := m.LastFailure(); f.Round > 0 {
		r.Failure = Failure{Round: f.Round, Code: int32(f.Code), Killed: f.Killed, Message: w.lastWords}
	}
	if in := m.In(); in != nil {
		r.Round, r.Digest, r.WorkerRank = in.Round, in.World.Digest, uint32(in.World.WorkerRank)
		r.Handover = in.World.Handover
	}
	if m.In() == nil && !m.Started() {
		return r
	}
	standing := m.Process(0)
	p := Process{
		Leaves: standing.Leaves, Leaving: standing.Leaving,
		ProgramPhase: phaseStep, Entered: w.process.entered, Done: w.process.done, LastStep: w.lastStep,
		Samples: 10 * w.process.done, Waiting: waitingOf(standing.Waiting), Barrier: standing.Attempt,
		Stop: standing.Stop, Elastic: standing.Elastic, Sharded: standing.Sharded, OwnTime: w.ownTime,
	}
	if w.fresh() {
		p.Entered, p.Done, p.Samples, p.LastStep = 0, 0, 0, 0
	}
	if standing.Clean {
		p.Clean, p.CleanStep = true, standing.Step
	}
	if standing.Entering && standing.Elastic && m.In() != nil {
		p.ProgramPhase, p.Entered, p.Done = phaseForming, m.In().World.FromStep, m.In().World.FromStep
	}
	if w.process.handing {
		p.ProgramPhase = phaseForming
	}
	if w.process.fault != "" && (!standing.Entering || p.Waiting == waitingFault) {
		p.Fault = w.process.fault
	}
	if code, failed := m.Failure(0); failed {
		p.Waiting = waitingFault
		if p.Fault == "" {
			p.Fault = fmt.Sprintf("the program ended with exit code %d", code)
		}
	}
	if code, ended := m.Exit(0); ended {
		p.Exited, p.ExitCode = true, int32(code)
		if p.Fault == "" {
			p.Fault = m.Unsupplied()
		}
	}
	if w.pretends != nil && p.Waiting == WaitingAborted {
		p.Clean, p.CleanStep, p.Done = true, *w.pretends, *w.pretends
	}
	r.Processes = []Process{p}
	if !standing.Entering && !w.begun.IsZero() && !w.fresh() {
		r.Begun = true
		if !w.before.IsZero() {
			r.Pause = w.begun.Sub(w.before)
		}
	}
	return r
}

func (w *worker) join(attempt int32) AgentJoined {
	return AgentJoined{
		UID: w.uid, Attempt: attempt, Endpoint: Endpoint{"10.0.0." + w.uid, 4000}, Serves: Server{5000, w.certificate}, Parts: w.shares || w.sharded, Puts: w.shares || w.sharded, Report: w.report(),
	}
}

func waitingOf(w lifecycle.Waiting) Waiting {
	return map[lifecycle.Waiting]Waiting{
		lifecycle.WaitsJoin: waitingJoin, lifecycle.WaitsParked: waitingParked, lifecycle.WaitsAborted: WaitingAborted,
		lifecycle.WaitsFault: waitingFault, lifecycle.WaitsFinished: waitingFinished,
	}[w]
}

// heardBy is a directive as the agent's session hands it over.
func heardBy(d Directive) lifecycle.Directive {
	heard := lifecycle.Directive{
		Term: d.Term, Round: d.Round, Released: d.Released, Standby: d.Standby, Key: string(d.Key),
		Raise: d.Raise, Finish: d.Finish, Hold: d.Hold, Restarts: d.Restarts, Staging: stagingTo(d.Staging),
	}
	if w := d.World; w != nil {
		heard.World = lifecycle.World{
			Digest: w.Digest, Parent: w.Parent, FromStep: w.FromStep, WorkerRank: int(w.WorkerRank),
			Workers: int(w.Workers), Processes: int(w.Processes), MasterAddress: w.Master.Address,
			MasterPort: int(w.Master.Port), Restore: w.Restore, Handover: w.Handover, Writer: w.Writer, Holders: holdersTo(w.Holders),
			Staging: stagingTo(w.Staging), Parts: partsTo(w.Parts),
		}
		if w.Snapshot != nil {
			s := snapshotTo(*w.Snapshot)
			heard.World.Snapshot = &s
		}
	}
	if b := d.Barrier; b != nil {
		heard.Barrier = lifecycle.Barrier{Attempt: b.Attempt, Step: b.Step, Save: b.Save}
	}
	if d.Abort != nil {
		heard.Abort = &lifecycle.Abort{Reason: d.Abort.Reason, Planned: d.Abort.Planned, SaveStep: d.Abort.Save, LeaveStep: d.Abort.Leave}
	}
	if f := d.Prefetch; f != nil {
		heard.Prefetch = &lifecycle.Prefetch{Snapshot: snapshotTo(f.Snapshot), Parts: partsTo(f.Parts), Holders: holdersTo(f.Holders)}
	}
	return heard
}

func snapshotTo(s Snapshot) lifecycle.Snapshot {
	return lifecycle.Snapshot{Round: s.Round, Step: s.Step, Bytes: s.Bytes, Hash: s.Hash}
}

func stagingTo(s *Staging) lifecycle.Staging {
	if s == nil {
		return lifecycle.Staging{}
	}
	return lifecycle.Staging{Of: s.Of, Shares: s.Shares}
}

func partsTo(all []Snapshot) []lifecycle.Part {
	var parts []lifecycle.Part
	for _, s := range all {
		parts = append(parts, lifecycle.Part{Key: s.Part, Bytes: s.Bytes, Hash: s.Hash})
	}
	return parts
}

func holdersTo(all []Supplier) []lifecycle.Holder {
	var holders []lifecycle.Holder
	for i := range all {
		var has []int
		for _, part := range all[i].Parts {
			has = append(has, int(part))
		}
		holders = append(holders, lifecycle.Holder{Parts: has, Address: all[i].Address, Port: int(all[i].Port), Certificate: all[i].Certificate, Ticket: all[i].Ticket})
	}
	return holders
}
