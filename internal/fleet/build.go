package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/speed"
)

// build makes of a job what the planner sees.
func (c *Cluster) build(j *job) {
	j.dirty = false
	if j.gang == nil || j.generation != j.object.Generation || !equality.Semantic.DeepEqual(j.size, j.object.Status.Checkpoint.Size) {
		j.shape(c.options.Shapes)
	}
	object, workers := j.object, c.workers[j.object.UID]
	spec, status := &object.Spec, &object.Status
	stands := c.standingOf(object, workers)
	b := built{namespace: object.Namespace, lostSince: timeOf(status.Progress.Since)}
	one := &b.job
	*one = allocation.Job{
		Name: object.Namespace + "/" + object.Name, UID: string(object.UID),
		Priority: stands.priority, Preempts: stands.preempts, Fault: stands.fault,
		Submitted: object.CreationTimestamp.Time,
		Min:       value(spec.Workers.Min), Max: value(spec.Workers.Max) + value(spec.Workers.Spares), Spares: value(spec.Workers.Spares),
		Policy: policies[spec.Preemption.Policy], NoGrowth: spec.Growth.Policy == v1alpha1.GrowthOff,
		Target:    value(status.Workers.Target),
		Finishing: j.facts.Finishing, Regrouping: j.facts.Regrouping, Armed: j.facts.Armed, Durable: j.facts.Durable,
		Restarts: spec.Strategy() == v1alpha1.ResizeRestart, Starts: value(status.Retries),
		GrowAfter: j.facts.GrowAfter, Pause: j.facts.Pause,
	}
	if object.Labels[v1alpha1.LabelKueueQueue] != "" {
		one.SizedBy = "Kueue (label " + v1alpha1.LabelKueueQueue + ")"
	}
	one.Sizes, one.Trains = spec.Workers.Counts()
	one.Stage, b.retry = c.stageOf(j, len(workers))
	if c.options.AsksFirst && !j.wasAnswered() && len(workers) == 0 && !j.wasAskedAbout() {
		one.Preempts, one.Unasked = false, one.Preempts // nobody leaves for pods that may be refused, and of which nobody knows what they will ask for
	}
	if one.Stage == allocation.Training || one.Stage == allocation.Fixed {
		one.Members = record.FromStatus(object).Workers
	}
	if one.Stage == allocation.Queued {
		one.Queued = queuedSince(object)
	}
	if deadline := spec.ActiveDeadline; deadline != nil && status.StartTime != nil {
		one.Ends = status.StartTime.Add(deadline.Duration)
	}
	one.Deadline = timeOf(spec.Deadline)
	if world := status.World; world != nil && value(world.From) == 0 && value(world.Attempt) == value(status.Attempt) {
		one.Began = timeOf(world.StartedAt)
	}
	c.history(one, status.Resizes, j.reported)
	for _, avoided := range status.AvoidedNodes {
		if n := c.nodes.index[avoided.Name]; n != nil && avoided.Until != nil {
			b.avoided = append(b.avoided, avoidedNode{n, avoided.Until.Time})
		}
	}
	now := c.options.Now()
	b.fitted = j.fitter.Look(now, speed.Observations(SizesSeen(&status.Speed), now), one.Min)
	one.Pace = paceOf(b.fitted, status)
	c.buildWorkers(j, &b, workers)
	one.EvenedAt = latest(one.EvenedAt, j.gaveAt) // one that was in no world yet has changed none when it left
	j.built = b
}

// shape makes the pods that stand for those that the controller would make. A template that it would make
// none of has the job held. What is known of the pods holds on when an edit leaves them as they were.
func (j *job) shape(shapes Shapes) {
	edited := j.generation != j.object.Generation
	j.generation, j.size = j.object.Generation, *j.object.Status.Checkpoint.Size.DeepCopy()
	gang, growth := shapes(j.object)
	j.misshapen = gang == nil || growth == nil
	key := [sha256.Size]byte{}
	if j.misshapen {
		bare := &corev1.Pod{Spec: j.object.Spec.Workers.Template.Spec}
		bare.Namespace = j.object.Namespace
		gang, growth = bare, bare
	} else {
		key = hashOf(gang)
	}
	same := key == j.pods && key != [sha256.Size]byte{}
	if j.pods = key; edited && !same {
		j.podsSince = j.generation
	}
	j.unmodelled = UnmodelledWords(gang)
	gang, growth = scopeOf(gang), scopeOf(growth) // what else a worker has is large, and there are many jobs
	if !same || !equality.Semantic.DeepEqual(growth, j.growth) {
		j.gang, j.growth = gang, growth
	}
}

