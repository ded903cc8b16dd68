package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// size says why a job has its size or waits, what would be done now, and what would change it.
func (l *Look) size(j *job) []string {
	if _, resting := j.rest(l); resting {
		return nil
	}
	if l.partial {
		return l.told(j)
	}
	var all []string
	if j.in.Stage == allocation.Queued && !j.decision.Start {
		all = append(all, l.place(j)...)
	}
	all = append(all, l.today(j)...)
	if why := j.decision.Why; why.Text != "" {
		all = append(all, fmt.Sprintf("Why: %s (%s).", strings.TrimSuffix(why.Text, "."), why.Reason))
	}
	return append(all, l.outlook(j)...)
}

// told is what the operator has written, where no plan can be made.
func (l *Look) told(j *job) []string {
	status := &j.object.Status
	if j.in.Stage == allocation.Queued && status.Queue.WaitsFor != "" {
		return append(l.place(j), fmt.Sprintf("The operator says: %s", sentence(status.Queue.WaitsFor)))
	}
	if full := j.condition(v1alpha1.ConditionFullSize); full != nil && full.Message != "" {
		return []string{fmt.Sprintf("The operator says: %s", sentence(full.Message))}
	}
	return nil
}

// place is where a job stands in the queue.
func (l *Look) place(j *job) []string {
	position := value(j.object.Status.Queue.Position)
	if j.decision != nil && j.decision.Queue > 0 {
		position = j.decision.Queue
	}
	var parts []string
	if position > 0 {
		parts = append(parts, fmt.Sprintf("is %s in the queue of the cluster", ordinalWord(position)))
	}
	if !j.in.Queued.IsZero() {
		parts = append(parts, fmt.Sprintf("has waited for %s", span(l.now.Sub(j.in.Queued))))
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("It %s.", list(parts))}
}

// today is what the plan would do with the job now.
func (l *Look) today(j *job) []string {
	p := l.plannedJob(j)
	var all []string
	switch {
	case p.EvictedFor != "" && j.in.Durable:
		return []string{fmt.Sprintf("All of its workers are to go: job %s of higher priority needs the room, and its state is in the storage. "+
			"It stops after a checkpoint, queues again, and goes on from there.", p.EvictedFor)}
	case p.EvictedFor != "":
		return []string{fmt.Sprintf("All of its workers are to go: job %s of higher priority needs the room, and spec.preemption.policy is Evict. "+
			"It queues again; what its program has not saved is lost.", p.EvictedFor)}
	case p.Start:
		all = append(all, fmt.Sprintf("Its gang starts now, on %s.", p.newOn()))
	case len(p.New) > 0:
		all = append(all, fmt.Sprintf("New workers are to be made on %s: %s.", p.newOn(), p.becomes()))
	}
	for _, one := range j.leavers() {
		all = append(all, fmt.Sprintf("Worker %s is to leave: %s.", one.Pod, one.Why))
	}
	return all
}

// becomes is how the number of workers changes.
func (p *PlannedJob) becomes() string {
	if p.Now == p.Planned {
		return fmt.Sprintf("it keeps %s", count(p.Now, "worker"))
	}
	return fmt.Sprintf("from %d to %d workers", p.Now, p.Planned)
}

// outlook is what would let the job start or grow, and when that may be.
func (l *Look) outlook(j *job) []string {
	d := j.decision
	var all []string
	switch {
	case j.in.Stage == allocation.Queued && d.Start:
		return nil
	case j.in.Stage == allocation.Queued:
		return l.startOutlook(j)
	case j.in.Stage != allocation.Training || d.Evict:
		return nil
	}
	switch d.Why.Reason {
	case "AtMax":
		return append(all, "It grows no further than spec.workers.max: `kubectl scale` raises that, also while it trains.")
	case "GrowthOff":
		return append(all, "It would grow if spec.growth.policy were Auto.")
	case "SizedElsewhere":
		return append(all, "It would grow without the label "+v1alpha1.LabelKueueQueue+".")
	case "DoesNotBorrow":
		return append(all, "It would grow if spec.preemption.policy were Shrink: who lends may borrow.")
	case "RegrowDelayed":
		if again := j.in.ReclaimedAt.Add(l.cluster.Settings.RegrowDelay(j.in.Reclaims)); again.After(l.now) {
			return append(all, fmt.Sprintf("It may grow again in %s.", span(again.Sub(l.now))))
		}
	case "NoRoom", "NoRoomForNextSize", "QuotaUsedUp":
		if advice := l.advice(j); advice != "" {
			all = append(all, advice)
		}
	}
	return all
}

// startOutlook is what would let a job start that waits, and when that may be.
func (l *Look) startOutlook(j *job) []string {
	var all []string
	reason, expected := j.decision.Why.Reason, j.decision.Expected
	if reason == "Reclaiming" || reason == "RoomIsEnding" {
		return []string{"It starts as soon as that room is free."}
	}
	if advice := l.advice(j); advice != "" {
		all = append(all, advice)
	}
	switch {
	case expected.After(l.now):
		all = append(all, fmt.Sprintf("It should start in %s at the latest, at %s, as far as deadlines tell (spec.activeDeadline of jobs that run).",
			span(expected.Sub(l.now)), clock(expected)))
	case !blocked(reason):
	case l.ahead(j) != nil:
		all = append(all, fmt.Sprintf("When it will start is not estimated: it stands behind job %s, which waits for the same nodes.", l.ahead(j).in.Name))
	default:
		all = append(all, "When it will start is not known: no job that runs has a deadline (spec.activeDeadline) that would make the room.")
	}
	return all
}

// blocked says whether a gang waits for room that nobody is about to leave.
func blocked(reason string) bool { return reason == "NoRoom" || reason == "BehindReservation" }

// ahead is the gang that a blocked one stands behind: the planner keeps room, and estimates the start, for the first
// one only of those that want the same nodes. It is nil for such a first one.
func (l *Look) ahead(j *job) *job {
	var waiting []*job
	for i := range l.jobs {
		one := &l.jobs[i]
		if d := one.decision; d != nil && one.in.Stage == allocation.Queued && d.Queue > 0 && blocked(d.Why.Reason) && one.in.Gang >= 0 {
			waiting = append(waiting, one)
		}
	}
	slices.SortFunc(waiting, func(a, b *job) int { return cmp.Compare(a.decision.Queue, b.decision.Queue) })
	var firsts []*job
	for _, one := range waiting {
		first := slices.IndexFunc(firsts, func(other *job) bool {
			return overlap(l.cluster.Shapes[one.in.Gang].Nodes, l.cluster.Shapes[other.in.Gang].Nodes)
		})
		switch {
		case one == j && first >= 0:
			return firsts[first]
		case one == j:
			return nil
		case first < 0:
			firsts = append(firsts, one)
		}
	}
	return nil
}

// overlap says whether two sets have anything in common.
func overlap(a, b allocation.Bits) bool {
	for i := range min(len(a), len(b)) {
		if a[i]&b[i] != 0 {
			return true
		}
	}
	return false
}
