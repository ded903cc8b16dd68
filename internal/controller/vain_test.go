package controller

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// What a job waits for is not what it does: an attempt that came to nothing before any program ran takes nothing of its
// spec.activeDeadline, however often that was.
func TestADeadlineBoundsNoWaiting(t *testing.T) {
	made := func(pod *corev1.Pod) { pin(pod, "n1") }
	refused := &Refusal{Reason: v1alpha1.ReasonPodsForbidden, Message: "no such ServiceAccount", Attempt: 1, Count: 1, Retry: start.Add(time.Hour)}
	world := &v1alpha1.WorldStatus{Round: ptr.To[int64](1), Attempt: ptr.To[int32](1), StartedAt: ptr.To(metav1.NewTime(start.Add(time.Second)))}
	for _, c := range []struct {
		name   string
		pod    podChange
		change func(*State)
		runs   bool
	}{
		{name: "the scheduler places it not", pod: made},
		{name: "the API server refuses it", pod: made, change: func(s *State) { s.Memory.Refusal = refused }},
		{name: "its images are not there in time", pod: onNode("n1"), change: func(s *State) { s.World = worldOf(0, s.Pods...) }},
		{name: "its programs ran, and found no world", pod: trainerRuns, change: func(s *State) { s.World = worldOf(0, s.Pods...) }, runs: true},
		{name: "it had a world since it started", pod: made, runs: true, change: func(s *State) {
			s.Job.Status.World, s.Job.Status.Attempt = world, ptr.To[int32](2)
			for _, pod := range s.Pods {
				pod.Labels[v1alpha1.LabelAttempt] = "2"
			}
		}},
		{name: "it had a world before it was suspended", pod: made, change: func(s *State) {
			s.Job.Status.World, s.Job.Status.Attempt = world.DeepCopy(), ptr.To[int32](2)
			s.Job.Status.World.StartedAt = ptr.To(metav1.NewTime(start.Add(-time.Hour)))
			for _, pod := range s.Pods {
				pod.Labels[v1alpha1.LabelAttempt] = "2"
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, retries := range []int32{0, 3} {
				job := jobWith(running, func(j *v1alpha1.TrainingJob) {
					j.Spec.ActiveDeadline, j.Status.Retries = &metav1.Duration{Duration: time.Hour}, &retries
				})
				state := stateOf(job, podOf(job, 1, 0, c.pod), podOf(job, 1, 1, c.pod))
				if c.change != nil {
					c.change(state)
				}
				state.Now = start.Add(11 * time.Minute)
				plan := look(state)
				expectTarget(t, plan, 0)
				if runs := plan.Status.StartTime != nil; runs != c.runs {
					t.Errorf("after %d retries its activeDeadline runs: %v, want %v; %v", retries, runs, c.runs, plan.Notes)
				}
			}
		})
	}
}

// What a job has waited counts until it trains, whatever comes of its attempts meanwhile.
func TestAJobWaitsOnUntilItTrains(t *testing.T) {
	since := metav1.NewTime(start.Add(-9 * time.Minute))
	job := jobWith(func(j *v1alpha1.TrainingJob) {
		j.Status.Queue = v1alpha1.QueueStatus{Since: &since, Position: ptr.To[int32](1), WaitsFor: "room"}
	})
	state := stateOf(job)
	plan := look(state)
	expectTarget(t, plan, 2)
	for range 2 { // the scheduler does not place its gang, and it queues again
		made := func(pod *corev1.Pod) { pin(pod, "n1") }
		state = stateOf(job, podOf(job, 1, 0, made), podOf(job, 1, 1, made))
		state.Now = start.Add(11 * time.Minute)
		expectTarget(t, look(state), 0)
		state = stateOf(job)
		state.Now, state.Grant = start.Add(time.Hour), fleet.Grant{Known: true, Why: "waits for 2 places", Queue: fleet.Queue{Position: 3}}
		if plan = look(state); !plan.Status.Queue.Since.Equal(&since) || plan.Status.Queue.WaitsFor != "waits for 2 places" {
			t.Fatalf("queue is %+v, %v", plan.Status.Queue, plan.Notes)
		}
		job.Status.Attempt, job.Status.Workers.Target = ptr.To[int32](1), ptr.To[int32](2)
	}
	pods := []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns)}
	state = stateOf(job, pods...)
	state.World = worldOf(1, pods...)
	plan = look(state)
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed)
	if plan.Status.Queue != (v1alpha1.QueueStatus{}) {
		t.Errorf("it trains, and its queue is %+v", plan.Status.Queue)
	}
}

