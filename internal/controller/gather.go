package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// errLags means that the cache has yet to show pods that were made: one that is planned on without them would
// be asked for again, and asking the API server instead costs it a look at all pods of the namespace.
var errLags = errors.New("the cache lags behind what was made")

// gather reads everything that a decision about the job may look at. Errors: errLags.
func (r *Reconciler) gather(ctx context.Context, job *v1alpha1.TrainingJob) (*State, error) {
	state := &State{
		Now:         r.Now(),
		Job:         job,
		GroupExists: true,
		World:       r.observe(job),
		DrainTaints: r.DrainTaints,
		RackLabel:   r.RackLabel,
		UploadRate:  r.UploadRate,
		Grant:       r.Fleet.Grant(job.UID),
		Training:    r.memory.training(),

		ReclaimTimeout: r.ReclaimTimeout,
		AttemptTimeout: r.AttemptTimeout,
		AsksFirst:      r.AsksFirst,
	}
	r.memory.update(job.UID, func(m *Memory) {
		if m.Since.IsZero() {
			m.Since = state.Now
		}
		m.Vanished = state.missing(m.Vanished)
		state.Memory = *m
	})
	if answer := r.holdsOn(job, state.Memory.Answer); answer.Generation != state.Memory.Answer.Generation {
		state.Memory.Answer = answer
		r.memory.update(job.UID, func(m *Memory) { m.Answer = answer })
	}
	var err error
	if err = r.gatherPods(ctx, r.Client, state, cached(job)...); err != nil {
		return nil, err
	}
	r.memory.update(job.UID, func(m *Memory) {
		if !m.Accounted {
			m.Accounted, m.Vanished = true, append(state.unaccounted(), m.Vanished...)
		}
		state.Memory.Vanished = m.Vanished
	})
	r.memory.update(job.UID, func(m *Memory) {
		m.Own.shown(state.Pods, state.Now)
		state.Memory.Own = m.Own
	})
	if len(state.Memory.Own.Made) > 0 {
		return nil, errLags
	}
	if err := r.gatherGroup(ctx, state); err != nil {
		return nil, err
	}
	left := state.Memory.Own.showMarks(state.Pods)
	r.memory.update(job.UID, func(m *Memory) { m.Own.Marks = left })
	if err := r.gatherBounds(ctx, state); err != nil {
		return nil, err
	}
	if err := r.gatherNodes(ctx, state); err != nil {
		return nil, err
	}
	state.Placement = r.Gang.Why(state.gang())
	return state, nil
}

// gatherBounds looks at what the namespace allows.
func (r *Reconciler) gatherBounds(ctx context.Context, state *State) error {
	namespace, anew := client.InNamespace(state.Job.Namespace), state.mayBeginAnew()
	if state.target() == 0 || anew {
		var quotas corev1.ResourceQuotaList
		if err := r.Client.List(ctx, &quotas, namespace); err != nil {
			return fmt.Errorf("list ResourceQuotas of namespace %s: %w", state.Job.Namespace, err)
		}
		state.Quotas = quotas.Items
	}
	if anew {
		var limits corev1.LimitRangeList
		if err := r.Client.List(ctx, &limits, namespace); err != nil {
			return fmt.Errorf("list LimitRanges of namespace %s: %w", state.Job.Namespace, err)
		}
		state.Limits = limits.Items
	}
	return nil
}

