package fleet

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// seenJob is the only job of a snapshot.
func seenJob(t *testing.T, c *Cluster) allocation.Job {
	t.Helper()
	seen := c.Snapshot()
	if len(seen.Jobs) != 1 {
		t.Fatalf("%d jobs", len(seen.Jobs))
	}
	return seen.Jobs[0]
}

func condition(kind, reason string, status metav1.ConditionStatus) jobChange {
	return func(job *v1alpha1.TrainingJob) {
		job.Status.Conditions = append(job.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, ObservedGeneration: job.Generation})
	}
}

func TestStages(t *testing.T) {
	deleted := metav1.NewTime(start)
	for _, c := range []struct {
		name  string
		job   *v1alpha1.TrainingJob
		facts *Facts
		pods  int
		want  allocation.Stage
	}{
		{name: "new", job: jobOf("j"), want: allocation.Queued},
		{name: "new, reported", job: jobOf("j"), facts: &Facts{}, want: allocation.Queued},
		{name: "may not start now", job: jobOf("j"), facts: &Facts{Held: true}, want: allocation.Held},
		{name: "suspended", job: jobOf("j", func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(true) }), want: allocation.Held},
		{name: "suspended, still training", job: jobOf("j", trains, func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(true) }), facts: &Facts{Elastic: true}, pods: 2, want: allocation.Held},
		{name: "complete", job: jobOf("j", trains, condition(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, metav1.ConditionTrue)), want: allocation.Held},
		{name: "failed", job: jobOf("j", trains, condition(v1alpha1.ConditionFailed, v1alpha1.ReasonProgramFailed, metav1.ConditionTrue)), want: allocation.Held},
		{name: "being deleted", job: jobOf("j", trains, func(j *v1alpha1.TrainingJob) { j.DeletionTimestamp = &deleted }), want: allocation.Held},
		{name: "refused", job: jobOf("j", condition(v1alpha1.ConditionAdmitted, v1alpha1.ReasonInvalidTemplate, metav1.ConditionFalse)), want: allocation.Held},
		{name: "refused, changed since", job: jobOf("j", condition(v1alpha1.ConditionAdmitted, v1alpha1.ReasonInvalidTemplate, metav1.ConditionFalse),
			func(j *v1alpha1.TrainingJob) { j.Generation++ }), want: allocation.Queued},
		{name: "short of quota", job: jobOf("j", condition(v1alpha1.ConditionAdmitted, v1alpha1.ReasonQuotaExceeded, metav1.ConditionFalse)), want: allocation.Queued},
		{name: "no container", job: jobOf("j", func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Template.Spec.Containers = nil }), want: allocation.Held},
		{name: "somebody else's", job: jobOf("j", func(j *v1alpha1.TrainingJob) { j.Spec.ManagedBy = "example.com/other" }), want: allocation.Held},
		{name: "ours, said aloud", job: jobOf("j", func(j *v1alpha1.TrainingJob) { j.Spec.ManagedBy = v1alpha1.ManagedByOperator }), want: allocation.Queued},
		{name: "backing off", job: jobOf("j", func(j *v1alpha1.TrainingJob) { j.Status.RetryTime = ptr.To(metav1.NewTime(start.Add(time.Second))) }), want: allocation.Held},
		{name: "backed off", job: jobOf("j", func(j *v1alpha1.TrainingJob) { j.Status.RetryTime = ptr.To(metav1.NewTime(start)) }), want: allocation.Queued},
		{name: "the last attempt is ending, for all that is known", job: jobOf("j"), pods: 1, want: allocation.Held},
		{name: "starting", job: jobOf("j", starts), pods: 2, want: allocation.Starting},
		{name: "starting again", job: jobOf("j", trains, func(j *v1alpha1.TrainingJob) { j.Status.Attempt = ptr.To[int32](2) }), want: allocation.Starting},
		{name: "training", job: jobOf("j", trains), facts: &Facts{Elastic: true}, want: allocation.Training},
		{name: "cannot change", job: jobOf("j", trains), facts: &Facts{}, want: allocation.Fixed},
		{name: "not looked at by this leader yet", job: jobOf("j", trains), want: allocation.Training},
		{name: "its world not heard of yet", job: jobOf("j", trains), facts: &Facts{Unheard: true}, want: allocation.Training},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := New(optionsOf())
			cluster.SetJob(c.job)
			for i := range c.pods {
				cluster.SetPod(workerOf(c.job, i))
			}
			if c.facts != nil {
				cluster.Report(c.job, *c.facts)
			}
			if got := seenJob(t, cluster); got.Stage != c.want {
				t.Errorf("stage %d, want %d", got.Stage, c.want)
			}
		})
	}
}

