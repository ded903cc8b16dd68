package controller

import (
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/record/recordtest"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simHistory is all that a job has ever made durable and trained, and what must be true of it.
type simHistory struct {
	training *simTraining
	// writes are those of all operators that have led, with what each was told.
	writes *recordtest.History
	record rendezvous.Record
	rounds map[uint64]rendezvous.Record
	// since is when each round was made durable.
	since map[uint64]time.Time
	// made is the last step of each round that all of its ranks have given their part to, first the rounds that
	// have made one.
	made map[uint64]uint64
	// stepped is the last round that has made a step.
	stepped uint64
	// committed are the steps that count: for each the round in which it was made.
	committed []uint64
	// changes counts rounds by their reasons, again the steps that were made anew.
	changes map[rendezvous.Reason]int
	again   uint64
}

func newSimHistory(t *simTraining) simHistory {
	return simHistory{training: t, writes: &recordtest.History{}, rounds: map[uint64]rendezvous.Record{}, since: map[uint64]time.Time{}, made: map[uint64]uint64{}, changes: map[rendezvous.Reason]int{}}
}

// recorded is told of each change of a job: terms and rounds only grow, and a round has one world.
func (h *simHistory) recorded(before, after client.Object) {
	job, _ := after.(*v1alpha1.TrainingJob)
	if job == nil || before == nil {
		return
	}
	was, now := h.record, record.FromStatus(job)
	if now.Equal(was) {
		return
	}
	t := h.training
	if now.Term < was.Term || now.Round < was.Round {
		t.fail("the record went from term %d, round %d to term %d, round %d", was.Term, was.Round, now.Term, now.Round)
	}
	if now.Round == was.Round && now.MembersDigest != was.MembersDigest {
		t.fail("round %d has two worlds: %s and %s", now.Round, was.MembersDigest, now.MembersDigest)
	}
	if now.Round > was.Round {
		h.rounds[now.Round], h.since[now.Round] = now, time.Now()
		h.changes[now.Reason]++
		h.isBounded(&now)
		t.say("  round %d is durable: attempt %d, %d workers after step %d of round %d, %s", now.Round, now.Attempt, now.Workers, now.FromStep,
			now.Parent, now.Reason)
	}
	h.record = now
}

// told is given each directive that reaches an agent: promise 2, a round is durable before a worker learns of it.
func (h *simHistory) told(a *simAgent, d *rendezvous.Directive) {
	if d.Round == 0 || d.World == nil {
		return
	}
	if r, durable := h.rounds[d.Round]; !durable || r.MembersDigest != d.World.Digest {
		h.training.fail("%s is told of round %d with the members %q, and durable is %q", a.pod.Name, d.Round, d.World.Digest, r.MembersDigest)
	}
}

// isPlanned says whether a world was made for a change that is no failure.
func isPlanned(reason rendezvous.Reason) bool {
	switch reason {
	case rendezvous.ReasonWorkerLost, rendezvous.ReasonProgramFailed, rendezvous.ReasonHung, rendezvous.ReasonRetried,
		rendezvous.ReasonUnreached:
		return false
	}
	return true
}

// step is told of each step that all ranks of a round have given their part to.
func (h *simHistory) step(round, step uint64, ranks []*simAgent) {
	t, r := h.training, h.rounds[round]
	if h.stepped > round {
		t.fail("promise 2: step %d of round %d is made, after steps of round %d", step, round, h.stepped)
	}
	if step == r.FromStep+1 {
		h.begins(round, r)
	}
	if uint64(len(h.committed)) != step-1 {
		t.fail("promise 5: step %d of round %d is made, and %d steps were made before", step, round, len(h.committed))
		return
	}
	for rank, a := range ranks {
		if !slices.Equal(a.process.state, h.committed) {
			t.fail("promise 5: rank %d makes step %d of round %d with a state of %d steps that are not those that count", rank, step, round, len(a.process.state))
		}
	}
	h.committed = append(h.committed, round)
	h.made[round], h.stepped = step, round
}

// begins is the first step of a round: what its parent has made after the step that it goes on from counts no more.
func (h *simHistory) begins(round uint64, r rendezvous.Record) {
	t := h.training
	before := uint64(len(h.committed))
	if r.FromStep > before {
		t.fail("round %d begins after step %d, and %d were made", round, r.FromStep, before)
		return
	}
	lost := before - r.FromStep
	if lost > 0 && r.Parent != 0 && isPlanned(r.Reason) && t.harmed.Before(h.since[r.Parent]) {
		t.fail("promise 3: the planned change to round %d (%s) loses %d steps", round, r.Reason, lost)
	}
	if lost > 0 {
		t.say("  round %d makes %d steps anew", round, lost)
	}
	h.again += lost
	h.committed = h.committed[:r.FromStep]
}
