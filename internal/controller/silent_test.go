package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// silence has nobody hear of a worker any more.
func silence(state *State, pod *corev1.Pod) {
	seen := state.World.Members[string(pod.UID)]
	seen.Connected, seen.Silent = false, true
	state.World.Members[string(pod.UID)] = seen
}

// cutOff silences a worker, and the cluster has noticed that its node does not answer.
func cutOff(state *State, pod *corev1.Pod) {
	silence(state, pod)
	state.Nodes.ByName[pod.Spec.NodeName].Spec.Taints = []corev1.Taint{
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
	}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)}}
}

// TestASilentWorkerIsReplacedWhileItsPodStillStands: promise 1 holds by room that is free elsewhere, the
// name of the lost pod is not used again, and it never counts again.
func TestASilentWorkerIsReplacedWhileItsPodStillStands(t *testing.T) {
	job := trains(3, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To[int32](3) })
	state := elasticState(job, crewOf(job)...)
	silent := state.Pods[2]
	silence(state, silent)
	after(state, rendezvous.ReasonWorkerLost, false, "silent", silent)
	if !NewPlan(state, settings).Facts.Lost[silent.UID] {
		t.Fatal("the planner is not told that one is lost")
	}
	giveRoom(state, 1)
	look(state)
	plan := look(state)
	if got := names(plan.Actions.Grow); !slices.Equal(got, []string{"digits-1-3"}) {
		t.Fatalf("grows %v", got)
	}
	if len(plan.Actions.Delete) > 0 {
		t.Errorf("deletes %v before it is certain whose fault it was", names(plan.Actions.Delete))
	}
	if running := value(plan.Status.Workers.Running); running != 2 {
		t.Errorf("%d workers are told to run, want 2", running)
	}
	state.Memory.Elastic.use(3)
	growthPod(state, 3, trainerRuns, func(pod *corev1.Pod) { pod.Spec.NodeName = "n0" })

	state.Now = now.Add(lastWords)
	look(state)
	if got := names(look(state).Actions.Delete); !slices.Equal(got, []string{"digits-1-2"}) {
		t.Fatalf("deletes %v: its kubelet has to end it when it is back", got)
	}

	cutOff(state, silent)

	// The deletion never comes to an end, and another operator takes over.
	deletedAt(state.Now.Add(75 * time.Second))(silent)
	for range 3 {
		state.Now = state.Now.Add(time.Minute)
		state.World.Losses, state.World.Changes = nil, nil
		delete(state.World.Members, string(silent.UID))
		state.Memory = Memory{Since: state.Now}
		look(state)
		plan = look(state)
		expectTarget(t, plan, 3)
		touched := slices.Concat(plan.Actions.Delete, plan.Actions.Withdraw, plan.Actions.Grow)
		if len(touched) > 0 || len(leavers(plan)) > 1 {
			t.Fatalf("deletes, withdraws or makes %v, leavers %v", names(touched), leavers(plan))
		}
	}
	if running := value(plan.Status.Workers.Running); running != 3 {
		t.Errorf("%d workers are told to run, want 3", running)
	}
}

// So many were lost at once that the rendezvous has no word left for one of them: it is replaced like the others.
func TestOneOfManyLostWorkersIsReplaced(t *testing.T) {
	job := trains(3, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To[int32](3) })
	state := elasticState(job, crewOf(job)...)
	silent := state.Pods[2]
	silence(state, silent)
	after(state, rendezvous.ReasonWorkerLost, false, "silent", silent)
	seen := state.World.Members[string(silent.UID)]
	seen.LostIn = state.World.Losses[0].Round
	state.World.Members[string(silent.UID)], state.World.Losses = seen, nil
	giveRoom(state, 1)
	look(state)
	if got := names(look(state).Actions.Grow); !slices.Equal(got, []string{"digits-1-3"}) {
		t.Errorf("grows %v", got)
	}
}

// A newcomer is in no world that could lose it, so the cluster's word that its node is silent has to do.
func TestASilentNewcomerIsReplaced(t *testing.T) {
	job := trains(2, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To[int32](3) })
	state := elasticState(job, crewOf(job)...)
	state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
	silent := growthPod(state, 2, trainerRuns, func(pod *corev1.Pod) { pod.Spec.NodeName = "n9" })
	state.Nodes.ByName["n9"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n9"}}
	state.World.Members[string(silent.UID)] = rendezvous.MemberObservation{
		Joined: true, Connected: true, Standby: true, WorkerRank: -1}
	if plan := look(state); len(leavers(plan)) > 0 || len(plan.Facts.Lost) != 0 {
		t.Fatalf("leavers %v, lost %v: it is only waiting", leavers(plan), plan.Facts.Lost)
	}
	cutOff(state, silent)
	if !NewPlan(state, settings).Facts.Lost[silent.UID] {
		t.Fatal("the planner is not told that one is lost")
	}
	giveRoom(state, 1)
	look(state)
	plan := look(state)
	if got := names(plan.Actions.Grow); !slices.Equal(got, []string{"digits-1-3"}) {
		t.Fatalf("grows %v", got)
	}
	if got := leavers(plan); got["digits-1-2"] != rendezvous.ReasonNodeTainted {
		t.Errorf("leavers are %v", got)
	}
	state.Memory.Elastic.use(3)
	growthPod(state, 3)
	if got := names(look(state).Actions.Delete); !slices.Equal(got, []string{"digits-1-2"}) {
		t.Errorf("deletes %v", got)
	}
}

