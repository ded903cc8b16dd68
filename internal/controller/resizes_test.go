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

// after is an observation in which the world went on as round 4 without the lost pods.
func after(state *State, reason rendezvous.Reason, program bool, message string, lost ...*corev1.Pod) {
	state.World.Round = 4
	from := value(state.Job.Status.World.Workers)
	state.World.Changes = []rendezvous.Change{{Round: 4, From: from, To: from - int32(len(lost)), Reason: reason,
		Pause: 180 * time.Millisecond, StepsLost: 3, At: now}}
	for _, pod := range lost {
		seen := state.World.Members[string(pod.UID)]
		seen.WorkerRank, seen.Connected, seen.InWorld = -1, false, false
		state.World.Members[string(pod.UID)] = seen
		state.World.Losses = append(state.World.Losses, rendezvous.Loss{
			UID: string(pod.UID), Name: pod.Name, Program: program, Message: message, Round: 3, At: now})
	}
}

func TestLossesAreCountedOnceWithTheirCause(t *testing.T) {
	const traceback = "Traceback (most recent call last):\nValueError: bad label"
	cases := []struct {
		name                    string
		lost                    podChange // nil: the pod is gone
		reason                  rendezvous.Reason
		program                 bool
		waits                   time.Duration
		programs, infrastructur int32
		says                    string
	}{
		{name: "the program fails", lost: exited(1, now, traceback), reason: rendezvous.ReasonProgramFailed, program: true,
			waits: settleTime, programs: 1, says: "ValueError: bad label"},
		{name: "its device is broken", lost: exited(rendezvous.ExitDevice, now, "CUDA error: uncorrectable ECC error encountered"),
			reason: rendezvous.ReasonProgramFailed, program: true, waits: settleTime, infrastructur: 1, says: "a device of the node is broken"},
		{name: "the agent is killed", lost: exited(137, now, ""), reason: rendezvous.ReasonWorkerLost, waits: settleTime, programs: 1, says: "code 137"},
		{name: "the kubelet has not said yet how it ended", lost: trainerRuns, reason: rendezvous.ReasonWorkerLost, waits: lastWords, infrastructur: 1, says: "silent"},
		{name: "deleted by force", reason: rendezvous.ReasonWorkerLost, infrastructur: 1, says: "silent"},
		{name: "evicted, and killed at the end of its grace period", reason: rendezvous.ReasonProgramFailed, program: true, infrastructur: 1, says: "drained",
			lost: func(pod *corev1.Pod) {
				exited(137, now, "")(pod)
				withCondition(corev1.DisruptionTarget, "EvictionByEvictionAPI", "drained")(pod)
			}},
		{name: "deleted", lost: func(pod *corev1.Pod) { exited(1, now, "")(pod); deletedAt(now.Add(-time.Second))(pod) }, reason: rendezvous.ReasonProgramFailed, program: true,
			infrastructur: 1, says: "deleted"},
		{name: "deleted once it had failed", lost: func(pod *corev1.Pod) { exited(1, now, "")(pod); deletedAt(now.Add(5 * time.Second))(pod) },
			reason: rendezvous.ReasonProgramFailed, program: true, waits: settleTime, programs: 1, says: "worker digits-1-2"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := trains(3)
			state := elasticState(job, crewOf(job)...)
			lost := state.Pods[2]
			after(state, c.reason, c.program, "worker digits-1-2 is silent", lost)
			if c.lost == nil {
				state.Pods = state.Pods[:2]
			} else {
				c.lost(lost)
			}
			if c.waits > 0 {
				plan := look(state)
				if len(plan.Status.Resizes) > 0 || plan.After > c.waits {
					t.Fatalf("resizes %+v, looks again after %s: the cause is not certain yet", plan.Status.Resizes, plan.After)
				}
				state.Now = now.Add(c.waits)
			}
			plan := look(state)
			expectNothingDone(t, plan)
			expectNote(t, plan, v1alpha1.EventRecovered, "round 4: from 3 to 2 workers", "paused for 180ms", "3 steps are made again", c.says)
			resize := plan.Status.Resizes[0]
			if value(resize.Round) != 4 || value(resize.From) != 3 || value(resize.To) != 2 || resize.Reason != string(c.reason) ||
				value(resize.Pause).Duration != 180*time.Millisecond || value(resize.StepsLost) != 3 {
				t.Errorf("resize is %+v", resize)
			}
			for range 3 {
				state.Now = state.Now.Add(time.Minute)
				state.Memory = Memory{Since: state.Now} // a new leader does not count it again either
				plan = look(state)
			}
			if p, i := value(plan.Status.Restarts.Program), value(plan.Status.Restarts.Infrastructure); p != c.programs || i != c.infrastructur {
				t.Errorf("counted %d of the program and %d of the infrastructure, want %d and %d", p, i, c.programs, c.infrastructur)
			}
			if len(plan.Status.Resizes) != 1 || value(plan.Status.Attempt) != 1 {
				t.Errorf("%d resizes, attempt %d", len(plan.Status.Resizes), value(plan.Status.Attempt))
			}
		})
	}
}

