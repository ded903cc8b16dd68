package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

const (
	notForRoom = "0/9 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules, 8 node(s) didn't match Pod's node affinity/selector. preemption: x."
	forRoom    = "0/9 nodes are available: 1 Insufficient example.com/gpu, 8 node(s) didn't match Pod's node affinity/selector. preemption: x."
)

// refusedOnNode has the scheduler refuse a pod that may run on one node only; an empty name leaves it the choice.
func refusedOnNode(node, says string) podChange {
	return func(pod *corev1.Pod) {
		pin(pod, node)
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: says}}
	}
}

// A newcomer is not waited for where the scheduler says that more room would not help it.
func TestANewcomerThatIsNotRefusedForRoomIsWithdrawnSoon(t *testing.T) {
	for _, c := range []struct {
		name, node, says string
		after            time.Duration
		why              string
	}{
		{"another pod keeps it off the node", "n1", notForRoom, refusedAfter, "digits-1-2 cannot run on node n1: 0/9 nodes are available: 1 node(s) didn't satisfy"},
		{"the room is taken", "n1", forRoom, 30 * time.Second, "digits-1-2 has no node after spec.growth.stabilization (30s)"},
		{"the scheduler chooses", "", notForRoom, 30 * time.Second, "digits-1-2 has no node after spec.growth.stabilization (30s)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := trains(2)
			state := elasticState(job, crewOf(job)...)
			state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
			growthPod(state, 2, refusedOnNode(c.node, c.says))
			state.Now = now.Add(c.after - time.Second)
			if plan := look(state); plan.After > time.Second || len(plan.Status.AvoidedNodes) > 0 {
				t.Fatalf("a second before it looks again after %s, avoids %v", plan.After, avoided(plan))
			}
			state.Now = now.Add(c.after)
			plan := look(state)
			expectNote(t, plan, v1alpha1.EventGrowthWithdrawn, c.why)
			if got := strings.Join(avoided(plan), ""); got != c.node {
				t.Errorf("avoids %q", got)
			}
		})
	}
}

// A gang is let go, and tried elsewhere, as soon.
func TestAGangThatIsNotRefusedForRoomIsLetGoSoon(t *testing.T) {
	const group = "optimistic rejection in PostFilter"
	for _, c := range []struct {
		name  string
		pods  []podChange
		soon  bool
		avoid []string
	}{
		{"one of it", []podChange{refusedOnNode("n1", notForRoom), refusedOnNode("n2", group)}, true, []string{"n1"}},
		{"all of it", []podChange{refusedOnNode("n1", notForRoom), refusedOnNode("n1", notForRoom)}, true, []string{"n1"}},
		{"for room", []podChange{refusedOnNode("n1", forRoom), refusedOnNode("n2", group)}, false, []string{"n1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := jobWith(running)
			var pods []*corev1.Pod
			for i, change := range c.pods {
				pods = append(pods, podOf(job, 1, int32(i), change))
			}
			state := stateOf(job, pods...)
			state.World = worldOf(0)
			state.Now = start.Add(refusedAfter - time.Second)
			expectTarget(t, look(state), 2)
			state.Now = start.Add(refusedAfter)
			plan := look(state)
			if c.soon {
				expectTarget(t, plan, 0)
				expectNote(t, plan, "GangUnplaced", "the scheduler does not place digits-1-0 on node n1, and that is not for room: 0/9 nodes")
			} else {
				expectTarget(t, plan, 2)
				state.Now = start.Add(time.Minute)
				plan = look(state)
				expectTarget(t, plan, 0)
			}
			if got := avoided(plan); !slices.Equal(got, c.avoid) {
				t.Errorf("avoids %v, want %v", got, c.avoid)
			}
		})
	}
}

// A gang that only the scheduler can place has others wait for their turn. How long, an administrator may bound.
func TestTheOperatorBoundsAnAttempt(t *testing.T) {
	free := func(*corev1.Pod) {}
	bound := func(pod *corev1.Pod) { pod.Spec.NodeName = "n1" }
	for _, c := range []struct {
		name  string
		bound time.Duration
		pod   podChange
		after time.Duration
		says  string
	}{
		{"it has no node", 2 * time.Minute, free, 2 * time.Minute, "did not start within the operator's fleet.attemptTimeout (2m0s)"},
		{"its job allows less", time.Hour, free, 10 * time.Minute, "did not start within spec.gang.startTimeout (10m0s)"},
		{"no bound", 0, free, 10 * time.Minute, "did not start within spec.gang.startTimeout (10m0s)"},
		{"it has nodes", 2 * time.Minute, bound, 10 * time.Minute, "did not start within spec.gang.startTimeout (10m0s)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := jobWith(running)
			state := stateOf(job, podOf(job, 1, 0, c.pod), podOf(job, 1, 1))
			state.World, state.AttemptTimeout = worldOf(0), c.bound
			state.Now = start.Add(c.after - time.Second)
			expectTarget(t, look(state), 2)
			state.Now = start.Add(c.after)
			plan := look(state)
			expectTarget(t, plan, 0)
			expectNote(t, plan, v1alpha1.EventStartTimeout, c.says)
		})
	}
}
