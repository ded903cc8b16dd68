package console

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// Who may not see the whole cluster is told what the job itself says, and nothing that was guessed.
func TestExplainWithoutAPlanSaysWhatTheJobSays(t *testing.T) {
	c := lender()
	c.Jobs[1].Status.Queue.WaitsFor = "waits for 3 places of 1 example.com/gpu: 1 is free"
	c.Jobs[1].Status.Queue.Position = ptr.To[int32](2)
	l := NewPartialLook(fleet.Objects{Jobs: c.Jobs, Pods: c.Pods}, options(t))
	text := explained(t, l, "big")
	for _, want := range []string{"The operator says: Waits for 3 places", "It is 2nd in the queue", "1 place by team/lender", "PriorityClass high"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	for _, guess := range []string{"does not exist", "It would start", "Its priority is"} {
		if strings.Contains(text, guess) {
			t.Errorf("%q cannot be known:\n%s", guess, text)
		}
	}
	if text = explained(t, l, "lender"); !strings.Contains(text, "Right now worker lender-1-4 leaves for job team/big") {
		t.Error(text)
	}
}

func TestExplainTellsTroubles(t *testing.T) {
	c := clusterOf(4)
	job := c.add("job", 2, 4)
	c.trains(job, "n0", "n0")
	job.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRegrouping, Message: "one of two workers is left"},
		{Type: v1alpha1.ConditionAdmitted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAdmitted, Message: "nothing stands in the way of the job's pods"},
	}
	text := explained(t, c.look(t), "job")
	if !strings.Contains(text, "Regrouping: One of two workers is left.") || strings.Contains(text, "stands in the way") {
		t.Error(text)
	}
}

// What an attempt came to nothing by is what a person must mend before the next one.
func TestExplainTellsWhyTheLastAttemptEnded(t *testing.T) {
	c := clusterOf(4)
	c.add("unplaced", 2, 4, func(job *v1alpha1.TrainingJob) {
		job.Status.RetryTime, job.Status.Retries, job.Status.Attempt = ptr.To(metav1.NewTime(start.Add(16*time.Minute))), ptr.To[int32](5), ptr.To[int32](5)
		job.Status.AvoidedNodes = []v1alpha1.AvoidedNode{{Name: "n0", Until: ptr.To(metav1.NewTime(start.Add(time.Minute))), Message: "exit code 113"}}
	}, condition(v1alpha1.ConditionTraining, v1alpha1.ReasonBackOff, "attempt 5 ended: no scheduler has looked at the gang"))
	text := explained(t, c.look(t), "unplaced")
	for _, want := range []string{"Its last attempt ended, and it queues again in 16m", "BackOff: Attempt 5 ended: no scheduler has looked at the gang.", "Not on node n0 until ",
		"5 attempts in a row came to nothing"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	for _, wrong := range []string{"failed", "Nothing of it was lost"} {
		if strings.Contains(text, wrong) {
			t.Errorf("%q is wrong:\n%s", wrong, text)
		}
	}
}

// A gang without a node and volumes that are too small stand in conditions that nothing else of the answer repeats.
func TestExplainTellsOfEveryConditionThatIsNotAsItShouldBe(t *testing.T) {
	c := clusterOf(4)
	job := c.add("job", 2, 4)
	c.trains(job, "n0", "n0")
	job.Status.World, job.Status.State = nil, v1alpha1.ReasonStarting
	job.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionGangScheduled, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForRoom, Message: "the scheduler says 0/1 nodes are available"},
		{Type: v1alpha1.ConditionSnapshotsFit, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonVolumeTooSmall, Message: "job-1-0 has 1Gi for its snapshots and needs 2Gi"},
		{Type: v1alpha1.ConditionBestKept, Status: metav1.ConditionFalse, Reason: v1alpha1.EventBestMissed, Message: "evaluations report los, and spec.checkpoint.storage.best wants loss"},
	}
	text, missed := explained(t, c.look(t), "job"), "BestMissed: Evaluations report los, and spec.checkpoint.storage.best wants loss."
	for _, want := range []string{"WaitingForRoom: The scheduler says 0/1 nodes are available.", "VolumeTooSmall: Job-1-0 has 1Gi for its snapshots and needs 2Gi.", missed} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	job.Status.Conditions = append(job.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCompleted})
	if text := explained(t, c.look(t), "job"); !strings.Contains(text, missed) || strings.Contains(text, v1alpha1.ReasonVolumeTooSmall) {
		t.Errorf("once it is complete it says\n%s", text)
	}
}

