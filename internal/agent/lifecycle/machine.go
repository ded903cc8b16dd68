package lifecycle

import (
	"fmt"
	"time"
)

// ExitTerminated is the exit code of a worker that got SIGTERM before its program was started, as a
// shell would have it.
const ExitTerminated = 128 + 15

type stage int

const (
	// waiting: no program has been started.
	waiting stage = iota
	// running: the programs run, and nobody has told them to stop.
	running
	// stopping: the programs were told to stop, or one of them has failed.
	stopping
	// left: it is over.
	left
)

// Machine is the state of one agent. Its zero value is of no use: call New.
type Machine struct {
	limits Limits
	// programs is how many programs a start has; processes how many ranks a world gives each worker.
	programs, processes int

	stage stage
	// obeyed is the highest term, and the highest round, of a directive that was not refused.
	obeyedTerm, obeyedRound uint64
	// in is the world that the programs are in; next the one that they are stopped for.
	in, next *Start
	// exits holds the exit codes by program.
	exits map[int]int
	// code is the first exit code that is not 0.
	code int

	lastHeard    time.Time
	released     bool
	gone         bool
	terminatedAt time.Time
	killAt       time.Time
}

// New is the state of an agent that has just started. programs is how many programs it starts,
// processes how many ranks each worker has.
func New(now time.Time, limits Limits, programs, processes int) *Machine {
	return &Machine{
		limits: limits, programs: programs, processes: processes,
		exits: map[int]int{}, lastHeard: now,
	}
}

// Term is the highest term that was obeyed.
func (m *Machine) Term() uint64 { return m.obeyedTerm }

// In is the world that the programs are in; nil before the first.
func (m *Machine) In() *Start { return m.in }

// Terminating is true once SIGTERM has arrived.
func (m *Machine) Terminating() bool { return !m.terminatedAt.IsZero() }

// Exit is the exit code of a program of the current world; false while it runs.
func (m *Machine) Exit(program int) (int, bool) {
	code, ended := m.exits[program]
	return code, ended
}

// Step takes one event and returns what to do.
func (m *Machine) Step(now time.Time, event Event) []Effect {
	if m.stage == left {
		return nil
	}
	var effects []Effect
	switch event := event.(type) {
	case Heard:
		effects = m.hear(now, event.Directive)
	case Gone:
		m.gone = true
	case Exited:
		effects = m.exited(now, event)
	case Terminated:
		effects = m.terminated(now)
	case Tick:
	}
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
		if digest := m.obeyedDigest(); d.World.Digest != "" && d.World.Digest != digest {
			return fmt.Sprintf("its round %d has the members %.12s and that round was obeyed with %.12s", d.Round, d.World.Digest, digest)
		}
		return ""
	default:
		return d.World.nonsense(m.processes)
	}
}

func (m *Machine) obeyedDigest() string {
	if m.next != nil {
		return m.next.World.Digest
	}
	return m.in.World.Digest
}

func (w World) nonsense(processes int) string {
	switch {
	case w.Workers < 1 || w.WorkerRank < 0 || w.WorkerRank >= w.Workers:
		return fmt.Sprintf("it makes this worker number %d of %d", w.WorkerRank, w.Workers)
	case w.Processes != processes:
		return fmt.Sprintf("it wants %d processes in this worker, whose pod was made for %d", w.Processes, processes)
	case w.MasterAddress == "" || w.MasterPort < 1 || w.MasterPort > 65535:
		return fmt.Sprintf("its master address is %q, port %d", w.MasterAddress, w.MasterPort)
	default:
		return ""
	}
}

func (m *Machine) hear(now time.Time, d Directive) []Effect {
	if why := m.refusal(d); why != "" {
		return []Effect{Refuse{Why: why}}
	}
	m.lastHeard = now
	m.gone = false
	m.obeyedTerm = d.Term
	m.released = m.released || d.Released
	if d.Round <= m.obeyedRound || m.released || m.Terminating() {
		return nil
	}
	start := &Start{Term: d.Term, Round: d.Round, World: d.World}
	switch {
	case m.stage == waiting:
		m.obeyedRound = d.Round
		return m.start(start)
	case m.stage == running:
		m.obeyedRound, m.next = d.Round, start
		note := Note{Text: fmt.Sprintf("round %d has another world: stopping the program to start it there", d.Round)}
		return append([]Effect{note}, m.stop(now.Add(m.limits.StopGrace))...)
	case m.next != nil:
		// Overtaken while the program stops.
		m.obeyedRound, m.next = d.Round, start
	}
	return nil
}

