package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func condition(t *testing.T, plan Plan, conditionType string) metav1.Condition {
	t.Helper()
	found := meta.FindStatusCondition(plan.Status.Conditions, conditionType)
	if found == nil {
		t.Fatalf("no condition %s in %+v", conditionType, plan.Status.Conditions)
	}
	return *found
}

func expectCondition(t *testing.T, plan Plan, conditionType string, status metav1.ConditionStatus, reason string, says ...string) {
	t.Helper()
	found := condition(t, plan, conditionType)
	if found.Status != status || found.Reason != reason {
		t.Errorf("%s is %s/%s (%s), want %s/%s", conditionType, found.Status, found.Reason, found.Message, status, reason)
	}
	for _, part := range says {
		if !strings.Contains(found.Message, part) {
			t.Errorf("message of %s does not say %q: %s", conditionType, part, found.Message)
		}
	}
}

func expectNothingDone(t *testing.T, plan Plan) {
	t.Helper()
	a := plan.Actions
	if a.Group != nil || len(a.Create) > 0 || len(a.Delete) > 0 || a.Expect != nil || a.DeleteJob {
		t.Errorf("the plan acts: %+v", a)
	}
}

func names(pods []*corev1.Pod) []string {
	var all []string
	for _, pod := range pods {
		all = append(all, pod.Name)
	}
	return all
}

func TestNewJobDecidesFirstAndCreatesAfter(t *testing.T) {
	job := jobWith()
	plan := NewPlan(stateOf(job), settings)
	expectNothingDone(t, plan)
	if value(plan.Status.Attempt) != 1 || value(plan.Status.NextOrdinal) != 2 || value(plan.Status.Workers.Target) != 2 {
		t.Fatalf("attempt, next ordinal, target are %d, %d, %d; want 1, 2, 2",
			value(plan.Status.Attempt), value(plan.Status.NextOrdinal), value(plan.Status.Workers.Target))
	}

	job.Status = plan.Status
	plan = NewPlan(stateOf(job), settings)
	if got := names(plan.Actions.Create); !slices.Equal(got, []string{"digits-1-0", "digits-1-1"}) {
		t.Errorf("creates %v", got)
	}
	group := plan.Actions.Group
	if group == nil || group.Key.Name != "digits-1" || group.MinMember != 2 {
		t.Fatalf("group is %+v", group)
	}
	if cpu := group.MinResources[corev1.ResourceCPU]; cpu.Cmp(resource.MustParse("1")) != 0 {
		t.Errorf("the group asks for %s CPUs, want 1", cpu.String())
	}
}

