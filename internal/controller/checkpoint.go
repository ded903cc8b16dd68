package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// uploadLimit is how long workers that are to be released are kept for the upload of their state.
const uploadLimit = 10 * time.Minute

// copiesPatience is how long snapshots may be on fewer nodes than they should be before that is told.
const copiesPatience = time.Minute

// storage is what the rendezvous is to do about the job's storage; nil when it has none.
func (p *planner) storage() *rendezvous.Storage {
	spec := &p.Job.Spec
	if uploaderAt(spec) == "" {
		return nil
	}
	s := &rendezvous.Storage{
		Interval: value(spec.Checkpoint.Interval).Duration,
		Keep:     max(value(spec.Checkpoint.Keep), 1),
		// A checkpoint may have been made that no status tells of. And a storage that cannot be used shows before training.
		Own:  true,
		From: spec.Checkpoint.RestoreFrom,
		Rate: p.UploadRate,
		Best: p.best(),
	}
	s.Park = p.whyAllGo()
	if known := &p.Job.Status.Checkpoint; value(known.Round) > 0 {
		s.Known, s.KnownRound = uint64(value(known.Step)), uint64(*known.Round)
	}
	return s
}

// whyAllGo says why all workers are to be released; empty when they are not.
func (p *planner) whyAllGo() string {
	switch {
	case p.suspended():
		return "spec.suspend is true"
	case p.evicted():
		why := fmt.Sprintf("spec.preemption.policy is %s", v1alpha1.PreemptionEvict)
		if p.Job.Spec.Preemption.Policy != v1alpha1.PreemptionEvict {
			why = "what it has done outlives its workers"
		}
		return fmt.Sprintf("job %s has a higher priority (%s)", p.Grant.Evict, why)
	default:
		return ""
	}
}

// durable says whether nothing is lost when all workers are released: their world can stop, and the storage has no trouble,
// and has taken the last checkpoint in half of the time that a stop and an upload may take together; two of them, where a state waits that
// is kept for its score.
func (p *planner) durable() bool {
	took, limit := p.World.UploadTook, value(p.Job.Spec.Checkpoint.Timeout).Duration
	if p.World.BestWaits {
		took *= 2
	}
	return p.storage() != nil && p.canStop() && p.World.Storage == "" && took > 0 && took < limit/2
}

// afterParking has all workers released, once what their world has done is durable, or it has taken for too long to
// become so.
func (p *planner) afterParking(release func()) {
	since, limit := &p.plan.Elastic.ParkingSince, p.parkingLimit()
	if !p.parks() {
		release()
		return
	}
	if since.IsZero() {
		*since = p.Now
		p.note(corev1.EventTypeNormal, v1alpha1.EventParking, "%s: the workers are released once their state is durable, or after %s", p.whyAllGo(), limit)
	}
	left := since.Add(limit).Sub(p.Now)
	if left <= 0 {
		p.note(corev1.EventTypeWarning, v1alpha1.EventStorageTrouble, "the state could not be made durable within %s: the workers are released, and the job goes on from its last checkpoint", limit)
		release()
		return
	}
	p.expectCrew(p.crew(p.gang()), p.World.Round)
	p.refreshCheckpoint()
	p.lookAgain(left)
}

// parks says whether workers that are all to be released may stay for a while: their world stops, and what it has done is
// made durable first. A job without a storage, or without a world that can stop, waits for nothing; of one whose world an
// operator that has only begun to lead does not know yet that is not known.
func (p *planner) parks() bool {
	return p.storage() != nil && p.target() > 0 && !p.World.Parked && (p.canStop() || p.mayStop())
}

// parkingLimit is how long they may.
func (p *planner) parkingLimit() time.Duration {
	limit := value(p.Job.Spec.Checkpoint.Timeout).Duration
	if p.suspended() {
		limit += uploadLimit // nobody waits for the room
	}
	return limit
}