// A member of the world may train on although neither the cluster nor the operator can reach it.
func TestAMemberOnASilentNodeIsNotTakenOut(t *testing.T) {
	job := trains(3)
	state := elasticState(job, crewOf(job)...)
	cutOff(state, state.Pods[2])
	plan := look(state)
	if len(leavers(plan))+len(plan.Actions.Delete) > 0 || plan.Actions.Expect.Members[2].Lost != "" {
		t.Errorf("leavers %v, deletes %v", leavers(plan), names(plan.Actions.Delete))
	}
}

func TestWhoIsLostWhileOthersWait(t *testing.T) {
	for name, c := range map[string]struct {
		minimum int32
		want    []string
		says    string
	}{
		"too few are left: its room is wanted":        {minimum: 3, want: []string{"digits-1-2"}, says: "fewer than"},
		"enough are left: they wait for its snapshot": {minimum: 2, says: "hold no snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(3, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Min = ptr.To(c.minimum) })
			state := elasticState(job, crewOf(job)...)
			silent := state.Pods[2]
			cutOff(state, silent)
			state.World.Phase = rendezvous.PhaseRegrouping
			state.World.Losses = []rendezvous.Loss{{
				UID: string(silent.UID), Name: silent.Name, Message: "silent", Round: 3, Rank: 2, At: now}}
			look(state)
			if plan := look(state); len(plan.Actions.Delete) > 0 {
				t.Errorf("deletes %v before it is certain whose fault it was", names(plan.Actions.Delete))
			}
			state.Now = now.Add(lastWords)
			if got := names(look(state).Actions.Delete); !slices.Equal(got, c.want) {
				t.Errorf("deletes %v, want %v", got, c.want)
			}
			state.Now = now.Add(3 * time.Minute)
			plan := look(state)
			expectTarget(t, plan, 0)
			expectNote(t, plan, "InfrastructureLoss", "silent", c.says, "regroupTimeout (2m0s)")
		})
	}
}

// A worker that was silent for too long, and was taken into the next world before this loop looked, is not
// lost once more.
func TestAWorkerThatCameBackIsNotLost(t *testing.T) {
	job := trains(3)
	state := elasticState(job, crewOf(job)...)
	back := state.Pods[2]
	after(state, rendezvous.ReasonWorkerLost, false, "silent", back)
	state.World.Members[string(back.UID)] = rendezvous.MemberObservation{
		Joined: true, Connected: true, InWorld: true, WorkerRank: 2}
	state.Now = now.Add(lastWords)
	look(state)
	plan := look(state)
	if lost := plan.Actions.Expect.Members[2].Lost; lost != "" || value(plan.Status.Workers.Running) != 3 {
		t.Errorf("the rendezvous is told that it was lost: %q; %d workers run", lost, value(plan.Status.Workers.Running))
	}
	if len(plan.Actions.Delete) > 0 || value(plan.Status.Restarts.Infrastructure) != 1 {
		t.Errorf("deletes %v, restarts %+v", names(plan.Actions.Delete), plan.Status.Restarts)
	}
}

// TestAMemberThatANewLeaderNeverHeard: a node takes a worker and the operator with it. The world that the
// new leader makes without the worker counts its loss, completes without it, and has another in its place.
func TestAMemberThatANewLeaderNeverHeard(t *testing.T) {
	job := trains(3, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To[int32](3) })
	state := elasticState(job, crewOf(job)...)
	silent := state.Pods[2]
	cutOff(state, silent)
	state.World.Members[string(silent.UID)] = rendezvous.MemberObservation{WorkerRank: -1}
	if rank, member := NewPlan(state, settings).Facts.Ranks[silent.UID]; !member || rank != 2 {
		t.Fatalf("it has rank %d: an earlier leader has it in this world", rank)
	}
	after(state, rendezvous.ReasonWorkerLost, false, "")
	state.Job.Status.World.Round, state.Job.Status.World.Workers = ptr.To[int64](4), ptr.To[int32](2)
	named(state.Job, state.Pods[:2])
	look(state)
	plan := look(state)
	if restarts := plan.Status.Restarts; value(restarts.Infrastructure) != 1 || value(restarts.Program) != 0 {
		t.Errorf("restarts are %+v", restarts)
	}
	if _, member := plan.Facts.Ranks[silent.UID]; member {
		t.Fatal("it has a rank in a world that was made without it")
	}

	finished := *state
	finished.Job, finished.Pods = job.DeepCopy(), nil
	for _, pod := range state.Pods {
		finished.Pods = append(finished.Pods, pod.DeepCopy())
	}
	exited(0, now, "")(finished.Pods[0])
	exited(0, now, "")(finished.Pods[1])
	plan = NewPlan(&finished, settings)
	expectCondition(t, plan, v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted)

	if !NewPlan(state, settings).Facts.Lost[silent.UID] {
		t.Fatal("the planner is not told that one is lost")
	}
	giveRoom(state, 1)
	look(state)
	if got := names(look(state).Actions.Grow); !slices.Equal(got, []string{"digits-1-3"}) {
		t.Errorf("grows %v", got)
	}
}