// TestRanksUntilTheWorldIsHeardOf: a new leader plans by the ranks in the record of the world until it knows better.
func TestRanksUntilTheWorldIsHeardOf(t *testing.T) {
	job := jobOf("j", trains)
	made := rendezvous.Record{Workers: 2}
	made.Name([]rendezvous.NamedMember{{Ordinal: 0, Node: "n0"}, {Ordinal: 1, Node: "n0"}})
	job.Status.World.Workers, job.Status.World.Members = ptr.To[int32](2), made.Members
	cluster := New(optionsOf())
	cluster.SetJob(job)
	for i := range 2 {
		cluster.SetPod(workerOf(job, i, on("n0")))
	}
	cluster.SetPod(workerOf(job, 2, growthRole))
	cluster.SetPod(workerOf(job, 1, growthRole, on("n0"), func(pod *corev1.Pod) { // of another attempt
		pod.Name, pod.UID, pod.Labels[v1alpha1.LabelAttempt] = "j-2-1", "uid-j-2-1", "2"
	}))
	for _, step := range []struct {
		facts *Facts
		world bool
	}{{nil, true}, {&Facts{Unheard: true}, true}, {&Facts{Elastic: true}, false}} {
		if step.facts != nil {
			cluster.Report(job, *step.facts)
		}
		for i, w := range seenJob(t, cluster).Workers {
			if world := step.world && w.Own; w.World != world || world && w.Rank != int32(i) {
				t.Errorf("with %+v worker %d is %+v", step.facts, i, w)
			}
		}
	}
}

func TestStanding(t *testing.T) {
	classes := []*schedulingv1.PriorityClass{classOf("growth", -10), classOf("high", 1000), classOf("mild", 5), classOf("default", 3)}
	classes[2].PreemptionPolicy = ptr.To(corev1.PreemptNever)
	classes[3].GlobalDefault = true
	named := func(own, growth string) *v1alpha1.TrainingJob {
		return jobOf("j", trains, func(j *v1alpha1.TrainingJob) {
			j.Spec.Workers.Template.Spec.PriorityClassName, j.Spec.Growth.PriorityClassName = own, growth
		})
	}
	for _, c := range []struct {
		name     string
		job      *v1alpha1.TrainingJob
		pod      *corev1.Pod
		priority int32
		preempts bool
		fault    string
	}{
		{name: "by its class", job: named("high", "growth"), priority: 1000, preempts: true},
		{name: "the default class", job: named("", "growth"), priority: 3, preempts: true},
		{name: "a class that preempts nobody", job: named("mild", "growth"), priority: 5},
		{name: "no such class", job: named("none", "growth"), preempts: true, fault: "PriorityClass none of the template does not exist"},
		{name: "a growth class as high as its own", job: named("high", "high"), priority: 1000, preempts: true},
		{name: "a growth class that is higher", job: named("mild", "high"), priority: 5, fault: "has the value 1000, above the job's own priority 5"},
		{name: "no such growth class", job: named("high", "none"), priority: 1000, preempts: true, fault: "PriorityClass none of spec.growth.priorityClassName does not exist"},
		{name: "the class is gone, its pods know", job: named("none", "growth"), pod: workerOf(named("", ""), 0, priority(7)), priority: 7, preempts: true},
		{name: "growth pods know nothing of it", job: named("high", "growth"), pod: workerOf(named("", ""), 0, growthRole, priority(-10)), priority: 1000, preempts: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := Objects{Jobs: []*v1alpha1.TrainingJob{c.job}, Classes: classes}
			if c.pod != nil {
				objects.Pods = []*corev1.Pod{c.pod}
			}
			got := seenJob(t, FromObjects(objects, optionsOf()))
			if got.Priority != c.priority || got.Preempts != c.preempts || (got.Fault == "") != (c.fault == "") || !strings.Contains(got.Fault, c.fault) {
				t.Errorf("priority %d, preempts %t, fault %q", got.Priority, got.Preempts, got.Fault)
			}
		})
	}
}