func TestExplainTellsWhoKeepsTheOthersWaiting(t *testing.T) {
	c := clusterOf(4)
	job := c.add("job", 2, 4)
	c.trains(job, "n0", "n1")
	job.Status.Stragglers = []v1alpha1.Straggler{
		{Rank: ptr.To[int32](3), Pod: "job-1-1", Node: "n1", Factor: "1.80", Since: ptr.To(metav1.NewTime(time.Unix(1e9, 0)))},
	}
	want := "Rank 3, in job-1-1 on node n1, works 1.80 times as long in a step as most ranks, since 2001-09-09T01:46:40Z: every step waits for it."
	if text := explained(t, c.look(t), "job"); !strings.Contains(text, want) {
		t.Error(text)
	}
}

func TestExplainTellsWhichNodesAreAvoided(t *testing.T) {
	c := clusterOf(4)
	job := c.add("job", 2, 4)
	c.trains(job, "n0", "n0")
	l := c.look(t)
	job.Status.AvoidedNodes = []v1alpha1.AvoidedNode{
		{Name: "n1", Until: ptr.To(metav1.NewTime(l.now.Add(time.Minute))), Message: "worker job-1-2 on node n1 was lost: OutOfcpu"},
		{Name: "n2", Until: ptr.To(metav1.NewTime(l.now))},
	}
	text := explained(t, c.look(t), "job")
	want := "Not on node n1 until " + clock(l.now.Add(time.Minute)) + ": Worker job-1-2 on node n1 was lost: OutOfcpu."
	if !strings.Contains(text, want) || strings.Contains(text, "node n2") {
		t.Errorf("%q is missing, or n2 is told of:\n%s", want, text)
	}
}

func TestWhoIsLeftOutIsTold(t *testing.T) {
	const why = "job-1-2 on node n1 is left out since 2030-01-01T12:00:00Z: it could not reach job-1-0: i/o timeout"
	c := clusterOf(4)
	job := c.add("job", 2, 4, condition(v1alpha1.ConditionFullSize, v1alpha1.ReasonWorkersLeftOut, why))
	c.trains(job, "n0", "n0")
	c.trains(c.add("other", 1, 1), "n1")
	text := explained(t, c.look(t), "job")
	if want := "WorkersLeftOut: " + strings.ToUpper(why[:1]) + why[1:] + "."; !strings.Contains(text, want) {
		t.Errorf("%q is missing:\n%s", want, text)
	}
	var table strings.Builder
	top := topOf(t, c, "name")
	if err := top.Write(&table, false); err != nil {
		t.Fatal(err)
	}
	if top.Jobs[0].LeftOut != why || top.Jobs[1].LeftOut != "" || strings.Count(table.String(), "is left out") != 1 || !strings.Contains(table.String(), "team/job: ") {
		t.Errorf("the table does not tell of it:\n%s", table.String())
	}
}

// A job that nobody has looked at yet has no status at all.
func TestExplainNewJob(t *testing.T) {
	c := clusterOf(4)
	c.add("new", 2, 4)
	if text := explained(t, c.look(t), "new"); !strings.Contains(text, "Its gang starts now, on n0 x2.") {
		t.Error(text)
	}
}

func TestExplainDecodesFromJSON(t *testing.T) {
	told, _ := lender().look(t).Explain(types.NamespacedName{Namespace: "team", Name: "lender"})
	text, err := json.Marshal(told)
	if err != nil {
		t.Fatal(err)
	}
	var back Explanation
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(told, back); diff != "" {
		t.Error(diff)
	}
}