// mayStop says whether there may be a world that can come to a barrier, which this leader does not know yet.
func (p *planner) mayStop() bool {
	return p.takingOver() && p.Job.Spec.Strategy() == v1alpha1.ResizeInPlace && p.anyoneThere(p.gang())
}

// canStop says whether there is a world that can come to a barrier. One that has lost too many is none.
func (p *planner) canStop() bool {
	return p.rendezvousKnows() && p.elastic() && p.World.Fatal == "" && p.World.Phase != rendezvous.PhaseRegrouping && len(p.live()) > 0
}

// refreshCheckpoint brings status.checkpoint up to date.
func (p *planner) refreshCheckpoint() {
	if !p.rendezvousKnows() {
		return
	}
	if told := &p.plan.Elastic.Storage; *told != p.World.Storage {
		*told = p.World.Storage
		p.tellStorage()
	}
	if told := &p.plan.Elastic.Restored; p.World.Restored != "" && *told != p.World.Restored {
		*told = p.World.Restored
		p.note(corev1.EventTypeNormal, v1alpha1.EventRestored, "%s", *told)
	}
	p.tellCopies()
	p.refreshBest()
	seen, known := &p.World.Durable, &p.Job.Status.Checkpoint
	if seen.Path == "" || known.Location == seen.Path {
		return
	}
	round, step := int64(seen.Snapshot.Round), int64(seen.Snapshot.Step)
	if known.Round != nil && (round < *known.Round || round == *known.Round && step <= value(known.Step)) {
		return // of a leader that has heard of an older one only
	}
	p.plan.Status.Checkpoint = v1alpha1.CheckpointStatus{
		Step: ptr.To(step), Round: ptr.To(round), Location: seen.Path, At: ptr.To(metav1.NewTime(p.Now)), Memory: known.Memory,
		Size: p.plan.Status.Checkpoint.Size, Best: p.plan.Status.Checkpoint.Best,
	}
}

// reportMemory brings status.checkpoint.memory up to date. It changes with every snapshot, so it is written with the progress.
func (p *planner) reportMemory() {
	seen, known := &p.World.Memory, &p.plan.Status.Checkpoint.Memory
	if seen.Copies == 0 {
		*known = v1alpha1.MemoryStatus{} // it went with those who had it
		return
	}
	if next := int64(seen.Step); known.Step == nil || *known.Step != next {
		known.Step, known.At = ptr.To(next), ptr.To(metav1.NewTime(p.Now))
	}
	known.Copies = ptr.To(int32(seen.Copies))
}

// tellCopies says when snapshots are on fewer nodes than they could be, and not only until the next one, and whose states
// differ.
func (p *planner) tellCopies() {
	seen, memory := &p.World.Memory, &p.plan.Elastic
	if told := &memory.Differ; p.World.Differ != "" && *told != p.World.Differ {
		*told = p.World.Differ
		p.note(corev1.EventTypeWarning, v1alpha1.EventReplicasDiffer, "%s", *told)
	}
	if seen.Copies == 0 || seen.Copies >= seen.Possible {
		memory.MissingSince, memory.MissingTold = time.Time{}, false
		return
	}
	if memory.MissingSince.IsZero() {
		memory.MissingSince = p.Now
	}
	left := memory.MissingSince.Add(copiesPatience).Sub(p.Now)
	switch {
	case memory.MissingTold:
	case left > 0:
		p.lookAgain(left)
	default:
		memory.MissingTold = true
		p.note(corev1.EventTypeWarning, v1alpha1.EventCopiesMissing, "the snapshot of step %d is on %d of %d nodes, and for %s none was on more: "+
			"what was done since the last checkpoint would be lost with them. See the logs of the workers", seen.Step, seen.Copies, seen.Possible, copiesPatience)
	}
}

// tellStorage says what is wrong with the storage, once.
func (p *planner) tellStorage() {
	if why := p.World.Storage; why != "" {
		p.note(corev1.EventTypeWarning, v1alpha1.EventStorageTrouble, "%s", why)
	}
}
