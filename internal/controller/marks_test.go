package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// reclaims is a job of five workers of which the planner wants some for team/big.
func reclaims(count int32, ordinals ...int) *State {
	job := trains(5)
	state := elasticState(job, crewOf(job)...)
	state.ReclaimTimeout = 20 * time.Second
	state.Grant = fleet.Grant{Known: true, Count: count, Leave: map[types.UID]fleet.Leave{}}
	for _, ordinal := range ordinals {
		state.Grant.Leave[state.Pods[ordinal].UID] = fleet.Leave{Reason: fleet.Reclaimed, For: "team/big", Why: "its room is for job team/big"}
	}
	return state
}

func marked(plan Plan) []string {
	var all []string
	for _, m := range plan.Actions.Mark {
		all = append(all, m.Pod.Name+" "+m.Mark.String())
	}
	return all
}

// carryOutMarks does what apply does with them.
func carryOutMarks(plan Plan) {
	for _, m := range plan.Actions.Mark {
		m.Mark.Put(m.Pod)
	}
}

// TestReclaim: promise 10, and who leaves is durable before anybody is told, in three steps: the marks,
// the target, the rendezvous. An operator may die after each of them.
func TestReclaim(t *testing.T) {
	for dies := range 4 {
		t.Run(fmt.Sprintf("the operator dies after step %d", dies), func(t *testing.T) {
			state := reclaims(3, 2, 4)
			step := func(n int) Plan {
				plan := NewPlan(state, settings)
				carryOutMarks(plan)
				state.Job.Status = plan.Status
				state.Memory.remember(&plan)
				if n == dies {
					state.Memory = Memory{}
				}
				return plan
			}
			plan := step(1)
			want := []string{"digits-1-2 Reclaimed team/big 2030-01-01T12:01:00Z", "digits-1-4 Reclaimed team/big 2030-01-01T12:01:00Z"}
			if got := marked(plan); !slices.Equal(got, want) {
				t.Fatalf("marks %v, want %v", got, want)
			}
			expectTarget(t, plan, 5)
			expectNote(t, plan, v1alpha1.EventReclaimed, "the room of digits-1-2, digits-1-4 is for job team/big")
			if len(leavers(plan)) > 0 {
				t.Errorf("%v leave before that is durable", leavers(plan))
			}

			plan = step(2)
			expectNothingDone(t, plan)
			expectTarget(t, plan, 3)

			plan = step(3)
			if got := leavers(plan); len(got) != 2 || got["digits-1-2"] != rendezvous.ReasonReclaimed || got["digits-1-4"] != rendezvous.ReasonReclaimed {
				t.Fatalf("leavers are %v", got)
			}
			for _, member := range plan.Actions.Expect.Members {
				if by := start.Add(time.Minute + 25*time.Second); member.Leaving != "" && (!member.LeaveBy.Equal(by) || member.Why == "") {
					t.Errorf("%s leaves by %s (%s), want %s: fleet.reclaimTimeout and what a kill needs", member.Name, member.LeaveBy, member.Why, by)
				}
			}
			if plan = step(4); len(marked(plan)) > 0 || len(leavers(plan)) != 2 || len(plan.Actions.Delete) > 0 {
				t.Errorf("marks %v, leavers %v, deletes %v: the world still counts on them", marked(plan), leavers(plan), names(plan.Actions.Delete))
			}
			if lost := plan.Facts.Lost; len(lost) > 0 {
				t.Errorf("the planner is told of %v, whom it has chosen itself", lost)
			}
			state.World.Members[string(state.Pods[2].UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, WorkerRank: -1, Out: true}
			if got := names(step(5).Actions.Delete); !slices.Equal(got, []string{"digits-1-2"}) {
				t.Errorf("deletes %v", got)
			}
		})
	}
}

func TestAMarkIsLiftedWhenItsJobIsGone(t *testing.T) {
	state := reclaims(5)
	pod := state.Pods[4]
	fleet.Mark{Reason: fleet.Reclaimed, For: "team/big", At: now}.Put(pod)
	state.World.Phase = rendezvous.PhaseResizing
	state.Memory.Elastic = ElasticMemory{Attempt: state.attempt(), Told: map[string]bool{string(pod.UID): true}}
	if plan := NewPlan(state, settings); len(plan.Actions.Mark) > 0 || leavers(plan)["digits-1-4"] == "" {
		t.Fatalf("marks %v, leavers %v: a barrier that is armed is finished", marked(plan), leavers(plan))
	}
	state.World.Phase = rendezvous.PhaseTraining
	if plan := NewPlan(state, settings); len(plan.Actions.Mark) > 0 {
		t.Fatalf("marks %v by a grant from before this leader knew the world", marked(plan))
	}
	state.Memory.Elastic = ElasticMemory{Attempt: 1, Elastic: true}
	plan := NewPlan(state, settings)
	if got := marked(plan); !slices.Equal(got, []string{"digits-1-4 "}) {
		t.Fatalf("marks %v", got)
	}
	carryOutMarks(plan)
	if plan := NewPlan(state, settings); len(leavers(plan)) > 0 {
		t.Errorf("leavers are %v", leavers(plan))
	}
}

// The target falls before the rendezvous is told who leaves, also when the planner is still at it, and when
// another leader has died in between.
func TestTheRendezvousIsToldWhenTheTargetHasFallen(t *testing.T) {
	for _, at := range []time.Time{now.Add(-time.Hour), now.Add(time.Hour)} { // whatever that leader's clock said
		state := reclaims(3, 2, 4)
		for _, i := range []int{2, 4} {
			fleet.Mark{Reason: fleet.Reclaimed, For: "team/big", At: at}.Put(state.Pods[i])
		}
		planned := state.Grant
		for _, grant := range []fleet.Grant{{}, {Known: true, Count: 5}} {
			state.Grant = grant
			plan := NewPlan(state, settings)
			if len(leavers(plan)) > 0 || plan.After == 0 || plan.After > markedOnly {
				t.Errorf("marked %s: with %+v leavers are %v, looks after %s", at, grant, leavers(plan), plan.After)
			}
			state.Memory.remember(&plan)
		}
		state.Grant = planned
		plan := NewPlan(state, settings)
		expectNothingDone(t, plan)
		expectTarget(t, plan, 3)
		state.Job.Status.Workers.Target = ptr.To[int32](3)
		if plan = NewPlan(state, settings); len(leavers(plan)) != 2 {
			t.Errorf("marked %s: leavers are %v", at, leavers(plan))
		}
		// Whatever keeps the target up, nobody waits for it long.
		state.Job.Status.Workers.Target, state.Grant, state.Now = ptr.To[int32](5), fleet.Grant{}, now.Add(markedOnly)
		if plan = NewPlan(state, settings); len(leavers(plan)) != 2 {
			t.Errorf("marked %s: leavers are %v", at, leavers(plan))
		}
	}
}

func TestAQueuedJobHasNoPods(t *testing.T) {
	state := stateOf(jobWith())
	state.Grant = fleet.Grant{}
	plan := look(state)
	expectCondition(t, plan, v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonQueued, "has yet to look")
	state.Grant = fleet.Grant{Known: true, Why: "waits for 2 places", Queue: fleet.Queue{Position: 3, Start: now.Add(time.Hour)}}
	plan = look(state)
	expectNothingDone(t, plan)
	expectCondition(t, plan, v1alpha1.ConditionAdmitted, metav1.ConditionTrue, v1alpha1.ReasonAdmitted)
	expectCondition(t, plan, v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonQueued, "waits for 2 places")
	queue := plan.Status.Queue
	if value(queue.Position) != 3 || queue.WaitsFor != "waits for 2 places" || queue.Since == nil || !queue.EstimatedStart.Time.Equal(now.Add(time.Hour)) {
		t.Errorf("queue is %+v", queue)
	}
	if plan.Status.State != "Queued" || plan.Facts.Held || plan.Status.StartTime != nil {
		t.Errorf("state %s, held %v, started %v", plan.Status.State, plan.Facts.Held, plan.Status.StartTime)
	}
	since := *queue.Since
	state.Grant, state.Now = fleet.Grant{}, now.Add(time.Minute) // another plan is under way
	if plan = look(state); value(plan.Status.Queue.Position) != 3 || !plan.Status.Queue.Since.Equal(&since) {
		t.Errorf("queue is %+v", plan.Status.Queue)
	}

	state.Grant = fleet.Grant{Known: true, Start: true, Places: []fleet.Place{{Node: "n1", Own: true}, {Node: "n2", Own: true}}}
	plan = look(state)
	expectNothingDone(t, plan)
	expectTarget(t, plan, 2)
	if queue := plan.Status.Queue; queue != (v1alpha1.QueueStatus{Since: queue.Since}) || !queue.Since.Equal(&since) {
		t.Errorf("queue is %+v", plan.Status.Queue)
	}
	state.Grant.Start, state.GroupExists = false, false
	plan = look(state)
	for i, node := range []string{"n1", "n2"} {
		if got := pinned(plan.Actions.Create[i]); got != node {
			t.Errorf("%s is for node %s, want %s", plan.Actions.Create[i].Name, got, node)
		}
	}
}

// Between what a job reports and the plan that knows of it lies a moment, of which nobody is told.
func TestAJobSaysNothingUntilItIsPlanned(t *testing.T) {
	state := stateOf(jobWith())
	state.Memory.Since, state.Grant = now, fleet.Grant{}
	plan := look(state)
	expectNothingDone(t, plan)
	if diff := cmp.Diff(state.Job.Status, plan.Status); diff != "" || plan.After != planTakes || len(plan.Notes) > 0 {
		t.Errorf("told of after %s, %v:\n%s", plan.After, plan.Notes, diff)
	}

	// A job that is held has a plan without words.
	state = stateOf(jobWith(backingOff))
	before := conditionsOf(&state.Job.Status)
	for _, grant := range []fleet.Grant{{}, {Known: true}} {
		state.Grant = grant
		plan = look(state)
		if diff := cmp.Diff(before, conditionsOf(&plan.Status)); diff != "" || plan.Status.Queue != (v1alpha1.QueueStatus{}) || len(plan.Notes) > 0 {
			t.Errorf("with %+v: queue %+v, notes %v\n%s", grant, plan.Status.Queue, plan.Notes, diff)
		}
	}
	state.Grant = fleet.Grant{Known: true, Why: "waits for 2 places"}
	if plan = look(state); len(plan.Notes) != 1 || plan.Notes[0].Reason != v1alpha1.EventQueued || plan.Notes[0].Message != "waits for 2 places" {
		t.Errorf("notes are %v", plan.Notes)
	}
}

// backingOff is a job whose last attempt has ended.
func backingOff(job *v1alpha1.TrainingJob) {
	job.Status.Attempt = ptr.To[int32](1)
	for conditionType, reason := range map[string]string{
		v1alpha1.ConditionGangScheduled: v1alpha1.ReasonNoGang, v1alpha1.ConditionTraining: v1alpha1.ReasonBackOff,
	} {
		meta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse, Reason: reason, Message: "it ended"})
	}
}

