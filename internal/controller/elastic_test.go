package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// now is when elastic states are looked at.
var now = start.Add(time.Minute)

// trains is a job of so many workers, of at least 2, whose world of round 3 trains.
func trains(workers int32, changes ...func(*v1alpha1.TrainingJob)) *v1alpha1.TrainingJob {
	return jobWith(append([]func(*v1alpha1.TrainingJob){scheduled, func(job *v1alpha1.TrainingJob) {
		job.Status.NextOrdinal, job.Status.Workers.Target = ptr.To(workers), ptr.To(workers)
		job.Spec.Workers.Max = ptr.To[int32](8)
		job.Status.World = &v1alpha1.WorldStatus{Term: ptr.To[int64](1), Round: ptr.To[int64](3), Attempt: ptr.To[int32](1), Workers: ptr.To(workers),
			StartedAt: ptr.To(metav1.NewTime(start.Add(time.Second)))}
		meta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionTrue,
			Reason: v1alpha1.ReasonWorldFormed, LastTransitionTime: metav1.NewTime(start)})
	}}, changes...)...)
}

// crewOf makes the pods of the job's world, two on each node, and has its record name them.
func crewOf(job *v1alpha1.TrainingJob) []*corev1.Pod {
	var pods []*corev1.Pod
	for ordinal := range value(job.Status.Workers.Target) {
		pods = append(pods, podOf(job, 1, ordinal, trainerRuns, func(pod *corev1.Pod) {
			pod.Spec.NodeName = fmt.Sprintf("n%d", ordinal/2)
			if ordinal >= value(job.Spec.Workers.Min) {
				pod.Labels[v1alpha1.LabelRole] = v1alpha1.RoleGrowth
			}
		}))
	}
	named(job, pods)
	return pods
}

// elasticState is what is gathered of a world that trains and may change.
func elasticState(job *v1alpha1.TrainingJob, pods ...*corev1.Pod) *State {
	state := stateOf(job, pods...)
	state.GroupExists = true
	state.World = worldOf(3, pods...)
	state.World.Elastic, state.World.Phase = true, rendezvous.PhaseTraining
	state.DrainTaints = DefaultDrainTaints
	state.Nodes = Nodes{ByName: map[string]*corev1.Node{}}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			state.Nodes.ByName[pod.Spec.NodeName] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
		}
	}
	giveRoom(state, 0)
	return state
}

// growthPod is a pod beyond the gang that nobody has heard of.
func growthPod(state *State, ordinal int32, changes ...podChange) *corev1.Pod {
	pod := newGrowthPod(state.Job, settings, 1, ordinal)
	pod.UID, pod.Status.Phase = "uid-"+pod.UID, corev1.PodPending
	pod.UID = podOf(state.Job, 1, ordinal).UID
	pod.CreationTimestamp = metav1.NewTime(now)
	for _, change := range changes {
		change(pod)
	}
	state.Pods = append(state.Pods, pod)
	state.World.Members[string(pod.UID)] = rendezvous.MemberObservation{WorkerRank: -1}
	return pod
}

// look plans, and keeps what the plan wants to be kept, as the reconciler does. The planner of all jobs
// takes nothing back here.
func look(state *State) Plan {
	if state.target() > 0 {
		state.Grant.Count = max(state.Grant.Count, state.target())
		p := &planner{State: state}
		p.plan.Elastic = state.Memory.Elastic.next(state.attempt())
		lacking := int(state.Grant.Count) - int(count(p.crew(state.gang()), (*worker).stays))
		state.Grant.Places = state.Grant.Places[:min(len(state.Grant.Places), max(lacking, 0))]
	}
	plan := NewPlan(state, settings)
	state.Job.Status = plan.Status
	state.Memory.remember(&plan)
	return plan
}

func expectTarget(t *testing.T, plan Plan, want int32) {
	t.Helper()
	if got := value(plan.Status.Workers.Target); got != want {
		t.Errorf("target is %d, want %d", got, want)
	}
}

func expectNote(t *testing.T, plan Plan, reason string, says ...string) {
	t.Helper()
	for _, note := range plan.Notes {
		if note.Reason == reason {
			for _, part := range says {
				if !strings.Contains(note.Message, part) {
					t.Errorf("note %s does not say %q: %s", reason, part, note.Message)
				}
			}
			return
		}
	}
	t.Errorf("no note %s in %+v", reason, plan.Notes)
}

