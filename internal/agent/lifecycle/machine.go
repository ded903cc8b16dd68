package lifecycle

import (
	"fmt"
	"time"

	"github.com/concertina-dev/concertina/internal/deviceerror"
)

// ExitTerminated is the exit code of a worker that got SIGTERM while it ran no program, as a shell
// would have it.
const ExitTerminated = 128 + 15

// ExitDevice is the exit code by which a program says that a device of its node is broken: whatever is started there fails as well.
const ExitDevice = 113

type stage int

const (
	// waiting: no program runs.
	waiting stage = iota
	// running: the programs run, and nobody has told them to stop.
	running
	// stopping: the programs were told to stop, or one of them has failed.
	stopping
	// fallen: the programs have failed, and the operator has yet to say that they are started anew.
	fallen
	// left: it is over.
	left
)

// Machine is the state of one agent. Its zero value is of no use: call New.
type Machine struct {
	limits Limits
	shape  Shape

	stage stage
	// obeyed is the highest term, and the highest round, of a directive that was not refused.
	obeyedTerm, obeyedRound uint64
	obeyedDigest            string
	// refused is a planned round that found the processes elsewhere than it begins; 0 for none.
	refused uint64
	key     string
	// in is the world that this worker is in, or was in last; next the one that programs are stopped
	// for.
	in, next *Start
	// before is the round that it was in before that of in; 0 for none.
	before uint64
	slots  []slot
	orders orders
	hold   hold
	// supplied is true once the snapshot that the world of in begins with is there; ahead is the one that
	// was fetched last before its world.
	supplied bool
	supply   supply
	ahead    Snapshot
	// launcher is the program, where it is one that stays from world to world.
	launcher launcher
	// out is true when this worker makes no further step in the world of in.
	out bool

	// exits holds the exit codes by program; ended is true when what they left behind is gone.
	exits map[int]int
	ended bool
	// code is the first exit code that is not 0, and failed the program that had it; -1 for none.
	code, failed int
	// unanswered is true when the programs were killed since one had not left its world in time.
	unanswered bool
	// lookedFor is the end of the time for which it was last noted what the programs are about.
	lookedFor time.Time
	// again is about programs that have failed; anew is true of programs that were started after that, and were given
	// no world yet.
	again again
	anew  bool
	// check is true when the programs that are started next are to look at their devices first.
	check bool
	// unsupplied is why the programs were killed when their world's snapshot could not be had.
	unsupplied string
	// denied is why the snapshot of the last world was not to be had from holders that were reached; empty once one was.
	denied string

	lastHeard    time.Time
	released     bool
	gone         bool
	terminatedAt time.Time
	killAt       time.Time
	// leaveBy is when processes are stopped that were told to save and to end; holdUntil when a program that has failed ends
	// the agent.
	leaveBy, holdUntil time.Time
}

// New is the state of an agent that has just started.
func New(now time.Time, limits Limits, shape Shape) *Machine {
	return &Machine{
		limits: limits, shape: shape, slots: make([]slot, shape.Processes),
		exits: map[int]int{}, failed: -1, lastHeard: now, check: shape.Check,
	}
}

// Step takes one event and returns what to do.
func (m *Machine) Step(now time.Time, event Event) []Effect {
	if m.stage == left {
		return nil
	}
	var effects []Effect
	switch event := event.(type) {
	case Heard:
		effects = m.hear(now, event)
	case Gone:
		m.gone = true
	case Said:
		effects = m.said(event)
	case Launched:
		effects = m.launched(event)
	case Armed:
		effects = m.armed(event)
	case Interrupted:
		m.interrupted(now, event)
	case Fetched:
		effects = m.fetched(now, event)
	case HasShards:
		effects = m.hasShards(now, event)
	case Checkpointed:
		effects = m.checkpointed(now, event)
	case Exited:
		effects = m.exited(now, event)
	case Terminated:
		effects = m.terminated(now)
	case Tick:
	}
	effects = append(effects, m.attend(now)...)
	return append(effects, m.settle(now)...)
}