// conditionsOf are those that tell of the gang.
func conditionsOf(status *v1alpha1.TrainingJobStatus) [2]*metav1.Condition {
	return [2]*metav1.Condition{
		meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionGangScheduled).DeepCopy(),
		meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTraining).DeepCopy(),
	}
}

func TestAGangIsMadeWhenThereAreAllPlaces(t *testing.T) {
	state := stateOf(jobWith(running))
	state.Grant = fleet.Grant{Known: true, Count: 2, Places: []fleet.Place{{Node: "n1", Own: true}}, Why: "somebody was faster"}
	plan := look(state)
	expectNothingDone(t, plan)
	expectCondition(t, plan, v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonQueued, "somebody was faster")
}

func TestAPolicyThatIsNotAllowedIsToldOnce(t *testing.T) {
	state := stateOf(jobWith(func(j *v1alpha1.TrainingJob) { j.Spec.Preemption.Policy = v1alpha1.PreemptionNever }))
	state.Grant.NotAllowed = true
	plan := NewPlan(state, settings)
	expectNote(t, plan, v1alpha1.EventPolicyNotAllowed, "spec.preemption.policy Never is not allowed in namespace team", "Shrink is used")
	state.Memory.remember(&plan)
	for _, note := range NewPlan(state, settings).Notes {
		if note.Reason == v1alpha1.EventPolicyNotAllowed {
			t.Error("it is told again")
		}
	}
}

