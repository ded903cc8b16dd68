package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// byLoss has a job keep the two checkpoints with the lowest loss.
func byLoss(job *v1alpha1.TrainingJob) {
	job.Spec.Checkpoint.Storage.Best = &v1alpha1.BestSpec{Metric: "loss", Order: v1alpha1.BestMinimize, Keep: ptr.To[int32](2)}
}

// Agent and uploader are told by which metric, in a form that both read.
func TestWorkersKnowTheMetric(t *testing.T) {
	of := func(c *corev1.Container) string {
		for _, variable := range c.Env {
			if variable.Name == uploader.EnvBest {
				return variable.Value
			}
		}
		return "none"
	}
	for name, c := range map[string]struct {
		job  *v1alpha1.TrainingJob
		want score.Best
	}{
		"a metric":   {jobWith(running, withStorage, byLoss), score.Best{Metric: "loss", Lowest: true, Keep: 2}},
		"no keep":    {jobWith(running, withStorage, byLoss, func(j *v1alpha1.TrainingJob) { j.Spec.Checkpoint.Storage.Best.Keep = nil }), score.Best{Metric: "loss", Lowest: true, Keep: 1}},
		"none":       {jobWith(running, withStorage), score.Best{}},
		"no storage": {jobWith(running), score.Best{}},
	} {
		pod := newPod(c.job, settings, 1, 0)
		all := []*corev1.Container{&pod.Spec.Containers[0]}
		if c.job.Spec.Checkpoint.Storage != nil {
			all = append(all, &pod.Spec.InitContainers[1])
		}
		for _, container := range all {
			if got, err := score.Parse(of(container)); err != nil || got != c.want {
				t.Errorf("%s: %s is told %q (%v)", name, container.Name, of(container), err)
			}
		}
	}
}

// The best are in the status, with an event for each that is new, and the rendezvous is told of those that are known.
func TestTheBestAreInTheStatus(t *testing.T) {
	job := trains(2, withStorage, byLoss)
	state := elasticState(job, crewOf(job)...)
	state.World.Best = []rendezvous.Kept{{Round: 3, Step: 40, Path: "team/digits/uid/attempt-1/3-40", Score: 0.25}, {Round: 1, Step: 20, Path: "team/digits/uid/attempt-1/1-20", Score: 1e-7}}
	plan := look(state)
	expectNote(t, plan, v1alpha1.EventBestCheckpoint, "the state after step 40, with loss 0.25, is one of the best: team/digits/uid/attempt-1/3-40")
	best := plan.Status.Checkpoint.Best
	if len(best) != 2 || best[0].Score != "0.25" || best[0].Metric != "loss" || *best[1].Step != 20 || *best[1].Round != 1 || best[1].Location != "team/digits/uid/attempt-1/1-20" || best[1].At == nil {
		t.Fatalf("the status has %+v", best)
	}
	state.Job.Status.Checkpoint.Best, state.Memory.Elastic = best, plan.Elastic
	plan = look(state)
	for _, note := range plan.Notes {
		if note.Reason == v1alpha1.EventBestCheckpoint {
			t.Errorf("it is told again: %+v", note)
		}
	}
	if known := plan.Actions.Expect.Storage.Best; known.Metric != "loss" || !known.Lowest || known.Keep != 2 || len(known.Known) != 2 || known.Known[1] != state.World.Best[1] {
		t.Errorf("the rendezvous is told %+v", known)
	}
	state.World.Best = nil // of a leader that has yet to hear of them
	if plan := look(state); len(plan.Status.Checkpoint.Best) != 2 {
		t.Errorf("the status forgets: %+v", plan.Status.Checkpoint.Best)
	}
	state.World.BestListed = true // and there are none
	if plan := look(state); len(plan.Status.Checkpoint.Best) != 0 {
		t.Errorf("the status has what is in the storage no more: %+v", plan.Status.Checkpoint.Best)
	}
	state.World.BestListed = false
	state.Job.Spec.Checkpoint.Storage.Best.Metric = "accuracy"
	if plan := look(state); len(plan.Status.Checkpoint.Best) != 0 || len(plan.Actions.Expect.Storage.Best.Known) != 0 {
		t.Errorf("by another metric there are %+v", plan.Status.Checkpoint.Best)
	}
}

