package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// A kubelet keeps so many bytes of an output, whatever line they begin in.
func TestTheLastLinesOfAProgram(t *testing.T) {
	const cut = 2048
	program := strings.Repeat("Traceback ", 100) + "\nValueError: bad label"
	agent := agentPrefix + strings.Repeat("round 2: worker 0 of 2 ", 100) + "\n"
	long := agent + program
	for output, want := range map[string]string{
		program:                  program,
		agent + program:          program,
		long[len(long)-cut:]:     program, // what is left of the agent's line is not known for one
		long[len(long)-cut+1:]:   strings.TrimSpace(long[len(long)-cut+1:]),
		strings.Repeat("-", cut): strings.Repeat("-", cut), // better than nothing
	} {
		if got := programLines(output); got != want {
			t.Errorf("of %d bytes, %.20q...: got %q, want %q", len(output), output, got, want)
		}
	}
}

func TestWhoseFault(t *testing.T) {
	const traceback = "Traceback (most recent call last):\nValueError: bad label"
	long := start.Add(30 * time.Second)  // settled at the time of the plan, one minute after start
	fresh := start.Add(59 * time.Second) // not settled yet
	job := jobWith(scheduled)
	cases := []struct {
		name                    string
		pods                    []*corev1.Pod
		world                   func(*rendezvous.Observation)
		recorded                []rendezvous.NamedMember
		program, infrastructure int32
		says                    string
		waits                   bool
	}{
		{name: "a program that fails",
			pods:    []*corev1.Pod{podOf(job, 1, 0, exited(1, long, traceback)), podOf(job, 1, 1, trainerRuns)},
			program: 1, says: "ValueError: bad label"},
		{name: "too early to say",
			pods:  []*corev1.Pod{podOf(job, 1, 0, exited(1, fresh, traceback)), podOf(job, 1, 1, trainerRuns)},
			waits: true},
		{name: "the culprit is told from those who lost a peer",
			pods: []*corev1.Pod{
				podOf(job, 1, 0, exited(1, long, "RuntimeError: Connection closed by peer")),
				podOf(job, 1, 1, exited(1, long.Add(time.Second), "concertina-agent: round 2: worker 0 of 2\n"+traceback))},
			program: 1, says: "worker digits-1-1 on node n1 exited with code 1: " + traceback},
		{name: "a connection that its own end has closed is no cause",
			pods: []*corev1.Pod{
				podOf(job, 1, 0, exited(1, long, "step 5: EOF\nwrite tcp 10.0.0.1:1->10.0.0.2:2: use of closed network connection")),
				podOf(job, 1, 1, exited(1, long.Add(time.Second), traceback))},
			program: 1, says: "worker digits-1-1 on node n1 exited with code 1: " + traceback},
		{name: "the last words of one that failed are on their way",
			pods: []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, exited(1, start.Add(55*time.Second), "EOF"))},
			world: func(w *rendezvous.Observation) {
				failed := w.Members["uid-digits-1-0"]
				failed.Exited, failed.ExitCode, failed.FailedAt = true, 1, start.Add(56*time.Second)
				w.Members["uid-digits-1-0"] = failed
			},
			waits: true},
		{name: "a rank that only the record tells",
			pods:     []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, exited(1, long, traceback))},
			recorded: []rendezvous.NamedMember{{Ordinal: 7, Node: "n1"}, {Ordinal: 0, Node: "n1"}, {Ordinal: 1, Node: "n1"}},
			program:  1, says: "digits-1-1 (worker rank 2, node n1) exited with code 1"},
		{name: "a peer was evicted",
			pods: []*corev1.Pod{
				podOf(job, 1, 0, exited(1, fresh, "Connection reset")),
				podOf(job, 1, 1, trainerRuns, withCondition(corev1.DisruptionTarget, "EvictionByEvictionAPI", "drained"))},
			infrastructure: 1, says: "EvictionByEvictionAPI: drained"},
		{name: "a peer was deleted",
			pods:           []*corev1.Pod{podOf(job, 1, 0, exited(1, fresh, "")), podOf(job, 1, 1, trainerRuns, deletedAt(long))},
			infrastructure: 1, says: "digits-1-1 on node n1 was deleted"},
		{name: "a peer is gone",
			pods:           []*corev1.Pod{podOf(job, 1, 0, exited(1, long, ""))},
			infrastructure: 1, says: "1 of 2 workers of attempt 1 are gone"},
		{name: "a newcomer that has ended stands for nobody who is gone",
			pods: []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 2, exited(143, long, ""), func(p *corev1.Pod) {
				p.Labels[v1alpha1.LabelRole] = v1alpha1.RoleGrowth
			})},
			infrastructure: 1, says: "1 of 2 workers of attempt 1 are gone"},
		{name: "a kubelet rejects a pod",
			pods: []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, onNode("n2"), func(p *corev1.Pod) {
				p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "OutOfcpu", "no cpu left"
			})},
			infrastructure: 1, says: "OutOfcpu: no cpu left"},
		{name: "a worker is silent",
			pods: []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns)},
			world: func(w *rendezvous.Observation) {
				w.Members["uid-digits-1-1"] = rendezvous.MemberObservation{Joined: true, Silent: true}
			},
			infrastructure: 1, says: "digits-1-1 on node n1 has been silent for 5s"},
		{name: "a worker may be lost without a word",
			pods: []*corev1.Pod{podOf(job, 1, 0, exited(1, long, "Connection reset")), podOf(job, 1, 1, trainerRuns)},
			world: func(w *rendezvous.Observation) {
				w.Members["uid-digits-1-1"] = rendezvous.MemberObservation{Joined: true, LastSeen: start.Add(56 * time.Second)}
			},
			waits: true},
		{name: "killed for its memory",
			pods: []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, exited(137, long, ""), func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].State.Terminated.Reason = "OOMKilled"
			})},
			program: 1, says: "code 137 (OOMKilled)"},
		{name: "a broken device, whatever those say who lost a peer by it",
			pods: []*corev1.Pod{
				podOf(job, 1, 0, exited(1, long, "RuntimeError: the peer sent nonsense")),
				podOf(job, 1, 1, exited(rendezvous.ExitDevice, long, "CUDA error: uncorrectable ECC error encountered"))},
			infrastructure: 1, says: "digits-1-1 on node n1 exited with code 113 (a device of the node is broken): CUDA error: uncorrectable ECC error"},
		{name: "one has finished, the others go on",
			pods: []*corev1.Pod{podOf(job, 1, 0, exited(0, long, "")), podOf(job, 1, 1, trainerRuns)}},
		{name: "a finished worker may be deleted",
			pods: []*corev1.Pod{podOf(job, 1, 0, exited(0, long, ""), deletedAt(long)), podOf(job, 1, 1, trainerRuns)}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			state := stateOf(job, c.pods...)
			state.World = worldOf(1, c.pods...)
			for _, pod := range c.pods {
				if podEnded(pod) {
					delete(state.World.Members, string(pod.UID))
				}
			}
			if c.recorded != nil {
				made := rendezvous.Record{}
				made.Name(c.recorded)
				state.Job = job.DeepCopy()
				state.Job.Status.World = &v1alpha1.WorldStatus{Round: ptr.To[int64](1), Attempt: ptr.To[int32](1),
					Workers: ptr.To(int32(len(c.recorded))), Members: made.Members}
			}
			if c.world != nil {
				c.world(&state.World)
			}
			plan := NewPlan(state, settings)
			if got := value(plan.Status.Restarts.Program); got != c.program {
				t.Errorf("%d restarts of the program, want %d", got, c.program)
			}
			if got := value(plan.Status.Restarts.Infrastructure); got != c.infrastructure {
				t.Errorf("%d restarts for the infrastructure, want %d", got, c.infrastructure)
			}
			released := value(plan.Status.Workers.Target) == 0
			if released != (c.program+c.infrastructure > 0) {
				t.Errorf("released: %v", released)
			}
			if c.says != "" {
				expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonBackOff, c.says)
				if len(plan.Notes) != 1 || !strings.Contains(plan.Notes[0].Message, c.says) {
					t.Errorf("notes are %+v", plan.Notes)
				}
			}
			if c.waits && (plan.After <= 0 || plan.After > 6*time.Second) {
				t.Errorf("looks again after %s", plan.After)
			}
		})
	}
}