func TestThatKueueIsNotAskedIsToldOnce(t *testing.T) {
	state := stateOf(jobWith(func(j *v1alpha1.TrainingJob) { j.Labels = map[string]string{v1alpha1.LabelKueueQueue: "gpus"} }))
	plan := NewPlan(state, settings)
	expectNote(t, plan, v1alpha1.EventKueueNotAsked, "kueue.x-k8s.io/queue-name is gpus", "spec.workers.min (2)")
	state.Memory.remember(&plan)
	for _, note := range NewPlan(state, settings).Notes {
		if note.Reason == v1alpha1.EventKueueNotAsked {
			t.Error("it is told again")
		}
	}
}

// A thousand jobs may wait for one quota, and what it says changes with every pod.
func TestAQuotaThatMovesIsNotWrittenEachTime(t *testing.T) {
	quota := func(used string) []corev1.ResourceQuota {
		pods := func(n string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(n)}
		}
		return []corev1.ResourceQuota{{Spec: corev1.ResourceQuotaSpec{Hard: pods("4")}, Status: corev1.ResourceQuotaStatus{Hard: pods("4"), Used: pods(used)}}}
	}
	state := stateOf(jobWith())
	state.GroupExists, state.Grant.Start, state.Quotas = false, false, quota("3")
	plan := NewPlan(state, settings)
	expectNote(t, plan, v1alpha1.ReasonQuotaExceeded, "allows 4 pods, 3 are used")
	state.Job.Status, state.Memory.SizeToldAt, state.Quotas = plan.Status, state.Now, quota("4")
	state.Now = state.Now.Add(time.Second)
	plan = NewPlan(state, settings)
	if diff := cmp.Diff(state.Job.Status, plan.Status); diff != "" || len(plan.Notes) > 0 {
		t.Errorf("it is written at once: %s, %v", diff, plan.Notes)
	}
	state.Now = state.Now.Add(sizeInterval)
	if plan = NewPlan(state, settings); len(plan.Notes) > 0 || cmp.Equal(state.Job.Status, plan.Status) {
		t.Errorf("it is not written at all, or told again: %v", plan.Notes)
	}
}