func TestReclaimsAreForgottenInQuietTime(t *testing.T) {
	for every, want := range map[time.Duration]int32{5 * time.Minute: 1, 3 * time.Second: 8} {
		job := jobOf("j", trains, func(j *v1alpha1.TrainingJob) {
			for i := range 8 {
				at := metav1.NewTime(start.Add(time.Duration(i-8) * every))
				j.Status.Resizes = append(j.Status.Resizes, v1alpha1.Resize{Round: ptr.To(int64(2 * i)), Reason: Reclaimed, At: &at})
			}
		})
		cluster := New(optionsOf())
		cluster.SetJob(job)
		if got := seenJob(t, cluster); got.Reclaims != want {
			t.Errorf("taken from every %s: %d reclaims count, want %d", every, got.Reclaims, want)
		}
	}
}

// A label is no new generation of a job.
func TestKueuesLabelHasOthersSizeAJob(t *testing.T) {
	job := jobOf("j", trains)
	cluster := New(optionsOf())
	cluster.SetJob(job)
	cluster.PlanNow()
	labelled := job.DeepCopy()
	labelled.ResourceVersion = "1000"
	labelled.Labels = map[string]string{v1alpha1.LabelKueueQueue: "gpus"}
	cluster.SetJob(labelled)
	select {
	case <-cluster.wake:
	default:
		t.Error("nobody plans anew")
	}
	if got := seenJob(t, cluster).SizedBy; got != "Kueue (label kueue.x-k8s.io/queue-name)" {
		t.Errorf("%q", got)
	}
}

// A worker that leaves for an equal before it was in any world changes none: nothing in the job's status tells of it.
func TestANewcomerThatLeavesForAnEqualIsGivenToo(t *testing.T) {
	job := jobOf("j", trains)
	cluster := New(optionsOf())
	cluster.SetNode(nodeOf("n0"))
	cluster.SetJob(job)
	gave := start.Add(-time.Minute)
	marked := []podChange{on("n0"), growthRole, Mark{Reason: Evened, For: "team/other", At: gave}.Put}
	cluster.SetPod(workerOf(job, 10, marked...))
	if got := seenJob(t, cluster).EvenedAt; !got.IsZero() {
		t.Errorf("it gave at %s, and the mark may be lifted yet", got)
	}
	leaves := workerOf(job, 10, append(marked, deletedAt(start))...)
	cluster.SetPod(leaves)
	if got := seenJob(t, cluster).EvenedAt; !got.Equal(gave) {
		t.Errorf("it leaves, and the job gave at %s, want %s", got, gave)
	}
	cluster.DeletePod(leaves)
	if got := seenJob(t, cluster).EvenedAt; !got.Equal(gave) {
		t.Errorf("it is gone, and the job gave at %s, want %s", got, gave)
	}
}

