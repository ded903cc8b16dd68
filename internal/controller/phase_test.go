package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func TestPhase(t *testing.T) {
	alone := func(s *State) { s.World.Elastic = false }
	ignorant := func(s *State) { s.World = rendezvous.Observation{} }
	adopting := func(s *State) { s.World.Adopting = true }
	worldless := func(s *State) { s.World.Round, s.World.Elastic, s.World.Phase = 0, false, "" }
	ended := func(code int32) func(*State) {
		return func(s *State) {
			for _, pod := range s.Pods {
				exited(code, start, "")(pod)
			}
		}
	}
	oneUnbound := func(s *State) { s.Pods[1].Spec.NodeName = "" }
	neverScheduled := func(s *State) { s.Job.Status.Conditions, s.Job.Status.World = nil, nil }
	noPods := func(s *State) { s.Pods = nil }
	noGroup := func(s *State) { s.GroupExists = false }
	refused := func(attempt int32) func(*State) {
		return func(s *State) { s.Memory.Refusal = &Refusal{Attempt: attempt} }
	}
	strategy := func(s *State) { s.Job.Spec.Resize.Strategy = v1alpha1.ResizeRestart }
	was := func(attempt int32) func(*State) {
		return func(s *State) { s.Memory.Elastic = ElasticMemory{Attempt: attempt, Elastic: true} }
	}
	anotherAttempt := func(s *State) { s.World.Attempt = 7 }
	// Each begins with two workers whose world of round 3 trains, is durable and can change.
	for _, test := range []struct {
		name    string
		changes []func(*State)
		want    phase
	}{
		{"the world can change", nil, phaseElastic},
		{"programs are started anew in each world", []func(*State){alone, strategy}, phaseElastic},
		{"the world could change before", []func(*State){alone, was(1)}, phaseElastic},
		{"the world of another attempt could", []func(*State){alone, was(7)}, phaseFixed},
		{"a fixed world is in a change", []func(*State){alone, func(s *State) { s.World.Phase = rendezvous.PhaseRegrouping }}, phaseElastic},
		{"the batch was refused", []func(*State){refused(1)}, phaseRefused},
		{"one of an earlier attempt was", []func(*State){refused(7)}, phaseElastic},
		{"a new attempt", []func(*State){neverScheduled, ignorant, noPods, noGroup}, phaseUnmade},
		{"a refused one has no pods", []func(*State){neverScheduled, ignorant, noPods, noGroup, refused(1)}, phaseRefused},
		{"the group alone is there", []func(*State){neverScheduled, ignorant, noPods}, phaseStarting},
		{"the pods are gone that had nodes", []func(*State){ignorant, noPods, noGroup}, phaseDeserted},
		{"a world that cannot change", []func(*State){alone}, phaseFixed},
		{"the record of it has yet to be read", []func(*State){alone, neverScheduled}, phaseFixed},
		{"one of its workers has no node", []func(*State){alone, oneUnbound}, phaseFixed},
		{"all have ended well in it", []func(*State){alone, ended(0)}, phaseOver},
		{"all have ended well in one that can change", []func(*State){ended(0)}, phaseElastic},
		{"all have ended well unseen", []func(*State){ignorant, ended(0)}, phaseOver},
		{"they had ended before any world", []func(*State){neverScheduled, ignorant, ended(0)}, phaseStarting},
		{"a new leader", []func(*State){ignorant}, phaseUnheard},
		{"one that asks the workers", []func(*State){adopting}, phaseUnheard},
		{"it knows another attempt's world", []func(*State){anotherAttempt}, phaseUnheard},
		{"a new leader, of a world that grew", []func(*State){ignorant, oneUnbound}, phaseUnheard},
		{"a new leader finds all failed", []func(*State){ignorant, ended(1)}, phaseDeserted},
		{"a new leader finds all failed but one that has no node", []func(*State){ignorant, ended(1), oneUnbound}, phasePlacing},
		{"the world is known to be none", []func(*State){worldless}, phaseBurned},
		{"and a pod has no node", []func(*State){worldless, oneUnbound}, phaseBurned},
		{"pods without nodes", []func(*State){neverScheduled, ignorant, oneUnbound}, phasePlacing},
		{"and the rendezvous waits for them", []func(*State){neverScheduled, worldless, oneUnbound}, phasePlacing},
		{"all have nodes", []func(*State){neverScheduled, ignorant}, phaseStarting},
		{"and the rendezvous waits for all", []func(*State){neverScheduled, worldless}, phaseStarting},
	} {
		t.Run(test.name, func(t *testing.T) {
			job := trains(2)
			state := elasticState(job, crewOf(job)...)
			state.Pods = append([]*corev1.Pod{}, state.Pods...)
			for _, change := range test.changes {
				change(state)
			}
			if got := state.phase(); got != test.want {
				t.Errorf("the phase is %s, want %s", got, test.want)
			}
		})
	}
}

// A new leader may take a world for one that cannot change, until its programs speak. A worker that was to join it has no node
// yet: that makes nobody of the world a gang without nodes, which a leader after that would take for one that never trained.
func TestAWorldThatTrainsHasItsNodes(t *testing.T) {
	job := trains(2, func(job *v1alpha1.TrainingJob) { job.Status.Workers.Target = ptr.To[int32](2) })
	state := elasticState(job, crewOf(job)...)
	job.Status.Workers.Target = ptr.To[int32](3)
	growthPod(state, 2)
	state.World.Elastic = false
	plan := NewPlan(state, settings)
	expectCondition(t, plan, v1alpha1.ConditionGangScheduled, metav1.ConditionTrue, v1alpha1.ReasonScheduled)
	expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonWorldFormed, "2 workers train as 2 ranks")
	if plan.Actions.Touch != nil || plan.Actions.Expect == nil || len(plan.Actions.Expect.Members) != 2 {
		t.Errorf("the scheduler is asked about %v, the rendezvous told %+v", plan.Actions.Touch, plan.Actions.Expect)
	}
}