// TestALossThatAWorldSurvivesIsItsNodesFault: the place of the one who was lost is filled on another node, where a node is to blame.
// That is counted once, like the loss.
func TestALossThatAWorldSurvivesIsItsNodesFault(t *testing.T) {
	for name, row := range map[string]struct {
		lost    podChange
		program bool
		want    []string
	}{
		"nobody hears it there":    {trainerRuns, false, []string{"n3"}},
		"its kubelet refuses it":   {func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "OutOfcpu" }, false, []string{"n3"}},
		"its node does not answer": {withCondition(corev1.DisruptionTarget, "DeletionByTaintManager", "unreachable"), false, []string{"n3"}},
		"another needs its room":   {withCondition(corev1.DisruptionTarget, corev1.PodReasonPreemptionByScheduler, "priority"), false, nil},
		"somebody has deleted it":  {deletedAt(now.Add(-time.Second)), false, nil},
		"its program fails":        {exited(1, now, "ValueError"), true, nil},
		"its device is broken":     {exited(rendezvous.ExitDevice, now, "CUDA error"), true, []string{"n3"}},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(3)
			state := elasticState(job, crewOf(job)...)
			lost := state.Pods[2]
			row.lost(lost)
			onNode("n3")(lost)
			reason := rendezvous.ReasonWorkerLost
			if row.program {
				reason = rendezvous.ReasonProgramFailed
			}
			after(state, reason, row.program, "worker digits-1-2 is silent", lost)
			for range 2 {
				state.Now = state.Now.Add(lastWords)
				look(state)
			}
			if len(state.Job.Status.Resizes) != 1 {
				t.Fatalf("resizes are %+v", state.Job.Status.Resizes)
			}
			var nodes []string
			for _, node := range state.Job.Status.AvoidedNodes {
				nodes = append(nodes, node.Name)
				if value(node.Failures) != 1 || !strings.Contains(node.Message, "node n3") {
					t.Errorf("avoids %+v", node)
				}
			}
			if !slices.Equal(nodes, row.want) {
				t.Errorf("avoids %v, want %v", nodes, row.want)
			}
		})
	}
}

// Who was lost with others, since its program did not leave their world in time, and is in the next one, is heard where it is.
func TestASurvivorIsNoReasonToAvoidItsNode(t *testing.T) {
	job := trains(4)
	state := elasticState(job, crewOf(job)...)
	for i, pod := range state.Pods {
		onNode(fmt.Sprintf("n%d", i))(pod)
	}
	lost, killed := state.Pods[3], state.Pods[2]
	after(state, rendezvous.ReasonWorkerLost, false, "it was silent", lost)
	state.World.Losses = append(state.World.Losses, rendezvous.Loss{UID: string(killed.UID), Name: killed.Name, Round: 3, Rank: 2, At: now,
		Message: "its program did not leave the world in time and was killed"})
	for range 2 {
		state.Now = state.Now.Add(lastWords)
		look(state)
	}
	if nodes := state.Job.Status.AvoidedNodes; len(nodes) != 1 || nodes[0].Name != "n3" {
		t.Errorf("avoids %+v", nodes)
	}
}

func TestPlannedChangesCountNothing(t *testing.T) {
	job := trains(3)
	state := elasticState(job, crewOf(job)...)
	after(state, rendezvous.ReasonCapacityAvailable, false, "")
	state.World.Changes[0].From, state.World.Changes[0].To, state.World.Changes[0].StepsLost = 2, 3, 0
	plan := look(state)
	expectNote(t, plan, v1alpha1.EventResized, "round 4: from 2 to 3 workers (CapacityAvailable); training paused for 180ms")
	if len(plan.Status.Resizes) != 1 || plan.Status.Restarts != (v1alpha1.RestartsStatus{}) {
		t.Errorf("resizes %+v, restarts %+v", plan.Status.Resizes, plan.Status.Restarts)
	}
}

