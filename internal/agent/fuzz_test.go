package agent

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// FuzzDirective plays an operator that says whatever it likes, twice, to an agent whose program takes part. The agent goes
// on by its rules: its term and its round never go back, it never spins, and what is asked of it stays bounded.
func FuzzDirective(f *testing.F) {
	world := &rendezvousv1.Directive{
		Term: 1, Round: 1, World: &rendezvousv1.World{
			MembersDigest: "digest", Workers: 2, WorkerRank: 1, ProcessesPerWorker: 1, MasterAddress: "10.0.0.1", MasterPort: 4000,
			Restore: true, Snapshot: &rendezvousv1.Snapshot{Round: 1, Step: 5, Bytes: 8, Hash: make([]byte, 32)},
			Holders: []*rendezvousv1.Holder{{Address: "10.0.0.2", Port: 5000, Certificate: make([]byte, 32), Ticket: make([]byte, 64)}},
		},
		TicketKey: make([]byte, 32), BeatMillis: 1000, Hold: 1,
		Probes: []*rendezvousv1.Probe{{Number: 1, Address: "10.0.0.2", Port: 5000, Certificate: make([]byte, 32)}},
	}
	seed := func(messages ...*rendezvousv1.Directive) {
		var texts [2][]byte
		for i, message := range messages {
			text, err := proto.Marshal(message)
			if err != nil {
				f.Fatal(err)
			}
			texts[i] = text
		}
		f.Add(texts[0], texts[1])
	}
	with := func(how func(*rendezvousv1.Directive)) *rendezvousv1.Directive {
		changed := proto.CloneOf(world)
		how(changed)
		return changed
	}
	seed(&rendezvousv1.Directive{Term: 1, Standby: true}, world)
	seed(world, with(func(d *rendezvousv1.Directive) {
		d.Barrier = &rendezvousv1.Barrier{Attempt: 1, Step: 1 << 63, Save: true}
	}))
	seed(world, with(func(d *rendezvousv1.Directive) { d.Abort = &rendezvousv1.Abort{Reason: "lost\x1b[2J", SaveStep: 7} }))
	seed(world, with(func(d *rendezvousv1.Directive) { d.Released, d.Raise, d.Finish = true, true, true }))
	seed(world, with(func(d *rendezvousv1.Directive) { d.Term, d.Round, d.World.Parent, d.World.FromStep = 2, 2, 1, 5 }))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		now := time.Unix(1e9, 0)
		machine := lifecycle.New(now, lifecycle.DefaultLimits(30*time.Second), lifecycle.Shape{Programs: 1, Processes: 1, Strategy: lifecycle.InPlace})
		left := false
		term, round := uint64(0), uint64(0)
		step := func(event lifecycle.Event) {
			effects := machine.Step(now, event)
			if left && len(effects) > 0 || len(effects) > 32 {
				t.Fatalf("%T leads to %d effects, left %v", event, len(effects), left)
			}
			for _, effect := range effects {
				switch effect := effect.(type) {
				case lifecycle.Leave:
					left = true
				case lifecycle.Enter:
					if effect.Round <= round {
						t.Fatalf("round %d is entered after round %d", effect.Round, round)
					}
					round = effect.Round
				}
			}
			if machine.Term() < term {
				t.Fatalf("the term went from %d to %d", term, machine.Term())
			}
			term = machine.Term()
			if due, ok := machine.Deadline(); ok && !due.After(now) {
				t.Fatalf("after %T a tick is due at once", event)
			}
		}
		for i, text := range [][]byte{first, second} {
			d := &rendezvousv1.Directive{}
			if proto.Unmarshal(text, d) != nil {
				continue
			}
			probesIn(d.GetProbes())
			step(lifecycle.Heard{Directive: directive(d), Sent: now})
			if i == 0 {
				step(lifecycle.Said{Slot: 0, Connection: 1, What: lifecycle.Connected})
				step(lifecycle.Said{Slot: 0, Connection: 1, What: lifecycle.Joined})
			}
			if in := machine.In(); in != nil {
				step(lifecycle.Fetched{Round: in.Round})
			}
			now = now.Add(time.Minute)
			step(lifecycle.Tick{})
		}
	})
}
