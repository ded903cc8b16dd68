package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
)

// groupCheck is how often the groups of pods that wait for room are looked for, at least. Without theirs
// they would wait for ever, and nothing tells that somebody has deleted it.
const groupCheck = time.Minute

// deleteGroups removes the groups of refills and then that of the gang, by which the attempt is known
// to have any.
func (r *Reconciler) deleteGroups(ctx context.Context, state *State) error {
	groups, err := r.Gang.List(ctx, state.Job, jobLabels(state.Job, state.attempt()))
	if err != nil {
		return err
	}
	for _, group := range groups {
		if group == state.groupKey() {
			continue
		}
		if err := r.Gang.Delete(ctx, state.Job, group); err != nil {
			return err
		}
	}
	if err := r.Gang.Delete(ctx, state.Job, state.groupKey()); err != nil {
		return err
	}
	r.memory.update(state.Job.UID, func(m *Memory) { m.Own.Cleared = state.attempt() })
	return nil
}

// mendGroups makes the groups again that somebody has deleted while pods wait in them.
func (r *Reconciler) mendGroups(ctx context.Context, state *State) error {
	for _, group := range waitingGroups(state) {
		exists, err := r.Gang.Exists(ctx, state.Job, group.Key)
		if errors.Is(err, gang.ErrNotInstalled) {
			return nil // without the kind nothing can be made, nor waited for
		}
		if err != nil {
			return err
		}
		if exists {
			continue
		}
		err = r.Gang.Ensure(ctx, group)
		switch {
		case errors.Is(err, gang.ErrForeign) && group.Key == state.groupKey():
			return &errRefused{reason: v1alpha1.ReasonPodsForbidden, message: err.Error() + "; the next attempt uses another name"}
		case errors.Is(err, gang.ErrForeign), errors.Is(err, gang.ErrNotInstalled):
			continue // a refill has its own end: spec.failure.regroupTimeout
		case err != nil:
			return err
		}
		r.tell(state.Job, Note{Type: corev1.EventTypeWarning, Reason: "PodGroupRestored",
			Message: fmt.Sprintf("PodGroup %s was deleted while its pods wait for room: it is made again", group.Key.Name)})
	}
	return nil
}

// waitingGroups are the groups of the current attempt in which pods wait for a node.
func waitingGroups(state *State) []gang.Group {
	if state.target() == 0 {
		return nil
	}
	var groups []gang.Group
	seen := map[string]bool{}
	for _, pod := range state.unharmed() {
		name := pod.Labels[schedv1alpha1.PodGroupLabel]
		if name == "" || pod.Spec.NodeName != "" || seen[name] {
			continue
		}
		seen[name] = true
		size := state.minimum()
		if name != state.groupKey().Name {
			first, count, ok := refillOf(pod)
			if !ok || name != refillName(state.Job.Name, state.attempt(), first) {
				continue // no name that we give
			}
			size = count
		}
		groups = append(groups, state.group(name, pod.Spec.SchedulerName, pod, size))
	}
	return groups
}

// batch makes the pods of a batch that is placed together, each where there is a place for it, and its group.
func (p *planner) batch(name string, ordinals []int32, places []fleet.Place) (*gang.Group, []*corev1.Pod) {
	pods := make([]*corev1.Pod, 0, len(ordinals))
	for i, ordinal := range ordinals {
		pod := newPod(p.Job, p.settings, p.attempt(), ordinal)
		pin(pod, places[i].Node)
		p.lookFirst(pod)
		pods = append(pods, pod)
	}
	group := p.group(name, p.Job.Spec.Gang.SchedulerName, pods[0], int32(len(pods)))
	return &group, pods
}

// group is that of so many pods of the current attempt, which are all like one of them.
func (s *State) group(name, scheduler string, like *corev1.Pod, size int32) gang.Group {
	return gang.Group{
		Key:           types.NamespacedName{Namespace: s.Job.Namespace, Name: name},
		Owner:         s.Job,
		Labels:        jobLabels(s.Job, s.attempt()),
		SchedulerName: scheduler,
		MinMember:     size,
		MinResources:  batchResources(like, size),
	}
}

// refillOf reads of which batch a pod is: its first ordinal and its size.
func refillOf(pod *corev1.Pod) (first, size int32, ok bool) {
	from, count, _ := strings.Cut(pod.Annotations[annotationRefill], "-")
	a, errA := strconv.ParseInt(from, 10, 32)
	b, errB := strconv.ParseInt(count, 10, 32)
	return int32(a), int32(b), errA == nil && errB == nil
}

// nextLook is when to look at a job again without being asked; 0 for never.
func nextLook(state *State, plan *Plan) time.Duration {
	if len(plan.Actions.Create) > 0 && (plan.After == 0 || plan.After > cachePatience) {
		return cachePatience // nothing was written that would ask for a look, and the pods' events may lag
	}
	if len(waitingGroups(state)) > 0 && (plan.After == 0 || plan.After > groupCheck) {
		return groupCheck
	}
	return plan.After
}
