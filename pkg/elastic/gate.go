package elastic

import (
	"context"
	"fmt"
	"os"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// Gate is the smallest form: a program that is started anew in each world, and loses nothing in a planned change. It
// finds its ranks in the environment, and goes on from checkpoints of its own; the job has resize.strategy Restart.
//
//	g, err := elastic.OpenGate(ctx)
//	if err != nil {
//		return err
//	}
//	for step := saved + 1; step <= last; step++ {
//		train(step)
//		stop, err := g.ShouldStop(step) // the same answer on every rank, for the same step
//		if err != nil {
//			return err
//		}
//		if stop {
//			if err := save(); err != nil {
//				return err
//			}
//			g.Left()
//			return nil // and the program ends with code 0
//		}
//	}
//
// Its methods are for one goroutine.
type Gate struct {
	ctx  context.Context
	slot *gate.Slot
	// link is nil without an agent, and with one of a version that knows no such programs.
	link *link
	// step is the last that was made; begun is true once there was one.
	step    uint64
	begun   bool
	leaving bool
}

// OpenGate says to the worker's agent that this process can be told to stop. Without CONCERTINA_SOCKET there is no agent,
// and nothing ever stops the program. Errors: an agent that does not answer within ten seconds or refuses, as in a job with
// resize.strategy InPlace, or when another process of the worker has the same LOCAL_RANK. ctx bounds every wait.
func OpenGate(ctx context.Context) (*Gate, error) {
	g := &Gate{ctx: ctx, slot: gate.Private()}
	path := os.Getenv("CONCERTINA_SOCKET")
	if path == "" {
		return g, nil
	}
	localRank, err := countFrom(os.Getenv, "LOCAL_RANK", 0, maxRanks, "0")
	if err != nil {
		return nil, err
	}
	l, welcome, slot, err := dialAgent(ctx, path, wire.Hello{LocalRank: localRank, Leaves: true})
	if err != nil {
		return nil, err
	}
	g.slot = slot
	if !welcome.Leaves {
		l.close() // it takes the world from the program without asking
		return g, nil
	}
	g.link = l
	return g, nil
}

// ShouldStop says whether the program is to save its state, and to end after Left, since the world is about to change.
// Every rank calls it after each optimizer update, or after every k-th, with the number of that update, which goes on where
// it was after a restart. All get the same answer for the same step. While they wait for each other and for the operator's
// word it does not return; that takes as long as spec.checkpoint.timeout at most, and ends with false when the change is
// called off. Errors: a step that is not more than the one before, the agent goes away or ctx ends while it waits.
func (g *Gate) ShouldStop(step uint64) (bool, error) {
	if g.begun && step <= g.step {
		return false, fmt.Errorf("ShouldStop(%d) after ShouldStop(%d): it is called once after each update, with its number", step, g.step)
	}
	if !g.begun {
		g.slot.Rewind(step, 0) // the first step ends here, and begins the world as far as anybody sees
	}
	g.begun, g.step = true, step
	g.slot.Done(step, 0)
	stop := g.slot.Enter(step + 1)
	for g.link != nil && !g.leaving && stop > 0 && stop <= step {
		if err := g.stand(step); err != nil {
			return false, err
		}
		stop = g.slot.Stop()
	}
	return g.leaving, nil
}

// stand waits at the barrier until the agent says something about it.
func (g *Gate) stand(step uint64) error {
	g.link.mu.Lock()
	g.link.in.look = false
	g.link.mu.Unlock()
	g.link.say(wire.Parked{Type: wire.TypeParked, Step: step})
	return g.link.await(g.ctx, func(in *inbox) bool {
		g.leaving = in.leaving
		return in.leaving || in.look
	})
}

// Left says, after ShouldStop has returned true, that the state is saved and that the process ends now, with code 0. The
// program is started anew in the next world.
func (g *Gate) Left() {
	if g.leaving {
		g.link.say(wire.Left{Type: wire.TypeLeft, Step: g.step})
	}
	g.Close()
}

// Close ends the connection to the agent. It is not needed before the program ends.
func (g *Gate) Close() {
	g.link.close()
	g.link = nil
}