func leavers(plan Plan) map[string]rendezvous.Reason {
	all := map[string]rendezvous.Reason{}
	if plan.Actions.Expect != nil {
		for _, member := range plan.Actions.Expect.Members {
			if member.Leaving != "" {
				all[member.Name] = member.Leaving
			}
		}
	}
	return all
}

func TestGrowthIsDecidedFirstAndMadeAfter(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	giveRoom(state, 3)
	plan := look(state)
	expectNothingDone(t, plan)
	expectTarget(t, plan, 5)
	expectNote(t, plan, v1alpha1.EventLent, "beyond its min of 2 to 5 workers")
	if value(plan.Status.NextOrdinal) != 5 {
		t.Fatalf("next ordinal is %d, want 5", value(plan.Status.NextOrdinal))
	}
	giveRoom(state, 2) // somebody was faster
	plan = look(state)
	if got := names(plan.Actions.Grow); !slices.Equal(got, []string{"digits-1-2", "digits-1-3"}) {
		t.Fatalf("grows %v", got)
	}
	expectNote(t, plan, v1alpha1.EventGrowing, "digits-1-2, digits-1-3")
	for _, pod := range plan.Actions.Grow {
		if !isGrowth(pod) {
			t.Errorf("%s is no growth pod", pod.Name)
		}
	}
}

func TestReservedNamesAreLostWithTheOperator(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	giveRoom(state, 1)
	look(state)
	state.Memory = Memory{} // another operator
	plan := look(state)
	if len(plan.Actions.Grow) > 0 || value(plan.Status.NextOrdinal) != 4 {
		t.Errorf("grows %v with next ordinal %d; names that may have been used must stay unused", names(plan.Actions.Grow), value(plan.Status.NextOrdinal))
	}
	if plan = look(state); !slices.Equal(names(plan.Actions.Grow), []string{"digits-1-3"}) {
		t.Errorf("grows %v", names(plan.Actions.Grow))
	}
}

func TestTarget(t *testing.T) {
	sizes := func(sizes ...int32) func(*v1alpha1.TrainingJob) {
		return func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Sizes = sizes }
	}
	maximum := func(max int32) func(*v1alpha1.TrainingJob) {
		return func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Max = ptr.To(max) }
	}
	cases := []struct {
		name    string
		workers int32
		job     []func(*v1alpha1.TrainingJob)
		state   func(*State)
		room    int32
		want    int32
	}{
		{name: "no room", workers: 2, want: 2},
		{name: "room for two", workers: 2, room: 2, want: 4},
		{name: "never above max", workers: 2, room: 50, want: 8},
		{name: "legal sizes only", workers: 2, room: 3, job: []func(*v1alpha1.TrainingJob){sizes(2, 4, 8)}, want: 4},
		{name: "room for a part of the next size", workers: 4, room: 3, job: []func(*v1alpha1.TrainingJob){sizes(2, 4, 8)}, want: 4},
		{name: "max was lowered", workers: 6, job: []func(*v1alpha1.TrainingJob){maximum(3)}, want: 3},
		{name: "max between sizes", workers: 8, job: []func(*v1alpha1.TrainingJob){sizes(2, 4, 8), maximum(7)}, want: 4},
		{name: "max is lowered at once", workers: 6, job: []func(*v1alpha1.TrainingJob){maximum(3)}, want: 3,
			state: func(s *State) { s.World.Phase = rendezvous.PhaseRecovering }},
		{name: "no growth in the middle of something", workers: 2, room: 4, want: 2, state: func(s *State) { s.World.Phase = rendezvous.PhaseResizing }},
		{name: "no growth at the end", workers: 2, room: 4, want: 2,
			state: func(s *State) { s.World.Progress = rendezvous.Progress{Step: 90, TotalSteps: 90} }},
		{name: "no growth of programs that speak to nobody", workers: 2, room: 4, want: 2, state: func(s *State) { s.World.Elastic = false }},
		{name: "but of those that are started anew", workers: 2, room: 4, want: 6,
			job:   []func(*v1alpha1.TrainingJob){func(j *v1alpha1.TrainingJob) { j.Spec.Resize.Strategy = v1alpha1.ResizeRestart }},
			state: func(s *State) { s.World.Elastic = false }},
		{name: "growth that failed a moment ago", workers: 2, room: 4, want: 2,
			state: func(s *State) {
				s.Memory.Elastic = ElasticMemory{Attempt: 1, Growth: GrowthBackOff{}.failed(now, "no", nil)}
			}},
		{name: "growth that failed long ago", workers: 2, room: 4, want: 6,
			state: func(s *State) {
				s.Memory.Elastic = ElasticMemory{Attempt: 1, Growth: GrowthBackOff{}.failed(now.Add(-time.Hour), "no", nil)}
			}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := trains(c.workers, c.job...)
			state := elasticState(job, crewOf(job)...)
			giveRoom(state, c.room)
			if c.state != nil {
				c.state(state)
			}
			expectTarget(t, NewPlan(state, settings), c.want)
		})
	}
}

