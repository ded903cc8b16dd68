package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/gang"
)

// growAgain is the pause of growth after a passing fault of the API server; it doubles with each in a row,
// up to lastGrowthPause.
const growAgain = time.Second

// grow makes the pods that were planned beyond the gang, and the batch of a refill. It comes when all else is
// done and written, and whatever the API server says to it is a reason to wait, never one to hold up what
// keeps the job running. It says whether all of them were made.
func (r *Reconciler) grow(ctx context.Context, state *State, actions *Actions) bool {
	pods := actions.Grow
	if actions.RefillGroup != nil {
		pods = actions.Refill
	}
	if len(pods) > 0 && !r.Fleet.Take(state.Job.UID, pods) {
		return false // the planner has thought better of it, and the job is looked at again
	}
	if actions.RefillGroup != nil {
		if err := r.Gang.Ensure(ctx, *actions.RefillGroup); err != nil {
			r.Fleet.Drop(pods)
			r.growthRefused(ctx, state, "the PodGroup of a refill", err)
			return false
		}
	}
	err := inBatches(len(pods), func(i int) error {
		pod := pods[i]
		if actions.RefillGroup != nil {
			r.Gang.Decorate(pod, *actions.RefillGroup)
		}
		// A name is used once, whatever comes of it.
		ordinal := podOrdinal(pod)
		r.memory.update(state.Job.UID, func(m *Memory) { m.Elastic.use(ordinal) })
		if err := r.Client.Create(ctx, pod); err != nil {
			return &notMade{pod.Name, err}
		}
		return nil
	})
	if len(pods) > 0 {
		r.memory.update(state.Job.UID, func(m *Memory) { m.Own.made(pods, r.Now()) })
	}
	failed := (*notMade)(nil)
	switch {
	case errors.As(err, &failed):
		r.memory.update(state.Job.UID, func(m *Memory) { m.Elastic.Reserved = nil })
		r.Fleet.Drop(notYetMade(pods))
		r.growthRefused(ctx, state, "pod "+failed.pod, failed.err)
		return false
	case len(pods) > 0:
		r.memory.update(state.Job.UID, func(m *Memory) { m.Own.NotGrown = 0 })
	}
	return true
}

// notMade is a pod that the API server did not make.
type notMade struct {
	pod string
	err error
}

func (e *notMade) Error() string { return fmt.Sprintf("create pod %s: %v", e.pod, e.err) }

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
			growth.Refused, growth.Why = state.Now.Add(min(pause, lastGrowthPause)), message
		} else {
			*growth = growth.failed(state.Now, message, growth.Blamed)
			growth.Refused = growth.Until
		}
		told = growth.told()
	})
	r.tell(state.Job, Note{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventGrowthWithdrawn, Message: told})
}