// What is written into the status by somebody else harms nobody.
func TestNonsenseInTheBest(t *testing.T) {
	job := trains(2, withStorage, byLoss)
	one := v1alpha1.BestCheckpoint{Metric: "loss", Score: "0.5", Step: ptr.To[int64](1), Round: ptr.To[int64](1), Location: "team/digits/uid/attempt-1/1-1"}
	text, infinite, stepless := one, one, one
	text.Score, infinite.Score, stepless.Step = "low", "+Inf", nil
	job.Status.Checkpoint.Best = []v1alpha1.BestCheckpoint{text, infinite, stepless, one}
	if known := look(elasticState(job, crewOf(job)...)).Actions.Expect.Storage.Best.Known; len(known) != 1 || known[0].Step != 1 {
		t.Errorf("%+v are known", known)
	}
}

// Why a state is not kept is told once.
func TestWhatIsMissedIsTold(t *testing.T) {
	job := trains(2, withStorage, byLoss)
	state := elasticState(job, crewOf(job)...)
	state.World.Missed = "evaluations report accuracy, and spec.checkpoint.storage.best wants loss"
	plan := look(state)
	expectNote(t, plan, v1alpha1.EventBestMissed, "evaluations report accuracy")
	state.Memory.Elastic = plan.Elastic
	for _, note := range look(state).Notes {
		if strings.Contains(note.Message, "evaluations report") {
			t.Errorf("it is told again: %+v", note)
		}
	}
}

// A metric that nobody reports stays in a condition, which explain shows, until something is kept; so does what is kept.
func TestTheConditionOfTheBest(t *testing.T) {
	job := trains(2, withStorage, byLoss)
	state := elasticState(job, crewOf(job)...)
	condition := func() metav1.Condition {
		plan := look(state)
		state.Job.Status.Conditions = plan.Status.Conditions
		return value(meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionBestKept))
	}
	if told := condition(); told.Type != "" {
		t.Errorf("before any evaluation it says %+v", told)
	}
	state.World.Missed = "evaluations report los, and spec.checkpoint.storage.best wants loss"
	missed := condition()
	if missed.Status != metav1.ConditionFalse || missed.Reason != v1alpha1.EventBestMissed || missed.Message != state.World.Missed {
		t.Errorf("it says %+v", missed)
	}
	state.World.Missed = "" // of a leader that has not heard of it
	if told := condition(); told != missed {
		t.Errorf("the next leader says %+v", told)
	}
	state.World.Best = []rendezvous.Kept{{Round: 3, Step: 40, Path: "team/digits/uid/attempt-1/3-40", Score: 0.25}}
	if told := condition(); told.Status != metav1.ConditionTrue || told.Message != "the best checkpoint is of the state after step 40, with loss 0.25" {
		t.Errorf("it says %+v", told)
	}
	state.Job.Spec.Checkpoint.Storage.Best = nil
	if told := condition(); told.Type != "" {
		t.Errorf("a job that keeps none says %+v", told)
	}
}