func TestWithdrawnGrowth(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](4), ptr.To[int32](4)
	growthPod(state, 2, func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
	})
	growthPod(state, 3, onNode("n1"))
	plan := look(state)
	if plan.After > 30*time.Second || len(plan.Actions.Withdraw) > 0 {
		t.Fatalf("looks again after %s, withdraws %v", plan.After, names(plan.Actions.Withdraw))
	}
	if starting := plan.Actions.Expect.Members[2]; starting.Name != "digits-1-3" || !starting.Starting {
		t.Errorf("the rendezvous is told %+v of the one with a node", starting)
	}

	state.Now = now.Add(30 * time.Second)
	plan = look(state)
	expectTarget(t, plan, 3)
	expectNote(t, plan, v1alpha1.EventGrowthWithdrawn, "digits-1-2 has no node after spec.growth.stabilization (30s)", "0/3 nodes are available")
	plan = look(state)
	if got := names(plan.Actions.Withdraw); !slices.Equal(got, []string{"digits-1-2"}) || len(plan.Actions.Delete) > 0 {
		t.Errorf("withdraws %v, deletes %v; the one with a node goes on", got, names(plan.Actions.Delete))
	}
	if state.Memory.Elastic.Growth.Count != 1 {
		t.Errorf("one failure is counted %d times", state.Memory.Elastic.Growth.Count)
	}
}

func TestGrowthThatCrashes(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
	giveRoom(state, 4)
	growthPod(state, 2, exited(1, now, "ImportError: no such module"))
	plan := look(state)
	expectNote(t, plan, v1alpha1.EventGrowthWithdrawn, "digits-1-2", "no such module")
	expectTarget(t, plan, 2)
	for range 4 {
		plan = look(state)
		if len(plan.Actions.Grow) > 0 || value(plan.Status.Workers.Target) != 2 {
			t.Fatal("it is tried again at once")
		}
	}
	state.Now = now.Add(25 * time.Second)
	state.Nodes.ByName["n7"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n7"}} // none of its business
	if plan := look(state); !plan.Facts.GrowAfter.Equal(now.Add(30*time.Second)) || len(avoided(plan)) > 0 {
		t.Errorf("the planner is told to wait until %s, and to avoid %v", plan.Facts.GrowAfter, avoided(plan))
	}
	if value(plan.Status.Restarts.Program) != 0 {
		t.Error("a newcomer that fails is no failure of the training")
	}
}

func TestBackOffOfGrowth(t *testing.T) {
	growth := GrowthBackOff{}
	for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
		growth = growth.failed(now, "", nil)
		if got := growth.Until.Sub(now); got != want {
			t.Errorf("pause %d is %s, want %s", i+1, got, want)
		}
	}
	if growth = growth.failed(growth.Until.Add(lastGrowthPause), "", nil); growth.Count != 1 {
		t.Error("it went well for long, and the pause goes on doubling")
	}
}

