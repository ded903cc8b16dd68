package rendezvoustest

import (
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// pair is a rank of a world of two.
func pair(rank uint32, parent, from uint64) *rendezvousv1.World {
	return &rendezvousv1.World{WorkerRank: rank, Workers: 2, Parent: parent, FromStep: from}
}

// makes has both ranks of a world begin a step, with the state after the one before.
func makes(c *Collective, round, parent, from, step uint64) {
	for rank := range uint32(2) {
		c.begin(round, pair(rank, parent, from), step, c.states[step-1])
	}
}

func TestACollectiveSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		play func(*Collective)
		want string
	}{
		"all goes well": {func(c *Collective) { makes(c, 2, 1, 2, 3) }, ""},
		"a world from step 0": {func(c *Collective) { makes(c, 2, 0, 0, 1) },
			"round 2 of parent 0 goes on after step 0, and step 2 was made in round 1"},
		"a step is lost": {func(c *Collective) { makes(c, 2, 1, 1, 2) },
			"round 2 of parent 1 goes on after step 1, and step 2 was made in round 1"},
		"the world before goes on": {func(c *Collective) {
			makes(c, 2, 1, 2, 3)
			makes(c, 1, 0, 0, 3)
		}, "step 3 is made in round 1, and round 2 has made one"},
		"another state":         {func(c *Collective) { c.begin(2, pair(0, 1, 2), 3, c.states[1]) }, "with another state"},
		"a state of the future": {func(c *Collective) { c.begin(2, pair(0, 1, 7), 8, c.states[2]) }, "with another state"},
		"a step is left out":    {func(c *Collective) { c.begin(1, pair(0, 0, 0), 4, c.states[2]) }, "begins step 4 after step 2"},
	} {
		t.Run(name, func(t *testing.T) {
			one := NewCollective()
			makes(one, 1, 0, 0, 1)
			makes(one, 1, 0, 0, 2)
			if c.play(one); (one.Wrong() == "") != (c.want == "") || !strings.Contains(one.Wrong(), c.want) {
				t.Errorf("it says %q, want %q", one.Wrong(), c.want)
			}
		})
	}
}

// No step of a world is made any more once a rank has left it in the middle of one.
func TestAStepTakesAllRanks(t *testing.T) {
	c := NewCollective()
	if c.begin(1, pair(0, 0, 0), 1, initial) || c.leave(1, pair(0, 0, 0), 1) || c.begin(1, pair(1, 0, 0), 1, initial) {
		t.Fatal("the step is made without a rank")
	}
	if step, round := c.Made(); step != 0 || round != 0 {
		t.Errorf("step %d of round %d is made", step, round)
	}
}