func TestNotFoundNamesWhatWasMeant(t *testing.T) {
	c := clusterOf(4)
	c.add("digits", 1, 1)
	c.add("digits-large", 1, 1)
	c.add("words", 1, 1)
	c.add("pictures", 1, 1, in("research"))
	l := c.look(t)
	for _, test := range []struct{ namespace, name, want string }{
		{"team", "digit", "did you mean digits or digits-large?"},
		{"team", "dgits", "did you mean digits?"},
		{"team", "pictures", "there is one of that name in research: give --namespace"},
		{"team", "zzz", "it has digits, digits-large, words"},
		{"empty", "zzz", "that namespace has no jobs"},
	} {
		err := l.NotFound(types.NamespacedName{Namespace: test.namespace, Name: test.name})
		if !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s/%s: %q does not say %q", test.namespace, test.name, err, test.want)
		}
	}
}

// What the administrator allows is not known without the operator's settings.
func TestExplainTellsThePolicyInForce(t *testing.T) {
	c := clusterOf(4)
	c.trains(c.add("never", 1, 3, func(job *v1alpha1.TrainingJob) { job.Spec.Preemption.Policy = v1alpha1.PreemptionNever }), "n0", "n0")
	c.trains(c.add("evict", 1, 3, func(job *v1alpha1.TrainingJob) { job.Spec.Preemption.Policy = v1alpha1.PreemptionEvict }), "n0")
	c.trains(c.add("kueue", 1, 3, func(job *v1alpha1.TrainingJob) { job.Labels = map[string]string{v1alpha1.LabelKueueQueue: "gpus"} }), "n0")
	const forbidden = "defaultNamespace: {allowNever: false, allowEvict: false}"
	for _, test := range []struct {
		name, job  string
		look       *Look
		told, none []string
	}{
		{"allowed", "never", c.look(t), []string{"it gives up the 1 worker that it has beyond min", "it neither lends nor borrows"}, []string{"unless", "administrator"}},
		{"forbidden", "never", NewLook(c.Objects, optionsOf(t, forbidden)), []string{"does not allow in namespace team, so that Shrink is used: workers beyond min may be taken",
			"1 of its workers is surplus", "spec.growth.policy is Auto"}, []string{"lends nothing", "unless"}},
		{"forbidden", "evict", NewLook(c.Objects, optionsOf(t, forbidden)), []string{"so that Shrink is used"}, []string{"may take all of it"}},
		{"with Kueue's label", "kueue", c.look(t), []string{"Kueue (label kueue.x-k8s.io/queue-name) decides its size", "It would grow without the label"},
			[]string{"workers beyond min may be taken", "administrator", "spec.growth.policy is Auto"}},
		{"not known", "never", NewPartialLook(fleet.Objects{Jobs: c.Jobs, Pods: c.Pods}, options(t)), []string{"unless the administrator does not allow Never in this namespace."}, nil},
		{"not known", "evict", NewPartialLook(fleet.Objects{Jobs: c.Jobs, Pods: c.Pods}, options(t)), []string{"unless the administrator does not allow Evict in this namespace."}, nil},
	} {
		text := explained(t, test.look, test.job)
		for _, want := range test.told {
			if !strings.Contains(text, want) {
				t.Errorf("%s is %s: %q is missing:\n%s", test.job, test.name, want, text)
			}
		}
		for _, wrong := range test.none {
			if strings.Contains(text, wrong) {
				t.Errorf("%s is %s: %q is wrong:\n%s", test.job, test.name, wrong, text)
			}
		}
	}
}