func TestWhoIsToLeave(t *testing.T) {
	deadline := now.Add(20 * time.Second)
	cases := []struct {
		name   string
		change func(*State, *corev1.Pod)
		want   rendezvous.Reason
		by     time.Time
	}{
		{name: "deleted", change: func(_ *State, pod *corev1.Pod) { deletedAt(deadline)(pod) }, want: rendezvous.ReasonDeleted, by: deadline},
		{name: "evicted", change: func(_ *State, pod *corev1.Pod) {
			deletedAt(deadline)(pod)
			withCondition(corev1.DisruptionTarget, "EvictionByEvictionAPI", "drained")(pod)
		}, want: rendezvous.ReasonEvicted, by: deadline},
		{name: "preempted", change: func(_ *State, pod *corev1.Pod) {
			deletedAt(deadline)(pod)
			withCondition(corev1.DisruptionTarget, corev1.PodReasonPreemptionByScheduler, "")(pod)
		}, want: rendezvous.ReasonPreempted, by: deadline},
		{name: "taint manager", change: func(_ *State, pod *corev1.Pod) {
			deletedAt(deadline)(pod)
			withCondition(corev1.DisruptionTarget, "DeletionByTaintManager", "")(pod)
		}, want: rendezvous.ReasonNodeTainted, by: deadline},
		{name: "told to end", change: func(s *State, pod *corev1.Pod) {
			seen := s.World.Members[string(pod.UID)]
			seen.Terminating = true
			s.World.Members[string(pod.UID)] = seen
			pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
		}, want: rendezvous.ReasonTerminated, by: deadline},
		{name: "the autoscaler takes the node", change: func(s *State, _ *corev1.Pod) {
			s.Nodes.ByName["n1"].Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, want: rendezvous.ReasonNodeTainted},
		{name: "NoExecute", change: func(s *State, _ *corev1.Pod) {
			s.Nodes.ByName["n1"].Spec.Taints = []corev1.Taint{{Key: "repair", Effect: corev1.TaintEffectNoExecute}}
		}, want: rendezvous.ReasonNodeTainted},
		{name: "NoExecute, tolerated", change: func(s *State, pod *corev1.Pod) {
			s.Nodes.ByName["n1"].Spec.Taints = []corev1.Taint{{Key: "repair", Effect: corev1.TaintEffectNoExecute}}
			pod.Spec.Tolerations = []corev1.Toleration{{Key: "repair", Operator: corev1.TolerationOpExists}}
		}},
		{name: "a cordon is no drain", change: func(s *State, _ *corev1.Pod) {
			s.Nodes.ByName["n1"].Spec.Unschedulable = true
			s.Nodes.ByName["n1"].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := trains(3)
			state := elasticState(job, crewOf(job)...)
			pod := state.Pods[2] // alone on n1
			c.change(state, pod)
			plan := look(state)
			for len(plan.Actions.Grow) > 0 || plan.Decided {
				plan = look(state)
			}
			member := plan.Actions.Expect.Members[2]
			if member.Leaving != c.want || !member.LeaveBy.Equal(c.by) {
				t.Errorf("%s leaves: %q by %s, want %q by %s", member.Name, member.Leaving, member.LeaveBy, c.want, c.by)
			}
			if len(leavers(plan)) > 1 || len(plan.Actions.Delete) > 0 {
				t.Errorf("leavers %v, deletes %v", leavers(plan), names(plan.Actions.Delete))
			}
			if c.want != "" {
				expectNote(t, plan, v1alpha1.EventWorkerLeaving, "digits-1-2", string(c.want))
				if again := look(state); len(again.Notes) > 0 {
					t.Errorf("told twice: %+v", again.Notes)
				}
			}
		})
	}
}

func TestAWorkerThatLeavesIsReplacedWhereThereIsRoom(t *testing.T) {
	job := trains(3)
	state := elasticState(job, crewOf(job)...)
	deletedAt(now.Add(30 * time.Second))(state.Pods[2])
	giveRoom(state, 1)
	look(state)
	plan := look(state)
	if !slices.Equal(names(plan.Actions.Grow), []string{"digits-1-3"}) {
		t.Fatalf("grows %v", names(plan.Actions.Grow))
	}
	expectNote(t, plan, v1alpha1.EventReplacing, "digits-1-3 made, in the place of digits-1-2")
}

func TestScaledDown(t *testing.T) {
	job := trains(5, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To[int32](2) })
	state := elasticState(job, crewOf(job)...) // n0: 0 1, n1: 2 3, n2: 4
	expectTarget(t, look(state), 2)
	plan := look(state)
	want := map[string]rendezvous.Reason{"digits-1-4": "ScaledDown", "digits-1-3": "ScaledDown", "digits-1-2": "ScaledDown"}
	if got := leavers(plan); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("leavers are %v, want %v", got, want)
	}
	if len(plan.Actions.Delete) > 0 {
		t.Fatalf("deletes %v before the world goes on without them", names(plan.Actions.Delete))
	}
	state.World.Round = 4
	for _, pod := range state.Pods[2:] {
		state.World.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, WorkerRank: -1, Out: true}
	}
	if got := names(look(state).Actions.Delete); !slices.Equal(got, []string{"digits-1-2", "digits-1-3", "digits-1-4"}) {
		t.Errorf("deletes %v", got)
	}
}

