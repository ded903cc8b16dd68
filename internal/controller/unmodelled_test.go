package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// Where only the scheduler knows where pods of a template fit, the conditions say what of the template it is.
func TestConditionsSayWhatIsNotModelled(t *testing.T) {
	for says, change := range map[string]func(*corev1.PodSpec){
		"required affinity to other pods": func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{}}}}
		},
		"required anti-affinity to other pods": func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{}}}}
		},
		"a topology spread constraint (DoNotSchedule)": func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.DoNotSchedule}}
		},
		"resource claims": func(s *corev1.PodSpec) { s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} },
		"host port 80":    func(s *corev1.PodSpec) { s.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} },
		"volume data, whose claim may be bound to some nodes": func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		},
		"": func(*corev1.PodSpec) {},
	} {
		t.Run(says, func(t *testing.T) {
			template := func(job *v1alpha1.TrainingJob) { change(&job.Spec.Workers.Template.Spec) }
			want := "; the template has " + says + ", and only the scheduler knows where such a pod fits: " +
				"its gang is one attempt, all pods or none, and more workers are tried one at a time"
			if says == "" {
				want = ""
			}
			expect := func(plan Plan, conditionType, before string) {
				t.Helper()
				if got := condition(t, plan, conditionType).Message; got != before+want {
					t.Errorf("%s says %q", conditionType, got)
				}
			}
			job := jobWith(running, template)
			waits := stateOf(job, podOf(job, 1, 0), podOf(job, 1, 1))
			waits.Placement = "no room"
			expect(NewPlan(waits, settings), v1alpha1.ConditionGangScheduled, "no room")
			job = jobWith(running, template)
			expect(NewPlan(stateOf(job, podOf(job, 1, 0, onNode("n1")), podOf(job, 1, 1, onNode("n1"))), settings), v1alpha1.ConditionGangScheduled, "all 2 workers have a node")
			job = trains(2, template)
			state := elasticState(job, crewOf(job)...)
			state.Memory.Elastic = ElasticMemory{Attempt: 1, Elastic: true, Growth: GrowthBackOff{}.failed(now, "no node", nil)}
			expect(NewPlan(state, settings), v1alpha1.ConditionFullSize, state.Memory.Elastic.Growth.told())
		})
	}
}

// Its gang is made all at once, without places; what is added to it waits for a place of its own, and is taken back when
// it finds none, with a pause until the next one.
func TestGangWithoutPlaces(t *testing.T) {
	job := jobWith(running, func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	})
	state := stateOf(job)
	state.Grant.Places = []fleet.Place{{Own: true}, {Own: true}}
	plan := NewPlan(state, settings)
	if len(plan.Actions.Create) != 2 || pinned(plan.Actions.Create[0]) != "" || pinned(plan.Actions.Create[1]) != "" {
		t.Fatalf("made are %v", names(plan.Actions.Create))
	}
	job = trains(2, func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Template = state.Job.Spec.Workers.Template })
	state = elasticState(job, crewOf(job)...)
	state.Memory.Elastic.Elastic, state.Memory.Elastic.Attempt = true, 1
	state.Grant.Count, state.Grant.Places = 3, []fleet.Place{{}}
	look(state) // the target
	look(state) // and the name
	plan = look(state)
	if len(plan.Actions.Grow) != 1 || pinned(plan.Actions.Grow[0]) != "" {
		t.Fatalf("made are %v", names(plan.Actions.Grow))
	}
	growthPod(state, 2)
	state.Grant.Places = nil
	state.Now = now.Add(31 * time.Second)
	plan = look(state)
	expectNote(t, plan, v1alpha1.EventGrowthWithdrawn, "has no node")
	plan = look(state) // the target was written first
	expectCondition(t, plan, v1alpha1.ConditionFullSize, metav1.ConditionFalse, v1alpha1.ReasonGrowthBackOff, "host port 80", "one at a time")
	expectTarget(t, plan, 2)
	if got := names(plan.Actions.Withdraw); len(got) != 1 {
		t.Errorf("withdrawn are %v", got)
	}
	if at := plan.Facts.GrowAfter; !at.Equal(state.Now.Add(firstGrowthPause)) {
		t.Errorf("growth is tried again at %s", at)
	}
}

// Where the scheduler chose the node it would choose it again: no node is avoided, and growth pauses, and the next attempt waits.
func TestANodeThatTheSchedulerChoseIsNotAvoided(t *testing.T) {
	byScheduler := func(pod *corev1.Pod) { pod.Spec.Affinity = nil }
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.Job.Status.Workers.Target, state.Job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
	growthPod(state, 2, noImage("n2"), byScheduler)
	giveRoom(state, 1)
	plan := look(state)
	if !plan.Facts.GrowAfter.Equal(now.Add(firstGrowthPause)) || len(plan.Status.AvoidedNodes) > 0 {
		t.Errorf("growth waits until %s, and avoids %v", plan.Facts.GrowAfter, avoided(plan))
	}
	expectNote(t, plan, v1alpha1.EventGrowthWithdrawn, "no such image", "more workers are tried again at")

	job = jobWith(scheduled)
	refused := func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "OutOfcpu" }
	for attempts, pause := range []time.Duration{2 * time.Second, 4 * time.Second} {
		lost := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, onNode("n2"), refused, byScheduler))
		plan = NewPlan(lost, settings)
		if got := plan.Status.RetryTime.Sub(lost.Now); got != pause || len(plan.Status.AvoidedNodes) > 0 {
			t.Errorf("after %d more attempts the pause is %s, and it avoids %v", attempts, got, avoided(plan))
		}
		job.Status = plan.Status
		scheduled(job)
	}
}