// gatherGroup makes sure of what is missing. That a pod of the current attempt is not there the cache cannot tell of one that
// another leader has made, or that was made by a call without an answer: before the first time that one is taken for
// missing they are all read from the API server, once for each attempt. From then on the cache has shown every pod, or this
// process knows that it has made it (OwnMemory), and what the cache shows no more is gone.
func (r *Reconciler) gatherGroup(ctx context.Context, state *State) error {
	if state.finished() || state.suspended() {
		state.GroupExists = state.Memory.Own.Cleared != state.attempt()
		return nil
	}
	if state.target() > 0 && int32(len(state.unharmed())) >= state.target() {
		return nil
	}
	if state.target() > 0 && state.Memory.Own.justDecided(state.attempt(), state.Now) {
		state.GroupExists = false
		return nil
	}
	// A new attempt begins only when nobody is left of the last one, which the cache may not know yet.
	starts := state.Grant.Known && state.Grant.Start
	if state.target() > 0 || starts && state.attempt() > 0 {
		if err := r.makeSure(ctx, state); err != nil {
			return err
		}
	}
	if cleared := state.attempt() == 0 || state.Memory.Own.Cleared == state.attempt(); state.target() == 0 && cleared && !starts {
		state.GroupExists = false // who waits asks nothing of the API server
		return nil
	}
	exists, err := r.Gang.Exists(ctx, state.Job, state.groupKey())
	if errors.Is(err, gang.ErrNotInstalled) {
		state.GroupKindMissing = r.Gang.Install()
		state.GroupExists = false
		return nil
	}
	state.GroupExists = exists
	return err
}

// makeSure reads the pods from the API server, unless the cache is known to have shown those of the attempt.
func (r *Reconciler) makeSure(ctx context.Context, state *State) error {
	if state.Memory.Own.Sure == state.attempt() {
		return nil
	}
	shown := map[types.UID]bool{}
	for _, pod := range state.Pods {
		shown[pod.UID] = true
	}
	if err := r.gatherPods(ctx, r.Live, state); err != nil {
		return err
	}
	hidden := slices.DeleteFunc(slices.Clone(state.Pods), func(pod *corev1.Pod) bool { return shown[pod.UID] })
	r.memory.update(state.Job.UID, func(m *Memory) {
		m.Own.Sure = state.attempt()
		m.Own.made(hidden, state.Now)
	})
	return nil
}

// gatherPods lists the pods that the job controls, by name, and those that an earlier job of its name has left.
func (r *Reconciler) gatherPods(ctx context.Context, reader client.Reader, state *State, how ...client.ListOption) error {
	job := state.Job
	var list corev1.PodList
	how = append(how, client.InNamespace(job.Namespace), client.MatchingLabels{v1alpha1.LabelJob: job.Name})
	if err := reader.List(ctx, &list, how...); err != nil {
		return fmt.Errorf("list pods of job %s/%s: %w", job.Namespace, job.Name, err)
	}
	state.Pods, state.Earlier = nil, nil
	for i := range list.Items {
		pod := &list.Items[i]
		owner := metav1.GetControllerOfNoCopy(pod)
		switch {
		case owner == nil:
		case owner.UID == job.UID:
			state.Pods = append(state.Pods, pod)
		case owner.Kind == "TrainingJob" && owner.Name == job.Name:
			state.Earlier = append(state.Earlier, pod.Name)
		}
	}
	slices.SortFunc(state.Pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(state.Earlier)
	return nil
}

// jobIndex is how the cache finds the workers of a job among all pods of a namespace.
const jobIndex = "job"

// cached is how the pods of a job are read from the cache: by its index, and without a copy of all that they point to. What
// is pointed to is not to be changed.
func cached(job *v1alpha1.TrainingJob) []client.ListOption {
	return []client.ListOption{client.MatchingFields{jobIndex: job.Name}, client.UnsafeDisableDeepCopy}
}

// indexPods has the cache keep the index.
func indexPods(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &corev1.Pod{}, jobIndex, func(pod client.Object) []string {
		if job := pod.GetLabels()[v1alpha1.LabelJob]; job != "" {
			return []string{job}
		}
		return nil
	})
	return wrapf(err, "index pods by their job")
}

// observe is what the rendezvous has seen of the job; nothing, if that was another of its name.
func (r *Reconciler) observe(job *v1alpha1.TrainingJob) rendezvous.Observation {
	seen := r.Rendezvous.Observe(jobKey(job))
	if seen.JobUID != "" && seen.JobUID != string(job.UID) {
		return rendezvous.Observation{}
	}
	return seen
}
