package agent

import (
	"maps"
	"slices"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/socket"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// Protocol is the version of the agent's protocol with the operator.
const Protocol = 1

// briefFault is how much of a fault is reported, in bytes, when it was not the first of its worker:
// a report stays under 64 KiB whatever the program does.
const briefFault = 256

// standing is what the machine says, copied for whoever reports it.
type standing struct {
	term        uint64
	in          *lifecycle.Start
	terminating bool
	exits       map[int]int
}

func standingOf(m *lifecycle.Machine, programs int) standing {
	s := standing{term: m.Term(), in: m.In(), terminating: m.Terminating(), exits: map[int]int{}}
	for i := range programs {
		if code, ended := m.Exit(i); ended {
			s.exits[i] = code
		}
	}
	return s
}

// report is the agent's whole state; states are what the processes said, by local rank.
func report(config Config, s standing, states []socket.State) *rendezvousv1.Report {
	r := &rendezvousv1.Report{Term: s.term, Terminating: s.terminating}
	if s.in == nil {
		return r
	}
	r.Round = s.in.Round
	r.MembersDigest = s.in.World.Digest
	r.WorkerRank = uint32(s.in.World.WorkerRank)
	for slot, state := range states {
		r.Processes = append(r.Processes, processOf(config, s, slot, state))
	}
	return r
}

func processOf(config Config, s standing, slot int, state socket.State) *rendezvousv1.Process {
	p := &rendezvousv1.Process{
		Phase:    phase(state.Phase),
		Entered:  state.Entered,
		Done:     state.Done,
		LastStep: state.LastStep,
		Samples:  state.Samples,
	}
	for _, name := range slices.Sorted(maps.Keys(state.Metrics)) {
		p.Metrics = append(p.Metrics, &rendezvousv1.Metric{Name: name, Value: state.Metrics[name]})
	}
	if state.FaultOrder > 0 {
		message := state.Fault
		if state.FaultOrder > 1 {
			message = wire.TailOf(message, briefFault)
		}
		p.Fault = &rendezvousv1.Fault{Step: state.FaultStep, Message: message}
	}
	program := slot
	if config.Launch == LaunchPerWorker {
		program = 0
	}
	if code, ended := s.exits[program]; ended {
		p.Exit = &rendezvousv1.Exit{Code: int32(code)}
	}
	return p
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
