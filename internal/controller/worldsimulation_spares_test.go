package controller

import (
	"maps"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simMost is what max of the job was from a moment on.
type simMost struct {
	from time.Time
	most int32
}

// simLate is how long a change of the job may take to be known: no operator may be there, or no API server.
const simLate = 8 * time.Minute

// isBounded is told of each round: no more train than max allows, or has allowed lately, however many spares there are.
func (h *simHistory) isBounded(r *rendezvous.Record) {
	t := h.training
	allowed := int32(0)
	for i, m := range t.most {
		if i+1 == len(t.most) || time.Since(t.most[i+1].from) < simLate {
			allowed = max(allowed, m.most)
		}
	}
	if before, known := h.rounds[r.Parent]; known && t.spares == 0 {
		allowed = max(allowed, before.Workers) // nobody leaves before others say so
	}
	if r.Workers > allowed {
		t.fail("round %d has %d workers, and at most %d were to train, with %d spares beside them", r.Round, r.Workers, allowed, t.spares)
	}
}

// usesSpares is told of each round that a machine asks to have made durable after another one: it has as many workers as that as long as
// somebody is ready to come in, and grows by nobody who is to be a spare.
func (h *simHistory) usesSpares(j *simMachine, write *rendezvous.Write) {
	t, next := h.training, &write.Next
	if t.spares == 0 || !write.Prev.Equal(h.record) {
		return // or another has written, and this will fail
	}
	seen := j.machine.Observe(j.registry.op.clock.now())
	among, ready := next.Ordinals(), 0
	for _, uid := range slices.Sorted(maps.Keys(seen.Members)) {
		m := seen.Members[uid]
		a := t.agentOf(uid)
		if a == nil || slices.Contains(among, podOrdinal(a.pod)) || !m.Standby || !m.Connected || m.Aside != "" || m.Silent {
			continue
		}
		ready++
	}
	before := h.rounds[next.Parent].Workers
	switch allowed := t.most[len(t.most)-1]; {
	case next.Workers < min(before, allowed.most) && ready > 0 && (len(t.most) == 1 || time.Since(allowed.from) > simLate):
		t.fail("round %d (%s) has %d workers after one of %d, and %d are ready", next.Round, next.Reason, next.Workers, before, ready)
	case next.Workers < before:
		t.counts["rounds that lack a worker"]++
	case next.Workers == before && ready > 0:
		t.counts["rounds beside spares"]++
	case next.Workers > before && next.Workers > value(t.now().Spec.Workers.Min) && ready < int(t.spares):
		t.fail("round %d (%s) grows from %d to %d workers, and leaves %d spares of %d", next.Round, next.Reason, before, next.Workers, ready, t.spares)
	}
	if next.From > 0 && next.Workers == before && (next.Reason == rendezvous.ReasonWorkerLost || next.Reason == rendezvous.ReasonProgramFailed) {
		t.counts["places that were taken at once"]++
	}
}

func (t *simTraining) agentOf(uid string) *simAgent {
	for known, a := range t.agents {
		if string(known) == uid && !a.ended {
			return a
		}
	}
	return nil
}
