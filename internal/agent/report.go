package agent

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/socket"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/checkpoint"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// Protocol is the version of the agent's protocol with the operator.
const Protocol = 2

// briefFault is how much of a fault is reported, in bytes, when it was not the first of its worker:
// a report stays under 64 KiB whatever the program does.
const briefFault = 256

// maxUnreached is how many holders are reported that could not be reached, and unreachedReason how much of the reason why, in
// bytes.
const (
	maxUnreached    = 32
	unreachedReason = 256
)

// maxReason is how much of the reason is reported why a snapshot is missing, in bytes.
const maxReason = 1 << 10

// standing is what the machine says, copied for whoever reports it.
type standing struct {
	term, refused, hold, before     uint64
	in                              *lifecycle.Start
	started, standby, out, stopping bool
	unsupplied                      string
	unreached                       []lifecycle.Unreached
	stays, supplied                 bool
	handsOver                       bool
	restarts                        uint64
	failure                         lifecycle.Failure
	processes                       []processStanding
}

// processStanding is one process, by local rank.
type processStanding struct {
	lifecycle.Standing
	// exit is the exit code of its program; failure that of one that has failed while the operator has
	// yet to say what follows. nil for none.
	exit, failure *int
}

func standingOf(m *lifecycle.Machine, config Config) standing {
	s := standing{
		term: m.Term(), refused: m.Refused(), hold: m.Hold(), before: m.Before(), in: m.In(), started: m.In() != nil || m.Started(),
		standby: m.Ready(), out: m.Out(), stopping: m.Terminating(), unsupplied: m.Unsupplied(), unreached: m.Unreached(),
		stays: m.Stays(), supplied: m.Supplied(), handsOver: m.HandsOver(), restarts: m.Restarts(), failure: m.LastFailure(),
	}
	for slot := range config.Processes {
		program := slot
		if config.Launch == LaunchPerWorker {
			program = 0
		}
		p := processStanding{Standing: m.Process(slot)}
		if code, ended := m.Exit(program); ended {
			p.exit = &code
		}
		if code, failed := m.Failure(program); failed {
			p.failure = &code
		}
		s.processes = append(s.processes, p)
	}
	return s
}

// report is the agent's whole state; states are what the processes said, by local rank.
func report(s standing, states []socket.State, held []checkpoint.Snapshot, failure string) *rendezvousv1.Report {
	r := &rendezvousv1.Report{
		Term: s.term, Refused: s.refused, Hold: s.hold, Before: s.before, Terminating: s.stopping, Standby: s.standby, Out: s.out,
		SnapshotError: wire.HeadOf(failure, maxReason), Stays: s.stays, Supplied: s.supplied, HandsOver: s.handsOver, Restarts: s.restarts,
	}
	if f := s.failure; f.Round > 0 {
		r.Failure = &rendezvousv1.Failure{Round: f.Round, Code: int32(f.Code), Killed: f.Killed}
	}
	if s.in != nil {
		r.Round = s.in.Round
		r.MembersDigest = s.in.World.Digest
		r.WorkerRank = uint32(s.in.World.WorkerRank)
		r.Handover = s.in.World.Handover
	}
	for _, snapshot := range held {
		// What was brought for a world may be there a moment before that is entered; no operator believes that.
		if snapshot.Round <= r.Round {
			r.Snapshots = append(r.Snapshots, messageOf(snapshot))
		}
	}
	for _, u := range s.unreached[:min(len(s.unreached), maxUnreached)] {
		r.Unreached = append(r.Unreached, &rendezvousv1.Unreached{
			Address: u.Address, Port: uint32(u.Port), Certificate: u.Certificate[:], Error: wire.HeadOf(u.Why, unreachedReason),
		})
	}
	if !s.started {
		return r
	}
	for slot, state := range states {
		r.Processes = append(r.Processes, processOf(s, slot, state))
	}
	r.PauseNanos, r.StepNanos = pauseOf(s, states), stepOf(s, states)
	return r
}

// firstFault is what the first process of a worker has said that reported a fault; empty for none.
func firstFault(states []socket.State) string {
	for i := range states {
		if states[i].FaultOrder == 1 {
			return states[i].Fault
		}
	}
	return ""
}

// begunIn is the round of which all processes have made a step; false where one has yet to make its first one there, or waits for shards.
func begunIn(s standing, states []socket.State) (round uint64, begun bool) {
	if s.in == nil || len(states) == 0 || slices.ContainsFunc(s.processes, func(p processStanding) bool { return p.Entering || p.Loads }) ||
		slices.ContainsFunc(states, func(of socket.State) bool { return of.Done <= s.in.World.FromStep }) {
		return 0, false
	}
	return s.in.Round, true
}

