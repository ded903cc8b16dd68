package controller

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

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
	if known := &p.Job.Status.Checkpoint; value(known.Round) > 0 {
		s.Own, s.Known = true, uint64(value(known.Step))
	}
	return s
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