// A node on which a gang does not start is not chosen again while another will do, and is avoided for longer than the job waits
// for its next try.
func TestAGangThatDoesNotStartAvoidsTheNode(t *testing.T) {
	to := func(node string, changes ...podChange) podChange {
		return func(pod *corev1.Pod) {
			pin(pod, node)
			for _, change := range changes {
				change(pod)
			}
		}
	}
	refused := func(says string) podChange {
		return func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: says}}
		}
	}
	here := func(pod *corev1.Pod) { onNode(pinned(pod))(pod) }
	stuck := func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no route to host"}}}}
	}
	affinity := refused("0/9 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules, 8 node(s) didn't match Pod's node affinity")
	group, room := refused("optimistic rejection in PostFilter"), refused("no room")
	for _, c := range []struct {
		name string
		pods []podChange
		want []string
	}{
		{"all are refused on one node", []podChange{to("n1", affinity), to("n1", affinity)}, []string{"n1"}},
		{"one is refused, the others with it", []podChange{to("n1", affinity), to("n2", group), to("n3", group), to("n4", group), to("n5", group)}, []string{"n1"}},
		{"nobody says which", []podChange{to("n1", room), to("n2", room)}, []string{"n1", "n2"}},
		{"nobody says which of many", []podChange{to("n1", room), to("n2", room), to("n3", room), to("n4", room)}, nil},
		{"no scheduler", []podChange{to("n1"), to("n2")}, nil},
		{"an image is not there", []podChange{to("n1", here, stuck), to("n2", here)}, []string{"n1"}},
		{"an image is nowhere", []podChange{to("n1", here, stuck), to("n2", here, stuck), to("n3", here, stuck), to("n4", here, stuck)}, nil},
		{"one is not heard of", []podChange{to("n1", trainerRuns), to("n2", here)}, []string{"n2"}},
		{"the scheduler chose", []podChange{func(pod *corev1.Pod) { pod.Spec.NodeName = "n1"; stuck(pod) }, to("n2", here)}, []string{"n2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := jobWith(running)
			var pods []*corev1.Pod
			for i, change := range c.pods {
				pods = append(pods, podOf(job, 1, int32(i), change))
			}
			state := stateOf(job, pods...)
			state.World = worldOf(0, pods...)
			for _, pod := range pods {
				member := state.World.Members[string(pod.UID)]
				member.Joined = trainerRunning(pod, &job.Spec.Workers)
				state.World.Members[string(pod.UID)] = member
			}
			state.Now = start.Add(time.Hour)
			plan := look(state)
			expectTarget(t, plan, 0)
			if got := avoided(plan); !slices.Equal(got, c.want) {
				t.Fatalf("avoids %v, want %v; %v", got, c.want, plan.Notes)
			}
			for _, node := range plan.Status.AvoidedNodes {
				if !node.Until.After(plan.Status.RetryTime.Time) {
					t.Errorf("%s is avoided until %s, and the next attempt is due at %s", node.Name, node.Until, plan.Status.RetryTime)
				}
			}
		})
	}
}

// Who changes how far a job may grow, as scalers do, has mended nothing: what it cost lenders is remembered.
func TestWhatScalersChangeForgetsNoStartInVain(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.TrainingJob)
		want   int32
	}{
		{"workers.max", func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To[int32](7) }, 3},
		{"priority", func(j *v1alpha1.TrainingJob) { j.Spec.Preemption.Policy = v1alpha1.PreemptionNever }, 3},
		{"workers.min", func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Min = ptr.To[int32](1) }, 0},
		{"gang", func(j *v1alpha1.TrainingJob) { j.Spec.Gang.SchedulerName = "other" }, 0},
		{"template", func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Template.Spec.NodeSelector = map[string]string{"a": "b"} }, 0},
	} {
		state := stateOf(jobWith(func(j *v1alpha1.TrainingJob) {
			j.Status.Retries, j.Status.ObservedGeneration = ptr.To[int32](3), ptr.To[int64](1)
		}))
		state.Memory.looked(state.Job, ptr.To[int64](1))
		c.change(state.Job)
		state.Job.Generation = 2
		if got := value(look(state).Status.Retries); got != c.want {
			t.Errorf("%s: %d retries, want %d", c.name, got, c.want)
		}
	}
	// A refusal after such a change counts from what is left.
	state := stateOf(jobWith(running, func(j *v1alpha1.TrainingJob) {
		j.Status.Retries, j.Status.ObservedGeneration, j.Generation = ptr.To[int32](3), ptr.To[int64](1), 2
	}))
	state.Memory.Refusal = &Refusal{Reason: v1alpha1.ReasonPodsForbidden, Message: "no", Attempt: 1, Count: 1, Retry: now.Add(time.Minute)}
	if got := value(look(state).Status.Retries); got != 1 {
		t.Errorf("%d retries of another template, want 1", got)
	}
}

