package server

import (
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// watch takes note of what the machine is about, after each of its turns. The job's lock is held.
func (j *job) watch(now time.Time, out *rendezvous.Effects) {
	for _, cause := range out.Lost {
		j.registry.metrics.losses.WithLabelValues(string(cause)).Inc()
	}
	u := j.machine.Underway()
	if e := j.episode; e != nil && !e.continues(u) {
		if u.Stage == rendezvous.StageNone {
			e.note(now, out)
		}
		told, unsaid := j.machine.Told()
		e.conclude(now, u, told, unsaid)
		if u.Over && j.machine.IsDeposed() {
			e.outcome = outcomeHandedOver
		}
		j.over(e)
	}
	if j.episode == nil && u.Stage != rendezvous.StageNone {
		j.episode = newEpisode(now, u)
	}
	e := j.episode
	if e == nil {
		return
	}
	aborted := u.Stage == rendezvous.StageLeave && e.since(rendezvous.StageLeave).IsZero()
	before := e.sent
	if e.see(now, u); aborted {
		j.registry.metrics.aborts.WithLabelValues(reasonLabel(u.Reason)).Inc()
	}
	if e.sent != before {
		j.sent.Store(e.sent)
	}
	if u.Barrier > 0 && u.Barrier != e.barrier {
		e.barrier, e.barrierAt = u.Barrier, now
	}
	e.note(now, out)
}

// note remarks what was decided.
func (e *episode) note(now time.Time, out *rendezvous.Effects) {
	for _, note := range out.Notes {
		e.remark(now, string(note.Kind), note.Text)
	}
}

// interrupt ends what is under way because the job is closed. The job's lock is held.
func (j *job) interrupt(as outcome) {
	if e := j.episode; e != nil {
		told, unsaid := j.machine.Told()
		e.conclude(j.registry.now(), rendezvous.Underway{Over: true}, told, unsaid)
		if e.outcome != outcomeDone {
			e.outcome = as
		}
		j.over(e)
	}
}

// over hands a concluded episode on.
func (j *job) over(e *episode) {
	j.episode = nil
	j.sent.Store(nil)
	j.registry.metrics.took(e)
	j.trace(e)
}

// told counts a member that was sent its place in a round. It is called without the job's lock, by whoever sends on
// the session.
func (s *session) told(round uint64) {
	sent := s.job.sent.Load()
	if sent == nil || sent.round != round || s.sentRound == round {
		return
	}
	s.sentRound = round
	if sent.left.Add(-1) == 0 {
		sent.done.Store(s.job.registry.now().UnixNano())
	}
}

// heeded is what a session's agent has obeyed, so that each is counted once.
type heeded struct {
	// world is a round that it has entered, barrier one that it has been given in the world of left, abort a round
	// that it has left.
	world, left, barrier, abort uint64
}

// heed measures how long a directive took to be obeyed, by an agent that had a session when it was published. The
// job's lock is held.
func (j *job) heed(s *session, r *rendezvous.Report, now time.Time) {
	e := j.episode
	if e == nil {
		return
	}
	lag := func(directive string, published time.Time) {
		if !published.IsZero() && !s.joined.After(published) {
			j.registry.metrics.lag.WithLabelValues(directive).Observe(max(0, now.Sub(published)).Seconds())
		}
	}
	switch h := &s.heeded; {
	case e.sent != nil:
		if r.Round == e.round && h.world != e.round {
			h.world = e.round
			lag("world", e.since(rendezvous.StageForm))
		}
	case e.left == 0:
	case e.underway.Barrier > 0:
		if r.Round == e.left && (h.left != e.left || h.barrier != e.barrier) && r.AtBarrier(e.barrier) {
			h.left, h.barrier = e.left, e.barrier
			lag("barrier", e.barrierAt)
		}
	case r.Round == e.left && r.Out && h.abort != e.left:
		h.abort = e.left
		lag("abort", e.since(rendezvous.StageLeave))
	}
}