// hashOf tells pods apart.
func hashOf(pod *corev1.Pod) (key [sha256.Size]byte) {
	if text, err := json.Marshal(pod); err == nil {
		key = sha256.Sum256(text)
	}
	return key
}

var policies = map[v1alpha1.PreemptionPolicy]allocation.Policy{
	v1alpha1.PreemptionShrink: allocation.Shrink, v1alpha1.PreemptionEvict: allocation.Evict, v1alpha1.PreemptionNever: allocation.Never,
}

// stageOf is where a job is in its life; for one that is held for a while only, until when.
func (c *Cluster) stageOf(j *job, pods int) (allocation.Stage, time.Time) {
	object, status := j.object, &j.object.Status
	if heldForGood(object) || j.misshapen || j.facts.Held || !j.reported && refusedForGood(object) {
		return allocation.Held, time.Time{}
	}
	world := status.World
	switch {
	case value(status.Workers.Target) == 0 && !j.reported && pods > 0:
		return allocation.Held, time.Time{} // the last attempt has yet to end
	case value(status.Workers.Target) == 0:
		return allocation.Queued, timeOf(status.RetryTime)
	case world == nil || value(world.Round) == 0 || value(world.Attempt) != value(status.Attempt):
		return allocation.Starting, time.Time{}
	case j.facts.Elastic || j.facts.Unheard || !j.reported && !saysFixed(status):
		return allocation.Training, time.Time{}
	default:
		return allocation.Fixed, time.Time{}
	}
}

// saysFixed says whether the operator has found that a job's world cannot change.
func saysFixed(status *v1alpha1.TrainingJobStatus) bool {
	size := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionFullSize)
	return size != nil && size.Reason == v1alpha1.ReasonFixed
}

// wasAnswered says whether the API server has said that it would take such workers as the job would have now.
func (j *job) wasAnswered() bool { return j.facts.Asked > 0 && j.facts.Asked >= j.podsSince }

// wasAskedAbout says whether a leader before has asked the API server about such a pod of a job: it says in what it waits for once that
// is answered. Who leaves for it goes on leaving.
func (j *job) wasAskedAbout() bool {
	admitted := meta.FindStatusCondition(j.object.Status.Conditions, v1alpha1.ConditionAdmitted)
	if admitted == nil || admitted.ObservedGeneration < j.podsSince {
		return false
	}
	return admitted.Reason == v1alpha1.ReasonQuotaExceeded || admitted.Status == metav1.ConditionTrue && j.object.Status.Queue.WaitsFor != ""
}

// queuedSince is since when a job that queues does. Until its reconciler has written that, as it does once a plan knows of the job,
// it is since the job was submitted, or resumed, or may try again.
func queuedSince(object *v1alpha1.TrainingJob) time.Time {
	status := &object.Status
	if since := timeOf(status.Queue.Since); !since.IsZero() {
		return since
	}
	since := latest(object.CreationTimestamp.Time, timeOf(status.RetryTime))
	if resumed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionSuspended); resumed != nil && resumed.Status == metav1.ConditionFalse {
		since = latest(since, resumed.LastTransitionTime.Time)
	}
	return since
}

// heldForGood says whether the planner has no say in a job as it is written.
func heldForGood(object *v1alpha1.TrainingJob) bool {
	status := &object.Status
	if object.DeletionTimestamp != nil || value(object.Spec.Suspend) ||
		object.Spec.ManagedBy != "" && object.Spec.ManagedBy != v1alpha1.ManagedByOperator {
		return true
	}
	return meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionComplete) || meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionFailed)
}

