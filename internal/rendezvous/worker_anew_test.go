package rendezvous

import (
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

// This file is about the processes of a worker that are started anew in each world, in their world, and go on from what
// they find on a disk that all share. Those that look at the gate after each step save there when they are told to leave.

// disk is what programs keep for each other.
type disk struct {
	state history
	// round is the newest world that has loaded it: what an older one saves late lies elsewhere.
	round uint64
}

// startAnew starts a process in the world of its agent.
func (w *worker) startAnew() {
	in := w.in()
	w.disk.round = max(w.disk.round, in.Round)
	done := uint64(len(w.disk.state))
	w.process = trainee{
		runs: true, connection: w.connections, given: in.Round, round: in.Round, still: w.process.still,
		rank: int32(in.World.WorkerRank), workers: int32(in.World.Workers),
		entered: done, done: done, state: slices.Clone(w.disk.state),
	}
	w.before, w.begun = w.ended, time.Time{}
	if w.looks {
		w.pending = append(w.pending, lifecycle.Said{Slot: 0, Connection: w.connections, What: lifecycle.Connected, Leaves: true})
	}
}

// fresh says whether a process that was started anew has made no step yet: it has said nothing on the page.
func (w *worker) fresh() bool { return w.disk != nil && (w.begun.IsZero() || !w.looks) }

// saveAndLeave has the process do what it was told to: rank 0 saves. Some do not say that they are about to end.
func (w *worker) saveAndLeave() {
	p := &w.process
	p.leaving = false
	switch {
	case w.full:
		w.exit(1)
	default:
		if p.rank == 0 && p.round >= w.disk.round {
			w.disk.state = slices.Clone(p.state)
		}
		if w.connections%2 == 0 {
			w.pending = append(w.pending, lifecycle.Said{Slot: 0, Connection: p.connection, What: lifecycle.Left, Step: p.done})
		}
		w.exit(0)
	}
	w.flush()
}
