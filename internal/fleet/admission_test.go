package fleet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

const admissionGPU = "nvidia.com/gpu"

func plansAsking(o *Options) { o.Plan, o.AsksFirst = allocation.NewPlan, true }

// admitted is a pod of a job as admission would make it.
func admitted(job *v1alpha1.TrainingJob, changes ...podChange) *corev1.Pod {
	return workerOf(job, 0, changes...)
}

// Where pods fit that admission gives an overhead, or a toleration, is known from what the API server has said of one.
func TestAnAnswerSaysWherePodsFit(t *testing.T) {
	overhead := func(pod *corev1.Pod) { pod.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("2")} }
	tolerates := func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: admissionGPU, Operator: corev1.TolerationOpExists}}
	}
	for _, c := range []struct {
		name   string
		nodes  []nodeChange
		answer podChange
		spread bool
	}{
		{name: "an overhead", answer: overhead, spread: true},
		{name: "a toleration", answer: tolerates, nodes: []nodeChange{tainted(admissionGPU, corev1.TaintEffectNoSchedule)}},
	} {
		job := jobOf("j", templateOf(asks(admissionGPU, "1")))
		nodes := nodesOf(2, append(c.nodes, offers(admissionGPU, "2"), offers("cpu", "4"), offers("pods", "110"))...)
		cluster := FromObjects(Objects{Nodes: nodes, Jobs: []*v1alpha1.TrainingJob{job}}, optionsOf(plansAsking))
		bare := seenJob(t, cluster).Gang
		cluster.Report(job, Facts{Asked: 1, Sample: admitted(job, c.answer)})
		cluster.PlanNow()
		grant := cluster.Grant(job.UID)
		if !grant.Start || len(grant.Places) != 2 || (grant.Places[0] != grant.Places[1]) != c.spread {
			t.Errorf("%s: start %v, places %+v: %s", c.name, grant.Start, grant.Places, grant.Why)
		}
		job = job.DeepCopy()
		job.Generation, job.ResourceVersion, job.Spec.Workers.Max = 2, "2", ptr.To[int32](3)
		cluster.SetJob(job)
		if seenJob(t, cluster).Gang == bare {
			t.Errorf("%s: of the same template it says nothing any more", c.name)
		}
		job = job.DeepCopy()
		job.Generation, job.ResourceVersion, job.Spec.Workers.Template.Spec.ServiceAccountName = 3, "3", "other"
		cluster.SetJob(job)
		if seenJob(t, cluster).Gang != bare {
			t.Errorf("%s: of another template it says the same", c.name)
		}
	}
}

// What admission has made of the pods of an attempt is known of the next ones, once they are gone.
func TestWhatPodsWereIsKept(t *testing.T) {
	job := jobOf("j", templateOf(asks(admissionGPU, "1")))
	nodes := nodesOf(2, offers(admissionGPU, "2"), offers("cpu", "4"), offers("pods", "110"))
	cluster := FromObjects(Objects{Nodes: nodes, Jobs: []*v1alpha1.TrainingJob{job}}, optionsOf(func(o *Options) { o.Plan = allocation.NewPlan }))
	cluster.Report(job, Facts{})
	bare := seenJob(t, cluster).Gang
	cluster.PlanNow()
	first := cluster.Grant(job.UID)
	started := job.DeepCopy()
	starts(started)
	started.ResourceVersion = "2"
	cluster.SetJob(started)
	cluster.Report(started, Facts{})
	for i := range 2 {
		cluster.SetPod(workerOf(started, i, onto(first.Places[i].Node), func(pod *corev1.Pod) { pod.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("2")} }))
	}
	cluster.PlanNow()
	for i := range 2 {
		cluster.DeletePod(workerOf(started, i))
	}
	again := started.DeepCopy()
	again.ResourceVersion, again.Status.Workers.Target, again.Status.Retries = "3", ptr.To[int32](0), ptr.To[int32](1)
	cluster.SetJob(again)
	cluster.Report(again, Facts{})
	cluster.PlanNow()
	if next := cluster.Grant(job.UID); !next.Start || next.Places[0] == next.Places[1] {
		t.Errorf("start %v, on %+v: both do not fit on one node", next.Start, next.Places)
	}
	changed := again.DeepCopy()
	changed.ResourceVersion, changed.Generation, changed.Spec.Workers.Min = "4", 2, ptr.To[int32](1)
	cluster.SetJob(changed)
	cluster.Report(changed, Facts{})
	if seenJob(t, cluster).Gang == bare {
		t.Error("what pods of the same template were is forgotten")
	}
	changed = changed.DeepCopy()
	changed.ResourceVersion, changed.Generation, changed.Spec.Workers.Template.Spec.ServiceAccountName = "5", 3, "other"
	cluster.SetJob(changed)
	cluster.Report(changed, Facts{})
	if seenJob(t, cluster).Gang != bare {
		t.Error("what pods of another template were is taken for what the next ones will be")
	}
}