// Nor does one tell of a newcomer that no plan saw leave: without a node it is gone at once, and another may go between two plans.
func TestANewcomerThatNoPlanSawLeaveIsGivenToo(t *testing.T) {
	gave := start.Add(-time.Minute)
	evened, reclaimed := Mark{Evened, "team/other", gave}, Mark{Reclaimed, "team/other", gave}
	deleted := (*Cluster).DeletePod
	for name, test := range map[string]struct {
		mark   Mark
		where  podChange
		leaves func(*Cluster, *corev1.Pod)
		want   time.Time
	}{
		"without a node":           {evened, growthRole, deleted, gave},
		"between two plans":        {evened, on("n0"), func(c *Cluster, pod *corev1.Pod) { c.SetPod(pod); c.DeletePod(pod) }, gave},
		"another has its name":     {evened, on("n0"), func(c *Cluster, pod *corev1.Pod) { pod.UID, pod.Status.Conditions = "new", nil; c.SetPod(pod) }, gave},
		"for one of more priority": {reclaimed, growthRole, deleted, time.Time{}},
		"for nobody":               {Mark{}, growthRole, deleted, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobOf("j", trains)
			cluster := New(optionsOf())
			cluster.SetNode(nodeOf("n0"))
			cluster.SetJob(job)
			cluster.SetPod(workerOf(job, 10, growthRole, test.where, test.mark.Put))
			if got := seenJob(t, cluster).EvenedAt; !got.IsZero() {
				t.Errorf("it gave at %s, and the mark may be lifted yet", got)
			}
			test.leaves(cluster, workerOf(job, 10, growthRole, test.where, test.mark.Put, deletedAt(start)))
			if got := seenJob(t, cluster).EvenedAt; !got.Equal(test.want) {
				t.Errorf("it is gone, and the job gave at %s, want %s", got, test.want)
			}
		})
	}
}

func TestWhatIsReadOfAJob(t *testing.T) {
	at := func(minutes int) *metav1.Time {
		return ptr.To(metav1.NewTime(start.Add(time.Duration(minutes) * time.Minute)))
	}
	job := jobOf("j", trains, func(j *v1alpha1.TrainingJob) {
		j.Spec.Workers.Sizes = []int32{4, 2}
		j.Spec.Preemption.Policy, j.Spec.Growth.Policy = v1alpha1.PreemptionEvict, v1alpha1.GrowthOff
		j.Spec.ActiveDeadline = &metav1.Duration{Duration: time.Hour}
		j.Spec.Deadline = at(90)
		j.Spec.Resize.Strategy = v1alpha1.ResizeRestart
		j.Status.Progress.Since = at(-7)
		for i, reason := range []string{"Reclaimed", "CapacityAvailable", "Reclaimed", Evened, "CapacityAvailable", "Reclaimed", "WorkerLost"} {
			j.Status.Resizes = append(j.Status.Resizes, v1alpha1.Resize{Round: ptr.To(int64(i)), Reason: reason, At: at(i - 8)})
		}
		j.Status.Resizes[0].At = at(-60 * 24)
	})
	pods := []*corev1.Pod{
		workerOf(job, 10, on("n1"), growthRole, Mark{Reason: Reclaimed, For: "team/other", At: start}.Put),
		workerOf(job, 2, on("n0")),
		workerOf(job, 3, deletedAt(start)),
		workerOf(job, 11, onto("n1"), growthRole, Mark{Reason: Reclaimed, For: "team/gone", At: start}.Put),
	}
	cluster := New(optionsOf())
	for _, name := range []string{"n0", "n1"} {
		cluster.SetNode(nodeOf(name))
	}
	cluster.SetJob(job)
	for _, pod := range pods {
		cluster.SetPod(pod)
	}
	cluster.Report(job, Facts{Elastic: true, Armed: true, Finishing: true, Regrouping: true, Pause: time.Second, GrowAfter: start.Add(time.Minute),
		Ranks: map[types.UID]int32{pods[0].UID: 0}, Lost: map[types.UID]bool{pods[1].UID: true}})
	got := seenJob(t, cluster)
	if !slices.Equal(got.Sizes, []int32{2, 4}) || got.Policy != allocation.Evict || !got.NoGrowth || !got.Restarts || !got.Armed || !got.Finishing || !got.Regrouping {
		t.Errorf("%+v", got)
	}
	if !got.Ends.Equal(start.Add(time.Hour)) || !got.GrowAfter.Equal(start.Add(time.Minute)) || got.Pause != time.Second || got.Lost != 7*time.Minute ||
		!got.Deadline.Equal(at(90).Time) || !got.Submitted.Equal(start) || !got.Queued.IsZero() {
		t.Errorf("times: %+v", got)
	}
	if !got.GrewAt.Equal(at(-4).Time) || !got.EvenedAt.Equal(at(-5).Time) || !got.ReclaimedAt.Equal(at(-3).Time) || got.Reclaims != 1 {
		t.Errorf("grew %s, evened %s, reclaimed %s (%d)", got.GrewAt, got.EvenedAt, got.ReclaimedAt, got.Reclaims)
	}
	want := []allocation.Worker{
		{Own: true, Bound: true, Leaving: true, Rank: -1, Ordinal: 2, For: allocation.None, Node: 0},
		{Own: true, Ending: true, Rank: -1, Ordinal: 3, For: allocation.None, Node: allocation.None},
		{Bound: true, World: true, Rank: 0, Ordinal: 10, Marked: true, For: allocation.None, Node: 1},
		{Marked: true, Rank: -1, Ordinal: 11, For: allocation.None, Node: 1},
	}
	for i := range got.Workers {
		got.Workers[i].Shape = 0
	}
	if !slices.Equal(got.Workers, want) {
		t.Errorf("workers are\n%+v, want\n%+v", got.Workers, want)
	}

	// The one whom the room is for comes into being.
	cluster.SetJob(jobOf("other"))
	seen := cluster.Snapshot()
	if id := seen.Jobs[0].Workers[2].For; id < 0 || seen.Jobs[id].Name != "team/other" {
		t.Errorf("the room is for %d", id)
	}
}

