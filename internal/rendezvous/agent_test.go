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
	waiting waiting
	// foreign programs speak to no agent; restarts is the strategy of the job.
	foreign, restarts bool
	// started is true once the program runs. stuck programs do not answer abort.
	started, stuck bool

	attempt, stop uint64
	// aborted is true once it was told that the world is over, out once it has left it.
	aborted, out  bool
	fault         string
	phase         phase
	exits         []int32
	snapshots     []snapshot
	states        map[snapshot]history
	snapshotError string
	full          bool
	// live programs say that they leave a world with the state after the last step that they have done.
	live        bool
	terminating bool
	released    bool
	// worlds are all worlds that it was ever told of, by round.
	worlds map[uint64]string
}

// obey takes a directive. It returns false when it refuses, and an error when the directive breaks
// the protocol.
func (a *modelAgent) obey(d directive) (bool, error) {
	if d.term < a.term || d.round != 0 && d.round < a.round {
		return false, nil
	}
	if d.round != 0 && d.world == nil {
		return false, fmt.Errorf("%s: round %d without a world", a.uid, d.round)
	}
	if d.round != 0 {
		if known, ok := a.worlds[d.round]; ok && known != d.world.digest {
			return false, fmt.Errorf("%s: round %d is %s and was %s", a.uid, d.round, d.world.digest, known)
		}
		if a.worlds == nil {
			a.worlds = map[uint64]string{}
		}
		a.worlds[d.round] = d.world.digest
	}
	if d.term > a.term {
		a.hold = 0
	}
	a.term, a.hold = d.term, max(a.hold, d.hold)
	a.released = a.released || d.released
	if len(a.exits) > 0 {
		return true, nil
	}
	if d.standby && a.round == 0 && !a.restarts {
		a.started, a.waiting = true, waitingJoin
	}
	if d.round > a.round && !a.released {
		if err := a.enter(d); err != nil {
			return false, err
		}
	}
	if d.round != 0 && d.round == a.round {
		a.follow(d)
	}
	return true, nil
}

// enter takes the agent into another world.
func (a *modelAgent) enter(d directive) error {
	w := d.world
	if a.round > 0 && !a.foreign && !a.restarts && a.waiting == waitingNone && w.parent > 0 {
		return fmt.Errorf("%s: is in round %d, trains, and is told of round %d", a.uid, a.round, d.round)
	}
	parent := a.round == w.parent
	a.round, a.digest, a.rank, a.workers, a.fromStep = d.round, w.digest, w.workerRank, w.workers, w.fromStep
	a.begun, a.pause = false, 0
	a.snapshots = slices.DeleteFunc(slices.Clone(a.snapshots), func(s snapshot) bool {
		return (!parent || s.step > w.fromStep) && (w.snapshot == nil || s != *w.snapshot)
	})
	switch {
	case a.restarts || w.restore && w.snapshot == nil:
		if w.fromStep != 0 {
			return fmt.Errorf("%s: round %d begins after step %d without a snapshot", a.uid, d.round, w.fromStep)
		}
		a.done, a.state = 0, nil
	case w.restore:
		if err := a.restore(d); err != nil {
			return err
		}
	case a.done != w.fromStep:
		return fmt.Errorf("%s: round %d goes on after step %d, and it has done %d", a.uid, d.round, w.fromStep, a.done)
	}
	a.entered, a.started, a.waiting = a.done, true, waitingNone
	a.attempt, a.stop, a.aborted, a.out, a.fault, a.phase = 0, 0, false, false, "", phaseStep
	return nil
}

// restore loads the snapshot of a world; an agent that cannot get it ends.
func (a *modelAgent) restore(d directive) error {
	s := *d.world.snapshot
	if s.step != d.world.fromStep {
		return fmt.Errorf("%s: round %d goes on after step %d with the snapshot of step %d", a.uid, d.round, d.world.fromStep, s.step)
	}
	if !slices.Contains(a.snapshots, s) {
		a.keep(s, nil)
	}
	a.done, a.state = s.step, slices.Clone(a.states[s])
	return nil
}

func (a *modelAgent) keep(s snapshot, state history) {
	if a.states == nil {
		a.states = map[snapshot]history{}
	}
	a.states[s] = state
	a.snapshots = append([]snapshot{s}, a.snapshots...)
	a.snapshots = a.snapshots[:min(2, len(a.snapshots))]
}

// follow does what a directive says about the world that the agent is in.
func (a *modelAgent) follow(d directive) {
	a.aborted = a.aborted || d.abort != nil
	switch {
	case a.aborted: // nobody goes on in a world that is over
	case d.barrier == nil:
		a.stop = 0
		if a.waiting == waitingParked {
			a.waiting = waitingNone
		}
	case d.barrier.attempt > a.attempt:
		a.attempt, a.stop = d.barrier.attempt, max(d.barrier.step, a.entered)
		if a.waiting == waitingParked && a.done < a.stop {
			a.waiting = waitingNone
		}
	}
	if !a.aborted && d.barrier != nil && d.barrier.save && a.waiting == waitingParked {
		a.save()
	}
	if a.out && a.live && d.abort != nil && d.abort.save == a.done && a.done > 0 {
		a.save()
	}
	if a.aborted && !a.out && !a.stuck {
		if a.waiting != waitingFault && a.waiting != waitingFinished {
			a.waiting = waitingAborted
		}
		a.entered = a.done
		a.out = true
		if a.restarts {
			a.started = false
		}
	}
	if d.raise && a.waiting == waitingFault {
		a.exits = []int32{1}
	}
	if d.finish && a.waiting == waitingFinished {
		a.exits = []int32{0}
	}
}

// save takes a snapshot of what is done.
func (a *modelAgent) save() {
	if a.full {
		a.snapshotError = "no space left on device"
		return
	}
	s := snapshot{round: a.round, step: a.done, bytes: 8 * a.done, checksum: uint32(a.done)}
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

func (a *modelAgent) report() report {
	r := report{
		term: a.term, round: a.round, digest: a.digest, hold: a.hold, terminating: a.terminating,
		standby: a.round == 0 && (!a.started || a.waiting == waitingJoin) && len(a.exits) == 0,
		out:     a.out || a.waiting == waitingFault || a.waiting == waitingFinished,
	}
	r.snapshots, r.snapshotError = slices.Clone(a.snapshots), a.snapshotError
	if a.round > 0 {
		r.workerRank = uint32(a.rank)
	}
	if a.started {
		last := a.lastStep
		if last == 0 {
			last = 100
		}
		r.processes = []process{{
			entered: a.entered, done: a.done, samples: 10 * a.done, lastStep: last, phase: a.phase,
			waiting: a.waiting, fault: a.fault, barrier: a.attempt, stop: a.stop, elastic: !a.foreign,
		}}
		if a.live && a.waiting.left() {
			r.processes[0].clean, r.processes[0].cleanStep = true, a.done
		}
	}
	r.begun, r.pause = a.begun && a.started, a.pause
	if a.restarts {
		r.standby = (a.round == 0 || a.out) && len(a.exits) == 0
	}
	for _, code := range a.exits {
		r.processes = []process{{entered: a.entered, done: a.done, exited: true, exitCode: code, fault: a.fault}}
	}
	return r
}

func (a *modelAgent) join(attempt int32) agentJoined {
	return agentJoined{
		uid: a.uid, attempt: attempt, endpoint: endpoint{"10.0.0." + a.uid, 4000}, serves: server{port: 5000}, report: a.report(),
	}
}
