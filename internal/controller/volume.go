package controller

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/share"
)

// How large the volumes are that hold snapshots. What they must hold package share knows; it is reckoned for the smallest world that
// the job may have, in which each worker holds the most. A volume in memory does not change while its pod lives.

const (
	// unknownMemory is the size that the operator chooses before anybody has measured the state, and the least that it chooses
	// afterwards: states grow, and what was measured first may be next to nothing.
	unknownMemory     = 512 << 20
	DefaultMostMemory = 64 << 30
	// mostNamed is how many workers are named whose volumes are too small.
	mostNamed = 3
	// mostFull bounds what each of them says itself, in bytes.
	mostFull = 400
)

// hasVolume says whether workers have a volume that holds snapshots. Programs that are started anew in every world go on from
// checkpoints of their own.
func hasVolume(job *v1alpha1.TrainingJobSpec) bool { return job.Strategy() != v1alpha1.ResizeRestart }

// volumeSize is how large the volumes of workers are that are made now.
func volumeSize(job *v1alpha1.TrainingJob, settings PodSettings) resource.Quantity {
	if chosen, ok := job.Spec.Checkpoint.Memory.Quantity(); ok {
		return chosen
	}
	size := min(max(unknownMemory, wantedVolume(job, &job.Status.Checkpoint.Size)), settings.mostMemory())
	if bound := value(job.Status.Checkpoint.Size.VolumeAtMost); bound > 0 {
		size = min(size, bound)
	}
	return *resource.NewQuantity(size, resource.BinarySI)
}

// isUnknown says whether volumes are made that go by nothing that was measured, nor by the user's choice.
func isUnknown(job *v1alpha1.TrainingJob) bool {
	_, chosen := job.Spec.Checkpoint.Memory.Quantity()
	return !chosen && wantedVolume(job, &job.Status.Checkpoint.Size) == 0
}

func (s PodSettings) mostMemory() int64 {
	if s.MostMemory <= 0 {
		return DefaultMostMemory
	}
	return s.MostMemory
}

// wantedVolume is how large volumes should be for a state of that size, in bytes; 0 when nobody has measured it.
func wantedVolume(job *v1alpha1.TrainingJob, measured *v1alpha1.StateSize) int64 {
	count := func(bytes *int64) uint64 { return uint64(max(0, value(bytes))) }
	size := share.Size{State: count(measured.State), Own: count(measured.Own), Shards: count(measured.Shards), Written: count(measured.Written)}
	return int64(size.Volume(int(value(job.Spec.Workers.Min)), int(value(job.Spec.Checkpoint.Copies)), uploaderAt(&job.Spec) != "", bestOf(&job.Spec).Keep > 0))
}

// addMemory gives the trainer a volume in memory. What is written there counts as memory of the
// container, so its share grows by as much, and that of the pod where the pod has one.
func addMemory(pod *corev1.Pod, trainer *corev1.Container, size resource.Quantity, unknown bool) {
	spec := &pod.Spec
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: memoryVolume, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size},
	}})
	pod.Annotations[v1alpha1.AnnotationMemory] = size.String()
	if unknown {
		pod.Annotations[v1alpha1.AnnotationMemoryUnknown] = "true"
	}
	trainer.VolumeMounts = append(trainer.VolumeMounts, corev1.VolumeMount{Name: memoryVolume, MountPath: memoryMount})
	shares := []corev1.ResourceList{trainer.Resources.Requests, trainer.Resources.Limits}
	if spec.Resources != nil {
		shares = append(shares, spec.Resources.Requests, spec.Resources.Limits)
	}
	for _, share := range shares {
		if memory, set := share[corev1.ResourceMemory]; set {
			memory.Add(size)
			share[corev1.ResourceMemory] = memory
		}
	}
}

// volumeOf is how large the volume of a worker is. Operators that did not write it down may have made none.
func volumeOf(pod *corev1.Pod) resource.Quantity {
	if written, ok := v1alpha1.MemorySize(pod.Annotations[v1alpha1.AnnotationMemory]).Quantity(); ok {
		return written
	}
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.Name == memoryVolume && volume.EmptyDir != nil && volume.EmptyDir.SizeLimit != nil {
			return *volume.EmptyDir.SizeLimit
		}
	}
	return resource.Quantity{}
}