func TestExplainTellsWhenAJobMayGrowAgain(t *testing.T) {
	c := clusterOf(4)
	c.trains(c.add("job", 1, 4), "n0")
	l := c.look(t)
	one := l.find(types.NamespacedName{Namespace: "team", Name: "job"})
	one.in.ReclaimedAt, one.in.Reclaims = start.Add(-time.Second), 3
	one.decision.Why.Reason = "RegrowDelayed"
	if text := explained(t, l, "job"); !strings.Contains(text, "It may grow again in 3s.") {
		t.Error(text)
	}
}

// Growth leaves the head-room of a quota to others, a gang may use all of it.
func TestAdviceCountsHeadRoom(t *testing.T) {
	c := clusterOf(16)
	c.trains(c.add("grows", 2, 4), "n0", "n0")
	c.add("waits", 4, 4, queued)
	c.bounded(corev1.ResourceList{"requests.example.com/gpu": resource.MustParse("4")})
	for settings, want := range map[string]string{
		"defaultNamespace: {headRoom: 50}": "It would grow to 3 workers if quota devices had 1 more requests.example.com/gpu free (growth leaves 2 of its 4 to others: headRoom 50%).",
		"defaultNamespace: {headRoom: 75}": "quota devices had 2 more requests.example.com/gpu free (growth leaves 3 of its 4 to others: headRoom 75%).",
	} {
		l := NewLook(c.Objects, optionsOf(t, settings))
		if text := explained(t, l, "grows"); !strings.Contains(text, want) {
			t.Errorf("%s: %q is missing:\n%s", settings, want, text)
		}
		if text := explained(t, l, "waits"); !strings.Contains(text, "It would start if quota devices had 2 more requests.example.com/gpu free.") {
			t.Errorf("%s: %s", settings, text)
		}
	}
}

// Who reads that a device is missing buys one: where memory or CPUs are short, that is what is told.
func TestAdviceNamesWhatIsShort(t *testing.T) {
	asks := func(name corev1.ResourceName, amount string) jobChange {
		return func(job *v1alpha1.TrainingJob) {
			job.Spec.Workers.Template.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(amount)
		}
	}
	c := clusterOf(8)
	c.Nodes[0].Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("64Gi")
	c.trains(c.add("grows", 1, 4, asks(corev1.ResourceMemory, "40Gi")), "n0")
	c.add("waits", 1, 1, queued, asks(corev1.ResourceMemory, "30Gi"))
	c.add("wide", 1, 1, queued, asks(corev1.ResourceCPU, "48"))
	c.add("many", 3, 3, queued, asks(corev1.ResourceMemory, "30Gi"))
	l := c.look(t)
	for job, wants := range map[string][]string{
		"grows": {"It would grow to 2 workers if room for 1 more worker (1 example.com/gpu, 2 cpu and 40Gi memory each) were free for it: memory is short, where devices are left."},
		"waits": {"waits for 1 place of 1 example.com/gpu, 2 cpu and 30Gi memory: 0 are free, for lack of memory",
			"It would start if room for 1 more worker (1 example.com/gpu, 2 cpu and 30Gi memory each) were free for it: memory is short, where devices are left."},
		"wide": {"48 cpu are wanted and the largest has 32", "room for 1 more worker (1 example.com/gpu and 48 cpu each) were in the cluster, on nodes that it may use: cpu is short, where devices are left."},
		"many": {"room for 3 more workers (1 example.com/gpu, 2 cpu and 30Gi memory each) were in the cluster"},
	} {
		text := explained(t, l, job)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing:\n%s", want, text)
			}
		}
	}
}

func TestExplainSaysWhatIsNotModelled(t *testing.T) {
	c := clusterOf(4)
	c.add("job", 2, 4, func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	})
	c.add("plain", 2, 4)
	const want = "The template has host port 80, and only the scheduler knows where such a pod fits: its gang is one attempt, " +
		"all pods or none, and more workers are tried one at a time."
	if text := explained(t, c.look(t), "job"); !strings.Contains(text, want) {
		t.Error(text)
	}
	if text := explained(t, c.look(t), "plain"); strings.Contains(text, "only the scheduler") {
		t.Error(text)
	}
}