func TestPlaceInTheQueueIsWrittenWhenItMatters(t *testing.T) {
	for _, c := range []struct {
		shown, now int32
		want       bool
	}{{0, 700, true}, {700, 699, false}, {700, 640, false}, {700, 630, true}, {21, 20, true}, {3, 2, true}, {2, 2, false}, {700, 800, true}} {
		if got := moved(c.shown, c.now); got != c.want {
			t.Errorf("from %d to %d: %v", c.shown, c.now, got)
		}
	}
}

func TestPin(t *testing.T) {
	zone := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{zone}}, {}, {MatchExpressions: []corev1.NodeSelectorRequirement{zone}}}}}}}}
	pin(pod, "n1")
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms[0].MatchFields) != 1 || len(terms[2].MatchFields) != 1 || len(terms[1].MatchFields) != 0 {
		t.Errorf("terms are %+v: one that allows no node must not begin to", terms)
	}
	plain := &corev1.Pod{}
	if pin(plain, ""); plain.Spec.Affinity != nil {
		t.Error("a pod without a place is pinned")
	}
	if pin(plain, "n2"); pinned(plain) != "n2" || pinned(pod) != "n1" {
		t.Errorf("pinned to %q and %q", pinned(plain), pinned(pod))
	}
}

func TestTheSchedulerIsAskedAgain(t *testing.T) {
	job := jobWith(running)
	made := func(pod *corev1.Pod) { pin(pod, "n1") }
	state := stateOf(job, podOf(job, 1, 0, made), podOf(job, 1, 1, made))
	var at []time.Duration
	for state.Now = start; state.Now.Before(start.Add(40 * time.Second)); {
		plan := look(state)
		if plan.Actions.Touch != nil {
			at = append(at, state.Now.Sub(start))
		}
		if plan.After <= 0 {
			t.Fatal("nobody looks again")
		}
		state.Now = state.Now.Add(plan.After)
	}
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second}
	if !slices.Equal(at, want) {
		t.Errorf("asked after %v, want %v", at, want)
	}
	state.Now = start.Add(unplacedAfter + 2*unplacedPerPod)
	plan := look(state)
	expectTarget(t, plan, 0)
	expectNote(t, plan, "GangUnplaced", "no scheduler has looked at the gang: does one run under the name coscheduling")
	if restarts := plan.Status.Restarts; restarts != (v1alpha1.RestartsStatus{}) {
		t.Errorf("restarts are %+v", restarts)
	}
}

