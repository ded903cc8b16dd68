package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/gang"
)

// What is made are gangs, refills and growth. All are made the same way (makePods); they differ in what the API server's
// verdict means. It ends an attempt that has nothing yet (createGang), and has one that trains wait (grow).

// growAgain is the pause of growth after a passing fault of the API server; it doubles with each in a row,
// up to lastGrowthPause.
const growAgain = time.Second

// After a passing fault a pod of a gang is tried makeAgain times more; the pause doubles from firstMakeAgain, which is 3.75 s in all.
// Answers may take long as well: none is tried again once makeFor has passed.
const (
	makeAgain      = 4
	firstMakeAgain = 250 * time.Millisecond
	makeFor        = 15 * time.Second
)

// makePods makes pods that were taken from the planner, each by one call of do, after their group where they have one. What
// was not made is given back. Errors: *notMade for a group, and whatever do returns.
func (r *Reconciler) makePods(ctx context.Context, state *State, group *gang.Group, pods []*corev1.Pod, do func(pod *corev1.Pod) error) error {
	defer r.Fleet.Made(pods)
	if group != nil {
		if err := r.Gang.Ensure(ctx, *group); err != nil {
			r.Fleet.Drop(notYetMade(pods))
			return &notMade{group: true, err: err}
		}
	}
	err := inBatches(len(pods), func(i int) error {
		if group != nil {
			r.Gang.Decorate(pods[i], *group)
		}
		return do(pods[i])
	})
	r.memory.update(state.Job.UID, func(m *Memory) { m.Own.made(pods, r.Now()) })
	if err != nil {
		r.Fleet.Drop(notYetMade(pods))
		r.memory.update(state.Job.UID, func(m *Memory) { m.Own.doubt() }) // a call without an answer may have made one
	}
	return err
}