func TestTheNewerVersionOfAJobCounts(t *testing.T) {
	old, now := jobOf("j", version(9)), jobOf("j", version(10), func(j *v1alpha1.TrainingJob) { *j.Spec.Workers.Max = 7 })
	for name, tell := range map[string]func(*Cluster){
		"reported after the event":        func(c *Cluster) { c.SetJob(old); c.Report(now, Facts{}) },
		"reported before the event":       func(c *Cluster) { c.Report(now, Facts{}); c.SetJob(old) },
		"an old report after the event":   func(c *Cluster) { c.SetJob(now); c.Report(old, Facts{}) },
		"what was reported is changed on": func(c *Cluster) { mine := now.DeepCopy(); c.Report(mine, Facts{}); *mine.Spec.Workers.Max = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			c := New(optionsOf())
			tell(c)
			c.dirty(old.UID)
			if got := seenJob(t, c); got.Max != 7 {
				t.Errorf("max is %d", got.Max)
			}
		})
	}
	t.Run("another job of the name", func(t *testing.T) {
		c := New(optionsOf())
		next := jobOf("j", version(11), func(j *v1alpha1.TrainingJob) {
			j.UID, j.CreationTimestamp = "other", metav1.NewTime(start.Add(time.Hour))
		})
		c.Report(old, Facts{})
		c.SetJob(next)
		c.Report(old, Facts{}) // a reconcile that was under way
		c.Forget(old.UID)
		if got := seenJob(t, c); got.UID != "other" {
			t.Errorf("uid is %s", got.UID)
		}
	})
}

func TestPassingTimeIsNoNews(t *testing.T) {
	k := &clock{now: start}
	job := jobOf("j", trains, func(j *v1alpha1.TrainingJob) { j.Status.Progress.Since = ptr.To(metav1.NewTime(start)) })
	c := New(k.options(func(o *Options) { o.Plan = (&plans{}).plan }))
	c.Report(job, Facts{Elastic: true})
	c.PlanNow()
	k.now = k.now.Add(time.Minute)
	c.Report(job.DeepCopy(), Facts{Elastic: true})
	if !c.Grant(job.UID).Known {
		t.Error("the same report is news a minute later")
	}
	progress := job.DeepCopy()
	progress.ResourceVersion, progress.Status.Progress.Step = "2", ptr.To[int64](100)
	c.Report(progress, Facts{Elastic: true})
	if !c.Grant(job.UID).Known {
		t.Error("a step more is news")
	}
}

