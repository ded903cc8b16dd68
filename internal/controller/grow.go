package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/gang"
)

// grow makes the pods that were planned beyond the gang, and the batch of a refill. A refusal is a
// reason to wait, never one to let go of workers that train.
func (r *Reconciler) grow(ctx context.Context, state *State, actions *Actions) error {
	if len(actions.Grow) == 0 && actions.RefillGroup == nil {
		return nil
	}
	if err := r.ensureConfigMap(ctx, state.Job); err != nil {
		return err
	}
	pods := actions.Grow
	if actions.RefillGroup != nil {
		pods = actions.Refill
		if err := r.Gang.Ensure(ctx, *actions.RefillGroup); err != nil {
			return r.growthRefused(state, "the PodGroup of a refill", err)
		}
	}
	for _, pod := range pods {
		if actions.RefillGroup != nil {
			r.Gang.Decorate(pod, *actions.RefillGroup)
		}
		// A name is used once, whatever comes of it.
		ordinal := podOrdinal(pod)
		r.memory.update(state.Job.UID, func(m *Memory) { m.Elastic.use(ordinal) })
		if err := r.Client.Create(ctx, pod); err != nil {
			r.memory.update(state.Job.UID, func(m *Memory) { m.Elastic.Reserved = nil })
			return r.growthRefused(state, "pod "+pod.Name, err)
		}
	}
	return nil
}

// use drops an ordinal, and those before it, from what is reserved.
func (m *ElasticMemory) use(ordinal int32) {
	for len(m.Reserved) > 0 && m.Reserved[0] <= ordinal {
		m.Reserved = m.Reserved[1:]
	}
}

// growthRefused turns the API server's verdict on a pod into a pause of growth. A passing fault comes
// back as an error.
func (r *Reconciler) growthRefused(state *State, what string, err error) error {
	message := ""
	refused := (*errRefused)(nil)
	switch {
	case errors.Is(err, gang.ErrNotInstalled):
		message = r.Gang.Install()
	case apierrors.IsAlreadyExists(err):
		message = fmt.Sprintf("%s is there already and does not belong to this job", what)
	case errors.As(refusal(what, err), &refused):
		message = refused.message
	default:
		return refusal(what, err)
	}
	var growth GrowthBackOff
	r.memory.update(state.Job.UID, func(m *Memory) {
		m.Elastic.Growth = m.Elastic.Growth.failed(state.Now, state.Nodes.digest(), message, m.Elastic.Growth.Blamed)
		m.Elastic.Growth.Crashed = true
		growth = m.Elastic.Growth
	})
	r.tell(state.Job, Note{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventGrowthWithdrawn, Message: growth.told()})
	return nil
}
