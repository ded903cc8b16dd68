package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Workers are made with the volumes that the state needs. Those before them may have trained with smaller ones, and the cluster may have
// no place for larger ones at all. Such a job goes on with what it had, without snapshots, rather than never.

// boundAfter is for how long a gang waits for nodes before its volumes are made no larger than those before: one that is larger than the
// cluster now may be so because a node is away for a while.
const boundAfter = 10 * time.Minute

// rememberVolume writes down how large the volumes are that the world trains with: the smallest of them.
func (p *planner) rememberVolume(known *v1alpha1.StateSize) {
	least := int64(0)
	for _, pod := range p.Pods {
		if size := volumeOf(pod); p.member(pod).InWorld && size.Value() > 0 && (least == 0 || size.Value() < least) {
			least = size.Value()
		}
	}
	if least > 0 && value(known.Volume) != least {
		known.Volume = ptr.To(least)
	}
}

// unboundVolumes forgets the bound of a job that waits for nothing. With an attempt it goes in the plan that ends it: the next one may
// find more room, and waits on from when it did before.
func (p *planner) unboundVolumes() {
	if p.target() == 0 && p.Job.Status.Queue.Since == nil {
		p.plan.Status.Checkpoint.Size.VolumeAtMost = nil
	}
}

// fallsBack is how large volumes are to be made at most since the gang has no place in an empty cluster with those that it needs; 0 for
// as large as it needs. A checkpoint that is to be brought back must have room.
func (p *planner) fallsBack() int64 {
	if _, chosen := p.Job.Spec.Checkpoint.Memory.Quantity(); chosen || !hasVolume(&p.Job.Spec) {
		return 0
	}
	if p.Grant.Reason != "NoNode" && p.Grant.Reason != "LargerThanCluster" {
		return 0
	}
	size := &p.Job.Status.Checkpoint.Size
	had, next := value(size.Volume), volumeSize(p.Job, p.settings)
	if had <= 0 || had >= next.Value() || p.storage() != nil && p.Job.Status.Checkpoint.Step != nil && had <= value(size.State) {
		return 0
	}
	return had
}

// boundVolumes has the workers of a gang for which there has been no place all the time be made with such volumes as those before it had.
func (p *planner) boundVolumes() {
	since := &p.plan.NoPlaceSince
	had := p.fallsBack()
	if had == 0 {
		*since = time.Time{}
		return
	}
	if since.IsZero() || since.After(p.Now) { // the clock may have been set back
		*since = p.Now
	}
	if left := since.Add(boundAfter).Sub(p.Now); left > 0 {
		p.lookAgain(left)
		return
	}
	next := volumeSize(p.Job, p.settings)
	p.plan.Status.Checkpoint.Size.VolumeAtMost = ptr.To(had)
	p.note(corev1.EventTypeWarning, v1alpha1.ReasonVolumeTooSmall, "the cluster has no place for workers with the %s that snapshots need, so this attempt "+
		"is made with the %s that those before it had: %s", bytesOf(next.Value()), bytesOf(had), p.Grant.Why)
}