// Deadline is when the next Tick is due; false when there is nothing to wait for.
func (m *Machine) Deadline() (time.Time, bool) {
	var due []time.Time
	if m.stage == running && m.Terminating() {
		due = append(due, m.decideAloneAt(), m.terminatedAt.Add(m.limits.passAfter()))
	}
	if !m.killAt.IsZero() && m.stage == stopping {
		due = append(due, m.killAt)
	}
	if by := m.answerBy(); !by.IsZero() {
		due = append(due, m.lookAt(by))
	}
	if m.stage == fallen && m.again.allowed != nil && *m.again.allowed > m.again.done {
		due = append(due, m.againAt())
	}
	if !m.leaveBy.IsZero() && m.stage == running {
		due = append(due, m.leaveBy)
	}
	if m.held() && len(m.alive()) == 0 {
		due = append(due, m.holdUntil)
	}
	if m.stands() {
		due = append(due, m.hold.until)
	}
	if m.stage == running && !m.supply.again.IsZero() {
		due = append(due, m.supply.again)
	}
	if len(due) == 0 {
		return time.Time{}, false
	}
	first := due[0]
	for _, t := range due[1:] {
		if t.Before(first) {
			first = t
		}
	}
	return first, true
}

// refusal says why a directive must not be obeyed; empty when it may.
func (m *Machine) refusal(d Directive) string {
	switch {
	case d.Term < m.obeyedTerm:
		return fmt.Sprintf("its term is %d and term %d has been obeyed: another operator leads", d.Term, m.obeyedTerm)
	case d.Round == 0:
		// A leader that does not know the world yet has nothing to say against it.
		return ""
	case d.Round < m.obeyedRound:
		return fmt.Sprintf("its round is %d and round %d has been obeyed: another operator leads", d.Round, m.obeyedRound)
	case d.Round == m.obeyedRound:
		// A leader that adopts a world may not know all of it yet; what it knows must agree.
		if d.World.Digest != "" && d.World.Digest != m.obeyedDigest {
			return fmt.Sprintf("its round %d has the members %.12s and that round was obeyed with %.12s", d.Round, d.World.Digest, m.obeyedDigest)
		}
		return ""
	default:
		return d.World.nonsense(m.shape.Processes)
	}
}

func (w World) nonsense(processes int) string {
	switch {
	case w.Workers < 1 || w.WorkerRank < 0 || w.WorkerRank >= w.Workers:
		return fmt.Sprintf("it makes this worker number %d of %d", w.WorkerRank, w.Workers)
	case w.Processes != processes:
		return fmt.Sprintf("it wants %d processes in this worker, whose pod was made for %d", w.Processes, processes)
	case w.MasterAddress == "" || w.MasterPort < 1 || w.MasterPort > 65535:
		return fmt.Sprintf("its master address is %q, port %d", w.MasterAddress, w.MasterPort)
	case w.Restore && w.FromStep > 0 && w.Snapshot == nil && !w.Handover:
		return fmt.Sprintf("it goes back to step %d and names no snapshot", w.FromStep)
	default:
		return ""
	}
}

// unready says why this worker cannot go on to a planned round with the state that it has; empty when it can,
// or is not asked to. Only who stands at the barrier of the parent, and has not been let go since, knows that
// no step of the parent was made after that one.
func (m *Machine) unready(d Directive) string {
	w := d.World
	if m.shape.Strategy != InPlace || d.Round <= m.obeyedRound || d.Abort != nil || w.Restore || w.Parent == 0 {
		return ""
	}
	if m.in == nil || m.in.Round != w.Parent {
		return fmt.Sprintf("its round %d goes on with the state of round %d, and this worker is not there", d.Round, w.Parent)
	}
	for i := range m.slots {
		if s := &m.slots[i]; !s.standsAt(m.in.Round, w.FromStep) {
			return fmt.Sprintf("its round %d goes on after step %d of round %d, and process %d does not stand at the barrier there",
				d.Round, w.FromStep, w.Parent, i)
		}
	}
	return ""
}