func TestTheRecordStandsInForAChangeThatNobodySaw(t *testing.T) {
	job := trains(2)
	job.Status.World.Round, job.Status.World.From, job.Status.World.Reason = ptr.To[int64](4), ptr.To[int32](3), string(rendezvous.ReasonWorkerLost)
	job.Status.World.StartedAt = ptr.To(metav1.NewTime(start))
	state := elasticState(job, crewOf(job)...)
	state.World.Round = 4
	if plan := NewPlan(state, settings); len(plan.Status.Resizes) > 0 {
		t.Fatalf("a leader that made the round itself takes the record for a change: %+v", plan.Status.Resizes)
	}
	state.Memory.Since = now
	for range 2 {
		look(state)
	}
	status := state.Job.Status
	if len(status.Resizes) != 1 || value(status.Restarts.Infrastructure) != 1 || status.Resizes[0].StepsLost != nil {
		t.Errorf("resizes %+v, restarts %+v", status.Resizes, status.Restarts)
	}
}

// A leader counted nothing of a loss, changed the world once more, and died: its record tells of both.
func TestTheRecordStandsInForTheRecoveriesBeforeIt(t *testing.T) {
	job := trains(3)
	job.Status.World.Round, job.Status.World.From, job.Status.World.Reason = ptr.To[int64](5), ptr.To[int32](2), string(rendezvous.ReasonCapacityAvailable)
	job.Status.World.StartedAt = ptr.To(metav1.NewTime(start))
	job.Status.World.Recoveries = "2:Hung:4:3:1795701600 4:ProgramFailed:3:2:1795701694"
	job.Status.Resizes = []v1alpha1.Resize{{Round: ptr.To[int64](2), From: ptr.To[int32](4), To: ptr.To[int32](3), Reason: string(rendezvous.ReasonHung)}}
	state := elasticState(job, crewOf(job)...)
	state.World.Round, state.Memory.Since = 5, now
	for range 2 {
		look(state)
	}
	status := state.Job.Status
	var rounds []int64
	for i := range status.Resizes {
		rounds = append(rounds, value(status.Resizes[i].Round))
	}
	if !slices.Equal(rounds, []int64{2, 4, 5}) || value(status.Restarts.Program) != 1 || value(status.Restarts.Infrastructure) != 0 {
		t.Errorf("rounds %d are told, restarts are %+v", rounds, status.Restarts)
	}
}

// A leader that adopts a world hears from its workers how long they stood still: the record does not stand in for
// what the rendezvous is about to tell.
func TestAnInheritedChangeIsToldWithItsPause(t *testing.T) {
	job := trains(2)
	job.Status.World.Round, job.Status.World.From, job.Status.World.Reason = ptr.To[int64](4), ptr.To[int32](3), string(rendezvous.ReasonWorkerLost)
	job.Status.World.StartedAt = ptr.To(metav1.NewTime(start))
	state := elasticState(job, crewOf(job)...)
	state.Memory.Since, state.World.Adopting, state.World.Round = now, true, 0
	if plan := NewPlan(state, settings); len(plan.Status.Resizes) > 0 {
		t.Fatalf("nobody knows yet which world there is, and its change is told: %+v", plan.Status.Resizes)
	}
	state.World.Adopting, state.World.Round, state.World.Untold = false, 4, true
	if plan := NewPlan(state, settings); len(plan.Status.Resizes) > 0 || plan.Progress {
		t.Fatalf("what it cost is not known yet, and it is told: %+v", plan.Status.Resizes)
	}
	state.World.Untold = false
	state.World.Changes = []rendezvous.Change{{Round: 4, From: 3, To: 2, Reason: rendezvous.ReasonWorkerLost,
		At: start, Begun: true, Pause: 77 * time.Second, Inherited: true}}
	expectNote(t, look(state), v1alpha1.EventRecovered, "round 4: from 3 to 2 workers", "paused for 1m17s")
	look(state)
	status := state.Job.Status
	if len(status.Resizes) != 1 || value(status.Restarts.Infrastructure) != 1 || status.Resizes[0].StepsLost != nil ||
		status.Resizes[0].Pause == nil || status.Resizes[0].Pause.Duration != 77*time.Second {
		t.Errorf("resizes %+v, restarts %+v", status.Resizes, status.Restarts)
	}
}