// The clock of a node is behind ours by more than the age of the last attempt's world: what has failed in this attempt is none of that
// one's history all the same.
func TestTheWorldOfAnEarlierAttemptMakesNoHistory(t *testing.T) {
	job := jobWith(scheduled, func(job *v1alpha1.TrainingJob) {
		job.Status.Attempt, job.Status.NextOrdinal = ptr.To[int32](2), ptr.To[int32](4)
		job.Status.World = &v1alpha1.WorldStatus{Round: ptr.To[int64](1), Attempt: ptr.To[int32](1), Workers: ptr.To[int32](2),
			StartedAt: ptr.To(metav1.NewTime(start.Add(40 * time.Second)))}
	})
	plan := NewPlan(stateOf(job, podOf(job, 2, 2, exited(1, start.Add(30*time.Second), "ValueError: bad label")), podOf(job, 2, 3, trainerRuns)), settings)
	if value(plan.Status.Restarts.Program) != 1 || value(plan.Status.Restarts.Infrastructure) != 0 {
		t.Errorf("restarts are %+v, want one of the program", plan.Status.Restarts)
	}
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonBackOff, "ValueError: bad label")
}

func TestMaxRestarts(t *testing.T) {
	job := jobWith(scheduled, func(j *v1alpha1.TrainingJob) {
		j.Status.Restarts.Program, j.Status.Restarts.Infrastructure = ptr.To[int32](2), ptr.To[int32](50)
	})
	state := stateOf(job, podOf(job, 1, 0, exited(1, start, "ZeroDivisionError: division by zero")), podOf(job, 1, 1, trainerRuns))
	plan := NewPlan(state, settings)
	expectNothingDone(t, plan)
	expectCondition(t, plan, v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonProgramFailed, "maxRestarts (2)", "ZeroDivisionError")
	job.Status = plan.Status
	plan = NewPlan(state, settings)
	if got := names(plan.Actions.Delete); !slices.Equal(got, []string{"digits-1-1"}) {
		t.Errorf("deletes %v, want the worker that still runs", got)
	}
}

