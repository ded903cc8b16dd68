package rendezvoustest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// keepSnapshots is how many snapshots a worker keeps.
const keepSnapshots = 2

// playedPause is how long every program says that it stood still before its first step in a world.
const playedPause = time.Millisecond

// program plays an elastic process and what its agent does with it.
type program struct {
	started       bool
	entered, done uint64
	attempt, stop uint64
	// lapsed is true once it was let go from the barrier of this attempt, since its hold had ended.
	lapsed      bool
	waiting     rendezvousv1.Waiting
	out, exited bool
	// begun is true once it has begun a step in its world.
	begun         bool
	code          int32
	fault         string
	round         uint64
	writer        bool
	snapshots     []*rendezvousv1.Snapshot
	full, failure string
	// collective is what it makes its steps in; nil for alone. world is the one that it is in there, state what it has computed.
	collective *Collective
	world      *rendezvousv1.World
	state      state
}

// progress is all of the program that is reported at once.
func (p *program) progress() string {
	return fmt.Sprint(p.started, p.attempt, p.stop, p.waiting, p.out, p.begun, p.exited, len(p.snapshots), p.failure)
}

// obey does what a directive says. It returns what is wrong with it.
func (p *program) obey(d *rendezvousv1.Directive, round uint64) (violation string) {
	if p.exited {
		return ""
	}
	if d.GetStandby() && round == 0 && !p.started {
		p.started, p.waiting = true, rendezvousv1.Waiting_WAITING_JOIN
	}
	if d.GetRound() > round {
		violation = p.enter(d, round)
	}
	if d.GetRound() == 0 {
		return violation
	}
	p.park(d.GetBarrier())
	if d.GetBarrier().GetSave() && p.waiting == rendezvousv1.Waiting_WAITING_PARKED {
		p.save()
	}
	if d.GetAbort() != nil && !p.out {
		p.leave()
		p.out = true
		if p.waiting != rendezvousv1.Waiting_WAITING_FAULT && p.waiting != rendezvousv1.Waiting_WAITING_FINISHED {
			p.waiting = rendezvousv1.Waiting_WAITING_ABORTED
		}
	}
	if save := d.GetAbort().GetSaveStep(); p.collective != nil && save > 0 && save == p.done {
		p.save()
	}
	if d.GetRaise() && p.waiting == rendezvousv1.Waiting_WAITING_FAULT {
		p.exit(1)
	}
	if d.GetFinish() && p.waiting == rendezvousv1.Waiting_WAITING_FINISHED {
		p.exit(0)
	}
	return violation
}

// enter takes the program into another world.
func (p *program) enter(d *rendezvousv1.Directive, before uint64) (violation string) {
	world := d.GetWorld()
	named := world.GetSnapshot()
	if !p.out {
		p.leave()
	}
	p.snapshots = slices.DeleteFunc(p.snapshots, func(s *rendezvousv1.Snapshot) bool {
		kept := before == world.GetParent() && s.GetStep() <= world.GetFromStep()
		return !kept && !proto.Equal(s, named)
	})
	switch {
	case world.GetRestore():
		if named.GetStep() != world.GetFromStep() {
			violation = fmt.Sprintf("round %d begins after step %d with a snapshot of step %d",
				d.GetRound(), world.GetFromStep(), named.GetStep())
		}
		p.done, p.state = world.GetFromStep(), initial
		if named != nil && p.collective != nil {
			p.state = state(named.GetHash())
		}
		if named != nil && !slices.ContainsFunc(p.snapshots, func(s *rendezvousv1.Snapshot) bool { return proto.Equal(s, named) }) {
			p.keep(named)
		}
	case p.collective != nil && d.GetAbort() != nil:
		// It is over: whoever does not load goes on with what it has left the one before with.
	case p.done != world.GetFromStep():
		violation = fmt.Sprintf("round %d goes on after step %d and %d steps are done", d.GetRound(), world.GetFromStep(), p.done)
	}
	p.started, p.entered, p.waiting = true, p.done, rendezvousv1.Waiting_WAITING_UNSPECIFIED
	p.attempt, p.stop, p.lapsed, p.out, p.begun, p.fault, p.failure = 0, 0, false, false, false, "", ""
	p.round, p.writer, p.world = d.GetRound(), world.GetWriter(), world
	return violation
}

// unready says whether the program is to go on to another world with its state, and does not stand where that begins.
func (p *program) unready(d *rendezvousv1.Directive, round uint64) bool {
	w := d.GetWorld()
	if p.collective == nil || p.exited || d.GetRound() <= round || d.GetAbort() != nil || w.GetRestore() || w.GetParent() == 0 {
		return false
	}
	stands := p.out || p.waiting == rendezvousv1.Waiting_WAITING_PARKED && p.stop == w.GetFromStep()
	return round != w.GetParent() || p.done != w.GetFromStep() || !stands
}

// leave has it leave its world. A step that is made it ends before.
func (p *program) leave() {
	if p.collective == nil || p.round == 0 || p.exited {
		return
	}
	if p.collective.leave(p.round, p.world, p.entered) && p.entered > p.done {
		p.end()
	}
}