func (m *Machine) hear(now time.Time, heard Heard) []Effect {
	d := heard.Directive
	if why := m.refusal(d); why != "" {
		return []Effect{Refuse{Why: why}}
	}
	if why := m.unready(d); why != "" {
		m.refused = d.Round
		return []Effect{Refuse{Why: why}, Tell{}}
	}
	if d.Round > 0 {
		m.refused = 0
	}
	m.lastHeard = now
	m.gone, m.again.allowed = false, d.Restarts
	m.renew(heard)
	m.obeyedTerm = d.Term
	m.released = m.released || d.Released
	var effects []Effect
	if d.Key != "" && d.Key != m.key {
		m.key = d.Key
		effects = append(effects, Trust{Term: d.Term, Key: d.Key})
	}
	if p := d.Prefetch; p != nil && p.Snapshot != m.ahead && m.takesWorlds() && m.stage == running {
		m.ahead = p.Snapshot
		effects = append(effects, FetchAhead{*p})
	}
	switch {
	case d.Round == 0:
		return append(effects, m.standBy(d)...)
	case d.Round > m.obeyedRound:
		// A worker that was to leave may be wanted again.
		m.released = d.Released
		effects = append(effects, m.enter(now, &Start{Term: d.Term, Round: d.Round, World: d.World})...)
		if d.Abort != nil && m.in != nil && m.in.Round == d.Round {
			// Nobody is given a world that is over.
			effects = append(effects, m.obey(now, d)...)
		}
		return effects
	case m.in != nil && d.Round == m.in.Round:
		return append(effects, m.obey(now, d)...)
	default:
		return effects
	}
}

// standBy starts programs that are to be given a world later.
func (m *Machine) standBy(d Directive) []Effect {
	if !d.Standby || m.shape.Strategy != InPlace || m.stage != waiting || m.released || m.Terminating() {
		return nil
	}
	m.begin()
	return []Effect{Start{Term: d.Term, Check: m.checks()}, Tell{}}
}

// enter takes the worker to a later round.
func (m *Machine) enter(now time.Time, start *Start) []Effect {
	inPlace := m.stage == running && m.takesWorlds()
	if m.released || (m.Terminating() && !inPlace) {
		return nil
	}
	var effects []Effect
	switch {
	case m.stage == waiting:
		effects = m.start(start)
	case m.stage == fallen:
		effects = m.misses(start)
	case inPlace:
		note := Note{Text: fmt.Sprintf("round %d: the program goes on there", start.Round)}
		effects = append(append(effects, note), append(m.moveTo(start), Tell{})...)
	case m.stage == running:
		m.next = start
		note := Note{Text: fmt.Sprintf("round %d has another world: stopping the program to start it there", start.Round)}
		effects = append(append(effects, note), m.stop(now.Add(m.limits.StopGrace))...)
	case m.next != nil || m.shape.Strategy == Restart:
		// Overtaken while the program stops.
		m.next = start
	default:
		return nil
	}
	m.obeyedRound, m.obeyedDigest = start.Round, start.World.Digest
	return effects
}

// takesWorlds is true when the programs can be given another world. One that has not spoken to the
// agent cannot; one without a place has none that it could lose.
func (m *Machine) takesWorlds() bool {
	if m.shape.Strategy != InPlace {
		return false
	}
	for i := range m.slots {
		if m.slots[i].elastic {
			return true
		}
	}
	return m.in == nil || m.anew
}

// moveTo makes start the world that this worker is in.
func (m *Machine) moveTo(start *Start) []Effect {
	enter := Enter{Round: start.Round, World: start.World}
	if m.in != nil && start.World.Parent != 0 {
		enter.Continues = start.World.Parent == m.in.Round
	}
	if m.in != nil {
		m.before = m.in.Round
	}
	m.in, m.next, m.out, m.anew, m.orders, m.supply = start, nil, false, false, orders{}, supply{}
	m.supplied = m.shape.Strategy != InPlace || !start.World.loads()
	if m.supplied {
		return []Effect{enter}
	}
	return []Effect{enter, m.fetch()}
}

func (m *Machine) start(start *Start) []Effect {
	effects := m.moveTo(start)
	rests := m.launcher.rests
	// Under Restart others were lost, by which a library of this worker may have ended it. None does that by a fault of memory.
	m.check = m.check || deviceerror.Faulted(m.code)
	m.begin()
	if rests {
		return append(effects, Relaunch{Connection: m.launcher.connection, Start: *start}, Tell{})
	}
	m.launcher = launcher{}
	first := *start
	first.Check = m.checks()
	return append(effects, first, Tell{})
}

// begin forgets the programs that ran before.
func (m *Machine) begin() {
	m.stage, m.ended, m.anew, m.unanswered = running, false, false, false
	m.code, m.failed, m.unsupplied, m.denied = 0, -1, "", ""
	m.killAt, m.leaveBy, m.holdUntil = time.Time{}, time.Time{}, time.Time{}
	clear(m.exits)
	clear(m.slots)
	m.launcher.rests = false
}