func TestBackOffGrows(t *testing.T) {
	seconds := func(all ...int) (pauses []time.Duration) {
		for _, each := range all {
			pauses = append(pauses, time.Duration(each)*time.Second)
		}
		return pauses
	}
	for name, c := range map[string]struct {
		limit *metav1.Duration
		first time.Duration
		want  []time.Duration
	}{
		"of the program":            {first: programBackOff, want: seconds(5, 10, 20, 40, 80, 160, 300, 300)},
		"of the infrastructure":     {first: infrastructureBackOff, want: seconds(2, 4, 8, 16, 32, 64, 128, 256, 300, 300)},
		"longer, as the user wants": {limit: &metav1.Duration{Duration: time.Hour}, first: programBackOff, want: seconds(5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600)},
		"no longer than a second":   {limit: &metav1.Duration{Duration: time.Second}, first: programBackOff, want: seconds(1, 1)},
	} {
		p := &planner{State: stateOf(jobWith(func(job *v1alpha1.TrainingJob) { job.Spec.Failure.MaxBackOff = c.limit }))}
		for i, pause := range c.want {
			if got := p.backOff(c.first, int32(i+1)); got != pause {
				t.Errorf("%s: pause after failure %d is %s, want %s", name, i+1, got, pause)
			}
		}
	}
}

func TestLostAttemptsInARowHaveLongerPauses(t *testing.T) {
	job := jobWith(scheduled)
	lose := func() time.Duration {
		t.Helper()
		state := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns, deletedAt(start)))
		plan := NewPlan(state, settings)
		expectNothingDone(t, plan)
		job.Status = plan.Status
		pause := job.Status.RetryTime.Sub(state.Now)
		// The next attempt gets as far.
		scheduled(job)
		return pause
	}
	for i, want := range []time.Duration{2, 4, 8} {
		if got := lose(); got != want*time.Second {
			t.Errorf("pause after loss %d is %s, want %ds", i+1, got, want)
		}
	}
	// A minute of training, and no less, is progress.
	since := start.Add(time.Hour)
	job.Status.Conditions = append(job.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionTraining, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonWorldFormed, LastTransitionTime: metav1.NewTime(since)})
	trains := func(now time.Time) Plan {
		pods := []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns)}
		state := stateOf(job, pods...)
		state.Now, state.World = now, worldOf(1, pods...)
		return NewPlan(state, settings)
	}
	plan := trains(since.Add(45 * time.Second))
	if got := value(plan.Status.Retries); got != 3 || plan.After > 15*time.Second {
		t.Errorf("after 45 seconds: %d retries, looks again in %s", got, plan.After)
	}
	if plan = trains(since.Add(time.Minute)); value(plan.Status.Retries) != 0 {
		t.Errorf("after a minute: %d retries", value(plan.Status.Retries))
	}
	job.Status = plan.Status
	scheduled(job)
	if got := lose(); got != 2*time.Second {
		t.Errorf("pause after a loss that came after progress is %s, want 2s", got)
	}
}