func TestAPauseThatIsNotKnown(t *testing.T) {
	job := trains(3)
	state := elasticState(job, crewOf(job)...)
	after(state, rendezvous.ReasonNodeTainted, false, "all are replaced")
	state.World.Changes[0].Pause, state.World.Changes[0].Begun, state.World.Changes[0].StepsLost = 0, true, 0
	plan := look(state)
	expectNote(t, plan, v1alpha1.EventResized, "(NodeTainted); how long training paused is unknown")
	if plan.Status.Resizes[0].Pause != nil {
		t.Errorf("the status says %s", plan.Status.Resizes[0].Pause.Duration)
	}
}

func TestResizesKeepTheLast16(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	for round := uint64(4); round < 24; round++ {
		state.World.Round = round
		state.World.Changes = []rendezvous.Change{{Round: round, From: 2, To: 2, Reason: rendezvous.ReasonRetried, At: now}}
		look(state)
	}
	if resizes := state.Job.Status.Resizes; len(resizes) != 16 || value(resizes[0].Round) != 8 || value(resizes[15].Round) != 23 {
		t.Errorf("resizes are %+v", resizes)
	}
}

func TestTooManyProgramLossesEndTheJob(t *testing.T) {
	job := trains(3, func(j *v1alpha1.TrainingJob) { j.Status.Restarts.Program = ptr.To[int32](2) })
	state := elasticState(job, crewOf(job)...)
	lost := state.Pods[1]
	exited(1, now, "")(lost)
	after(state, rendezvous.ReasonProgramFailed, true, "Traceback (most recent call last):\nZeroDivisionError: division by zero", lost)
	state.Now = now.Add(settleTime)
	plan := look(state)
	expectNothingDone(t, plan)
	expectCondition(t, plan, v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonProgramFailed, "maxRestarts (2)", "ZeroDivisionError")
	plan = look(state)
	if got := names(plan.Actions.Delete); !slices.Equal(got, []string{"digits-1-0", "digits-1-2"}) || !plan.Actions.Release {
		t.Errorf("deletes %v", got)
	}
}

// TestNoLossIsForgottenAtTheEnd: training that ends before it is certain whose fault a loss was takes it
// into its counters all the same, in the write that completes the job.
func TestNoLossIsForgottenAtTheEnd(t *testing.T) {
	cases := []struct {
		name                    string
		program, used           bool
		state                   func(*State)
		programs, infrastructur int32
	}{
		{name: "the kubelet has not said yet how the pod ended", infrastructur: 1},
		{name: "the program's fault", program: true, programs: 1},
		{name: "more often than maxRestarts, and complete all the same", program: true, used: true, programs: 3},
		{name: "the last world has made no step", infrastructur: 1, state: func(s *State) { s.World.Changes = nil }},
		{name: "nobody looked", infrastructur: 1, state: func(s *State) {
			s.World, s.Memory = rendezvous.Observation{}, Memory{Since: now.Add(time.Hour)}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := trains(3, func(j *v1alpha1.TrainingJob) {
				if c.used {
					j.Status.Restarts.Program = ptr.To[int32](2)
				}
			})
			state := elasticState(job, crewOf(job)...)
			reason := rendezvous.ReasonWorkerLost
			if c.program {
				reason = rendezvous.ReasonProgramFailed
			}
			lost := state.Pods[2]
			after(state, reason, c.program, "gone", lost)
			job.Status.World = &v1alpha1.WorldStatus{Term: ptr.To[int64](1), Round: ptr.To[int64](4), Attempt: ptr.To[int32](1),
				Workers: ptr.To[int32](2), From: ptr.To[int32](3), Reason: string(reason), StartedAt: ptr.To(metav1.NewTime(now))}
			named(job, state.Pods[:2])
			for _, pod := range state.Pods[:2] {
				exited(0, now, "")(pod)
			}
			if c.state != nil {
				c.state(state)
			}
			plan := look(state)
			expectNothingDone(t, plan)
			expectCondition(t, plan, v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted)
			if p, i := value(plan.Status.Restarts.Program), value(plan.Status.Restarts.Infrastructure); p != c.programs || i != c.infrastructur {
				t.Errorf("counted %d of the program and %d of the infrastructure, want %d and %d", p, i, c.programs, c.infrastructur)
			}
			if resizes := plan.Status.Resizes; len(resizes) != 1 || value(resizes[0].Round) != 4 {
				t.Errorf("resizes are %+v", resizes)
			}
		})
	}
}