// pauseOf is how long the slowest process stood still before its first step in the world; nil as long as not all
// have begun it.
func pauseOf(s standing, states []socket.State) *uint64 {
	var longest uint64
	for slot, state := range states {
		if s.processes[slot].Entering || !state.Pause.Begun {
			return nil
		}
		longest = max(longest, uint64(max(0, state.Pause.Length)))
	}
	return &longest
}

// stepOf is how long a step takes in the world, by the slowest process; 0 as long as not all know it.
func stepOf(s standing, states []socket.State) uint64 {
	var longest time.Duration
	for slot, state := range states {
		if s.processes[slot].Entering || state.StepTime == 0 {
			return 0
		}
		longest = max(longest, state.StepTime)
	}
	return uint64(longest)
}

func processOf(s standing, slot int, state socket.State) *rendezvousv1.Process {
	of := s.processes[slot]
	p := &rendezvousv1.Process{
		Phase:          phase(state.Phase),
		Entered:        state.Entered,
		Done:           state.Done,
		LastStep:       state.LastStep,
		Samples:        state.Samples,
		Waiting:        waiting(of.Waiting),
		BarrierAttempt: of.Attempt,
		Stop:           of.Stop,
		Elastic:        of.Elastic,
		Leaves:         of.Leaves,
		LeavingStep:    of.Leaving,
		Sharded:        of.Sharded,
	}
	if !of.Entering {
		p.OwnNanos = uint64(state.OwnTime)
	}
	if of.Clean {
		p.CleanStep = &of.Step
	}
	if of.Entering && of.Elastic && s.in != nil {
		p.Phase, p.Entered, p.Done = rendezvousv1.Phase_PHASE_FORMING, s.in.World.FromStep, s.in.World.FromStep
	}
	for _, name := range slices.Sorted(maps.Keys(state.Metrics)) {
		p.Metrics = append(p.Metrics, &rendezvousv1.Metric{Name: name, Value: state.Metrics[name]})
	}
	if state.FaultOrder > 0 && (!of.Entering || of.Waiting == lifecycle.WaitsFault) {
		message := state.Fault
		if state.FaultOrder > 1 {
			message = wire.TailOf(message, briefFault)
		}
		p.Fault = &rendezvousv1.Fault{Step: state.FaultStep, Message: message}
	}
	if of.failure != nil {
		p.Waiting = rendezvousv1.Waiting_WAITING_FAULT
		if p.Fault == nil {
			p.Fault = &rendezvousv1.Fault{Step: p.Entered, Message: fmt.Sprintf("the program ended with exit code %d", *of.failure)}
		}
	}
	if of.exit != nil {
		p.Exit = &rendezvousv1.Exit{Code: int32(*of.exit)}
		if p.Fault == nil && s.unsupplied != "" {
			p.Fault = &rendezvousv1.Fault{Step: p.Entered, Message: wire.HeadOf(s.unsupplied, maxReason)}
		}
	}
	return p
}

func waiting(w lifecycle.Waiting) rendezvousv1.Waiting {
	switch w {
	case lifecycle.WaitsJoin:
		return rendezvousv1.Waiting_WAITING_JOIN
	case lifecycle.WaitsParked:
		return rendezvousv1.Waiting_WAITING_PARKED
	case lifecycle.WaitsAborted:
		return rendezvousv1.Waiting_WAITING_ABORTED
	case lifecycle.WaitsFault:
		return rendezvousv1.Waiting_WAITING_FAULT
	case lifecycle.WaitsFinished:
		return rendezvousv1.Waiting_WAITING_FINISHED
	default:
		return rendezvousv1.Waiting_WAITING_UNSPECIFIED
	}
}

func phase(p gate.Phase) rendezvousv1.Phase {
	switch p {
	case gate.PhaseForming:
		return rendezvousv1.Phase_PHASE_FORMING
	case gate.PhaseData:
		return rendezvousv1.Phase_PHASE_DATA
	case gate.PhaseStep:
		return rendezvousv1.Phase_PHASE_STEP
	case gate.PhaseEval:
		return rendezvousv1.Phase_PHASE_EVAL
	case gate.PhaseSaving:
		return rendezvousv1.Phase_PHASE_SAVING
	case gate.PhaseFinished:
		return rendezvousv1.Phase_PHASE_FINISHED
	default:
		return rendezvousv1.Phase_PHASE_UNSPECIFIED
	}
}