func TestAdmission(t *testing.T) {
	full := corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Status: corev1.ResourceQuotaStatus{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")},
			Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")},
		},
	}
	cases := []struct {
		name   string
		job    func(*v1alpha1.TrainingJob)
		state  func(*State)
		reason string
		says   []string
	}{
		{name: "no command", job: func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Template.Spec.Containers[0].Command = nil },
			reason: v1alpha1.ReasonInvalidTemplate, says: []string{"container main has no command"}},
		{name: "two containers", job: func(j *v1alpha1.TrainingJob) {
			j.Spec.Workers.Template.Spec.Containers = append(j.Spec.Workers.Template.Spec.Containers, corev1.Container{Name: "logger"})
		}, reason: v1alpha1.ReasonInvalidTemplate, says: []string{"main, logger", "spec.workers.container"}},
		{name: "unknown container", job: func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Container = "nobody" },
			reason: v1alpha1.ReasonInvalidTemplate, says: []string{"nobody", "main"}},
		{name: "mount without a volume", job: func(j *v1alpha1.TrainingJob) {
			j.Spec.Workers.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}, reason: v1alpha1.ReasonInvalidTemplate, says: []string{`volume "data"`}},
		{name: "mount over the agent", job: func(j *v1alpha1.TrainingJob) {
			j.Spec.Workers.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}}
			j.Spec.Workers.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/concertina/"}}
		}, reason: v1alpha1.ReasonInvalidTemplate, says: []string{"choose another path"}},
		{name: "the agent's volume name", job: func(j *v1alpha1.TrainingJob) {
			j.Spec.Workers.Template.Spec.Volumes = []corev1.Volume{{Name: "concertina-agent"}}
		}, reason: v1alpha1.ReasonInvalidTemplate, says: []string{"rename"}},
		{name: "host network", job: func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Template.Spec.HostNetwork = true },
			reason: v1alpha1.ReasonInvalidTemplate, says: []string{"hostNetwork"}},
		{name: "restartPolicy Always", job: func(j *v1alpha1.TrainingJob) {
			j.Spec.Workers.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		}, reason: v1alpha1.ReasonInvalidTemplate, says: []string{"restartPolicy"}},
		{name: "no PodGroups", state: func(s *State) { s.GroupKindMissing = "install PodGroups" },
			reason: v1alpha1.ReasonPodGroupsMissing, says: []string{"install PodGroups"}},
		{name: "quota too small", state: func(s *State) {
			s.Quotas, s.Grant = []corev1.ResourceQuota{full}, fleet.Grant{Known: true}
		},
			reason: v1alpha1.ReasonQuotaExceeded, says: []string{"ResourceQuota small allows 2 pods, 1 are used", "needs 2", "1 too few"}},
		{name: "refused a moment ago", state: func(s *State) {
			s.Memory.Refusal = &Refusal{Reason: v1alpha1.ReasonPodsForbidden, Message: "violates PodSecurity", Retry: s.Now.Add(time.Second)}
		}, reason: v1alpha1.ReasonPodsForbidden, says: []string{"violates PodSecurity"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := jobWith()
			if c.job != nil {
				c.job(job)
			}
			state := stateOf(job)
			if c.state != nil {
				c.state(state)
			}
			plan := NewPlan(state, settings)
			expectCondition(t, plan, v1alpha1.ConditionAdmitted, metav1.ConditionFalse, c.reason, c.says...)
			expectNothingDone(t, plan)
			if len(plan.Notes) != 1 {
				t.Errorf("notes are %+v, want one", plan.Notes)
			}
			if value(plan.Status.Attempt) != 0 {
				t.Errorf("attempt %d was begun", value(plan.Status.Attempt))
			}
		})
	}
}

func TestRefusedBatchIsGivenUpWhole(t *testing.T) {
	job := jobWith(running)
	state := stateOf(job, podOf(job, 1, 0))
	state.Memory.Refusal = &Refusal{Attempt: 1, Reason: v1alpha1.ReasonPodsForbidden, Message: "violates PodSecurity", Retry: state.Now.Add(time.Second)}
	plan := NewPlan(state, settings)
	expectNothingDone(t, plan)
	expectCondition(t, plan, v1alpha1.ConditionAdmitted, metav1.ConditionFalse, v1alpha1.ReasonPodsForbidden, "violates PodSecurity")
	if value(plan.Status.Workers.Target) != 0 || plan.Status.RetryTime != nil {
		t.Errorf("status is %+v, want an attempt that is over and no failure", plan.Status)
	}
	job.Status = plan.Status
	if plan = NewPlan(state, settings); !slices.Equal(names(plan.Actions.Delete), []string{"digits-1-0"}) || !plan.Actions.DeleteGroup {
		t.Errorf("actions are %+v, want what was made released", plan.Actions)
	}
}