// measureState writes down how large the state is when it has become larger, and not by a few bytes only, which it does with
// every snapshot. It is the largest that any attempt has had: one that has just begun may have next to nothing in it yet.
func (p *planner) measureState() {
	seen := &p.World.Size
	if seen.State == 0 || !p.rendezvousKnows() || p.World.Deposed || !hasVolume(&p.Job.Spec) {
		return
	}
	known := &p.plan.Status.Checkpoint.Size
	p.rememberVolume(known)
	before := value(known.State)
	if known.State == nil || grows(before, seen.State) {
		known.State = ptr.To(int64(seen.State))
	}
	if largest := !grows(int64(seen.State), uint64(max(0, before))); largest { // they belong to that
		if known.Own == nil || apart(value(known.Own), int64(seen.Own)) {
			known.Own = ptr.To(int64(seen.Own))
		}
		if apart(value(known.Shards), int64(seen.Shards)) {
			known.Shards = ptr.To(int64(seen.Shards))
		}
	}
	if seen.Written > 0 && grows(value(known.Written), seen.Written) {
		known.Written = ptr.To(int64(seen.Written))
	}
}

// grows says whether a size is larger than another one by more than a few bytes.
func grows(before int64, now uint64) bool { return int64(now) > before && apart(before, int64(now)) }

// apart says whether two sizes differ by more than half of the room that a volume has beyond what it needs.
func apart(before, now int64) bool {
	difference := max(before-now, now-before)
	return difference > max(before, now)/32
}

// cramped is a worker whose volume is too small for what it writes. It is unknown when the volume was made before anybody had
// measured the state. full are the words of one whose last snapshot found no room, whatever was reckoned.
type cramped struct {
	name        string
	size, needs int64
	unknown     bool
	full        string
}

// cramped are the workers whose volumes are too small, and how many have been measured.
func (p *planner) cramped(pods []*corev1.Pod) (found []cramped, measured int) {
	if !p.rendezvousKnows() || !hasVolume(&p.Job.Spec) {
		return nil, 0
	}
	nodes := map[string]bool{}
	for _, pod := range pods {
		nodes[pod.Spec.NodeName] = true
	}
	copies := min(int(value(p.Job.Spec.Checkpoint.Copies)), len(nodes))
	for _, pod := range pods {
		seen := p.member(pod)
		size := volumeOf(pod)
		_, unknown := pod.Annotations[v1alpha1.AnnotationMemoryUnknown]
		one := cramped{name: pod.Name, size: size.Value(), unknown: unknown}
		if full.MatchString(seen.SnapshotTrouble) {
			one.full = cut(seen.SnapshotTrouble, mostFull)
			one.needs = one.size + max(int64(min(seen.Written, 1<<50)), 1<<20)
		} else if seen.Written == 0 {
			continue
		}
		measured++
		if seen.Written > 0 {
			size := p.World.Size
			size.Written = seen.Written
			one.needs = max(one.needs, int64(size.Room(copies, uploaderAt(&p.Job.Spec) != "", bestOf(&p.Job.Spec).Keep > 0)))
		}
		if one.size < one.needs {
			found = append(found, one)
		}
	}
	return found, measured
}

// full is what kernels say of a volume that has no room left.
var full = regexp.MustCompile(`(?i)no space left on device|disk quota exceeded`)