func TestFatalWorlds(t *testing.T) {
	job := trains(2)
	cases := []struct {
		name    string
		losses  []rendezvous.Loss
		program int32
	}{
		{name: "the programs failed", losses: []rendezvous.Loss{{UID: "x", Program: true, Message: "ValueError", Round: 3, At: start}}, program: 1},
		{name: "nothing is left to go on from", losses: []rendezvous.Loss{{UID: "x", Message: "lost", Round: 3, At: start}}},
		{name: "no loss is known"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			state := elasticState(job.DeepCopy(), crewOf(job)...)
			state.World.Fatal, state.World.Losses, state.World.Phase = "every worker failed: ValueError", c.losses, rendezvous.PhaseRecovering
			plan := look(state)
			expectNothingDone(t, plan)
			expectTarget(t, plan, 0)
			expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonBackOff, "every worker failed: ValueError")
			if value(plan.Status.Restarts.Program) != c.program || value(plan.Status.Restarts.Infrastructure) != 1-c.program {
				t.Errorf("restarts are %+v", plan.Status.Restarts)
			}
		})
	}
}

func TestRegroup(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	lost := state.Pods[1]
	exited(1, now, "Killed")(lost)
	state.World.Phase, state.World.Why = rendezvous.PhaseRegrouping, "1 of 2 workers is left"
	state.World.Losses = []rendezvous.Loss{{UID: string(lost.UID), Name: lost.Name, Program: true, Round: 3, At: now}}
	if plan := look(state); len(plan.Actions.Refill) > 0 || !plan.Facts.Regrouping || !plan.Facts.Lost[lost.UID] {
		t.Fatalf("refills %v without room, and tells the planner %+v", names(plan.Actions.Refill), plan.Facts)
	}
	giveRoom(state, 1)

	plan := look(state)
	expectNothingDone(t, plan)
	plan = look(state)
	group := plan.Actions.RefillGroup
	if !slices.Equal(names(plan.Actions.Refill), []string{"digits-1-2"}) || group == nil || group.MinMember != 1 || group.Key.Name != "digits-1-r2" {
		t.Fatalf("refills %v, group %+v", names(plan.Actions.Refill), group)
	}
	refill := plan.Actions.Refill[0]
	refill.UID, refill.CreationTimestamp = "uid-refill", metav1.NewTime(now)
	state.Pods = append(state.Pods, refill)
	state.Memory.Elastic.use(2)
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed)

	state.Now = now.Add(phaseLasts)
	plan = look(state)
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonRegrouping, "1 of 2 workers is left")
	if len(plan.Actions.Withdraw)+len(plan.Actions.Refill) > 0 || plan.Decided {
		t.Errorf("a refill that waits for room is not left alone: %+v", plan.Actions)
	}

	state.Memory = Memory{} // the time is durable
	state.Now = now.Add(phaseLasts + 2*time.Minute)
	plan = look(state)
	expectTarget(t, plan, 0)
	expectNothingDone(t, plan)
	if value(plan.Status.Restarts.Program) != 1 || !strings.Contains(condition(t, plan, v1alpha1.ConditionTraining).Message, "regroupTimeout (2m0s)") {
		t.Errorf("restarts %+v: %s", plan.Status.Restarts, condition(t, plan, v1alpha1.ConditionTraining).Message)
	}
	if plan = look(state); !plan.Actions.DeleteGroup || !plan.Actions.Release {
		t.Errorf("actions are %+v", plan.Actions)
	}
}

func TestALossAfterTheLastStepIsReplaced(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)[:1]...)
	state.World.Phase = rendezvous.PhaseRegrouping
	state.World.Progress = rendezvous.Progress{Step: 90, TotalSteps: 90}
	giveRoom(state, 1)
	look(state)
	if plan := look(state); !slices.Equal(names(plan.Actions.Refill), []string{"digits-1-2"}) {
		t.Errorf("refills %v: the evaluation is yet to be done", names(plan.Actions.Refill))
	}
}