func (m *Machine) start(start *Start) []Effect {
	m.stage, m.in, m.next = running, start, nil
	m.code, m.killAt = 0, time.Time{}
	clear(m.exits)
	return []Effect{*start, Tell{}}
}

// stop tells the programs that still run to end, and sets when they are killed.
func (m *Machine) stop(killAt time.Time) []Effect {
	m.stage, m.killAt = stopping, killAt
	if programs := m.alive(); len(programs) > 0 {
		return []Effect{Terminate{Programs: programs}}
	}
	return nil
}

func (m *Machine) alive() []int {
	var programs []int
	for i := range m.programs {
		if _, ended := m.exits[i]; !ended {
			programs = append(programs, i)
		}
	}
	return programs
}

func (m *Machine) exited(now time.Time, e Exited) []Effect {
	if m.stage == waiting {
		return nil
	}
	m.exits[e.Program] = e.Code
	if m.code == 0 {
		m.code = e.Code
	}
	effects := []Effect{Tell{}}
	if e.Code != 0 && m.stage == running && len(m.alive()) > 0 {
		effects = append(effects, Note{Text: fmt.Sprintf("process %d ended with exit code %d: stopping the others", e.Program, e.Code)})
		effects = append(effects, m.stop(now.Add(m.limits.StopGrace))...)
	}
	return effects
}

func (m *Machine) terminated(now time.Time) []Effect {
	if m.Terminating() {
		return nil
	}
	m.terminatedAt = now
	return []Effect{Tell{}}
}

// settle applies the rules that depend on the state and the time alone.
func (m *Machine) settle(now time.Time) []Effect {
	var effects []Effect
	if m.Terminating() {
		effects = append(effects, m.settleTermination(now)...)
	}
	if m.stage == stopping && !m.killAt.IsZero() && !now.Before(m.killAt) {
		m.killAt = time.Time{}
		effects = append(effects, Kill{})
	}
	if (m.stage == running || m.stage == stopping) && len(m.alive()) == 0 {
		effects = append(effects, m.ended()...)
	}
	return effects
}

// ended is what follows when no program is left.
func (m *Machine) ended() []Effect {
	effects := []Effect{Kill{}}
	if m.next != nil {
		return append(effects, m.start(m.next)...)
	}
	m.stage = left
	return append(effects, Leave{Code: m.code})
}

func (m *Machine) settleTermination(now time.Time) []Effect {
	// Whatever comes, no program is started any more.
	m.next = nil
	switch m.stage {
	case waiting:
		m.stage = left
		return []Effect{Leave{Code: ExitTerminated}}
	case running:
		if why := m.mayPass(now); why != "" {
			note := Note{Text: "SIGTERM goes on to the program: " + why}
			return append([]Effect{note}, m.stop(m.terminatedAt.Add(m.limits.killAfter()))...)
		}
	case stopping:
		// Told to stop already; the grace period may end before the time it was given.
		if last := m.terminatedAt.Add(m.limits.killAfter()); !m.killAt.IsZero() && last.Before(m.killAt) {
			m.killAt = last
		}
	}
	return nil
}

// mayPass says why SIGTERM may reach the program now; empty when it may not.
func (m *Machine) mayPass(now time.Time) string {
	switch {
	case m.released:
		return "the operator has released this worker"
	case m.gone:
		return "the operator knows no such job any more"
	case !now.Before(m.decideAloneAt()):
		return "the operator cannot be reached"
	case !now.Before(m.terminatedAt.Add(m.limits.passAfter())):
		return "the grace period is nearly over"
	default:
		return ""
	}
}

// decideAloneAt is when the operator counts as out of reach.
func (m *Machine) decideAloneAt() time.Time {
	from := m.terminatedAt
	if m.lastHeard.After(from) {
		from = m.lastHeard
	}
	return from.Add(m.limits.OutOfReach)
}