// That a state was missed is not over with another leader, nor with an evaluation that is none of the best; what was said by another
// metric, or of checkpoints that are there no more, is.
func TestTheConditionOfTheBestOutlivesALeader(t *testing.T) {
	job := trains(2, withStorage, byLoss)
	state := elasticState(job, crewOf(job)...)
	condition := func() metav1.Condition {
		plan := look(state)
		state.Job.Status.Conditions, state.Job.Status.Checkpoint.Best = plan.Status.Conditions, plan.Status.Checkpoint.Best
		return value(meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionBestKept))
	}
	first := rendezvous.Kept{Round: 3, Step: 40, Path: "team/digits/uid/attempt-1/3-40", Score: 0.25}
	state.World.Best = []rendezvous.Kept{first}
	if told := condition(); told.Status != metav1.ConditionTrue {
		t.Fatalf("it says %+v", told)
	}
	state.World.Missed = "evaluations report NaN"
	missed := condition()
	if missed.Status != metav1.ConditionFalse {
		t.Fatalf("it says %+v", missed)
	}
	state.World.Missed = "" // an evaluation that is not kept
	if told := condition(); told != missed {
		t.Errorf("nothing new is kept, and it says %+v", told)
	}
	state.World.Best = nil // the next leader
	if told := condition(); told != missed {
		t.Errorf("the next leader says %+v", told)
	}
	state.World.Best, state.World.BestListed = []rendezvous.Kept{first}, true // which has listed what was known
	if told := condition(); told != missed {
		t.Errorf("the next leader has found what was known, and says %+v", told)
	}
	second := rendezvous.Kept{Round: 3, Step: 60, Path: "team/digits/uid/attempt-1/3-60", Score: 0.5}
	state.World.Best = append(state.World.Best, second)
	if told := condition(); told.Status != metav1.ConditionTrue || !strings.Contains(told.Message, "after step 40,") {
		t.Errorf("another one is kept, and it says %+v", told)
	}
	state.World.Best = []rendezvous.Kept{second} // and the first was deleted
	if told := condition(); told.Status != metav1.ConditionTrue || !strings.Contains(told.Message, "after step 60,") {
		t.Errorf("one is there no more, and it says %+v", told)
	}
	told := state.Job.DeepCopy()
	state.World.Best = nil
	if told := condition(); told.Type != "" {
		t.Errorf("none is there any more, and it says %+v", told)
	}
	for name, status := range map[string]metav1.ConditionStatus{"kept": metav1.ConditionTrue, "missed": metav1.ConditionFalse} {
		state.Job = told.DeepCopy()
		state.World.BestListed = false
		meta.FindStatusCondition(state.Job.Status.Conditions, v1alpha1.ConditionBestKept).Status = status
		state.Job.Spec.Checkpoint.Storage.Best.Metric = "accuracy"
		if told := condition(); told.Type != "" {
			t.Errorf("%s by another metric, it says %+v", name, told)
		}
	}
}

// What was said by a metric by which nothing was kept goes with the metric, as soon as that is changed, and with nothing else.
func TestTheConditionOfTheBestGoesWithItsMetric(t *testing.T) {
	best := func(j *v1alpha1.TrainingJob) *v1alpha1.BestSpec { return j.Spec.Checkpoint.Storage.Best }
	completed := func(j *v1alpha1.TrainingJob) {
		meta.SetStatusCondition(&j.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCompleted,
		})
	}
	for name, c := range map[string]struct {
		change func(*State)
		goes   bool
	}{
		"another metric":       {func(s *State) { best(s.Job).Metric = "accuracy" }, true},
		"none":                 {func(s *State) { s.Job.Spec.Checkpoint.Storage.Best = nil }, true},
		"the order":            {func(s *State) { best(s.Job).Order = v1alpha1.BestMaximize }, false},
		"the size of the job":  {func(s *State) { s.Job.Spec.Workers.Max = ptr.To[int32](7) }, false},
		"the job is complete":  {func(s *State) { best(s.Job).Metric = "accuracy"; completed(s.Job) }, false},
		"nobody remembers any": {func(s *State) { best(s.Job).Metric = "accuracy"; s.Memory = Memory{} }, false},
	} {
		job := trains(2, withStorage, byLoss, func(j *v1alpha1.TrainingJob) { j.Generation = 1 })
		state := elasticState(job, crewOf(job)...)
		state.World.Missed = "evaluations report accuracy, and spec.checkpoint.storage.best wants loss"
		written := func() *metav1.Condition {
			plan := look(state)
			world := state.Job.Status.World
			state.Job.Status = plan.Status
			state.Job.Status.World = world
			state.Memory.looked(state.Job, plan.Status.ObservedGeneration)
			return meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionBestKept)
		}
		if told := written(); told == nil || told.Status != metav1.ConditionFalse {
			t.Fatalf("%s: before it says %+v", name, told)
		}
		state.Job.Spec.Suspend, state.Job.Status.Workers.Target, state.Job.Generation = ptr.To(true), ptr.To[int32](0), 2
		state.Pods, state.World = nil, rendezvous.Observation{}
		if told := written(); told == nil || told.Status != metav1.ConditionFalse {
			t.Fatalf("%s: suspended it says %+v", name, told)
		}
		c.change(state)
		state.Job.Generation = 3
		for range 2 {
			if told := written(); (told == nil) != c.goes {
				t.Errorf("%s: after it says %+v", name, told)
			}
		}
	}
}