func TestGangIsExpectedOnceAllHaveNodes(t *testing.T) {
	job := jobWith(running)
	waiting := stateOf(job, podOf(job, 1, 0, onNode("n1")), podOf(job, 1, 1))
	waiting.Placement = "1 of 2 pods have no node"
	plan := NewPlan(waiting, settings)
	expectNothingDone(t, plan)
	expectCondition(t, plan, v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonWaitingForRoom, "1 of 2 pods")

	plan = NewPlan(stateOf(job, podOf(job, 1, 0, onNode("n1")), podOf(job, 1, 1, onNode("n2"))), settings)
	expectCondition(t, plan, v1alpha1.ConditionGangScheduled, metav1.ConditionTrue, v1alpha1.ReasonScheduled)
	want := []rendezvous.Member{
		{UID: "uid-digits-1-0", Name: "digits-1-0", Ordinal: 0, Node: "n1"},
		{UID: "uid-digits-1-1", Name: "digits-1-1", Ordinal: 1, Node: "n2"},
	}
	if plan.Actions.Expect == nil || !slices.Equal(plan.Actions.Expect.Members, want) {
		t.Errorf("expects %+v, want %+v", plan.Actions.Expect, want)
	}
}

// The rendezvous is told in which rack each member is, by the label that the operator looks at.
func TestMembersAreInTheRacksOfTheirNodes(t *testing.T) {
	job := jobWith(scheduled)
	state := stateOf(job, podOf(job, 1, 0, trainerRuns, onNode("n1")), podOf(job, 1, 1, trainerRuns, onNode("n2")))
	state.Nodes = Nodes{ByName: map[string]*corev1.Node{
		"n1": {ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{DefaultRackLabel: "a", "row": "1"}}},
		"n2": {ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{"row": "2"}}},
	}}
	for label, want := range map[string][]string{DefaultRackLabel: {"a", ""}, "row": {"1", "2"}, "": {"", ""}} {
		state.RackLabel = label
		expected := NewPlan(state, settings).Actions.Expect
		if expected == nil || len(expected.Members) != 2 {
			t.Fatalf("expects %+v", expected)
		}
		if racks := []string{expected.Members[0].Rack, expected.Members[1].Rack}; !slices.Equal(racks, want) {
			t.Errorf("by label %q they are in the racks %q, want %q", label, racks, want)
		}
	}
}

func TestTraining(t *testing.T) {
	job := jobWith(scheduled)
	pods := []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns)}

	t.Run("an agent that cannot connect is named", func(t *testing.T) {
		state := stateOf(job, pods...)
		state.World = worldOf(0, pods...)
		state.World.Members["uid-digits-1-1"] = rendezvous.MemberObservation{WorkerRank: -1}
		plan := NewPlan(state, settings)
		expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonNotConnected, "digits-1-1", settings.RendezvousAddress)
	})
	t.Run("a world that trains", func(t *testing.T) {
		state := stateOf(job, pods...)
		state.World = worldOf(3, pods...)
		state.World.Progress = rendezvous.Progress{Step: 7, TotalSteps: 9, Metrics: []rendezvous.Metric{{Name: "loss", Value: 0.25}}}
		plan := NewPlan(state, settings)
		expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed, "round 3: 2 workers")
		if got := plan.Status.Workers.Summary; got != "2/2-4" {
			t.Errorf("summary is %s", got)
		}
		progress := plan.Status.Progress
		if value(progress.Step) != 7 || value(progress.TotalSteps) != 9 || progress.Metrics[0] != (v1alpha1.Metric{Name: "loss", Value: "0.25"}) {
			t.Errorf("progress is %+v", progress)
		}
	})
	t.Run("a world that cannot change says so", func(t *testing.T) {
		state := stateOf(job, pods...)
		state.World = worldOf(3, pods...)
		expectCondition(t, NewPlan(state, settings), v1alpha1.ConditionFullSize, metav1.ConditionFalse, v1alpha1.ReasonFixed, "keeps its 2 workers", "does not speak to the agent")
	})
	t.Run("a program that reports nothing has no progress", func(t *testing.T) {
		state := stateOf(job, pods...)
		state.World = worldOf(3, pods...)
		if plan := NewPlan(state, settings); plan.Status.Progress.Step != nil || plan.Progress {
			t.Errorf("progress is %+v", plan.Status.Progress)
		}
	})
	t.Run("a new leader changes nothing until it knows better", func(t *testing.T) {
		trains := jobWith(scheduled)
		meta.SetStatusCondition(&trains.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonWorldFormed})
		for _, world := range []rendezvous.Observation{{}, {Known: true, Attempt: 1, Adopting: true}} {
			state := stateOf(trains, pods...)
			state.Now = start.Add(time.Hour)
			state.World = world
			plan := NewPlan(state, settings)
			expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed)
			if world.Known && value(plan.Status.Workers.Target) != 2 {
				t.Errorf("the gang is released while the leader adopts")
			}
		}
	})
	t.Run("a deposed leader does nothing", func(t *testing.T) {
		state := stateOf(job, podOf(job, 1, 0, trainerRuns))
		state.World = rendezvous.Observation{Known: true, Deposed: true}
		plan := NewPlan(state, settings)
		expectNothingDone(t, plan)
		if value(plan.Status.Workers.Target) != 2 {
			t.Error("a deposed leader decides")
		}
	})
}