// A passing fault of the API server does not cost a gang what was made of it, and a verdict is asked for once.
func TestAPodOfAGangIsMadeAgainAfterAPassingFault(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for _, c := range []struct {
		name  string
		fault error
		lasts int
		calls int
		done  bool
	}{
		{"all is well", nil, 0, 1, true},
		{"an internal error", apierrors.NewInternalError(errors.New("failed calling webhook")), 2, 3, true},
		{"too many requests", apierrors.NewTooManyRequests("later", 1), 1, 2, true},
		{"a conflict of quotas", apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("modified")), 1, 2, true},
		{"no connection", errors.New("connection refused"), 1, 2, true},
		{"no connection for long", errors.New("connection refused"), 99, 1 + makeAgain, false},
		{"a verdict", apierrors.NewForbidden(resource, "p", errors.New("exceeded quota")), 99, 1, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			err := insist(t.Context(), func() error {
				if calls++; c.fault != nil && calls <= c.lasts {
					return &notMade{pod: "p", err: c.fault}
				}
				return nil
			})
			if calls != c.calls || (err == nil) != c.done {
				t.Errorf("%s: %d calls, want %d; %v", c.name, calls, c.calls, err)
			}
		})
	}
}

// Answers that take long are not waited for again and again: a worker of the controller waits with the gang.
func TestAPodOfAGangIsNotMadeForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := insist(t.Context(), func() error {
			calls++
			time.Sleep(10 * time.Second) // a clock of this test's own
			return &notMade{pod: "p", err: apierrors.NewInternalError(errors.New("failed calling webhook: deadline exceeded"))}
		})
		if calls != 2 || err == nil {
			t.Errorf("%d calls, %v", calls, err)
		}
	})
}

// Three starts in vain bar a gang from ending whole jobs. What the API server did not do is none, and what the user changes begins
// the count anew.
func TestWhatCountsAsAStartInVain(t *testing.T) {
	three := func(j *v1alpha1.TrainingJob) {
		j.Status.Retries, j.Status.ObservedGeneration = ptr.To[int32](3), ptr.To[int64](1)
	}
	half := func(faulty int32) *State {
		job := jobWith(running)
		state := stateOf(job, podOf(job, 1, 0, func(pod *corev1.Pod) { pin(pod, "n1") }))
		state.Memory.Own = OwnMemory{Began: 1, Faulty: faulty, Faults: 4}
		return state
	}
	for _, c := range []struct {
		name  string
		state *State
		want  int32
		pause time.Duration
	}{
		{"a pod was deleted", half(0), 1, infrastructureBackOff},
		{"a pod was not made", half(1), 0, 8 * infrastructureBackOff},
		{"suspended", stateOf(jobWith(three, func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(true) })), 0, 0},
		{"changed", stateOf(jobWith(three, func(j *v1alpha1.TrainingJob) { j.Generation = 2 })), 0, 0},
		{"not changed", stateOf(jobWith(three)), 3, 0},
	} {
		plan := look(c.state)
		if got := value(plan.Status.Retries); got != c.want {
			t.Errorf("%s: %d retries, want %d", c.name, got, c.want)
		}
		if retry := plan.Status.RetryTime; c.pause > 0 && (retry == nil || !retry.Time.Equal(now.Add(c.pause))) {
			t.Errorf("%s: the next attempt is due at %v, want after %s", c.name, retry, c.pause)
		}
	}
}