// A scheduler that gives others nodes has not come to a gang yet: letting it go would only give it more to do.
func TestABusySchedulerIsWaitedFor(t *testing.T) {
	job := jobWith(running)
	made := func(pod *corev1.Pod) { pin(pod, "n1") }
	for _, c := range []struct {
		name   string
		bound  time.Duration
		judged bool
		now    time.Duration
		gone   bool
	}{
		{"it binds others", time.Minute, false, time.Minute + unplacedAfter, false},
		{"it has bound others, and stopped", time.Minute, false, time.Minute + unplacedAfter + 2*unplacedPerPod, true},
		{"it bound others before", -time.Minute, false, unplacedAfter + 2*unplacedPerPod, true},
		{"it has looked at them", time.Minute, true, time.Minute, true},
		{"it is busy for ever", 10 * time.Hour, false, 10 * time.Hour, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := stateOf(job, podOf(job, 1, 0, made), podOf(job, 1, 1, made))
			if c.judged {
				state.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}
			}
			state.Grant.Bound, state.Now = start.Add(c.bound), start.Add(c.now)
			plan := look(state)
			if gone := value(plan.Status.Workers.Target) == 0; gone != c.gone {
				t.Errorf("the gang is let go: %v, want %v: %v", gone, c.gone, plan.Notes)
			}
			if !c.gone && (plan.After <= 0 || plan.After > unplacedAfter) {
				t.Errorf("the next look is after %s", plan.After)
			}
		})
	}
}

func TestEvicted(t *testing.T) {
	state := reclaims(0)
	state.Grant.Evict, state.World.Progress.Step = "team/big", 1200
	plan := look(state)
	expectNothingDone(t, plan)
	expectTarget(t, plan, 0)
	expectNote(t, plan, v1alpha1.EventEvicted, "team/big has a higher priority", "of 1200", "queues again")
	if plan.Status.StartTime != nil {
		t.Error("its activeDeadline runs while it waits")
	}
	if restarts := plan.Status.Restarts; restarts != (v1alpha1.RestartsStatus{}) {
		t.Errorf("restarts are %+v: nobody was at fault", restarts)
	}
	if plan = look(state); len(plan.Actions.Delete) != 5 || !plan.Actions.Release {
		t.Errorf("deletes %v", names(plan.Actions.Delete))
	}
}