func TestLastFailureOfEachCauseIsKept(t *testing.T) {
	job := jobWith(scheduled, func(j *v1alpha1.TrainingJob) {
		j.Status.Attempt, j.Status.NextOrdinal = ptr.To[int32](4), ptr.To[int32](8)
	})
	state := stateOf(job,
		podOf(job, 1, 0, exited(1, start, "first")),
		podOf(job, 2, 2, exited(1, start.Add(2*time.Second), "after a peer")), podOf(job, 2, 3, exited(1, start, "culprit")),
		podOf(job, 3, 4, exited(137, start, ""), withCondition(corev1.DisruptionTarget, "DeletionByTaintManager", "")), podOf(job, 3, 5, exited(0, start, "")),
		podOf(job, 4, 6, trainerRuns), podOf(job, 4, 7, trainerRuns))
	plan := NewPlan(state, settings)
	if got := names(plan.Actions.Delete); !slices.Equal(got, []string{"digits-1-0", "digits-2-2", "digits-3-5"}) {
		t.Errorf("deletes %v", got)
	}
}

func TestLongMessagesKeepTheirEnd(t *testing.T) {
	job := jobWith(scheduled)
	lines := strings.Repeat("ä very long line of output\n", 500) + "ValueError: the end"
	state := stateOf(job, podOf(job, 1, 0, exited(1, start, lines)), podOf(job, 1, 1, trainerRuns))
	message := condition(t, NewPlan(state, settings), v1alpha1.ConditionTraining).Message
	if len(message) > maxMessage || !strings.HasSuffix(message, "ValueError: the end") || !strings.Contains(message, "the next attempt") {
		t.Errorf("message of %d bytes: %q … %q", len(message), message[:60], message[len(message)-30:])
	}
}

// A gang that a dead leader has half made is given up at once: others would grow into its room.
func TestAGangThatWasLeftHalfMadeStartsOverAtOnce(t *testing.T) {
	for began, pause := range map[int32]time.Duration{0: 0, 1: infrastructureBackOff} {
		job := jobWith(running)
		state := stateOf(job, podOf(job, 1, 0))
		state.Memory.Own.Began = began
		plan := look(state)
		expectTarget(t, plan, 0)
		if retry := plan.Status.RetryTime; retry == nil || !retry.Time.Equal(now.Add(pause)) {
			t.Errorf("of attempt %d begun here the next one is due at %v, want after %s", began, retry, pause)
		}
		if retries := value(plan.Status.Retries); (retries > 0) != (pause > 0) {
			t.Errorf("%d lost attempts are counted", retries)
		}
	}
}

// While the last attempt is cleared away the planner goes on with a job, unless that may take long.
func TestAJobKeepsItsClaimWhileNothingHoldsItUp(t *testing.T) {
	over := func(job *v1alpha1.TrainingJob) { job.Status.Attempt = ptr.To[int32](1) }
	for _, c := range []struct {
		name   string
		pod    podChange
		change func(*State)
		held   bool
	}{
		{name: "a pod without a node ends", pod: func(*corev1.Pod) {}},
		{name: "the group goes", pod: exited(1, start, "boom")},
		{name: "a pod with a node ends", pod: trainerRuns, held: true},
		{name: "it was refused", pod: func(*corev1.Pod) {}, held: true, change: func(s *State) {
			s.Memory.Refusal = &Refusal{Attempt: 1, Reason: v1alpha1.ReasonQuotaExceeded, Retry: now.Add(time.Second)}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := jobWith(over)
			state := stateOf(job, podOf(job, 1, 0, c.pod))
			if c.change != nil {
				c.change(state)
			}
			plan := look(state)
			expectTarget(t, plan, 0)
			if plan.Facts.Held != c.held {
				t.Errorf("held: %v, want %v", plan.Facts.Held, c.held)
			}
		})
	}
}