// refusedForGood says whether the API server has refused pods of such a template. Who may try again, when what
// has refused them is mended, is known to the job's reconciler.
func refusedForGood(object *v1alpha1.TrainingJob) bool {
	admitted := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionAdmitted)
	return admitted != nil && admitted.Reason == v1alpha1.ReasonInvalidTemplate && admitted.ObservedGeneration >= object.Generation
}

// reasonGrew is the reason of status.resizes when a job grew.
const reasonGrew = "CapacityAvailable"

// history reads from the last changes of the world, oldest first, when the job grew and shrank, and how often
// room was taken from it lately.
func (c *Cluster) history(one *allocation.Job, resizes []v1alpha1.Resize, reported bool) {
	settings := c.options.Settings.Planning()
	for i := range resizes {
		r := &resizes[i]
		at := timeOf(r.At)
		switch r.Reason {
		case reasonGrew:
			one.GrewAt = latest(one.GrewAt, at)
		case Evened:
			one.EvenedAt = latest(one.EvenedAt, at)
		case Reclaimed:
			one.Reclaims = settings.Lately(one.Reclaims, at.Sub(one.ReclaimedAt)) + 1
			one.ReclaimedAt = latest(one.ReclaimedAt, at)
		}
		if !reported && r.Pause != nil {
			one.Pause = r.Pause.Duration
		}
	}
}

// gives takes note of a marked worker that leaves for an equal.
func (j *job) gives(mark Mark, leaves bool) {
	if leaves && mark.Reason == Evened {
		j.gaveAt = latest(j.gaveAt, mark.At)
	}
}

// buildWorkers enters the pods of a job, by ordinal, and what further pods of it will ask for.
func (c *Cluster) buildWorkers(j *job, b *built, workers map[podKey]*pod) {
	pods := make([]*pod, 0, len(workers))
	for _, one := range workers {
		pods = append(pods, one)
	}
	slices.SortFunc(pods, func(x, y *pod) int {
		return cmp.Or(cmp.Compare(ordinal(x.object.Name), ordinal(y.object.Name)), strings.Compare(x.object.Name, y.object.Name))
	})
	why := j.unmodelled
	// A job that was decided to have no gang deletes its pods in a moment: their room comes free.
	goes := b.job.Target == 0
	selfPinned, ranking := Pinned(j.gang) != "", j.ranking()
	var seen [2]sample // by whether it is of the growth class
	// An earlier attempt may have had another template.
	current := ""
	if b.job.Target > 0 {
		current = strconv.Itoa(int(value(j.object.Status.Attempt)))
	}
	for _, one := range pods {
		object := one.object
		free := object
		if !selfPinned || pinnedTwice(object) {
			free = unpinned(object)
		}
		if one.shape == nil || one.shape.dropped || one.template != j.gang {
			one.shape, one.template = c.shapeOf(free, why), j.gang
		}
		w := allocation.Worker{
			Node: allocation.None, Shape: one.shape.id, Own: !isGrowth(object), Bound: object.Spec.NodeName != "",
			Ending: object.DeletionTimestamp != nil, Leaving: goes || j.facts.Lost[object.UID], For: allocation.None, Rank: -1,
			Ordinal: ordinal(object.Name),
		}
		if one.node != nil {
			w.Node = one.node.id
		}
		if rank, member := ranking(object); member {
			w.World, w.Rank = true, rank
		}
		var mark Mark
		if mark, w.Marked = MarkOf(object); w.Marked {
			if b.beneficiaries == nil {
				b.beneficiaries = make([]types.NamespacedName, len(pods))
			}
			namespace, name, _ := strings.Cut(mark.For, "/")
			b.beneficiaries[len(b.job.Workers)] = types.NamespacedName{Namespace: namespace, Name: name}
			w.Moves = mark.Reason == Moved
			j.gives(mark, w.Ending)
		}
		if w.Ending {
			if b.ending == nil {
				b.ending = map[int]*pod{}
			}
			b.ending[len(b.job.Workers)] = one
		}
		b.job.Workers, b.uids = append(b.job.Workers, w), append(b.uids, object.UID)
		if one.assumed.IsZero() && current != "" && object.Labels[v1alpha1.LabelAttempt] == current && asLarge(object, j.gang) {
			seen[index(isGrowth(object))] = sample{free, one.shape}
		}
	}
	b.job.Tally = allocation.TallyOf(b.job.Workers)
	c.nextShapes(j, b, seen)
}

