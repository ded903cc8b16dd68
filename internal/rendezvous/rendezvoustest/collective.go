package rendezvoustest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// Collective is what the programs of a job step through: step k of a world is made once all of its ranks have begun it, and none has
// left the world before. It keeps the committed history, and says what was wrong first:
//
//   - a step is made in a world though a later one has made one;
//   - a rank begins a step with another state than that after the step before, along the history;
//   - a world begins to make steps elsewhere than after the last one that was made: all agents of a collective have their state as
//     long as they live, and say so, so neither a planned change nor a recovery may lose one.
type Collective struct {
	mu     sync.Mutex
	worlds map[uint64]*stepping
	// states are those after each step of the history, by its number. stepped is the world that has made the last of them.
	states  []state
	stepped uint64
	wrong   string
}

// state is that of a program: it tells all steps that have led there.
type state [sha256.Size]byte

// initial is the state before the first step.
var initial = state(sha256.Sum256(nil))

// after is the state after another step.
func (s state) after(round, step uint64) state {
	text := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(s[:], round), step)
	return sha256.Sum256(text)
}

// stepping is how far a world is.
type stepping struct {
	begun map[uint32]bool
	made  uint64
	// over is true once a rank has left it.
	over bool
}

// NewCollective makes the collective of a job that has made no step.
func NewCollective() *Collective {
	return &Collective{worlds: map[uint64]*stepping{}, states: []state{initial}}
}

// Wrong is what was wrong first; empty for nothing.
func (c *Collective) Wrong() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrong
}

// Made is the last step of the history, and the round that has made it; 0 for none.
func (c *Collective) Made() (step, round uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last(), c.stepped
}

func (c *Collective) last() uint64 { return uint64(len(c.states) - 1) }

func (c *Collective) world(round uint64, w *rendezvousv1.World) *stepping {
	if c.worlds[round] == nil {
		c.worlds[round] = &stepping{begun: map[uint32]bool{}, made: w.GetFromStep()}
	}
	return c.worlds[round]
}

func (c *Collective) fail(format string, args ...any) {
	if c.wrong == "" {
		c.wrong = fmt.Sprintf(format, args...)
	}
}

// begin has a rank be in a step of its world, and says whether the step is made.
func (c *Collective) begin(round uint64, w *rendezvousv1.World, step uint64, has state) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, rank := c.world(round, w), w.GetWorkerRank()
	switch {
	case at.made >= step:
		return true
	case at.over || at.begun[rank]:
		return false
	case step != at.made+1:
		c.fail("rank %d of round %d begins step %d after step %d", rank, round, step, at.made)
	case step > c.last()+1 || has != c.states[step-1]:
		c.fail("rank %d of round %d begins step %d with another state than that after the step before", rank, round, step)
	}
	at.begun[rank] = true
	if len(at.begun) < int(w.GetWorkers()) {
		return false
	}
	clear(at.begun)
	at.made = step
	c.commit(round, w, step)
	return true
}

// commit adds a step to the history.
func (c *Collective) commit(round uint64, w *rendezvousv1.World, step uint64) {
	switch {
	case round < c.stepped:
		c.fail("step %d is made in round %d, and round %d has made one", step, round, c.stepped)
		return
	case round > c.stepped && w.GetFromStep() != c.last():
		c.fail("round %d of parent %d goes on after step %d, and step %d was made in round %d", round, w.GetParent(), w.GetFromStep(), c.last(), c.stepped)
	}
	if step <= c.last() {
		c.states = c.states[:step]
	}
	if step == uint64(len(c.states)) {
		c.states = append(c.states, c.states[step-1].after(round, step))
	}
	c.stepped = round
}

// leave has a rank leave its world, and says whether the step that it was in is made: none is from then on.
func (c *Collective) leave(round uint64, w *rendezvousv1.World, step uint64) (made bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.world(round, w)
	at.over = true
	return at.made >= step
}
