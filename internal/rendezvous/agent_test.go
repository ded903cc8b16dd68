package rendezvous

import (
	"fmt"
	"slices"
	"time"
)

// modelAgent is the agent of transcripts, with one elastic process: it follows the protocol at once, and says
// whatever a transcript puts into its mouth. Where agents decide for themselves the tests take worker.
type modelAgent struct {
	uid         string
	term, round uint64
	hold        uint64
	digest      string
	rank        int32
	fromStep    uint64
	workers     int32

	entered, done uint64
	lastStep      uint64
	// ended is when it has ended its last step; begun and pause are what is known of its first in its world.
	ended time.Time
	begun bool
	pause time.Duration
	// state is what the process has computed: the history of rounds in which its steps were made.
	state   history
	waiting Waiting
	// foreign programs speak to no agent; restarts is the strategy of the job.
	foreign, restarts bool
	// leaves programs are started anew in each world, and can be told to leave it at a barrier: leaving is the step after
	// which they were. They have saved then, unless they are full.
	leaves  bool
	leaving uint64
	// started is true once the program runs. stuck programs do not answer abort.
	started, stuck bool

	attempt, stop uint64
	// aborted is true once it was told that the world is over, out once it has left it.
	aborted, out  bool
	fault         string
	phase         ProgramPhase
	exits         []int32
	snapshots     []Snapshot
	states        map[Snapshot]history
	snapshotError string
	full          bool
	// probed is what it says of the probes that it was asked for.
	probed []Probed
	// live programs say that they leave a world with the state after the last step that they have done.
	live        bool
	terminating bool
	released    bool
	// stays is true of an agent that outlives its program, again how often that was started anew, and failure how it
	// failed last.
	stays   bool
	again   uint64
	failure Failure
	// worlds are all worlds that it was ever told of, by round.
	worlds map[uint64]string
}

// obey takes a directive. It returns false when it refuses, and an error when the directive breaks
// the protocol.
func (a *modelAgent) obey(d Directive) (bool, error) {
	if d.Term < a.term || d.Round != 0 && d.Round < a.round {
		return false, nil
	}
	if d.Round != 0 && d.World == nil {
		return false, fmt.Errorf("%s: round %d without a world", a.uid, d.Round)
	}
	if d.Round != 0 {
		if known, ok := a.worlds[d.Round]; ok && known != d.World.Digest {
			return false, fmt.Errorf("%s: round %d is %s and was %s", a.uid, d.Round, d.World.Digest, known)
		}
		if a.worlds == nil {
			a.worlds = map[uint64]string{}
		}
		a.worlds[d.Round] = d.World.Digest
	}
	if d.Term > a.term {
		a.hold = 0
	}
	a.term, a.hold = d.Term, max(a.hold, d.Hold)
	a.released = a.released || d.Released
	a.startAgain(d)
	if len(a.exits) > 0 {
		return true, nil
	}
	if d.Standby && a.round == 0 && !a.restarts {
		a.started, a.waiting = true, waitingJoin
	}
	if d.Round > a.round && !a.released {
		if err := a.enter(d); err != nil {
			return false, err
		}
	}
	if d.Round != 0 && d.Round == a.round {
		a.follow(d)
	}
	return true, nil
}

// startAgain starts a program anew that has failed, if it may.
func (a *modelAgent) startAgain(d Directive) {
	if !a.stays || len(a.exits) == 0 || d.Restarts == nil || *d.Restarts <= a.again {
		return
	}
	a.failure, a.again = Failure{Round: a.round, Code: a.exits[0], Message: a.fault}, *d.Restarts
	a.exits, a.fault, a.waiting, a.out, a.aborted = nil, "", WaitingAborted, true, true
	a.entered, a.done, a.state, a.attempt, a.stop = a.fromStep, a.fromStep, nil, 0, 0
}

// enter takes the agent into another world.
func (a *modelAgent) enter(d Directive) error {
	w := d.World
	if a.round > 0 && !a.foreign && !a.restarts && a.waiting == waitingNone && w.Parent > 0 {
		return fmt.Errorf("%s: is in round %d, trains, and is told of round %d", a.uid, a.round, d.Round)
	}
	parent := a.round == w.Parent
	a.round, a.digest, a.rank, a.workers, a.fromStep = d.Round, w.Digest, w.WorkerRank, w.Workers, w.FromStep
	a.begun, a.pause = false, 0
	a.snapshots = slices.DeleteFunc(slices.Clone(a.snapshots), func(s Snapshot) bool {
		return (!parent || s.Step > w.FromStep) && (w.Snapshot == nil || s != *w.Snapshot)
	})
	switch {
	case a.leaves:
		a.done, a.leaving = w.FromStep, 0
	case a.restarts || w.Restore && w.Snapshot == nil:
		if w.FromStep != 0 {
			return fmt.Errorf("%s: round %d begins after step %d without a snapshot", a.uid, d.Round, w.FromStep)
		}
		a.done, a.state = 0, nil
	case w.Restore:
		if err := a.restore(d); err != nil {
			return err
		}
	case a.done != w.FromStep:
		return fmt.Errorf("%s: round %d goes on after step %d, and it has done %d", a.uid, d.Round, w.FromStep, a.done)
	}
	a.entered, a.started, a.waiting = a.done, true, waitingNone
	a.attempt, a.stop, a.aborted, a.out, a.fault, a.phase = 0, 0, false, false, "", phaseStep
	return nil
}