// nextShapes finds what further pods of a job will ask for, by samples of each kind.
func (c *Cluster) nextShapes(j *job, b *built, seen [2]sample) {
	why := j.unmodelled
	for kind := range seen {
		seen[kind] = c.learned(j, kind, seen[kind], why)
	}
	b.job.Gang = c.nextShape(&j.next[0], j.gang, seen[0], seen[1], why).id
	b.job.Growth = c.nextShape(&j.next[1], j.growth, seen[1], seen[0], why).id
}

// asLarge says whether the volume for snapshots of a pod is that of those which would be made now. Another one says nothing
// of what they request. Operators that did not write it down made all of an attempt alike.
func asLarge(object, template *corev1.Pod) bool {
	size, written := object.Annotations[v1alpha1.AnnotationMemory]
	return !written || size == template.Annotations[v1alpha1.AnnotationMemory]
}

// sample is a pod of a job as the API server made it, and its shape.
type sample struct {
	pod   *corev1.Pod
	shape *shape
}

// keptSample is a sample, and the pod of which it was made.
type keptSample struct {
	sample
	template *corev1.Pod
}

// learned is what is known of the next pods of one kind: by one that is there, by the last that was, or by what the API server
// has said.
func (c *Cluster) learned(j *job, kind int, seen sample, why string) sample {
	if seen.shape != nil {
		j.kept[kind] = keptSample{seen, j.gang}
		return seen
	}
	known := &j.kept[kind].sample
	if known.pod == nil || j.kept[kind].template != j.gang {
		if kind != index(false) || j.facts.Sample == nil || !j.wasAnswered() || !asLarge(j.facts.Sample, j.gang) {
			return sample{}
		}
		if known = &j.asked; known.pod != j.facts.Sample {
			*known = sample{pod: j.facts.Sample}
		}
	}
	if known.shape == nil || known.shape.dropped {
		known.shape = c.shapeOf(known.pod, why)
	}
	return *known
}

// next is the shape of further pods of one kind, and what it was found from.
type next struct {
	template *corev1.Pod
	cousin   *shape
	class    string
	shape    *shape
}

// nextShape is the shape of further pods of a template, as the scheduler will see them: what admission has done
// to one pod of a job (the overhead of its runtime, defaults of its namespace, tolerations) it does to the next,
// and to those of the other kind.
func (c *Cluster) nextShape(known *next, template *corev1.Pod, seen, cousin sample, why string) *shape {
	if seen.shape != nil {
		return seen.shape
	}
	class := template.Spec.PriorityClassName
	if standard := c.globalDefault(); class == "" && standard != nil {
		class = standard.Name
	}
	if k := *known; k.shape != nil && !k.shape.dropped && k.template == template && k.cousin == cousin.shape && k.class == class {
		return k.shape
	}
	one := *template
	if cousin.pod != nil {
		one = *cousin.pod
	}
	one.Spec.PriorityClassName = class
	*known = next{template: template, cousin: cousin.shape, class: class, shape: c.shapeOf(&one, why)}
	return known.shape
}

// ranking is how the rank of a pod in the world is found, and whether it is a member. Before this leader has heard of the
// world its record tells.
func (j *job) ranking() func(*corev1.Pod) (int32, bool) {
	if j.reported && !j.facts.Unheard {
		return func(object *corev1.Pod) (int32, bool) {
			rank, member := j.facts.Ranks[object.UID]
			return rank, member
		}
	}
	ranks, attempt := record.Ranks(j.object)
	return func(object *corev1.Pod) (int32, bool) {
		rank, member := ranks[ordinal(object.Name)]
		return rank, member && object.Labels[v1alpha1.LabelAttempt] == strconv.Itoa(int(attempt))
	}
}

// pinnedTwice says whether Pin was used on a pod whose template names a node already.
func pinnedTwice(object *corev1.Pod) bool {
	return Pinned(object) != "" && Pinned(unpinned(object)) != ""
}

func index(second bool) int {
	if second {
		return 1
	}
	return 0
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