// insist does what may fail for a passing fault of the API server until it is done or refused, or has been tried some times: one
// answer that does not come is not to cost a gang all that was made of it.
func insist(ctx context.Context, do func() error) error {
	pause, began := firstMakeAgain, time.Now()
	for times := makeAgain; ; times-- {
		err := do()
		if failed := (*notMade)(nil); times == 0 || time.Since(began) >= makeFor || !errors.As(err, &failed) || isRefusal(failed.err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// notMade is a pod, or the group of a batch, that the API server did not make.
type notMade struct {
	group bool
	pod   string
	err   error
}

func (e *notMade) Error() string { return fmt.Sprintf("create %s: %v", e.what("a PodGroup"), e.err) }

func (e *notMade) Unwrap() error { return e.err }

// what names it; group is what its group is called.
func (e *notMade) what(group string) string {
	if e.group {
		return group
	}
	return "pod " + e.pod
}

// notYetMade are the pods that the API server has not answered for.
func notYetMade(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return pod.UID != "" })
}

// createGang makes the pods of a gang with their group. A refusal stops it, and ends the attempt (*errRefused); what was made
// by then goes with its release.
func (r *Reconciler) createGang(ctx context.Context, state *State, actions *Actions) error {
	if !r.Fleet.Take(state.Job.UID, actions.Create) {
		return errTaken
	}
	r.memory.update(state.Job.UID, func(m *Memory) { m.Own.Began = state.attempt() })
	err := r.makePods(ctx, state, actions.Group, actions.Create, func(pod *corev1.Pod) error {
		return insist(ctx, func() error {
			err := r.Client.Create(ctx, pod)
			if apierrors.IsAlreadyExists(err) {
				return r.ours(ctx, state.Job, pod)
			}
			if err != nil {
				return &notMade{pod: pod.Name, err: err}
			}
			return nil
		})
	})
	failed := (*notMade)(nil)
	switch {
	case err == nil:
		r.memory.update(state.Job.UID, func(m *Memory) { m.Refusal, m.Own.Faults = nil, 0 })
		return nil
	case !errors.As(err, &failed):
		return err
	case errors.Is(failed.err, gang.ErrNotInstalled):
		return &errRefused{reason: v1alpha1.ReasonPodGroupsMissing, message: r.Gang.Install()}
	case errors.Is(failed.err, gang.ErrForeign):
		return &errRefused{reason: v1alpha1.ReasonPodsForbidden, message: failed.err.Error() + "; the next attempt uses another name"}
	}
	if !isRefusal(failed.err) {
		r.memory.update(state.Job.UID, func(m *Memory) { m.Own.Faulty = state.attempt(); m.Own.Faults++ })
	}
	return refusal(failed.what("the gang's PodGroup"), failed.err)
}

// ours accepts a pod that is there already if this job made it: then it was the cache that lagged.
func (r *Reconciler) ours(ctx context.Context, job *v1alpha1.TrainingJob, pod *corev1.Pod) error {
	found := &corev1.Pod{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(pod), found); err != nil {
		return fmt.Errorf("get pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if !metav1.IsControlledBy(found, job) || found.DeletionTimestamp != nil {
		return &errRefused{reason: v1alpha1.ReasonPodsForbidden, message: fmt.Sprintf(
			"a pod named %s is there already and does not belong to this job: delete it; the next attempt uses other names", pod.Name)}
	}
	pod.UID, pod.ResourceVersion, pod.CreationTimestamp = found.UID, found.ResourceVersion, found.CreationTimestamp
	return nil
}

// refusal tells the API server's verdict on an object from a passing fault.
func refusal(what string, err error) error {
	message := fmt.Sprintf("the API server refuses %s: %v", what, err)
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return &errRefused{reason: v1alpha1.ReasonQuotaExceeded, message: message}
	case apierrors.IsForbidden(err):
		return &errRefused{reason: v1alpha1.ReasonPodsForbidden, message: message}
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return &errRefused{reason: v1alpha1.ReasonInvalidTemplate, message: message}
	default:
		return fmt.Errorf("create %s: %w", what, err)
	}
}

// isRefusal says whether an answer is a verdict, which stays the same.
func isRefusal(err error) bool { return errors.As(refusal("", err), new(*errRefused)) }

// grow makes the pods that were planned beyond the gang, and the batch of a refill. It comes when all else is
// done and written, and whatever the API server says to it is a reason to wait, never one to hold up what
// keeps the job running. It says whether all of them were made.
func (r *Reconciler) grow(ctx context.Context, state *State, actions *Actions) bool {
	pods := actions.Grow
	if actions.RefillGroup != nil {
		pods = actions.Refill
	}
	if len(pods) == 0 {
		return true
	}
	if !r.Fleet.Take(state.Job.UID, pods) {
		return false // the planner has thought better of it, and the job is looked at again
	}
	err := r.makePods(ctx, state, actions.RefillGroup, pods, func(pod *corev1.Pod) error {
		// A name is used once, whatever comes of it.
		ordinal := podOrdinal(pod)
		r.memory.update(state.Job.UID, func(m *Memory) { m.Elastic.use(ordinal) })
		if err := r.Client.Create(ctx, pod); err != nil {
			return &notMade{pod: pod.Name, err: err}
		}
		return nil
	})
	failed := (*notMade)(nil)
	if errors.As(err, &failed) {
		if !failed.group {
			r.memory.update(state.Job.UID, func(m *Memory) { m.Elastic.Reserved = nil })
		}
		r.growthRefused(ctx, state, failed.what("the PodGroup of a refill"), failed.err)
		return false
	}
	r.memory.update(state.Job.UID, func(m *Memory) { m.Own.answered(state.Now) })
	return true
}

// use drops an ordinal, and those before it, from what is reserved.
func (m *ElasticMemory) use(ordinal int32) {
	for len(m.Reserved) > 0 && m.Reserved[0] <= ordinal {
		m.Reserved = m.Reserved[1:]
	}
}

// growthRefused turns the API server's verdict on a pod into a pause of growth. The pause after a passing
// fault is short at first, and no verdict on the nodes.
func (r *Reconciler) growthRefused(ctx context.Context, state *State, what string, err error) {
	message, passing := "", false
	refused := (*errRefused)(nil)
	switch {
	case errors.Is(err, gang.ErrNotInstalled):
		message = r.Gang.Install()
	case errors.Is(err, gang.ErrForeign):
		message = err.Error()
	case apierrors.IsAlreadyExists(err):
		message = fmt.Sprintf("%s is there already and does not belong to this job", what)
	case errors.As(refusal(what, err), &refused):
		message = refused.message
	default:
		message, passing = refusal(what, err).Error(), true
		ctrl.LoggerFrom(ctx).Error(err, "a worker could not be added", "what", what)
	}
	var told string
	r.memory.update(state.Job.UID, func(m *Memory) {
		growth := &m.Elastic.Growth
		if passing {
			pause := growAgain << min(m.Own.NotGrown, 16)
			m.Own.NotGrown++
			m.Own.Unanswered = true
			growth.Refused, growth.Why = state.Now.Add(min(pause, lastGrowthPause)), message
		} else {
			*growth = growth.failed(state.Now, message, growth.Blamed)
			growth.Refused = growth.Until
			m.Own.answered(state.Now)
		}
		told = growth.told()
	})
	r.Metrics.growthRefused()
	r.tell(state.Job, Note{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventGrowthWithdrawn, Message: told})
}