func TestAChangeThatWasCalledOffIsToldOnce(t *testing.T) {
	const why = "the change of round 3 (joined by digits-1-2) was called off: no snapshot could be taken"
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	look(state)
	state.World.Why = why
	expectNote(t, look(state), v1alpha1.EventResizeCalledOff, why)
	for _, phase := range []rendezvous.Phase{rendezvous.PhaseTraining, rendezvous.PhaseResizing, rendezvous.PhaseTraining} {
		state.World.Phase = phase
		for _, note := range look(state).Notes {
			if note.Reason == v1alpha1.EventResizeCalledOff {
				t.Errorf("in phase %s it is told again: %s", phase, note.Message)
			}
		}
	}
}

func TestChooseLeavers(t *testing.T) {
	member := func(name, node string, rank int32, changes ...func(*worker)) *worker {
		w := &worker{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}},
			seen: rendezvous.MemberObservation{Joined: rank >= 0, Connected: true, WorkerRank: rank}, stands: standing{rank: rank}}
		for _, change := range changes {
			change(w)
		}
		return w
	}
	ready := func(w *worker) { w.seen.Standby = true }
	growth := func(w *worker) { w.pod.Labels = map[string]string{v1alpha1.LabelRole: v1alpha1.RoleGrowth} }
	cases := []struct {
		name string
		crew []*worker
		n    int
		want []string
		min  int
	}{
		{"those without a node first", []*worker{member("a-0", "n1", 0), member("a-1", "", -1), member("a-2", "n2", 1)}, 1, []string{"a-1"}, 0},
		{"those that are not ready before those that are", []*worker{member("a-0", "n1", 0), member("a-1", "n1", -1), member("a-2", "n1", -1, ready)}, 1, []string{"a-1"}, 0},
		{"a whole node rather than the last ordinals", []*worker{
			member("a-0", "n1", 0), member("a-1", "n2", 1), member("a-2", "n1", 2), member("a-3", "n3", 3), member("a-4", "n3", 4), member("a-5", "n3", 5)}, 1, []string{"a-1"}, 0},
		{"as many whole nodes as can be", []*worker{
			member("a-0", "n1", 0), member("a-1", "n1", 1), member("a-2", "n1", 2), member("a-3", "n2", 3), member("a-4", "n3", 4)}, 2, []string{"a-4", "a-3"}, 0},
		{"rank 0 last", []*worker{member("a-0", "n1", 1), member("a-1", "n2", 0)}, 1, []string{"a-0"}, 0},
		{"a part of a node", []*worker{member("a-0", "n1", 0), member("a-1", "n1", 1), member("a-2", "n2", 2), member("a-3", "n2", 3)}, 3, []string{"a-3", "a-2", "a-1"}, 0},
		{"nobody of the gang's own class while there are others", []*worker{
			member("a-0", "n1", 0), member("a-1", "n2", 1), member("a-2", "n2", 2, growth), member("a-3", "n2", 3, growth)}, 2, []string{"a-3", "a-2"}, 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, w := range chooseLeavers(c.crew, c.n, c.min) {
				got = append(got, w.pod.Name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v leave, want %v", got, c.want)
			}
			slices.Reverse(c.crew)
			var again []string
			for _, w := range chooseLeavers(c.crew, c.n, c.min) {
				again = append(again, w.pod.Name)
			}
			if !slices.Equal(again, got) {
				t.Errorf("in another order %v leave, not %v", again, got)
			}
		})
	}
}
