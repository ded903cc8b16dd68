package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// writes plans for a job as it stands, and says whether that changes its status, which is then the job's.
func writes(state *State) bool {
	plan := NewPlan(state, settings)
	changed := !equality.Semantic.DeepEqual(&state.Job.Status, &plan.Status)
	state.Job.Status = plan.Status
	return changed
}

// What a gang that starts costs of writes: one for its attempt, one for its nodes. What the rendezvous says of a gang none
// of whose agents is there yet, everybody knew before.
func TestAGangThatStartsIsWrittenTwice(t *testing.T) {
	job := jobWith()
	state := stateOf(job)
	count := 0
	step := func(what string, change func()) {
		change()
		if writes(state) {
			t.Logf("%s: %v", what, meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionTraining).Message)
			count++
		}
	}
	step("the attempt", func() {})
	bound := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns))
	bound.Now = start.Add(time.Second)
	state = bound
	step("the nodes", func() {})
	step("nothing new", func() {})
	step("the rendezvous has heard of it", func() { state.World = worldOf(0) })
	if count != 2 {
		t.Errorf("%d writes of the status, want 2", count)
	}
	expectCondition(t, NewPlan(state, settings), v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting, "waiting for digits-1-0, digits-1-1 to start")
}

// A leader that has yet to hear of agents blames none: those that run for long may be with the leader before.
func TestANewLeaderSaysOfNoAgentThatItIsNotThere(t *testing.T) {
	job := jobWith(running)
	state := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns))
	expectCondition(t, NewPlan(state, settings), v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting, "the workers are starting")

	scheduled(job)
	meta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionTraining, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonStarting, Message: "all workers are there, the world is being formed"})
	expectCondition(t, NewPlan(state, settings), v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting, "all workers are there")
	// The leader before had a world made durable, and did not come to write that all have a node.
	job = jobWith(running)
	state = stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, func(pod *corev1.Pod) { pod.Spec.NodeName = "n1" }))
	meta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionTraining, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonStarting, Message: "the gang was just created"})
	job.Status.World = &v1alpha1.WorldStatus{Round: ptr.To[int64](1), Attempt: ptr.To[int32](1)}
	expectCondition(t, NewPlan(state, settings), v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting, "the gang was just created")
}
