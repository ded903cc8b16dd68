package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// uploadLimit is how long workers that are to be released are kept for the upload of their state.
const uploadLimit = 10 * time.Minute

// storage is what the rendezvous is to do about the job's storage; nil when it has none.
func (p *planner) storage() *rendezvous.Storage {
	spec := &p.Job.Spec
	if uploaderAt(spec) == "" {
		return nil
	}
	s := &rendezvous.Storage{
		Interval: value(spec.Checkpoint.Interval).Duration,
		Keep:     max(value(spec.Checkpoint.Keep), 1),
		// A checkpoint may have been made that no status tells of.
		Own:  p.attempt() > 1,
		From: spec.Checkpoint.RestoreFrom,
	}
	if p.suspended() {
		s.Park = "spec.suspend is true"
	}
	if known := &p.Job.Status.Checkpoint; value(known.Round) > 0 {
		s.Own, s.Known = true, uint64(value(known.Step))
	}
	return s
}

// parks says whether the workers of a job that is suspended stay for a while: their world stops, and what it has done is
// made durable first. A job without a storage, or without a world that can stop, waits for nothing.
func (p *planner) parks() bool {
	if p.storage() == nil || p.target() == 0 || !p.rendezvousKnows() || !p.elastic() || p.World.Fatal != "" || p.World.Parked {
		return false
	}
	since := &p.plan.Elastic.ParkingSince
	limit := value(p.Job.Spec.Checkpoint.Timeout).Duration + uploadLimit
	if since.IsZero() {
		*since = p.Now
		p.note(corev1.EventTypeNormal, v1alpha1.ReasonSuspended, "spec.suspend is true: the workers are released once their state is durable, or after %s", limit)
	}
	left := since.Add(limit).Sub(p.Now)
	if left <= 0 {
		p.note(corev1.EventTypeWarning, v1alpha1.EventStorageTrouble, "the state could not be made durable within %s: the workers are released, and the job goes on from its last checkpoint", limit)
		return false
	}
	p.plan.Actions.Expect = p.expected(members(p.crew(p.gang()), p.World.Round))
	p.refreshCheckpoint()
	p.lookAgain(left)
	return true
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
	seen, known := &p.World.Durable, &p.Job.Status.Checkpoint
	if seen.Path == "" || known.Location == seen.Path {
		return
	}
	round, step := int64(seen.Snapshot.Round), int64(seen.Snapshot.Step)
	if known.Round != nil && (round < *known.Round || round == *known.Round && step <= value(known.Step)) {
		return // of a leader that has heard of an older one only
	}
	p.plan.Status.Checkpoint = v1alpha1.CheckpointStatus{
		Step: ptr.To(step), Round: ptr.To(round), Location: seen.Path, At: ptr.To(metav1.NewTime(p.Now)),
	}
}

// tellStorage says what is wrong with the storage, once.
func (p *planner) tellStorage() {
	if why := p.World.Storage; why != "" {
		p.note(corev1.EventTypeWarning, v1alpha1.EventStorageTrouble, "%s", why)
	}
}