// TestALostWorkerOfTheGangIsReplacedInItsClass: the scheduler and the planner never disagree about what may
// be taken.
func TestALostWorkerOfTheGangIsReplacedInItsClass(t *testing.T) {
	job := trains(4)
	state := elasticState(job, crewOf(job)...)
	deletedAt(now.Add(30 * time.Second))(state.Pods[1])
	giveRoom(state, 1)
	look(state)
	plan := look(state)
	if len(plan.Actions.Grow) != 1 || isGrowth(plan.Actions.Grow[0]) || pinned(plan.Actions.Grow[0]) != "n1" {
		t.Fatalf("makes %v", names(plan.Actions.Grow))
	}
	if plan.Actions.Grow[0].Spec.SchedulerName != job.Spec.Gang.SchedulerName {
		t.Errorf("it is for scheduler %q", plan.Actions.Grow[0].Spec.SchedulerName)
	}
}

func TestStateWord(t *testing.T) {
	condition := func(conditionType string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: conditionType, Status: status, Reason: reason}
	}
	cases := map[string][]metav1.Condition{
		"Queued":        {condition(v1alpha1.ConditionAdmitted, metav1.ConditionTrue, "Admitted"), condition(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonQueued)},
		"Starting":      {condition(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStarting)},
		"Training":      {condition(v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed)},
		"Resizing":      {condition(v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonResizing)},
		"Recovering":    {condition(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonRecovering)},
		"QuotaExceeded": {condition(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, v1alpha1.ReasonQuotaExceeded)},
		"Suspended":     {condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended)},
		"Complete":      {condition(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted), condition(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonFinished)},
		"Failed":        {condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonProgramFailed)},
	}
	for want, conditions := range cases {
		if got := stateWord(&v1alpha1.TrainingJobStatus{Conditions: conditions}, false); got != want {
			t.Errorf("%s for %s", got, want)
		}
	}
	if got := stateWord(&v1alpha1.TrainingJobStatus{Conditions: cases["Training"]}, true); got != v1alpha1.ReasonStopping {
		t.Errorf("%s while it is being suspended", got)
	}
}

func TestWhyAJobIsNotLarger(t *testing.T) {
	state := reclaims(5)
	state.Grant.Reason, state.Grant.Why = "NoRoom", "nothing is free on 3 nodes"
	expectCondition(t, look(state), v1alpha1.ConditionFullSize, metav1.ConditionFalse, "NoRoom", "nothing is free")
	state.Job.Spec.Workers.Max = ptr.To[int32](5)
	expectCondition(t, look(state), v1alpha1.ConditionFullSize, metav1.ConditionTrue, v1alpha1.ReasonFullSize, "5 workers")
	if strings.Contains(state.Job.Status.State, " ") {
		t.Errorf("state is %q", state.Job.Status.State)
	}
}