// describeVolumes writes SnapshotsFit, once somebody has said how much he writes.
func (p *planner) describeVolumes(pods []*corev1.Pod) {
	found, known := p.cramped(pods)
	switch {
	case known == 0:
		return
	case len(found) == 0:
		p.set(v1alpha1.ConditionSnapshotsFit, metav1.ConditionTrue, v1alpha1.ReasonVolumesFit, "every worker that writes snapshots has memory for as many as it keeps")
		return
	}
	measured := *p.Job
	measured.Status.Checkpoint.Size = p.plan.Status.Checkpoint.Size
	if p.beginsAnew(&measured, pods, found) {
		return // once that is written
	}
	message := tooSmall(found) + ": " + p.larger(found)
	if !meta.IsStatusConditionFalse(p.Job.Status.Conditions, v1alpha1.ConditionSnapshotsFit) {
		p.note(corev1.EventTypeWarning, v1alpha1.ReasonVolumeTooSmall, "%s", message)
	}
	p.set(v1alpha1.ConditionSnapshotsFit, metav1.ConditionFalse, v1alpha1.ReasonVolumeTooSmall, message)
}

// tooSmall names workers whose volumes are too small.
func tooSmall(found []cramped) string {
	var names []string
	for _, one := range found[:min(len(found), mostNamed)] {
		words := fmt.Sprintf("%s has %s for its snapshots and needs %s", one.name, bytesOf(one.size), bytesOf(one.needs))
		if one.full != "" {
			words = fmt.Sprintf("%s has %s for its snapshots, and its last one found no room there (%s)", one.name, bytesOf(one.size), one.full)
		}
		names = append(names, words)
	}
	if more := len(found) - mostNamed; more > 0 {
		names = append(names, fmt.Sprintf("%d more have too little", more))
	}
	return strings.Join(names, "; ")
}

// withVolumes adds to a sentence on why workers wait for room how much of it is for their snapshots, where that is more than it is
// without anything that was measured.
func (p *planner) withVolumes(sentence string) string {
	if _, chosen := p.Job.Spec.Checkpoint.Memory.Quantity(); chosen || !hasVolume(&p.Job.Spec) {
		return sentence
	}
	if size := volumeSize(p.Job, p.settings); size.Value() > unknownMemory {
		sentence += fmt.Sprintf("; a worker asks for %s of memory for its snapshots, which follows from status.checkpoint.size: a quantity in "+
			"spec.checkpoint.memory, which is set while the job is suspended, makes it less", size.String())
	}
	return sentence
}

// larger says what to do about it.
func (p *planner) larger(found []cramped) string {
	next := max(wantedVolume(p.Job, &p.plan.Status.Checkpoint.Size), unknownMemory)
	wanted := next
	for _, one := range found {
		wanted = max(wanted, one.needs)
	}
	again := "it goes on from its last checkpoint then"
	if p.storage() == nil {
		again = "without a spec.checkpoint.storage it begins at step 0 then"
	}
	_, chosen := p.Job.Spec.Checkpoint.Memory.Quantity()
	bound := value(p.Job.Status.Checkpoint.Size.VolumeAtMost)
	switch most := p.settings.mostMemory(); {
	case bound > 0 && !chosen:
		return fmt.Sprintf("workers with %s had no place in the cluster, so those of this attempt are made with %s. Once its nodes have more memory, "+
			"suspend the job and resume it; %s", bytesOf(wanted), bytesOf(bound), again)
	case chosen:
		return fmt.Sprintf("spec.checkpoint.memory: %s would do, or auto. Suspend the job to change it; %s", bytesOf(wanted), again)
	case wanted > most:
		return fmt.Sprintf("the operator gives %s at most (--checkpoint-memory-most). spec.checkpoint.memory: %s would do. Suspend the job to set it; %s",
			bytesOf(most), bytesOf(wanted), again)
	case wanted > next:
		return fmt.Sprintf("workers that are made from now on have %s, which is too little. spec.checkpoint.memory: %s may do. Suspend the job to set it; %s",
			bytesOf(next), bytesOf(wanted), again)
	default:
		return fmt.Sprintf("workers that are made from now on have %s. Suspend the job and resume it to have all of them made anew; %s", bytesOf(wanted), again)
	}
}

// bytesOf is a size as quantities are written, in whole MiB, rounded up.
func bytesOf(size int64) string {
	quantity := resource.NewQuantity((size+1<<20-1)>>20<<20, resource.BinarySI)
	return quantity.String()
}