// The kubelet tells why a container is not made in events alone: of a Secret that is missing, for one.
func TestContainersThatAreNotMade(t *testing.T) {
	job := jobWith(scheduled)
	withStorage(job)
	unmade := func(pod *corev1.Pod) {
		onNode("n1")(pod)
		pod.Status.StartTime = ptr.To(metav1.NewTime(start))
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}}
	}
	state := stateOf(job, podOf(job, 1, 0, unmade), podOf(job, 1, 1, trainerRuns))
	state.World = worldOf(0, state.Pods[1:]...)
	state.Now = start.Add(30 * time.Second)
	plan := NewPlan(state, settings)
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting, "waiting for digits-1-0 to start")
	if plan.After != 30*time.Second {
		t.Errorf("looks again after %s, want 30s", plan.After)
	}
	state.Now = start.Add(time.Minute)
	expectCondition(t, NewPlan(state, settings), v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonWaitingForPods,
		"the containers of digits-1-0 are not made", "see the pod's events", "secretName is s3")
}

// While the job's storage has trouble with its checkpoint the condition says what.
func TestAWorldThatWaitsForItsCheckpoint(t *testing.T) {
	job := jobWith(scheduled)
	withStorage(job)
	state := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns))
	state.World = worldOf(0, state.Pods...)
	state.World.Storage = "digits-1-0: no such host"
	expectCondition(t, NewPlan(state, settings), v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting,
		"looked for in its storage: digits-1-0: no such host")
}

func TestStartTimeout(t *testing.T) {
	job := jobWith(scheduled)
	stuck := func(pod *corev1.Pod) {
		onNode("n1")(pod)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
	}
	state := stateOf(job, podOf(job, 1, 0, stuck), podOf(job, 1, 1, trainerRuns))
	state.World = worldOf(0, state.Pods...)
	plan := NewPlan(state, settings)
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonWaitingForPods, "pod digits-1-0", "ImagePullBackOff", "no such image")
	if plan.After != 9*time.Minute {
		t.Errorf("looks again after %s, want 9m", plan.After)
	}

	before := *job.Status.DeepCopy()
	state.Now = start.Add(10 * time.Minute)
	plan = NewPlan(state, settings)
	expectNothingDone(t, plan)
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonBackOff, "startTimeout", "pod digits-1-0", "no such image")
	if value(plan.Status.Workers.Target) != 0 || plan.Status.RetryTime == nil {
		t.Error("the gang keeps its room")
	}

	job.Status = plan.Status
	plan = NewPlan(state, settings)
	if got := names(plan.Actions.Delete); len(got) != 2 || !plan.Actions.DeleteGroup {
		t.Errorf("deletes %v, group %v", got, plan.Actions.DeleteGroup)
	}
	if value(plan.Status.Restarts.Program) != 0 || value(plan.Status.Restarts.Infrastructure) != 0 {
		t.Error("a start that timed out was counted as a restart")
	}
	for retries, pause := range map[int32]time.Duration{0: 30 * time.Second, 2: 2 * time.Minute, 5: 16 * time.Minute, 6: 30 * time.Minute, 900: 30 * time.Minute} {
		job.Status = before
		job.Status.Retries = &retries
		plan = NewPlan(state, settings)
		if got := plan.Status.RetryTime.Sub(state.Now); got != pause || value(plan.Status.Retries) != retries+1 {
			t.Errorf("after %d starts in vain the next one is due in %s, and %d count", retries, got, value(plan.Status.Retries))
		}
	}
}