func TestAPartOfARefillIsWithdrawn(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)[:1]...)
	state.World.Phase = rendezvous.PhaseRegrouping
	part := podOf(job, 1, 2, func(pod *corev1.Pod) { pod.Annotations[annotationRefill] = "2-2" })
	state.Pods = append(state.Pods, part)
	if plan := look(state); !slices.Equal(names(plan.Actions.Withdraw), []string{"digits-1-2"}) {
		t.Fatalf("withdraws %v", names(plan.Actions.Withdraw))
	}
	state.Pods = state.Pods[:1]
	giveRoom(state, 1)
	look(state)
	if plan := look(state); !slices.Equal(names(plan.Actions.Refill), []string{"digits-1-2"}) {
		t.Errorf("refills %v", names(plan.Actions.Refill))
	}
}

func TestShortPhasesAreNotWritten(t *testing.T) {
	job := trains(3)
	state := elasticState(job, crewOf(job)...)
	look(state)
	state.World.Phase, state.World.Why = rendezvous.PhaseRecovering, "worker digits-1-2 was lost"
	expectCondition(t, look(state), v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed)
	state.Now = now.Add(phaseLasts)
	expectCondition(t, look(state), v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonRecovering, "digits-1-2 was lost")
	state.World.Phase = rendezvous.PhaseTraining
	expectCondition(t, look(state), v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed, "round 3: 3 workers")
}

func TestAStandbyDoesNotKeepTheJobFromCompleting(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	growthPod(state, 2, trainerRuns)
	state.World.Members["uid-digits-1-2"] = rendezvous.MemberObservation{Joined: true, Connected: true, Standby: true, WorkerRank: -1}
	state.Job.Status.Workers.Target = ptr.To[int32](3)
	giveRoom(state, 1)
	if plan := NewPlan(state, settings); value(plan.Status.Workers.Standby) != 1 {
		t.Errorf("%d standbys", value(plan.Status.Workers.Standby))
	}
	exited(0, now, "")(state.Pods[0])
	if plan := NewPlan(state, settings); isTrue(plan.Status.Conditions, v1alpha1.ConditionComplete) || plan.Decided {
		t.Fatalf("one of two has finished, and the plan is %+v", plan.Actions)
	}
	exited(0, now, "")(state.Pods[1])
	plan := look(state)
	expectCondition(t, plan, v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, "all 2 workers")
	if got := names(look(state).Actions.Delete); !slices.Equal(got, []string{"digits-1-2"}) {
		t.Errorf("deletes %v", got)
	}
}

func TestANewLeaderJudgesNobodyBeforeItKnows(t *testing.T) {
	job := trains(3)
	state := elasticState(job, crewOf(job)...)
	state.World = rendezvous.Observation{Known: true, Attempt: 1, Adopting: true}
	exited(1, now, "ValueError")(state.Pods[0])
	plan := look(state)
	if plan.Actions.Expect == nil || len(plan.Actions.Expect.Members) != 3 || !plan.Actions.Expect.Members[0].Ended || value(plan.Status.Workers.Target) != 3 {
		t.Fatalf("expects %+v", plan.Actions.Expect)
	}
	for _, pod := range state.Pods {
		exited(0, now, "")(pod)
	}
	state.Pods[2].Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	state.Pods[2].Status.Phase = corev1.PodRunning
	state.Job.Status.World.Workers = ptr.To[int32](2)
	named(state.Job, state.Pods[:2])
	expectCondition(t, look(state), v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, "all 2 workers")
}

func TestWorkersThatWereLostLongAgoExplainNothing(t *testing.T) {
	job := trains(2)
	history := podOf(job, 1, 5, exited(1, start, "ValueError"))
	crashed := newGrowthPod(job, settings, 1, 6)
	crashed.UID = "uid-crashed"
	exited(1, start, "ImportError")(crashed)

	t.Run("a world that is being made anew", func(t *testing.T) {
		pods := append(crewOf(job), history, crashed)
		state := elasticState(job.DeepCopy(), pods...)
		state.World.Round, state.World.Phase, state.World.Elastic = 0, rendezvous.PhaseForming, false
		state.World.Members = nil
		state.Memory.Since, state.Now = now.Add(time.Hour), now.Add(time.Hour)
		plan := look(state)
		if plan.Actions.Expect == nil || len(plan.Actions.Expect.Members) != 2 || value(plan.Status.Workers.Target) != 2 {
			t.Errorf("expects %+v, target %d", plan.Actions.Expect, value(plan.Status.Workers.Target))
		}
		state.Now = state.Now.Add(10 * time.Minute)
		expectTarget(t, look(state), 0)
	})
	t.Run("a world that has finished while nobody looked", func(t *testing.T) {
		pods := append(crewOf(job), history, crashed)
		state := elasticState(job.DeepCopy(), pods...)
		state.World = rendezvous.Observation{}
		for _, pod := range state.Pods[:2] {
			exited(0, now, "")(pod)
		}
		expectCondition(t, look(state), v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted)
	})
}