// Who will be late says so whatever else keeps it from more workers, and most of all where it has all that it may have; an event tells it
// once.
func TestWhoWillBeLateIsToldSo(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*State)
		status metav1.ConditionStatus
		reason string
		says   []string
	}{
		"below max":      {func(*State) {}, metav1.ConditionFalse, v1alpha1.ReasonLate, []string{"it needs 9"}},
		"at its max":     {func(s *State) { s.Job.Spec.Workers.Max = ptr.To[int32](5) }, metav1.ConditionTrue, v1alpha1.ReasonLate, []string{"5 workers, as many as it may have", "it needs 9"}},
		"with a min too": {func(s *State) { s.Job.Spec.Workers.Min, s.Job.Spec.Workers.Max = ptr.To[int32](5), ptr.To[int32](5) }, metav1.ConditionTrue, v1alpha1.ReasonLate, []string{"it needs 9"}},
		"it grows": {func(s *State) {
			s.Grant.Reason, s.Grant.Why = "Growing", "room for more workers is free; with 5 workers it will miss its deadline: it needs 9"
		}, metav1.ConditionFalse, v1alpha1.ReasonLate, []string{"room for more workers is free", "it needs 9"}},
		"growth pauses": {func(s *State) {
			s.Memory.Elastic.Attempt, s.Memory.Elastic.Elastic, s.Memory.Elastic.Growth.Until = s.attempt(), true, s.Now.Add(time.Hour)
		}, metav1.ConditionFalse, v1alpha1.ReasonGrowthBackOff,
			[]string{"it will miss its deadline"}},
		"workers are left out": {func(s *State) {
			for uid, member := range s.World.Members {
				member.Aside = "nobody reaches it"
				s.World.Members[uid] = member
				break
			}
		}, metav1.ConditionFalse, v1alpha1.ReasonWorkersLeftOut, []string{"nobody reaches it", "it will miss its deadline"}},
	} {
		t.Run(name, func(t *testing.T) {
			state := reclaims(5)
			state.Grant.Reason, state.Grant.Why, state.Grant.Late = v1alpha1.ReasonLate, "with 5 workers it will miss its deadline: it needs 9", true
			test.change(state)
			told := 0
			for look := range 3 {
				plan := NewPlan(state, settings)
				state.Job.Status = plan.Status
				state.Memory.remember(&plan)
				for _, text := range test.says {
					expectCondition(t, plan, v1alpha1.ConditionFullSize, test.status, test.reason, text)
				}
				for _, note := range plan.Notes {
					if note.Reason == v1alpha1.EventLate {
						told++
					}
				}
				if look == 1 {
					state.Memory.LateTold = false // another leader
				}
			}
			if most := 2; told < 1 || told > most || test.reason == v1alpha1.ReasonLate && told > 1 {
				t.Errorf("it is told %d times", told)
			}
		})
	}
}

