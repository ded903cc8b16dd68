package controller

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

var (
	start    = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	settings = PodSettings{AgentImage: "agent", RendezvousAddress: "rendezvous.test.svc:8443"}
)

// jobWith makes a job of min 2 and max 4 with one container, with the defaults that the API server
// would set.
func jobWith(changes ...func(*v1alpha1.TrainingJob)) *v1alpha1.TrainingJob {
	job := &v1alpha1.TrainingJob{
		ObjectMeta: metav1.ObjectMeta{Name: "digits", Namespace: "team", UID: "job-uid", Generation: 1, ResourceVersion: "1"},
		Spec: v1alpha1.TrainingJobSpec{
			Workers: v1alpha1.WorkersSpec{
				Min: ptr.To[int32](2), Max: ptr.To[int32](4), ProcessesPerWorker: ptr.To[int32](1), Launch: v1alpha1.LaunchPerProcess,
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "main", Image: "digits", Command: []string{"/train"},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}},
				}}}},
			},
			Gang: v1alpha1.GangSpec{Scheduler: v1alpha1.GangSchedulerCoscheduling, SchedulerName: "coscheduling",
				StartTimeout: &metav1.Duration{Duration: 10 * time.Minute}},
			Failure: v1alpha1.FailureSpec{MaxRestarts: ptr.To[int32](2), HeartbeatTimeout: &metav1.Duration{Duration: 5 * time.Second},
				RegroupTimeout: &metav1.Duration{Duration: 2 * time.Minute}, HangTimeout: &metav1.Duration{Duration: 10 * time.Minute}},
			Resize: v1alpha1.ResizeSpec{CheckpointSignal: v1alpha1.DefaultCheckpointSignal},
			Checkpoint: v1alpha1.CheckpointSpec{Memory: "512Mi", MemoryInterval: v1alpha1.MemoryIntervalAuto,
				Timeout: &metav1.Duration{Duration: time.Minute}},
			Growth: v1alpha1.GrowthSpec{Stabilization: &metav1.Duration{Duration: 30 * time.Second}, PriorityClassName: "concertina-growth"},
		},
	}
	for _, change := range changes {
		change(job)
	}
	return job
}

// running is a job whose attempt 1 has been decided on.
func running(job *v1alpha1.TrainingJob) {
	job.Status.Attempt, job.Status.NextOrdinal = ptr.To[int32](1), ptr.To[int32](2)
	job.Status.Workers.Target = ptr.To[int32](2)
	job.Status.StartTime = ptr.To(metav1.NewTime(start))
}

// scheduled is a running job whose gang has its nodes.
func scheduled(job *v1alpha1.TrainingJob) {
	running(job)
	job.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionGangScheduled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonScheduled}}
}

type podChange func(*corev1.Pod)

func podOf(job *v1alpha1.TrainingJob, attempt, ordinal int32, changes ...podChange) *corev1.Pod {
	pod := newPod(job, settings, attempt, ordinal)
	pod.UID = types.UID(fmt.Sprintf("uid-%s", pod.Name))
	pod.CreationTimestamp = metav1.NewTime(start)
	pod.Status.Phase = corev1.PodPending
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// onNode has a pod run on a node, which the operator chose.
func onNode(node string) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		if pinned(pod) == "" {
			pin(pod, node)
		}
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start)})
	}
}

func trainerRuns(pod *corev1.Pod) {
	onNode("n1")(pod)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start)}}}}
}

func exited(code int32, at time.Time, lastLines string) podChange {
	return func(pod *corev1.Pod) {
		onNode("n1")(pod)
		pod.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			pod.Status.Phase = corev1.PodFailed
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: lastLines, FinishedAt: metav1.NewTime(at)}}}}
	}
}

func deletedAt(at time.Time) podChange {
	return func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(at)) }
}

func withCondition(conditionType corev1.PodConditionType, reason, message string) podChange {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: conditionType, Status: corev1.ConditionTrue, Reason: reason, Message: message})
	}
}

func stateOf(job *v1alpha1.TrainingJob, pods ...*corev1.Pod) *State {
	for _, pod := range pods {
		*pod = *slimmed(pod) // decisions have no more than the cache keeps
	}
	state := &State{Now: start.Add(time.Minute), Job: job, Pods: pods, GroupExists: len(pods) > 0}
	state.Grant = fleet.Grant{Known: true, Start: true}
	for range 8 {
		state.Grant.Places = append(state.Grant.Places, fleet.Place{Node: "n1", Own: true})
	}
	return state
}

// slimmed is a pod as the cache keeps it.
func slimmed(pod *corev1.Pod) *corev1.Pod {
	slim, err := SlimPod(pod)
	if err != nil {
		panic(err)
	}
	return slim.(*corev1.Pod)
}

// planOf is the plan for a job whose pods were read whole. It must be the same with pods as the cache keeps them.
func planOf(t interface{ Fatalf(string, ...any) }, state *State) Plan {
	slim := *state
	slim.Pods = nil
	for _, pod := range state.Pods {
		slim.Pods = append(slim.Pods, slimmed(pod))
	}
	plan := NewPlan(state, settings)
	// Pods that were read are compared by who they are, those that are to be made by all that they say.
	read := cmp.FilterValues(func(a, b *corev1.Pod) bool { return a != nil && b != nil && a.UID != "" },
		cmp.Comparer(func(a, b *corev1.Pod) bool { return a.UID == b.UID }))
	if diff := cmp.Diff(plan, NewPlan(&slim, settings), read); diff != "" {
		t.Fatalf("from pods as the cache keeps them another plan follows (-whole +slim):\n%s", diff)
	}
	return plan
}

// worldOf is an observation of attempt 1 with all pods connected members of the round.
func worldOf(round uint64, pods ...*corev1.Pod) rendezvous.Observation {
	world := rendezvous.Observation{Known: true, Attempt: 1, Round: round, Members: map[string]rendezvous.MemberObservation{}}
	for i, pod := range pods {
		world.Members[string(pod.UID)] = rendezvous.MemberObservation{
			Joined: true, Connected: true, InWorld: round > 0, WorkerRank: int32(i), LastSeen: start.Add(time.Minute)}
	}
	return world
}

// giveRoom lets the planner of all jobs have found room for so many more workers than have a node.
func giveRoom(state *State, room int32) {
	p := &planner{State: state}
	p.plan.Elastic, p.plan.Status = state.Memory.Elastic.next(state.attempt()), state.Job.Status
	var bound, own, staying int32
	for _, w := range p.crew(state.gang()) {
		if w.stays() {
			staying++
		}
		if w.stays() && w.bound() && w.stuck == "" {
			bound++
			if !isGrowth(w.pod) {
				own++
			}
		}
	}
	state.Grant = fleet.Grant{Known: true, Start: state.target() == 0 && room >= state.minimum(), Leave: map[types.UID]fleet.Leave{}}
	if state.target() > 0 {
		state.Grant.Count = max(state.target(), state.legal(bound+room), state.minimum())
	}
	if staying >= state.minimum() && p.avoids("n1") {
		state.Grant.Count, room = max(state.legal(staying), state.minimum()), 0 // it has no other node
	}
	if state.target() > 0 {
		room = min(room, max(0, state.Grant.Count-staying)) // it places what is missing
	}
	for i := range room {
		state.Grant.Places = append(state.Grant.Places, fleet.Place{Node: "n1", Own: own+i < state.minimum()})
	}
}