// end ends the step that it is in.
func (p *program) end() {
	p.done++
	p.state = p.state.after(p.round, p.done)
}

// meets has it make a step alone, or begin or end one with others.
func (p *program) meets(config Config) {
	if p.collective == nil {
		p.step(config)
		return
	}
	if p.gate(); !p.trains() {
		return
	}
	if p.done == 0 && p.entered == 0 && config.SnapshotEvery > 0 && p.writer {
		p.save()
	}
	p.entered, p.begun = p.done+1, true
	if p.collective.begin(p.round, p.world, p.entered, p.state) {
		p.end()
		p.ended(config)
	}
}

// park takes over a barrier, or lifts it.
func (p *program) park(barrier *rendezvousv1.Barrier) {
	switch {
	case barrier == nil:
		p.stop = 0
	case barrier.GetAttempt() > p.attempt || p.lapsed && barrier.GetAttempt() == p.attempt:
		p.attempt, p.stop, p.lapsed = barrier.GetAttempt(), max(barrier.GetStep(), p.entered), false
	}
	if p.waiting == rendezvousv1.Waiting_WAITING_PARKED && (p.stop == 0 || p.done < p.stop) {
		p.waiting = rendezvousv1.Waiting_WAITING_UNSPECIFIED
	}
	p.gate()
}

// gate parks the program when it may make no further step.
func (p *program) gate() {
	if p.waiting == rendezvousv1.Waiting_WAITING_UNSPECIFIED && p.round > 0 && p.stop > 0 && p.done >= p.stop {
		p.waiting = rendezvousv1.Waiting_WAITING_PARKED
	}
}

// step makes a step if the program may.
func (p *program) step(config Config) bool {
	p.gate()
	if !p.trains() {
		return false
	}
	if p.done == 0 && config.SnapshotEvery > 0 && p.writer {
		p.save()
	}
	p.entered, p.begun = p.done+1, true
	p.done++
	p.ended(config)
	return true
}

// trains says whether the program may make a step.
func (p *program) trains() bool {
	return p.started && p.round > 0 && !p.exited && p.waiting == rendezvousv1.Waiting_WAITING_UNSPECIFIED
}

// ended does what is due after a step.
func (p *program) ended(config Config) {
	if config.SnapshotEvery > 0 && p.writer && p.done%config.SnapshotEvery == 0 {
		p.save()
	}
	if config.LastStep > 0 && p.done >= config.LastStep {
		p.waiting = rendezvousv1.Waiting_WAITING_FINISHED
	}
	p.gate()
}

func (p *program) save() {
	if p.full != "" {
		p.failure = p.full
		return
	}
	hash := sha256.Sum256(strconv.AppendUint(nil, p.done, 10))
	if p.collective != nil {
		hash = p.state
	}
	taken := &rendezvousv1.Snapshot{Round: p.round, Step: p.done, Bytes: 1, Hash: hash[:]}
	if !slices.ContainsFunc(p.snapshots, func(s *rendezvousv1.Snapshot) bool { return proto.Equal(s, taken) }) {
		p.keep(taken)
	}
}

func (p *program) keep(s *rendezvousv1.Snapshot) {
	p.snapshots = append([]*rendezvousv1.Snapshot{s}, p.snapshots...)
	p.snapshots = p.snapshots[:min(keepSnapshots, len(p.snapshots))]
}

func (p *program) fail(message string) {
	if p.started && !p.exited && !p.out {
		p.waiting, p.fault = rendezvousv1.Waiting_WAITING_FAULT, message
	}
}

func (p *program) exit(code int32) { p.exited, p.code = true, code }

// report adds the program to a report.
func (p *program) report(config Config, r *rendezvousv1.Report) {
	waiting := p.waiting
	r.Standby = r.GetRound() == 0 && !p.exited
	r.Out = r.GetRound() > 0 && (p.out || waiting == rendezvousv1.Waiting_WAITING_FAULT || waiting == rendezvousv1.Waiting_WAITING_FINISHED)
	r.Snapshots, r.SnapshotError = slices.Clone(p.snapshots), p.failure
	if !p.started {
		return
	}
	one := &rendezvousv1.Process{
		Phase: rendezvousv1.Phase_PHASE_STEP, Entered: p.entered, Done: p.done, LastStep: config.LastStep,
		Waiting: waiting, BarrierAttempt: p.attempt, Stop: p.stop, Elastic: true,
	}
	if p.begun {
		r.PauseNanos = proto.Uint64(uint64(playedPause))
	}
	if p.collective != nil && p.out && !p.exited {
		one.CleanStep = proto.Uint64(p.done)
	}
	if p.fault != "" {
		one.Fault = &rendezvousv1.Fault{Step: p.entered, Message: p.fault}
	}
	if p.exited {
		one.Exit = &rendezvousv1.Exit{Code: p.code}
	}
	r.Processes = []*rendezvousv1.Process{one}
}