func TestNamespaces(t *testing.T) {
	settings, err := ParseSettings([]byte("defaultNamespace: {weight: 2}\nnamespaces: {team: {headRoom: 15, allowEvict: false}}"))
	if err != nil {
		t.Fatal(err)
	}
	ending := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}}
	c := FromObjects(Objects{Jobs: []*v1alpha1.TrainingJob{jobOf("j")}, Namespaces: []*corev1.Namespace{ending}}, optionsOf(func(o *Options) { o.Settings = settings }))
	want := allocation.Namespace{Name: "team", Weight: 2, HeadRoom: 150, NeverAllowed: true, Ending: true}
	if got := c.Snapshot().Namespaces; len(got) != 1 || got[0] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	c.DeleteNamespace("team")
	if c.Snapshot().Namespaces[0].Ending {
		t.Error("it is still ending")
	}
}

// avoids has nodes avoided until a time.
func avoids(until time.Time, nodes ...string) func(*v1alpha1.TrainingJob) {
	return func(job *v1alpha1.TrainingJob) {
		for _, node := range nodes {
			job.Status.AvoidedNodes = append(job.Status.AvoidedNodes, v1alpha1.AvoidedNode{Name: node, Until: ptr.To(metav1.NewTime(until))})
		}
	}
}

// A pause of growth, and the nodes that it is to avoid, are the job's own: what happens to other nodes ends neither, and a node
// that comes back is avoided as before.
func TestAPauseOfGrowthOutlivesOtherNodes(t *testing.T) {
	again := func(node *corev1.Node) { node.ResourceVersion = "2" }
	for name, do := range map[string]func(*Cluster){
		"one comes":   func(c *Cluster) { c.SetNode(nodeOf("n00")) },
		"one changes": func(c *Cluster) { c.SetNode(nodeOf("n0", again, tainted("gpu", corev1.TaintEffectNoSchedule))) },
		"one goes":    func(c *Cluster) { c.DeleteNode("n0") },
		"the avoided one goes and comes": func(c *Cluster) {
			c.DeleteNode("n1")
			if seen := c.Snapshot(); len(seen.Jobs[0].Avoid) > 0 || seen.Jobs[0].GrowAfter.IsZero() {
				t.Errorf("a node that is gone is avoided: %v, and growth waits until %s", seen.Jobs[0].Avoid, seen.Jobs[0].GrowAfter)
			}
			c.SetNode(nodeOf("n1", again))
		},
	} {
		t.Run(name, func(t *testing.T) {
			until := start.Add(time.Minute)
			job := jobOf("j", trains, avoids(until, "n1", "nowhere"))
			c := FromObjects(Objects{Nodes: nodesOf(2), Jobs: []*v1alpha1.TrainingJob{job}}, optionsOf())
			c.Report(job, Facts{Elastic: true, GrowAfter: until})
			c.Snapshot()
			do(c)
			seen := c.Snapshot()
			got := seen.Jobs[0]
			if !got.GrowAfter.Equal(until) || len(got.Avoid) != 1 || seen.Nodes[got.Avoid[0]].Name != "n1" {
				t.Errorf("growth waits until %s and avoids %v", got.GrowAfter, got.Avoid)
			}
		})
	}
}

// TestWhoComesAfterANodeIsNotAvoided: a node that is gone is kept as long as pods are on it, and another one has its number then.
func TestWhoComesAfterANodeIsNotAvoided(t *testing.T) {
	plain := podOf("plain", "1", on("n1"))
	c := FromObjects(Objects{
		Nodes: nodesOf(2), Pods: []*corev1.Pod{plain}, Jobs: []*v1alpha1.TrainingJob{jobOf("j", trains, avoids(start.Add(5*time.Minute), "n1"))},
	}, optionsOf())
	c.Snapshot()
	c.DeleteNode("n1")
	c.Snapshot()
	c.DeletePod(plain)
	c.SetNode(nodeOf("n9"))
	seen := c.Snapshot()
	for _, id := range seen.Jobs[0].Avoid {
		t.Errorf("avoids %s", seen.Nodes[id].Name)
	}
}