// TestAWorkerIsMovedInOnePause: who takes its place is made first, beyond the target, and the worker is told
// to leave once that one is ready.
func TestAWorkerIsMovedInOnePause(t *testing.T) {
	state := reclaims(5)
	state.Grant.Places = []fleet.Place{{Node: "n9"}}
	step := func() Plan {
		plan := NewPlan(state, settings)
		carryOutMarks(plan)
		state.Job.Status = plan.Status
		state.Memory.remember(&plan)
		return plan
	}
	step() // names
	plan := step()
	if len(plan.Actions.Grow) != 1 || pinned(plan.Actions.Grow[0]) != "n9" {
		t.Fatalf("makes %v", names(plan.Actions.Grow))
	}
	expectTarget(t, plan, 5)
	state.Memory.Elastic.use(5)
	newcomer := growthPod(state, 5, trainerRuns, func(pod *corev1.Pod) {
		pod.Spec.NodeName = "n9"
		pod.Annotations[annotationMoves] = plan.Actions.Grow[0].Annotations[annotationMoves]
	})
	state.Grant.Places = nil
	state.Grant.Leave[state.Pods[4].UID] = fleet.Leave{Reason: fleet.Moved, For: "team/big"}
	if plan = step(); len(marked(plan)) > 0 || len(leavers(plan)) > 0 {
		t.Fatalf("marks %v, leavers %v: the newcomer is not ready", marked(plan), leavers(plan))
	}
	state.World.Members[string(newcomer.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, Standby: true, WorkerRank: -1}
	if got := marked(step()); !slices.Equal(got, []string{"digits-1-4 Moved team/big 2030-01-01T12:01:00Z"}) {
		t.Fatalf("marks %v", got)
	}
	plan = step()
	if got := leavers(plan); len(got) != 1 || got["digits-1-4"] != rendezvous.ReasonMoved {
		t.Errorf("leavers are %v", got)
	}
	expectTarget(t, plan, 5)
	if names(plan.Actions.Grow) != nil || plan.Actions.Expect.Target != 5 {
		t.Errorf("makes %v, expects up to %d workers", names(plan.Actions.Grow), plan.Actions.Expect.Target)
	}
}

// TestWhoReplacesAWorkerOfTheGangAtMax: a worker of the job's own class is deleted, and the maximum lowered to those that
// are left. One of the growth goes for its replacement, once that is ready.
func TestWhoReplacesAWorkerOfTheGangAtMax(t *testing.T) {
	state := reclaims(4)
	state.Job.Spec.Workers.Max, state.Job.Status.Workers.Target = ptr.To[int32](4), ptr.To[int32](4)
	state.Memory.Elastic.use(5)
	delete(state.World.Members, string(state.Pods[1].UID))
	state.Pods = slices.Delete(state.Pods, 1, 2)
	newcomer := podOf(state.Job, 1, 5, trainerRuns, onNode("n9"))
	newcomer.Annotations[annotationMoves] = "true"
	state.Pods = append(state.Pods, newcomer)
	state.World.Members[string(newcomer.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, WorkerRank: -1}
	state.Grant.Leave[state.Pods[3].UID] = fleet.Leave{Why: "others have a larger claim to its room"}
	step := func() Plan {
		plan := NewPlan(state, settings)
		state.Job.Status = plan.Status
		state.Memory.remember(&plan)
		return plan
	}
	if got := leavers(step()); len(got) > 0 {
		t.Fatalf("leavers are %v: the newcomer is not ready", got)
	}
	state.World.Members[string(newcomer.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, Standby: true, WorkerRank: -1}
	plan := step()
	if got := leavers(plan); len(got) != 1 || got["digits-1-4"] != rendezvous.ReasonScaledDown {
		t.Errorf("leavers are %v", got)
	}
	expectTarget(t, plan, 4)
}

// TestWhoNeedNotLeaveIsWantedAgain: whatever else pauses growth, the target counts them before their marks go.
func TestWhoNeedNotLeaveIsWantedAgain(t *testing.T) {
	state := reclaims(5)
	state.Memory.Elastic = ElasticMemory{Attempt: 1, Elastic: true, Growth: GrowthBackOff{}.failed(now, "no room", nil)}
	state.Job.Status.Workers.Target = ptr.To[int32](3)
	for _, pod := range state.Pods[3:] {
		fleet.Mark{Reason: fleet.Reclaimed, For: "team/big", At: now}.Put(pod)
	}
	plan := NewPlan(state, settings)
	expectTarget(t, plan, 5)
	expectNothingDone(t, plan)
	state.Job.Status = plan.Status
	plan = NewPlan(state, settings)
	if got := marked(plan); len(got) != 2 {
		t.Fatalf("marks %v", got)
	}
	carryOutMarks(plan)
	if plan = NewPlan(state, settings); len(leavers(plan)) > 0 {
		t.Errorf("leavers are %v", leavers(plan))
	}
}

// TestABarrierHasItsTimeUnderEveryLeader: neither the absence of a leader nor another one's clock takes it away.
func TestABarrierHasItsTimeUnderEveryLeader(t *testing.T) {
	state := reclaims(4)
	state.Job.Status.Workers.Target = ptr.To[int32](4)
	fleet.Mark{Reason: fleet.Reclaimed, For: "team/big", At: now.Add(-time.Hour)}.Put(state.Pods[4])
	by := func() time.Time {
		plan := NewPlan(state, settings)
		state.Memory.remember(&plan)
		return plan.Actions.Expect.Members[4].LeaveBy
	}
	first := by()
	if left := first.Sub(state.Now); left != 25*time.Second {
		t.Errorf("%s are left, want 25s", left)
	}
	state.Now = state.Now.Add(10 * time.Second)
	if again := by(); !again.Equal(first) {
		t.Errorf("the time is %s, and was %s", again, first)
	}
}
