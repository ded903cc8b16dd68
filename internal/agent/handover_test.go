package agent_test

import (
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

// What is in shards, or local, is not handed over, whatever the program says.
func TestOnlyWhatAllHaveIsHandedOver(t *testing.T) {
	for name, change := range map[string]func(*wire.Hello){
		"shards": func(hello *wire.Hello) { hello.Sharded = true }, "local": func(hello *wire.Hello) { hello.Local = true },
	} {
		r := agenttest.New(t)
		r.Direct(&rendezvousv1.Directive{Term: 1, Standby: true})
		w := startWorker(t, r, []string{"CONCERTINA_MEMORY=" + t.TempDir()}, "sleep")
		w.file("pid0")
		s := w.speak(0, func(hello *wire.Hello) { hello.Handover = true }, change)
		s.say(wire.Join{Type: wire.TypeJoin})
		if report := r.Await("the standby", func(r *rendezvousv1.Report) bool {
			return r.GetStandby() && waits(rendezvousv1.Waiting_WAITING_JOIN)(r)
		}); report.GetHandsOver() {
			t.Errorf("%s: it reports %v", name, report)
		}
	}
}
