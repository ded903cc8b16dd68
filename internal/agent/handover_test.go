package agent_test

import (
	"slices"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// A program that knows of it is told that the state of a world goes over its links: who has it, and who does not. No snapshot is loaded.
func TestAStateIsHandedOver(t *testing.T) {
	able := func(hello *wire.Hello) { hello.Handover = true }
	old, fresh := agenttest.New(t), agenttest.New(t)
	_, survivor, _ := parkedAtThree(t, old, nil, able)
	hears[wire.Save](survivor)
	survivor.save(3, []byte("the state"))
	if !old.Last().GetHandsOver() || old.Last().GetHandover() {
		t.Errorf("who stands at the barrier reports %v", old.Last())
	}
	fresh.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
	newcomer := startWorker(t, fresh, []string{"CONCERTINA_MEMORY=" + t.TempDir()}, "sleep")
	newcomer.file("pid0")
	s := newcomer.speak(0, able)
	s.say(wire.Join{Type: wire.TypeJoin})
	fresh.Await("the standby", func(r *rendezvousv1.Report) bool { return r.GetStandby() && r.GetHandsOver() })

	stays, comes := second(old, 0, false), second(old, 1, true)
	stays.World.Handover, comes.World.Handover = true, true
	fresh.Direct(comes)
	if got := hears[wire.World](s); !got.Restore || !got.Handover || got.Snapshot != "" || got.FromStep != 3 {
		t.Errorf("the newcomer's world is %+v", got)
	}
	old.Direct(stays)
	if got := hears[wire.World](survivor); got.Restore || !got.Handover || got.Snapshot != "" || got.FromStep != 3 {
		t.Errorf("the survivor's world is %+v", got)
	}
	for _, r := range []*agenttest.Rendezvous{old, fresh} {
		r.Await("the world of the handover", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && r.GetHandover() })
	}

	// One that was interrupted has no state.
	fresh.Direct(abort(comes, false))
	hears[wire.Abort](s)
	s.say(wire.Aborted{Type: wire.TypeAborted, Step: 0})
	report := fresh.Await("the way out", out(2))
	if report.GetProcesses()[0].CleanStep != nil {
		t.Errorf("it reports %v", report)
	}
}

// What is in the shards of all ranks is not handed over, whatever the program says.
func TestOnlyWhatOthersHaveIsHandedOver(t *testing.T) {
	r := agenttest.New(t)
	r.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
	w := startWorker(t, r, []string{"CONCERTINA_MEMORY=" + t.TempDir()}, "sleep")
	w.file("pid0")
	s := w.speak(0, func(hello *wire.Hello) { hello.Handover, hello.Sharded = true, true })
	s.say(wire.Join{Type: wire.TypeJoin})
	if report := r.Await("the standby", func(r *rendezvousv1.Report) bool {
		return r.GetStandby() && waits(rendezvousv1.Waiting_WAITING_JOIN)(r)
	}); report.GetHandsOver() {
		t.Errorf("it reports %v", report)
	}
}

// The processes of a worker may share a model. It can be handed over once all of them can, all are told so, and none has a state as long as
// another one of the worker lacks its own.
func TestTheShareOfALocalRankIsHandedOver(t *testing.T) {
	r := agenttest.New(t)
	r.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
	w := startWorker(t, r, []string{"CONCERTINA_PROCESSES=2", "CONCERTINA_MEMORY=" + t.TempDir()}, "sleep")
	var processes []*speaker
	for localRank, name := range []string{"pid0", "pid1"} {
		w.file(name)
		s := w.speak(localRank, func(hello *wire.Hello) { hello.Shares, hello.Local, hello.Handover = false, true, true })
		s.say(wire.Join{Type: wire.TypeJoin})
		processes = append(processes, s)
		report := r.Await("those that wait", func(r *rendezvousv1.Report) bool {
			waiting := 0
			for _, p := range r.GetProcesses() {
				if p.GetWaiting() == rendezvousv1.Waiting_WAITING_JOIN {
					waiting++
				}
			}
			return waiting == localRank+1 && r.GetStandby() == (localRank == 1)
		})
		if report.GetHandsOver() != (localRank == 1) {
			t.Errorf("with %d of 2 processes it reports %v", localRank+1, report)
		}
	}

	d := world(1, 2, 2, r.Last().GetMasterPort())
	d.World.Workers, d.World.WorkerRank, d.World.Parent, d.World.FromStep, d.World.Restore, d.World.Handover = 2, 1, 1, 3, true, true
	r.Direct(d)
	for localRank, s := range processes {
		if got := hears[wire.World](s); !got.Restore || !got.Handover || got.Snapshot != "" || got.FromStep != 3 || got.LocalRank != localRank {
			t.Errorf("the world of local rank %d is %+v", localRank, got)
		}
	}
	r.Await("the world of the handover", func(r *rendezvousv1.Report) bool { return r.GetRound() == 2 && r.GetHandover() })

	// One has all of its share, and the other one was interrupted when some of its own had come.
	r.Direct(abort(d, false))
	for i, left := range []wire.Aborted{{Type: wire.TypeAborted, Step: 3, Clean: true}, {Type: wire.TypeAborted, Step: 0}} {
		hears[wire.Abort](processes[i])
		processes[i].say(left)
	}
	report := r.Await("the way out of both", func(r *rendezvousv1.Report) bool {
		return out(2)(r) && !slices.ContainsFunc(r.GetProcesses(), func(p *rendezvousv1.Process) bool {
			return p.GetWaiting() != rendezvousv1.Waiting_WAITING_ABORTED
		})
	})
	for i, p := range report.GetProcesses() {
		if p.CleanStep != nil {
			t.Errorf("local rank %d is said to have a state: %v", i, report)
		}
	}
}
