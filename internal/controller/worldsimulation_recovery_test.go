package controller

import (
	"maps"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simLeft is the state with which the process of an agent has left a world, once the agent has heard of that.
type simLeft struct {
	round, step uint64
	clean       bool
}

// simTold is what an operator knows of a worker by a session: how its process has left a world, since when, and which
// snapshots it holds.
type simTold struct {
	left      simLeft
	since     time.Time
	snapshots []rendezvous.Snapshot
}

// learns is told of each report that arrives, with what was so when it was made.
func (c *simSession) learns(r *rendezvous.Report, left simLeft) {
	if !r.Out || r.Round != left.round {
		left = simLeft{}
	}
	if left != c.told.left {
		c.told.left, c.told.since = left, time.Now()
	}
	c.told.snapshots = r.Snapshots
}

// asked is told of each round that a machine asks to have made durable: promise 4, the world goes on from the newest clean
// live state that a survivor is known to have, and at least from the newest snapshot that one holds. A survivor is who has
// left the world before and is in this one. Live state of which nobody could take a snapshot for the others in the time
// that there is for that does not count.
func (h *simHistory) asked(j *simMachine, write *rendezvous.Write) {
	next := &write.Next
	switch {
	case next.Round == write.Prev.Round:
		return
	case next.Parent == 0:
		h.startsAnew(write)
		return
	}
	h.usesSpares(j, write)
	t, among := h.training, next.Ordinals()
	patience := t.now().Spec.Checkpoint.Timeout.Duration
	for _, uid := range slices.Sorted(maps.Keys(j.sessions)) {
		c := j.sessions[uid]
		a, told := c.agent, &c.told
		if podAttempt(a.pod) != next.Attempt || !slices.Contains(among, podOrdinal(a.pod)) || a.ended {
			continue
		}
		if told.left.round == next.Parent && told.left.clean {
			t.counts["clean survivors"]++
			if told.left.step > next.FromStep && time.Since(told.since) < patience {
				t.fail("promise 4: round %d (%s) is to go on after step %d, and %s has left round %d with the state after step %d",
					next.Round, next.Reason, next.FromStep, a.pod.Name, next.Parent, told.left.step)
			}
		}
		for _, s := range told.snapshots {
			if s.Step > next.FromStep && h.counts(a.states[s]) {
				t.fail("promise 4: round %d (%s) is to go on after step %d, and %s holds the snapshot after step %d",
					next.Round, next.Reason, next.FromStep, a.pod.Name, s.Step)
			}
		}
	}
}

// startsAnew is told of each round that is to begin as if nothing had been trained: promise 4, once its attempt has made a step that
// is only so where nobody of it has a state any more that is newer, in a process or as a snapshot, whether an operator hears of it or not.
func (h *simHistory) startsAnew(write *rendezvous.Write) {
	t, next := h.training, &write.Next
	trained := false
	for round, r := range h.rounds {
		trained = trained || r.Attempt == next.Attempt && h.made[round] > 0
	}
	if !trained || !write.Prev.Equal(h.record) {
		return // or another has written, and this will fail
	}
	t.counts["worlds that begin anew"]++
	for _, a := range t.agents {
		if a.ended || podAttempt(a.pod) != next.Attempt {
			continue
		}
		if p := &a.process; p.runs && p.round > 0 && uint64(len(p.state)) > next.FromStep && h.counts(p.state) {
			t.fail("promise 4: round %d (%s) is to begin after step %d, and %s has the state after step %d, of round %d",
				next.Round, next.Reason, next.FromStep, a.pod.Name, len(p.state), p.round)
		}
		for _, s := range a.snapshots {
			if s.Step > next.FromStep && h.counts(a.states[s]) {
				t.fail("promise 4: round %d (%s) is to begin after step %d, and %s holds the snapshot after step %d",
					next.Round, next.Reason, next.FromStep, a.pod.Name, s.Step)
			}
		}
	}
}

// counts says whether a state is one of the history.
func (h *simHistory) counts(state []uint64) bool {
	return len(state) <= len(h.committed) && slices.Equal(state, h.committed[:len(state)])
}