// Which nodes a job avoids is durable: an operator that starts knows it before anything was reported. It ends with the time alone.
func TestANodeIsAvoidedUntilItsTimeIsOver(t *testing.T) {
	now, options := start, optionsOf()
	options.Now = func() time.Time { return now }
	job := jobOf("j", avoids(start.Add(20*time.Second), "n1"), avoids(start, "n0"))
	c := FromObjects(Objects{Nodes: nodesOf(2), Jobs: []*v1alpha1.TrainingJob{job}}, options)
	if seen := c.Snapshot(); len(seen.Jobs[0].Avoid) != 1 || seen.Nodes[seen.Jobs[0].Avoid[0]].Name != "n1" {
		t.Errorf("avoids %v, want n1 alone", seen.Jobs[0].Avoid)
	}
	if next := c.PlanNow(); next != 20*time.Second {
		t.Errorf("there is another plan after %s, want one when n1 may be used again", next)
	}
	now = now.Add(20 * time.Second)
	if seen := c.Snapshot(); len(seen.Jobs[0].Avoid) != 0 {
		t.Errorf("still avoids %v", seen.Jobs[0].Avoid)
	}
	before := c.jobs[job.UID].built
	longer := job.DeepCopy()
	longer.ResourceVersion = "2"
	longer.Status.AvoidedNodes[0].Until = ptr.To(metav1.NewTime(now.Add(time.Minute)))
	c.SetJob(longer)
	if after := c.jobs[job.UID].built; before.same(&after) {
		t.Error("that a node is avoided for longer makes no difference")
	}
}

// The planner is told what it promised to a gang, on the nodes that are still there.
func TestWhatAGangWasPromised(t *testing.T) {
	promised := []string{"n0", "n1", "n1"}
	c := New(optionsOf(func(o *Options) {
		o.Plan = func(cluster *allocation.Cluster) allocation.Plan {
			d := allocation.Decision{For: allocation.None}
			for _, name := range promised {
				d.Promised = append(d.Promised, allocation.NodeID(slices.IndexFunc(cluster.Nodes, func(n allocation.Node) bool { return n.Name == name })))
			}
			return allocation.Plan{Decisions: []allocation.Decision{d}}
		}
	}))
	expect := func(when string, want ...string) {
		t.Helper()
		seen, got := c.Snapshot(), []string(nil)
		for _, n := range seen.Jobs[0].Promised {
			got = append(got, seen.Nodes[n].Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: it was promised %v, want %v", when, got, want)
		}
	}
	c.SetNode(nodeOf("n0"))
	c.SetNode(nodeOf("n1"))
	c.SetJob(jobOf("j"))
	expect("before any plan")
	c.PlanNow()
	expect("after a plan", "n0", "n1", "n1")
	c.DeleteNode("n0")
	c.SetNode(nodeOf("n2"))
	expect("another node has the place of one", "n1", "n1")
	promised = []string{"nowhere"}
	c.PlanNow()
	expect("nothing that there is")
}

// What a plan has found out by looking ahead, the next one is told.
func TestWhatWasForeseenIsTold(t *testing.T) {
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	found := allocation.Foresight{Wide: true, Since: since}
	c := New(optionsOf(func(o *Options) {
		o.Plan = func(cluster *allocation.Cluster) allocation.Plan {
			plan := allocation.Plan{Decisions: make([]allocation.Decision, len(cluster.Jobs)), Foresight: found}
			for id := range plan.Decisions {
				plan.Decisions[id] = allocation.Decision{For: allocation.None, InVain: !found.Since.IsZero() && cluster.Jobs[id].UID == "uid-b"}
			}
			return plan
		}
	}))
	expect := func(when string, foresight allocation.Foresight, inVain bool) {
		t.Helper()
		seen := c.Snapshot()
		if seen.Foresight != foresight {
			t.Errorf("%s: %+v, want %+v", when, seen.Foresight, foresight)
		}
		for i := range seen.Jobs {
			if got, want := seen.Jobs[i].InVain, inVain && seen.Jobs[i].UID == "uid-b"; got != want {
				t.Errorf("%s: for %s in vain: %v, want %v", when, seen.Jobs[i].UID, got, want)
			}
		}
	}
	c.SetJob(jobOf("b"))
	expect("before any plan", allocation.Foresight{}, false)
	c.PlanNow()
	c.SetJob(jobOf("a")) // its place is before that of the other one
	expect("after a plan", found, true)
	found = allocation.Foresight{}
	c.PlanNow()
	expect("after another one", found, false)
}