func TestNodesThatAreGone(t *testing.T) {
	for name, gone := range map[string]func(*State){
		"deleted": func(s *State) { delete(s.Nodes.ByName, "n1"); s.Nodes.Gone = map[string]bool{"n1": true} },
		"out of service": func(s *State) {
			s.Nodes.ByName["n1"].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(3)
			state := elasticState(job, crewOf(job)...)
			gone(state)
			seen := state.World.Members["uid-digits-1-2"]
			seen.Connected = false
			state.World.Members["uid-digits-1-2"] = seen
			plan := look(state)
			if member := plan.Actions.Expect.Members[2]; !member.Ended || member.Lost == "" {
				t.Errorf("the rendezvous is told %+v", member)
			}
		})
	}
}

// What becomes the reason of a change is said in one line, how the worker ended included.
func TestWhatTheRendezvousIsToldOfAWorkerThatHasEnded(t *testing.T) {
	job := trains(3)
	state := elasticState(job, crewOf(job)...)
	exited(137, now, "step 1 loss 0.5\nstep 2 loss 0.4")(state.Pods[2])
	const want = "worker digits-1-2 (worker rank 2, node n1) exited with code 137: step 2 loss 0.4"
	if member := look(state).Actions.Expect.Members[2]; !member.Ended || member.Lost != want {
		t.Errorf("the rendezvous is told %+v, want %q", member, want)
	}
}

// Below min nothing but room and quota delays a refill: that more workers could not be added is no reason to leave the
// survivors waiting.
func TestAPauseOfGrowthDelaysNoRefill(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)[:1]...)
	state.World.Phase = rendezvous.PhaseRegrouping
	state.Memory.Elastic = ElasticMemory{Attempt: 1, Growth: GrowthBackOff{}.failed(now, "no", nil)}
	giveRoom(state, 1)
	look(state)
	if plan := look(state); !slices.Equal(names(plan.Actions.Refill), []string{"digits-1-2"}) {
		t.Errorf("refills %v", names(plan.Actions.Refill))
	}
}

// While the API server gives no answer to the pods of a refill it is the operator that the survivors wait for: regroupTimeout
// ends nothing meanwhile.
func TestRegroupTimeoutEndsNothingWhileTheAPIServerGivesNoAnswer(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)[:1]...)
	state.World.Phase = rendezvous.PhaseRegrouping
	meta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonRegrouping, LastTransitionTime: metav1.NewTime(now)})
	refused := now.Add(5 * time.Minute)
	state.Memory.Elastic = ElasticMemory{Attempt: 1, Growth: GrowthBackOff{Refused: refused, Why: "no"}}
	state.Memory.Own.NotGrown, state.Memory.Own.Unanswered = 1, true
	state.Now = refused.Add(-time.Second)
	plan := look(state)
	expectTarget(t, plan, 2)
	if plan.After != time.Second {
		t.Errorf("it is looked at again after %s", plan.After)
	}
}

// A world that goes on without a worker that others do not reach has lost nobody: it is told, and counted as no loss, whoever has
// made it.
func TestWhoIsLeftOutCountsAsNoLoss(t *testing.T) {
	for _, inherited := range []bool{false, true} {
		job := trains(3)
		state := elasticState(job, crewOf(job)...)
		after(state, rendezvous.ReasonUnreached, false, "")
		state.World.Changes[0].Inherited, state.World.Changes[0].Message = inherited, "digits-1-2 is left out until its peers reach it"
		plan := look(state)
		if restarts := plan.Status.Restarts; value(restarts.Infrastructure) != 0 || value(restarts.Program) != 0 {
			t.Errorf("nobody is lost, and counted are %+v", restarts)
		}
		expectNote(t, plan, v1alpha1.EventRecovered, "Unreached", "digits-1-2 is left out until its peers reach it")
	}
}
