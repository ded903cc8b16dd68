package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// facts is what the planner of all jobs should know of this one, and cannot see by itself.
func (p *planner) facts() fleet.Facts {
	facts := fleet.Facts{
		Held:       p.held,
		Elastic:    p.elastic(),
		Unheard:    p.takingOver(),
		Regrouping: p.World.Phase == rendezvous.PhaseRegrouping,
		Armed:      p.World.Phase == rendezvous.PhaseResizing,
		Durable:    p.durable(),
		Ranks:      map[types.UID]int32{},
		Lost:       map[types.UID]bool{},
	}
	if answer := &p.Memory.Answer; p.answered() {
		facts.Asked, facts.Sample = p.Job.Generation, answer.Pod
	}
	if growth := &p.plan.Elastic.Growth; p.growthPaused() {
		facts.GrowAfter = growth.over()
	}
	for i := range p.workers {
		w := &p.workers[i]
		if w.inWorld() {
			facts.Ranks[w.pod.UID] = w.stands.rank
		}
		if w.ended || w.lost != "" || w.withdrawn || w.leaving != "" && !forOthers(w.leaving) && w.leaving != rendezvous.ReasonScaledDown {
			facts.Lost[w.pod.UID] = true
		}
	}
	facts.Finishing = p.finishing(p.workers)
	facts.Pause = p.usualPause()
	return facts
}

// usualPause is how long the last planned changes of the job's world stopped it, on average; zero when
// there was none.
func (p *planner) usualPause() time.Duration {
	var sum time.Duration
	var n int
	for i := range p.plan.Status.Resizes {
		if resize := &p.plan.Status.Resizes[i]; resize.Pause != nil && value(resize.StepsLost) == 0 {
			sum += resize.Pause.Duration
			n++
		}
	}
	if n == 0 {
		return 0
	}
	// Whole tenths of a second: what differs by less is the same.
	return (sum / time.Duration(n)).Round(100 * time.Millisecond)
}