// Nobody leaves for a job before the API server was asked about one of its pods.
func TestNobodyLeavesForAJobThatWasNotAskedAbout(t *testing.T) {
	for _, asksFirst := range []bool{true, false} {
		job := jobOf("j")
		cluster := FromObjects(Objects{Jobs: []*v1alpha1.TrainingJob{job}}, optionsOf(func(o *Options) { o.AsksFirst = asksFirst }))
		preempts := func(what string, want bool) {
			t.Helper()
			if got := seenJob(t, cluster); got.Preempts != want || got.Unasked == want {
				t.Errorf("asks first %v, %s: preempts %v, not asked about %v", asksFirst, what, got.Preempts, got.Unasked)
			}
		}
		preempts("nobody has looked at it", !asksFirst)
		cluster.Report(job, Facts{})
		preempts("it was not asked about", !asksFirst)
		cluster.Report(job, Facts{Asked: 1})
		preempts("it was asked about", true)
		changed := job.DeepCopy()
		changed.Generation, changed.ResourceVersion, changed.Spec.Workers.Max = 2, "2", ptr.To[int32](8)
		cluster.SetJob(changed)
		preempts("it was edited, and its template is the same", true)
		changed = changed.DeepCopy()
		changed.Generation, changed.ResourceVersion, changed.Spec.Workers.Template.Spec.ServiceAccountName = 3, "3", "other"
		cluster.SetJob(changed)
		preempts("its template is another one", !asksFirst)
		for reason, status := range map[string]metav1.ConditionStatus{
			v1alpha1.ReasonAdmitted: metav1.ConditionTrue, v1alpha1.ReasonPodsForbidden: metav1.ConditionFalse, v1alpha1.ReasonQuotaExceeded: metav1.ConditionFalse,
		} {
			changed = changed.DeepCopy()
			changed.ResourceVersion += "0"
			changed.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAdmitted, Status: status, Reason: reason, ObservedGeneration: 3}}
			changed.Status.Queue.WaitsFor = "2 places"
			cluster.SetJob(changed)
			preempts("a leader before wrote that it is "+reason, !asksFirst || reason != v1alpha1.ReasonPodsForbidden)
			changed = changed.DeepCopy()
			changed.ResourceVersion += "0"
			changed.Status.Conditions[0].ObservedGeneration = 2
			cluster.SetJob(changed)
			preempts("a leader before wrote so of another template", !asksFirst)
		}
		changed = changed.DeepCopy()
		starts(changed)
		changed.ResourceVersion += "0"
		cluster.SetJob(changed)
		cluster.SetPod(workerOf(changed, 0))
		preempts("it has a pod", true)
	}
}

// Who leaves for a gang goes on leaving while the gang's job is edited, as long as its pods stay what they are.
func TestAnEditAmidAReclaimChangesNoPlan(t *testing.T) {
	low := jobOf("low", templateOf(asks(admissionGPU, "1")), trains, func(j *v1alpha1.TrainingJob) {
		j.Spec.Workers.Min, j.Status.Workers.Target = ptr.To[int32](1), ptr.To[int32](4)
	})
	high := jobOf("high", templateOf(asks(admissionGPU, "1"), func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }))
	nodes := nodesOf(4, offers(admissionGPU, "1"), offers("cpu", "8"), offers("pods", "110"))
	cluster := FromObjects(Objects{Nodes: nodes}, optionsOf(plansAsking))
	cluster.SetClass(classOf("high", 1000))
	cluster.SetClass(classOf("growth", -10))
	facts := Facts{Elastic: true, Ranks: map[types.UID]int32{}}
	for i := range 4 {
		change := []podChange{on(nodes[i].Name)}
		if i > 0 {
			change = append(change, growthRole)
		}
		one := workerOf(low, i, change...)
		cluster.SetPod(one)
		facts.Ranks[one.UID] = int32(i)
	}
	leavers := func(when string, want int) {
		t.Helper()
		cluster.PlanNow()
		if got := len(cluster.Grant(low.UID).Leave); got != want {
			t.Errorf("%s: %d leave, want %d", when, got, want)
		}
	}
	cluster.SetJob(low)
	cluster.Report(low, facts)
	cluster.SetJob(high)
	cluster.Report(high, Facts{Asked: 1})
	leavers("it was asked about", 2)
	high = high.DeepCopy()
	high.Generation, high.ResourceVersion, high.Spec.Workers.Max = 2, "2", ptr.To[int32](3)
	cluster.SetJob(high)
	leavers("its max is another one", 2)
	high = high.DeepCopy()
	high.Generation, high.ResourceVersion, high.Spec.Workers.Template.Spec.ServiceAccountName = 3, "3", "other"
	cluster.SetJob(high)
	leavers("its pods are others", 0)
}