// restore loads the snapshot of a world; an agent that cannot get it ends.
func (a *modelAgent) restore(d Directive) error {
	s := *d.World.Snapshot
	if s.Step != d.World.FromStep {
		return fmt.Errorf("%s: round %d goes on after step %d with the snapshot of step %d", a.uid, d.Round, d.World.FromStep, s.Step)
	}
	if !slices.Contains(a.snapshots, s) {
		a.keep(s, nil)
	}
	a.done, a.state = s.Step, slices.Clone(a.states[s])
	return nil
}

func (a *modelAgent) keep(s Snapshot, state history) {
	if a.states == nil {
		a.states = map[Snapshot]history{}
	}
	a.states[s] = state
	a.snapshots = append([]Snapshot{s}, a.snapshots...)
	a.snapshots = a.snapshots[:min(2, len(a.snapshots))]
}

// follow does what a directive says about the world that the agent is in.
func (a *modelAgent) follow(d Directive) {
	a.aborted = a.aborted || d.Abort != nil
	if a.leaves && d.Abort != nil && d.Abort.Leave > 0 && a.waiting == waitingParked && a.done == d.Abort.Leave {
		a.leaving = a.done
	}
	switch {
	case a.aborted: // nobody goes on in a world that is over
	case d.Barrier == nil:
		a.stop = 0
		if a.waiting == waitingParked {
			a.waiting = waitingNone
		}
	case d.Barrier.Attempt > a.attempt:
		a.attempt, a.stop = d.Barrier.Attempt, max(d.Barrier.Step, a.entered)
		if a.waiting == waitingParked && a.done < a.stop {
			a.waiting = waitingNone
		}
	}
	if !a.aborted && d.Barrier != nil && d.Barrier.Save && a.waiting == waitingParked {
		a.save()
	}
	if a.out && a.live && d.Abort != nil && d.Abort.Save == a.done && a.done > 0 {
		a.save()
	}
	if a.aborted && !a.out && !a.stuck {
		if a.waiting != waitingFault && a.waiting != waitingFinished {
			a.waiting = WaitingAborted
		}
		a.out = true
		if a.restarts && a.leaving == 0 {
			a.started = false
		}
	}
	if d.Raise && a.waiting == waitingFault {
		a.exits = []int32{1}
	}
	if d.Finish && a.waiting == waitingFinished {
		a.exits = []int32{0}
	}
}

// save takes a snapshot of what is done.
func (a *modelAgent) save() {
	if a.full {
		a.snapshotError = "no space left on device"
		return
	}
	s := Snapshot{Round: a.round, Step: a.done, Bytes: 8 * a.done, Hash: [32]byte{byte(a.done)}}
	if !slices.Contains(a.snapshots, s) {
		a.keep(s, slices.Clone(a.state))
	}
}

// gate says whether the process may begin its next step; otherwise it parks, or has something else to
// wait for.
func (a *modelAgent) gate() bool {
	if a.waiting == waitingNone && len(a.exits) == 0 && a.round > 0 && a.stop != 0 && a.done >= a.stop && a.entered == a.done {
		a.waiting = waitingParked
	}
	return a.waiting == waitingNone && len(a.exits) == 0 && a.started
}

// step has the process make a step at once.
func (a *modelAgent) step(now time.Time) {
	if !a.begun && !a.ended.IsZero() {
		a.pause = now.Sub(a.ended)
	}
	a.entered, a.begun, a.ended = a.done+1, true, now
	a.done++
	a.state = append(a.state, a.round)
}

func (a *modelAgent) report() Report {
	r := Report{
		Term: a.term, Round: a.round, Digest: a.digest, Hold: a.hold, Terminating: a.terminating,
		Standby: a.round == 0 && (!a.started || a.waiting == waitingJoin) && len(a.exits) == 0,
		Out:     a.out || a.waiting == waitingFault || a.waiting == waitingFinished || a.stays && len(a.exits) > 0,
		Stays:   a.stays, Restarts: a.again, Failure: a.failure,
	}
	r.Snapshots, r.SnapshotError, r.Probed = slices.Clone(a.snapshots), a.snapshotError, a.probed
	if a.round > 0 {
		r.WorkerRank = uint32(a.rank)
	}
	if a.started {
		last := a.lastStep
		if last == 0 {
			last = 100
		}
		r.Processes = []Process{{
			Entered: a.entered, Done: a.done, Samples: 10 * a.done, LastStep: last, ProgramPhase: a.phase,
			Waiting: a.waiting, Fault: a.fault, Barrier: a.attempt, Stop: a.stop, Elastic: !a.foreign,
			Leaves: a.leaves, Leaving: a.leaving,
		}}
		if a.leaving > 0 && a.out && !a.full {
			r.Processes[0].Clean, r.Processes[0].CleanStep = true, a.leaving
		}
		if a.live && a.waiting.left() && a.failure.Round != a.round {
			r.Processes[0].Clean, r.Processes[0].CleanStep = true, a.done
		}
	}
	r.Begun, r.Pause = a.begun && a.started, a.pause
	if a.restarts {
		r.Standby = (a.round == 0 || a.out) && len(a.exits) == 0
	}
	for _, code := range a.exits {
		r.Processes = []Process{{Entered: a.entered, Done: a.done, Exited: true, ExitCode: code, Fault: a.fault}}
	}
	return r
}

func (a *modelAgent) join(attempt int32) AgentJoined {
	return AgentJoined{
		UID: a.uid, Attempt: attempt, Endpoint: Endpoint{"10.0.0." + a.uid, 4000}, Serves: Server{Port: 5000}, Report: a.report(),
	}
}