// The metric may change once no program runs. A pod may not have ended by then, since its uploader works on: what is known by its metric says
// nothing of the next one.
func TestTheMetricChangesWhileAPodEnds(t *testing.T) {
	job := trains(2, withStorage, byLoss, func(j *v1alpha1.TrainingJob) { j.Generation = 1 })
	state := elasticState(job, crewOf(job)...)
	state.World.BestBy, state.World.Missed = "loss", "the uploader has not said anything for 5m0s"
	state.World.Best = []rendezvous.Kept{{Round: 3, Step: 40, Path: "team/digits/uid/attempt-1/3-40", Score: 2.25}}
	written := func() Plan {
		plan := look(state)
		world := state.Job.Status.World
		state.Job.Status = plan.Status
		state.Job.Status.World = world
		state.Memory.looked(state.Job, plan.Status.ObservedGeneration)
		return plan
	}
	if plan := written(); len(plan.Status.Checkpoint.Best) != 1 || meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionBestKept) == nil {
		t.Fatalf("before it says %+v, %+v", plan.Status.Checkpoint.Best, plan.Status.Conditions)
	}
	state.Job.Spec.Suspend, state.Job.Status.Workers.Target, state.Job.Generation = ptr.To(true), ptr.To[int32](0), 2
	for _, pod := range state.Pods {
		for i := range pod.Status.ContainerStatuses {
			pod.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		}
	}
	if plan := written(); *plan.Status.Workers.Running != 0 || len(plan.Status.Checkpoint.Best) != 1 {
		t.Fatalf("%d run, and the best are %+v", *plan.Status.Workers.Running, plan.Status.Checkpoint.Best)
	}
	best := state.Job.Spec.Checkpoint.Storage.Best
	best.Metric, best.Order, state.Job.Generation = "accuracy", v1alpha1.BestMaximize, 3
	for range 3 {
		plan := written()
		if told := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionBestKept); told != nil || len(plan.Status.Checkpoint.Best) > 0 {
			t.Errorf("of another metric it says %+v, %+v", plan.Status.Checkpoint.Best, told)
		}
		for _, note := range plan.Notes {
			if note.Reason == v1alpha1.EventBestCheckpoint || note.Reason == v1alpha1.EventBestMissed {
				t.Errorf("it tells %+v", note)
			}
		}
	}
}

// A job that ends without a single best checkpoint says why.
func TestTheEndWithoutTheBest(t *testing.T) {
	for name, c := range map[string]struct {
		missed string
		best   []rendezvous.Kept
		want   string
	}{
		"nothing is kept":   {"evaluations report los", nil, "; no checkpoint was kept for its score: evaluations report los"},
		"something is kept": {"evaluations report los", []rendezvous.Kept{{Round: 3, Step: 40, Path: "team/digits/uid/attempt-1/3-40", Score: 0.25}}, ""},
		"nothing is missed": {"", nil, ""},
	} {
		job := trains(2, withStorage, byLoss)
		state := elasticState(job, crewOf(job)...)
		state.World.Missed, state.World.Best = c.missed, c.best
		p := &planner{State: state, settings: settings}
		p.plan.Status = *state.Job.Status.DeepCopy()
		p.complete()
		told := value(meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionComplete))
		if told.Status != metav1.ConditionTrue || !strings.HasSuffix(told.Message, "exit code 0"+c.want) {
			t.Errorf("%s: it says %q", name, told.Message)
		}
	}
}
