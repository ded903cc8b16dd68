package controller

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// halfStarted is a gang of two that was told to have no worker running, and of which one runs by now.
func halfStarted() *State {
	job := jobWith(scheduled)
	starting := podOf(job, 1, 0, onNode("n1"))
	state := stateOf(job, starting, podOf(job, 1, 1, onNode("n1")))
	state.Now = start.Add(time.Second)
	state.World = worldOf(0)
	state.Job.Status = NewPlan(state, settings).Status
	trainerRuns(starting)
	state.Memory.Own.WrittenAt = state.Now
	return state
}

func TestADetailAloneWaitsForAMoment(t *testing.T) {
	state := halfStarted()
	plan := NewPlan(state, settings)
	if !equality.Semantic.DeepEqual(plan.Status, state.Job.Status) {
		t.Errorf("status is written for one pod that runs: %s", plan.Status.Workers.Summary)
	}
	if plan.After <= 0 || plan.After > detailsRest {
		t.Fatalf("looks after %s", plan.After)
	}
	state.Now = state.Now.Add(plan.After)
	if got := NewPlan(state, settings).Status.Workers.Summary; got != "1/2-4" {
		t.Errorf("workers are %s when the rest is over", got)
	}
	// A clock that was set back holds nothing up.
	state.Memory.Own.WrittenAt = state.Now.Add(time.Hour)
	if got := NewPlan(state, settings).Status.Workers.Summary; got != "1/2-4" {
		t.Errorf("workers are %s after the clock was set back", got)
	}
}

func TestADetailComesWithWhatMatters(t *testing.T) {
	state := halfStarted()
	state.Pods[1].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
	plan := NewPlan(state, settings)
	if plan.Status.State != v1alpha1.ReasonWaitingForPods || plan.Status.Workers.Summary != "1/2-4" {
		t.Errorf("state is %s with %s workers", plan.Status.State, plan.Status.Workers.Summary)
	}
	for _, condition := range plan.Status.Conditions {
		if condition.Type == v1alpha1.ConditionTraining && !strings.Contains(condition.Message, "no such image") {
			t.Errorf("the condition says %q", condition.Message)
		}
	}
}

func TestWhatAJobWaitsForIsADetailWhileItKeepsItsPlace(t *testing.T) {
	job := jobWith()
	state := stateOf(job)
	look := func(at time.Time, why string, place int32) string {
		state.Now = at
		state.Grant = fleet.Grant{Known: true, Why: why, Queue: fleet.Queue{Position: place}}
		plan := NewPlan(state, settings)
		if !equality.Semantic.DeepEqual(plan.Status, job.Status) {
			job.Status, state.Memory.Own.WrittenAt = plan.Status, at
		}
		return job.Status.Queue.WaitsFor
	}
	for _, step := range []struct {
		after time.Duration
		why   string
		place int32
		want  string
	}{
		{0, "0 are free", 2, "0 are free"}, {100 * time.Millisecond, "1 is free", 2, "0 are free"},
		{200 * time.Millisecond, "2 are free", 1, "2 are free"}, {300 * time.Millisecond, "3 are free", 1, "2 are free"},
		{1300 * time.Millisecond, "3 are free", 1, "3 are free"},
	} {
		if got := look(start.Add(step.after), step.why, step.place); got != step.want {
			t.Errorf("after %s it waits since %q, want %q", step.after, got, step.want)
		}
	}
}

// A gang is told of with the write that makes its attempt durable: the making of its pods needs none. A job that
// was refused stays so until there are pods.
func TestTheMakingOfAGangIsNoWriteOfItsOwn(t *testing.T) {
	job := jobWith()
	state := stateOf(job)
	state.Grant = fleet.Grant{Known: true, Start: true, Places: []fleet.Place{{Node: "n1", Own: true}, {Node: "n1", Own: true}}}
	job.Status = NewPlan(state, settings).Status
	if !isTrue(job.Status.Conditions, v1alpha1.ConditionAdmitted) || value(job.Status.Attempt) != 1 {
		t.Fatalf("%+v", job.Status)
	}
	state.GroupExists = false
	plan := NewPlan(state, settings)
	if len(plan.Actions.Create) != 2 || !equality.Semantic.DeepEqual(plan.Status, job.Status) {
		t.Errorf("%d pods are made, with a write: %+v", len(plan.Actions.Create), plan.Status.Conditions)
	}
	if got := nextLook(state, &plan); got <= 0 || got > cachePatience {
		t.Errorf("looks after %s, should the pods' events not come", got)
	}
}