func TestCompletionLooksAtTheTrainerOnly(t *testing.T) {
	job := jobWith(scheduled)
	ending := func(pod *corev1.Pod) {
		exited(0, start, "")(pod)
		pod.Status.Phase = corev1.PodRunning
	}
	sidecar := func(pod *corev1.Pod) {
		ending(pod)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "logger"})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: "logger", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	state := stateOf(job, podOf(job, 1, 0, sidecar), podOf(job, 1, 1, ending))
	plan := NewPlan(state, settings)
	expectCondition(t, plan, v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted)

	job.Status = plan.Status
	plan = NewPlan(state, settings)
	if got := names(plan.Actions.Delete); !slices.Equal(got, []string{"digits-1-0"}) {
		t.Errorf("deletes %v, want the pod whose sidecar still runs", got)
	}

	job.Spec.TTLAfterFinished = &metav1.Duration{Duration: time.Hour}
	if plan = NewPlan(state, settings); plan.After != time.Hour || plan.Actions.DeleteJob {
		t.Errorf("looks again after %s and deletes: %v; want 1h and no", plan.After, plan.Actions.DeleteJob)
	}
	state.Now = state.Now.Add(time.Hour)
	if plan = NewPlan(state, settings); !plan.Actions.DeleteJob {
		t.Error("the job outlives its ttl")
	}
}

func TestSuspendAndResume(t *testing.T) {
	job := jobWith(scheduled, func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(true) })
	state := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns))
	state.World = worldOf(1, state.Pods...)
	plan := NewPlan(state, settings)
	expectNothingDone(t, plan)
	job.Status = plan.Status

	plan = NewPlan(state, settings)
	if len(plan.Actions.Delete) != 2 || !plan.Actions.Release {
		t.Errorf("deletes %v, releases %v", names(plan.Actions.Delete), plan.Actions.Release)
	}
	if isTrue(plan.Status.Conditions, v1alpha1.ConditionSuspended) {
		t.Error("Suspended is true while workers run")
	}
	state.Pods = nil
	plan = NewPlan(state, settings)
	expectCondition(t, plan, v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended)
	job.Status = plan.Status

	job.Spec.Suspend = ptr.To(false)
	state.GroupExists = false
	plan = NewPlan(state, settings)
	expectCondition(t, plan, v1alpha1.ConditionSuspended, metav1.ConditionFalse, v1alpha1.ReasonResumed)
	if value(plan.Status.Attempt) != 2 || value(plan.Status.NextOrdinal) != 4 {
		t.Errorf("attempt %d, next ordinal %d; want 2, 4", value(plan.Status.Attempt), value(plan.Status.NextOrdinal))
	}
}

func TestActiveDeadline(t *testing.T) {
	job := jobWith(scheduled, func(j *v1alpha1.TrainingJob) { j.Spec.ActiveDeadline = &metav1.Duration{Duration: time.Minute} })
	plan := NewPlan(stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns)), settings)
	expectCondition(t, plan, v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonDeadlineExceeded, "1m0s")
}

