package agent_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// trainsBeyond is a report of a process that trains in a round and has done a step after this one.
func trainsBeyond(round, step uint64) func(*rendezvousv1.Report) bool {
	return func(r *rendezvousv1.Report) bool {
		return r.GetRound() == round && running(1)(r) && r.GetProcesses()[0].GetDone() > step && !r.GetOut()
	}
}

// inWorld is a directive for one worker (of) of a world of two, or of one with workers 1. The first port is that
// of the host's hello, later ones are those of its reports.
func inWorld(of, host *rendezvousv1.Hello, port uint32, round, fromStep uint64, rank, workers uint32, restore bool, from *rendezvousv1.Snapshot) *rendezvousv1.Directive {
	d := world(1, round, 1, port)
	d.TicketKey = keyOf(of.GetSnapshotCertificate())
	w := d.GetWorld()
	w.Workers, w.WorkerRank, w.Parent, w.FromStep, w.Restore, w.Writer = workers, rank, round-1, fromStep, restore, true
	if restore && from != nil {
		w.Snapshot = from
		w.Holders = admitted(of, from, &rendezvousv1.Holder{
			Address: host.GetAddress(), Port: host.GetSnapshotPort(), Certificate: host.GetSnapshotCertificate(),
		})
	}
	return d
}

// paused checks the pause before a round that an agent tells against what its program has seen, and against the
// time for which it certainly stood.
func (w *worker) paused(round uint64, told *uint64, stood time.Duration) {
	w.t.Helper()
	var own uint64
	for _, line := range w.file("pauses") {
		var of, nanos uint64
		if _, err := fmt.Sscan(line, &of, &nanos); err == nil && of == round {
			own = nanos
		}
	}
	if told == nil {
		w.t.Errorf("no pause is told before round %d", round)
	} else if *told < uint64(stood) || *told == 0 || *told > own {
		w.t.Errorf("a pause before round %d of %d ns, by the program's own clock, and of %v at least, is told as %d", round, own, stood, *told)
	}
}

// Two workers whose programs use the SDK: one trains alone, the other joins it at a barrier, both go
// back to a snapshot when a third is said to be lost, go on with the state that they have when that is said
// again, and train to the end.
func TestGrowthAndRecoveryWithTheSDK(t *testing.T) {
	one, two := agenttest.New(t), agenttest.New(t)
	old := startWorker(t, one, []string{"CONCERTINA_MEMORY=" + t.TempDir(), "CONCERTINA_SNAPSHOT_INTERVAL=0.02"}, "counts")
	one.AwaitSessions(1)
	host := one.Hellos()[0]
	d := inWorld(host, host, host.GetMasterPort(), 1, 0, 0, 1, true, nil)
	one.Direct(d)
	two.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
	newcomer := startWorker(t, two, []string{"CONCERTINA_MEMORY=" + t.TempDir(), "CONCERTINA_SNAPSHOT_INTERVAL=0.02"}, "counts")
	two.Await("the standby", func(r *rendezvousv1.Report) bool {
		return r.GetStandby() && waits(rendezvousv1.Waiting_WAITING_JOIN)(r)
	})

	guest := two.Hellos()[0]
	n := one.Await("steps", trainsBeyond(1, 5)).GetProcesses()[0].GetEntered() + 5
	one.Direct(barrier(d, 1, n, false))
	if stop := one.Await("the stop", func(r *rendezvousv1.Report) bool {
		return running(1)(r) && r.GetProcesses()[0].GetStop() > 0
	}).GetProcesses()[0].GetStop(); stop != n {
		n = stop
		one.Direct(barrier(d, 2, n, false))
		one.Await("the barrier", parkedAt(n, 2))
	} else {
		one.Await("the barrier", parkedAt(n, 1))
	}
	one.Direct(barrier(d, 3, n, true))
	snapshot := one.Await("the snapshot", holds(1, n)).GetSnapshots()[0]

	stands := time.Now()
	port := one.Last().GetMasterPort()
	two.Direct(inWorld(guest, host, port, 2, n, 1, 2, true, snapshot))
	stood := time.Since(stands)
	one.Direct(inWorld(host, host, port, 2, n, 0, 2, false, nil))
	told := one.Await("steps of the survivor", trainsBeyond(2, n)).PauseNanos
	old.paused(2, told, stood)
	if told := two.Await("steps of the newcomer", trainsBeyond(2, n)); told.PauseNanos == nil || told.GetPauseNanos() != 0 {
		t.Errorf("a newcomer has paused: %v", told)
	}

	one.Direct(abort(inWorld(host, host, port, 2, n, 0, 2, false, nil), false))
	two.Direct(abort(inWorld(guest, host, port, 2, n, 1, 2, true, snapshot), false))
	back := one.Await("the way out", out(2)).GetSnapshots()[0]
	two.Await("the way out", out(2))
	port = one.Last().GetMasterPort()
	one.Direct(inWorld(host, host, port, 3, back.GetStep(), 0, 2, true, back))
	two.Direct(inWorld(guest, host, port, 3, back.GetStep(), 1, 2, true, back))
	both, owns := []*agenttest.Rendezvous{one, two}, []*rendezvousv1.Hello{host, guest}
	for i, r := range both {
		told := r.Await("steps after the loss", trainsBeyond(3, back.GetStep())).PauseNanos
		[]*worker{old, newcomer}[i].paused(3, told, 0)
	}

	// The newest step that one of them has; the other may be one behind.
	newest, clean := uint64(0), map[*agenttest.Rendezvous]uint64{}
	for i, r := range both {
		r.Direct(abort(inWorld(owns[i], host, port, 3, back.GetStep(), uint32(i), 2, true, back), false))
		p := r.Await("the way out", out(3)).GetProcesses()[0]
		if p.CleanStep == nil || p.GetCleanStep() != p.GetDone() {
			t.Fatalf("after steps with an update the process reports %v", p)
		}
		clean[r] = p.GetCleanStep()
		newest = max(newest, clean[r])
	}
	var saved *rendezvousv1.Snapshot
	var from *rendezvousv1.Hello
	for i, r := range both {
		if clean[r] < newest || from != nil {
			continue
		}
		d := abort(inWorld(owns[i], host, port, 3, back.GetStep(), uint32(i), 2, true, back), false)
		d.Abort.SaveStep = newest
		r.Direct(d)
		saved, from = r.Await("the state", holds(3, newest)).GetSnapshots()[0], owns[i]
	}
	port = one.Last().GetMasterPort()
	for i, r := range both {
		r.Direct(inWorld(owns[i], from, port, 4, newest, uint32(i), 2, clean[r] < newest, saved))
	}
	for i, r := range both {
		r.Await("steps after the second loss", trainsBeyond(4, newest))
		finish(r, inWorld(owns[i], from, port, 4, newest, uint32(i), 2, clean[r] < newest, saved))
	}
	if a, b := old.exit(), newcomer.exit(); a != 0 || b != 0 {
		t.Errorf("exit codes %d and %d", a, b)
	}
}