func TestNoNewGangBesideAnOldOne(t *testing.T) {
	ended := jobWith(scheduled, func(j *v1alpha1.TrainingJob) { j.Status.Workers.Target = ptr.To[int32](0) })
	now := start.Add(time.Minute)
	cases := []struct {
		name  string
		pods  []*corev1.Pod
		waits string
	}{
		{name: "one still runs", pods: []*corev1.Pod{podOf(ended, 1, 0, trainerRuns), podOf(ended, 1, 1, exited(1, start, ""))}, waits: "digits-1-0"},
		{name: "one is ending", pods: []*corev1.Pod{podOf(ended, 1, 0, trainerRuns, deletedAt(now))}, waits: "digits-1-0"},
		{name: "nobody answers", pods: []*corev1.Pod{podOf(ended, 1, 0, trainerRuns, deletedAt(start)), podOf(ended, 1, 1, trainerRuns, deletedAt(start))},
			waits: "out-of-service"},
		{name: "one node is dead, the other worker has ended", pods: []*corev1.Pod{
			podOf(ended, 1, 0, trainerRuns, deletedAt(start)), podOf(ended, 1, 1, exited(1, start, ""))}},
		{name: "all have ended", pods: []*corev1.Pod{podOf(ended, 1, 0, exited(1, start, "")), podOf(ended, 1, 1, exited(1, start, ""))}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			state := stateOf(ended, c.pods...)
			plan := NewPlan(state, settings)
			if c.waits == "" {
				if value(plan.Status.Attempt) != 1 || !plan.Actions.DeleteGroup {
					t.Errorf("the old group is not deleted first: attempt %d, %+v", value(plan.Status.Attempt), plan.Actions)
				}
				state.GroupExists = false
				plan = NewPlan(state, settings)
				if value(plan.Status.Attempt) != 2 {
					t.Errorf("no new attempt: %+v", plan.Status.Conditions)
				}
				return
			}
			if value(plan.Status.Attempt) != 1 {
				t.Error("a new attempt begins beside the old one")
			}
			expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStopping, c.waits)
		})
	}
}

// A job that is deleted and made anew at once has the names of the one before, whose pods may take long to end.
func TestNoGangBesidePodsOfAnEarlierJob(t *testing.T) {
	state := stateOf(jobWith())
	state.GroupExists, state.Earlier = false, []string{"digits-1-0"}
	plan := NewPlan(state, settings)
	if value(plan.Status.Attempt) != 0 {
		t.Error("an attempt begins under names that are taken")
	}
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStopping, "earlier job of this name", "digits-1-0")
}

// A pod of an attempt that was given up may appear after the next one was decided on: a call timed out and
// took effect later, or the cache was slow to tell of it.
func TestAWorkerThatComesLateIsTakenAway(t *testing.T) {
	job := jobWith(running, func(j *v1alpha1.TrainingJob) { j.Status.Attempt = ptr.To[int32](2) })
	late := podOf(job, 1, 0)
	state := stateOf(job, late)
	state.GroupExists = false
	plan := NewPlan(state, settings)
	if !slices.Contains(plan.Actions.Delete, late) {
		t.Errorf("%s is not deleted, and holds the room of attempt 2", late.Name)
	}
	if len(plan.Actions.Create) != 2 {
		t.Errorf("%d pods are made, want the gang of 2", len(plan.Actions.Create))
	}
}

// Between the decision to start and the pods the room may go to a more important gang. Then the job stands in
// the queue again; otherwise it would come before all that wait there.
func TestAGangThatLosesItsRoomQueuesAgain(t *testing.T) {
	state := stateOf(jobWith(running))
	state.GroupExists = false
	state.Grant.Start, state.Grant.Places, state.Grant.Why = false, nil, "others come first"
	plan := NewPlan(state, settings)
	if target := value(plan.Status.Workers.Target); target != 0 || plan.Actions.Group != nil {
		t.Errorf("the target is %d, want 0: the gang has no room", target)
	}
	if plan.Status.StartTime != nil {
		t.Error("its activeDeadline runs, and it never had a pod")
	}
	state.Job.Status.Resizes = []v1alpha1.Resize{{At: state.Job.Status.StartTime}}
	if plan := NewPlan(state, settings); plan.Status.StartTime == nil {
		t.Error("a job that has trained begins its activeDeadline anew")
	}
	state.Job.Status.Resizes = nil
	state.Grant.Known = false
	if plan := NewPlan(state, settings); value(plan.Status.Workers.Target) != 2 {
		t.Errorf("the gang is given up before the planner has looked at it")
	}
}
