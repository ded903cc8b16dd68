package fleet

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// freeCPU is what a snapshot says is free on a node, in thousandths.
func freeCPU(t *testing.T, cluster *allocation.Cluster, node string) int64 {
	t.Helper()
	for _, n := range cluster.Nodes {
		if n.Name == node {
			for i, name := range cluster.Resources {
				if name == "cpu" {
					return n.Free[i]
				}
			}
		}
	}
	t.Fatalf("no node %s, or no CPUs", node)
	return 0
}

func deletedAt(at time.Time) podChange {
	return func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(at)) }
}

func nominated(node string) podChange {
	return func(pod *corev1.Pod) { pod.Status.NominatedNodeName = node }
}

func onto(node string) podChange { return func(pod *corev1.Pod) { Pin(pod, node) } }

// TestWhatPodsHold: a node of 8 CPUs, and one pod of 2 beside an empty node. The job is queued.
func TestWhatPodsHold(t *testing.T) {
	job := jobOf("big")
	resizing := podOf("a", "2", on("n0"))
	resizing.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", AllocatedResources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5")},
		Resources: &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5")}}}}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want [2]int64
	}{
		{name: "bound", pod: podOf("a", "2", on("n0")), want: [2]int64{6000, 8000}},
		{name: "more than there is", pod: podOf("a", "20", on("n0")), want: [2]int64{-12000, 8000}},
		{name: "bound and ending", pod: podOf("a", "2", on("n0"), deletedAt(start)), want: [2]int64{6000, 8000}},
		{name: "ending for long: the scheduler still counts it", pod: podOf("a", "2", on("n0"), deletedAt(start.Add(-time.Hour))), want: [2]int64{6000, 8000}},
		{name: "succeeded", pod: podOf("a", "2", on("n0"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), want: [2]int64{8000, 8000}},
		{name: "failed and ending", pod: podOf("a", "2", on("n0"), deletedAt(start), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), want: [2]int64{8000, 8000}},
		{name: "during a resize", pod: resizing, want: [2]int64{3000, 8000}},
		{name: "nominated", pod: podOf("a", "2", nominated("n1")), want: [2]int64{8000, 6000}},
		{name: "waiting goes where it fits", pod: podOf("a", "2", priority(0)), want: [2]int64{6000, 8000}},
		{name: "waiting, of unknown priority", pod: podOf("a", "2"), want: [2]int64{6000, 8000}},
		{name: "waiting, too large", pod: podOf("a", "9", priority(0)), want: [2]int64{8000, 8000}},
		{name: "waiting, less important than any job", pod: podOf("a", "2", priority(-20)), want: [2]int64{8000, 8000}},
		{name: "waiting, gated", pod: podOf("a", "2", priority(0), func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }), want: [2]int64{8000, 8000}},
		{name: "waiting and ending", pod: podOf("a", "2", priority(0), deletedAt(start)), want: [2]int64{8000, 8000}},
		{name: "waiting, not selected by one", pod: podOf("a", "2", priority(0), func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n1"}
		}), want: [2]int64{8000, 6000}},
		{name: "ours, planned for a node", pod: workerOf(job, 0, onto("n1")), want: [2]int64{8000, 6000}},
		{name: "ours, placed elsewhere", pod: workerOf(job, 0, onto("n1"), on("n0")), want: [2]int64{6000, 8000}},
		{name: "ours, the scheduler's choice: the planner keeps room for it", pod: workerOf(job, 0), want: [2]int64{8000, 8000}},
		{name: "somebody else's with a pin waits", pod: podOf("a", "2", priority(0), onto("n1")), want: [2]int64{8000, 6000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := FromObjects(Objects{Nodes: nodesOf(2), Jobs: []*v1alpha1.TrainingJob{job}, Pods: []*corev1.Pod{c.pod}}, optionsOf())
			seen := cluster.Snapshot()
			if got := [2]int64{freeCPU(t, seen, "n0"), freeCPU(t, seen, "n1")}; got != c.want {
				t.Errorf("free are %v, want %v", got, c.want)
			}
		})
	}
}

// What workers of a job would find there is what pods leave that have a node.
func TestFreeMemory(t *testing.T) {
	asks := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("3Gi")
	}
	nodes := nodesOf(2)
	for _, node := range nodes {
		node.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("8Gi")
	}
	cluster := FromObjects(Objects{Nodes: nodes, Pods: []*corev1.Pod{podOf("a", "1", on("n0"), asks), podOf("b", "1", on("n0"), asks), podOf("c", "1", asks),
		podOf("d", "1", on("away"), asks)}}, optionsOf())
	free := cluster.FreeMemory([]string{"n0", "n1", "away", "unheard"})
	if want := map[string]int64{"n0": 2 << 30, "n1": 8 << 30}; !maps.Equal(free, want) {
		t.Errorf("%v are free, want %v", free, want)
	}
}

// clock is one that a test moves.
type clock struct{ now time.Time }

func (c *clock) options(changes ...func(*Options)) Options {
	return optionsOf(append(changes, func(o *Options) { o.Now = func() time.Time { return c.now } })...)
}

// assume charges a pod as Take does, whatever was granted.
func assume(c *Cluster, pod *corev1.Pod) {
	slim, _ := SlimPod(pod.DeepCopy())
	c.putPod(slim.(*corev1.Pod), c.options.Now())
}

func TestMadePodsAreAssumed(t *testing.T) {
	job := jobOf("big", starts)
	made := workerOf(job, 0, onto("n0"))
	for _, c := range []struct {
		name string
		then func(*Cluster, *clock)
		want int64
	}{
		{name: "until its event comes", then: func(*Cluster, *clock) {}, want: 6000},
		{name: "the event tells where it is", then: func(c *Cluster, _ *clock) { c.SetPod(workerOf(job, 0, onto("n0"), on("n1"))) }, want: 8000},
		{name: "it was made, and is gone", then: func(c *Cluster, _ *clock) { c.SetPod(made); c.DeletePod(made) }, want: 8000},
		{name: "it could not be made", then: func(c *Cluster, _ *clock) { c.Drop([]*corev1.Pod{made}) }, want: 8000},
		{name: "it was made all the same", then: func(c *Cluster, _ *clock) { c.SetPod(made); c.Drop([]*corev1.Pod{made}) }, want: 6000},
		{name: "no event for long", then: func(_ *Cluster, k *clock) { k.now = k.now.Add(assumedFor) }, want: 8000},
		{name: "not quite as long", then: func(_ *Cluster, k *clock) { k.now = k.now.Add(assumedFor - 1) }, want: 6000},
		{name: "the clock is set back, and time passes", then: func(c *Cluster, k *clock) {
			k.now = k.now.Add(-time.Hour)
			c.Snapshot()
			k.now = k.now.Add(assumedFor)
		}, want: 8000},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := &clock{now: start}
			cluster := FromObjects(Objects{Nodes: nodesOf(2), Jobs: []*v1alpha1.TrainingJob{job}}, k.options())
			assume(cluster, made)
			c.then(cluster, k)
			if got := freeCPU(t, cluster.Snapshot(), "n0"); got != c.want {
				t.Errorf("%d are free, want %d", got, c.want)
			}
		})
	}
}

// TestPodsInTheMakingAreAssumed: their room is nobody else's however long the API server takes for all of them.
func TestPodsInTheMakingAreAssumed(t *testing.T) {
	job := jobOf("big", starts)
	k, p := &clock{now: start}, &plans{}
	p.place.Store(true)
	options := k.options()
	options.Plan = p.plan
	cluster := FromObjects(Objects{Nodes: nodesOf(1), Jobs: []*v1alpha1.TrainingJob{job}}, options)
	made := []*corev1.Pod{workerOf(job, 0, onto("n0"))}
	cluster.PlanNow()
	if !cluster.Take(job.UID, made) {
		t.Fatal("what was granted cannot be taken")
	}
	expect := func(when string, passed time.Duration, want int64) {
		t.Helper()
		k.now = k.now.Add(passed)
		if got := freeCPU(t, cluster.Snapshot(), "n0"); got != want {
			t.Errorf("%s: %d are free, want %d", when, got, want)
		}
	}
	expect("it is in the making", 2*assumedFor, 6000)
	cluster.Made(made)
	expect("it was made just now", assumedFor-1, 6000)
	expect("no event has told of it", 1, 8000)
}

// TestAPodOfAnotherIsNotForgotten: it has the name of one that we are about to make.
func TestAPodOfAnotherIsNotForgotten(t *testing.T) {
	job := jobOf("big", starts)
	p := &plans{}
	p.place.Store(true)
	cluster := FromObjects(Objects{Nodes: nodesOf(1), Jobs: []*v1alpha1.TrainingJob{job}}, optionsOf(func(o *Options) { o.Plan = p.plan }))
	made := workerOf(job, 0, onto("n0"))
	cluster.SetPod(podOf(made.Name, "5", on("n0")))
	cluster.PlanNow()
	if !cluster.Take(job.UID, []*corev1.Pod{made}) {
		t.Fatal("what was granted cannot be taken")
	}
	cluster.Drop([]*corev1.Pod{made})
	if got := freeCPU(t, cluster.Snapshot(), "n0"); got != 3000 {
		t.Errorf("%d are free, want 3000", got)
	}
}

func TestAPodThatIsAdoptedIsAWorker(t *testing.T) {
	job := jobOf("big", trains)
	worker := workerOf(job, 0, on("n0"))
	orphan := worker.DeepCopy()
	orphan.OwnerReferences = nil
	c := FromObjects(Objects{Nodes: nodesOf(1), Jobs: []*v1alpha1.TrainingJob{job}, Pods: []*corev1.Pod{orphan}}, optionsOf())
	for _, pod := range []*corev1.Pod{worker, orphan, worker} {
		c.SetPod(pod)
		if got := len(c.Snapshot().Jobs[0].Workers); got != len(pod.OwnerReferences) {
			t.Errorf("owned by %v: the job has %d workers", pod.OwnerReferences, got)
		}
	}
}

// TestWhatComesFree: pods that end are waited for, whoever owned them, and not for ever.
func TestWhatComesFree(t *testing.T) {
	gone, there := jobOf("gone"), jobOf("there", trains)
	k := &clock{now: start}
	cluster := FromObjects(Objects{Nodes: nodesOf(1), Jobs: []*v1alpha1.TrainingJob{there}, Pods: []*corev1.Pod{
		workerOf(gone, 0, on("n0"), deletedAt(start)), podOf("other", "1", on("n0"), deletedAt(start)), podOf("stays", "1", on("n0")),
		podOf("agent", "1", on("n0"), deletedAt(start), fixed), workerOf(there, 0, on("n0"), deletedAt(start)),
	}}, k.options())
	look := func() (coming, capacity int64, overdue bool) {
		got := cluster.Snapshot()
		for i, name := range got.Resources {
			if name != "cpu" {
				continue
			}
			if capacity = got.Nodes[0].Capacity[i]; len(got.Nodes[0].Coming) > i {
				coming = got.Nodes[0].Coming[i]
			}
		}
		return coming, capacity, got.Jobs[0].Workers[0].Overdue
	}
	if coming, capacity, overdue := look(); coming != 3000 || capacity != 7000 || overdue {
		t.Errorf("%d come free of %d, overdue: %t", coming, capacity, overdue)
	}
	k.now = start.Add(overdueAfter + time.Second)
	if coming, _, overdue := look(); coming != 0 || !overdue {
		t.Errorf("later %d come free, overdue: %t", coming, overdue)
	}
}

// fixed makes a pod one of a DaemonSet.
func fixed(pod *corev1.Pod) {
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agents", UID: "agents", Controller: ptr.To(true)}}
}

// TestRoomIsNotKeptForThoseWhoDoNotTakeIt: the scheduler knows why it does not place a pod that fits.
func TestRoomIsNotKeptForThoseWhoDoNotTakeIt(t *testing.T) {
	k := &clock{now: start}
	cluster := FromObjects(Objects{Nodes: nodesOf(1), Jobs: []*v1alpha1.TrainingJob{jobOf("big")}, Pods: []*corev1.Pod{podOf("a", "2", priority(0))}}, k.options())
	for _, step := range []struct {
		after time.Duration
		want  int64
	}{{0, 6000}, {waitingFor - 1, 6000}, {1, 8000}, {time.Hour, 8000}} {
		k.now = k.now.Add(step.after)
		if got := freeCPU(t, cluster.Snapshot(), "n0"); got != step.want {
			t.Errorf("after %s %d are free, want %d", k.now.Sub(start), got, step.want)
		}
	}
	full := podOf("b", "7", on("n0"))
	cluster.SetPod(full)
	cluster.Snapshot()
	cluster.DeletePod(full)
	k.now = k.now.Add(time.Second)
	cluster.Snapshot()
	k.now = k.now.Add(waitingFor)
	cluster.SetPod(full)
	cluster.Snapshot()
	cluster.DeletePod(full)
	if got := freeCPU(t, cluster.Snapshot(), "n0"); got != 8000 {
		t.Errorf("room was kept for it in vain just now, and %d are free, want 8000", got)
	}
	k.now = k.now.Add(fitsAnew)
	// It did not fit for a while: now it is new again.
	cluster.SetPod(podOf("b", "7", on("n0")))
	cluster.Snapshot()
	cluster.DeletePod(podOf("b", "7", on("n0")))
	if got := freeCPU(t, cluster.Snapshot(), "n0"); got != 6000 {
		t.Errorf("%d are free, want 6000", got)
	}
}

// TestAbsurdNumbersPromiseNothing: quantities that no integer holds neither wrap around nor panic.
func TestAbsurdNumbersPromiseNothing(t *testing.T) {
	var pods []*corev1.Pod
	for _, name := range []string{"a", "b", "c", "d"} {
		pods = append(pods, podOf(name, "9223372036854775807", on("n0"), asks(corev1.ResourceMemory, "9E")))
	}
	pods = append(pods, podOf("e", "-5", on("n1")))
	seen := FromObjects(Objects{Nodes: nodesOf(2), Pods: pods}, optionsOf()).Snapshot()
	if got := freeCPU(t, seen, "n0"); got >= 0 {
		t.Errorf("%d are free on a node that is more than full", got)
	}
	if got := freeCPU(t, seen, "n1"); got != 8000 {
		t.Errorf("a request below nothing makes room: %d", got)
	}
}

func TestNamesAreBounded(t *testing.T) {
	cluster := New(optionsOf())
	cluster.SetNode(nodeOf("n0"))
	for i := range 3 * mostNames {
		pod := podOf("p", "1", on("n0"), asks(corev1.ResourceName("example.com/r"+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676))), "1"))
		cluster.SetPod(pod)
	}
	if got := len(cluster.Snapshot().Resources); got > mostNames+1 {
		t.Errorf("%d resources are told apart", got)
	}
}

// TestNamesOfPodsHideNoDevice: pods that ask for more names than are told apart, before a node offers devices.
func TestNamesOfPodsHideNoDevice(t *testing.T) {
	cluster := New(optionsOf())
	greedy := podOf("greedy", "1")
	for i := range 2 * mostNames {
		asks(corev1.ResourceName(fmt.Sprintf("example.com/made-up-%d", i)), "1")(greedy)
	}
	cluster.SetPod(greedy)
	cluster.SetPod(podOf("user", "1", on("n0"), asks("example.com/gpu", "3")))
	cluster.SetNode(nodeOf("n0", offers("example.com/gpu", "8"), offers("example.com/nic", "4")))
	seen := cluster.Snapshot()
	for name, want := range map[string]int64{"example.com/gpu": 5, "example.com/nic": 4, string(corev1.ResourceMemory): 32 << 30} {
		i := slices.Index(seen.Resources, name)
		if i < 0 || seen.Nodes[0].Free[i] != want {
			t.Errorf("%s is number %d of %v: %+v, want %d free", name, i, seen.Resources, seen.Nodes[0], want)
		}
	}
}

func quotaOf(name string, hard string, changes ...func(*corev1.ResourceQuota)) *corev1.ResourceQuota {
	list := corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse(hard)}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
		Spec: corev1.ResourceQuotaSpec{Hard: list}, Status: corev1.ResourceQuotaStatus{Hard: list}}
	for _, change := range changes {
		change(quota)
	}
	return quota
}

func used(cpu string) func(*corev1.ResourceQuota) {
	return func(q *corev1.ResourceQuota) {
		q.Status.Used = corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse(cpu)}
	}
}

func scoped(scopes ...corev1.ResourceQuotaScope) func(*corev1.ResourceQuota) {
	return func(q *corev1.ResourceQuota) { q.Spec.Scopes = scopes }
}

func byClass(operator corev1.ScopeSelectorOperator, values ...string) func(*corev1.ResourceQuota) {
	return func(q *corev1.ResourceQuota) {
		q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: operator, Values: values}}}
	}
}

// TestQuotaRoom: a quota of 10 CPUs, in whose namespace are some pods of 2.
func TestQuotaRoom(t *testing.T) {
	job := jobOf("big", starts)
	for _, c := range []struct {
		name  string
		quota *corev1.ResourceQuota
		pods  []*corev1.Pod
		made  []*corev1.Pod
		want  int64
	}{
		{name: "nothing there", quota: quotaOf("q", "10"), want: 10000},
		{name: "pods, before the status says so", quota: quotaOf("q", "10"), pods: []*corev1.Pod{podOf("a", "2", on("n0")), podOf("b", "2")}, want: 6000},
		{name: "the status knows of more", quota: quotaOf("q", "10", used("7")), pods: []*corev1.Pod{podOf("a", "2", on("n0"))}, want: 3000},
		{name: "more used than allowed", quota: quotaOf("q", "10", used("17")), want: -7000},
		{name: "one that is ending counts", quota: quotaOf("q", "10"), pods: []*corev1.Pod{podOf("a", "2", on("n0"), deletedAt(start))}, want: 8000},
		{name: "not for ever", quota: quotaOf("q", "10"), pods: []*corev1.Pod{podOf("a", "2", on("n0"), deletedAt(start.Add(-time.Minute)))}, want: 10000},
		{name: "after a long grace once more as long", quota: quotaOf("q", "10"), pods: []*corev1.Pod{podOf("a", "2", on("n0"), deletedAt(start.Add(-time.Minute)),
			func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = ptr.To[int64](90) })}, want: 8000},
		{name: "one that was just made", quota: quotaOf("q", "10", used("5")), made: []*corev1.Pod{workerOf(job, 0)}, want: 3000},
		{name: "another namespace", quota: quotaOf("q", "10"), pods: []*corev1.Pod{podOf("a", "2", func(p *corev1.Pod) { p.Namespace = "web" })}, want: 10000},
		{name: "more than one pod could ask for", quota: quotaOf("q", "4T", used("3T")), want: 1e15},
		{name: "used up by pods that each ask for much", quota: quotaOf("q", "3T"), want: -1e15,
			pods: []*corev1.Pod{podOf("a", "1T"), podOf("b", "1T"), podOf("c", "1T"), podOf("d", "1T")}},
		{name: "more than can be added up", quota: quotaOf("q", "4E", used("3E")), want: allocation.Unbounded},
		{name: "nothing is allowed", quota: quotaOf("q", "0"), want: 0},
		{name: "Terminating", quota: quotaOf("q", "10", scoped(corev1.ResourceQuotaScopeTerminating)), pods: []*corev1.Pod{podOf("a", "2"),
			podOf("b", "3", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](60) })}, want: 7000},
		{name: "NotTerminating", quota: quotaOf("q", "10", scoped(corev1.ResourceQuotaScopeNotTerminating)), pods: []*corev1.Pod{podOf("a", "2"),
			podOf("b", "3", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](60) })}, want: 8000},
		{name: "NotBestEffort", quota: quotaOf("q", "10", scoped(corev1.ResourceQuotaScopeNotBestEffort)), pods: []*corev1.Pod{podOf("a", "2")}, want: 8000},
		{name: "BestEffort", quota: quotaOf("q", "10", scoped(corev1.ResourceQuotaScopeBestEffort)), pods: []*corev1.Pod{podOf("a", "2")}, want: 10000},
		{name: "PriorityClass In", quota: quotaOf("q", "10", byClass(corev1.ScopeSelectorOpIn, "high")),
			pods: []*corev1.Pod{podOf("a", "2"), podOf("b", "3", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })}, want: 7000},
		{name: "PriorityClass NotIn", quota: quotaOf("q", "10", byClass(corev1.ScopeSelectorOpNotIn, "high")),
			pods: []*corev1.Pod{podOf("a", "2"), podOf("b", "3", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })}, want: 8000},
		{name: "PriorityClass as a scope", quota: quotaOf("q", "10", scoped(corev1.ResourceQuotaScopePriorityClass)),
			pods: []*corev1.Pod{podOf("a", "2"), podOf("b", "3", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })}, want: 7000},
		{name: "affinity across namespaces", quota: quotaOf("q", "10", scoped(corev1.ResourceQuotaScopeCrossNamespacePodAffinity)),
			pods: []*corev1.Pod{podOf("a", "2", apartFrom("x", "zone")), podOf("b", "3", apartFrom("x", "zone"), func(p *corev1.Pod) {
				p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].Namespaces = []string{"web"}
			})}, want: 7000},
		{name: "a scope that is not for pods", quota: quotaOf("q", "10", scoped(corev1.ResourceQuotaScopeVolumeAttributesClass)), pods: []*corev1.Pod{podOf("a", "2")}, want: 10000},
		{name: "two scopes, of which one fits", quota: quotaOf("q", "10", scoped(corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort)),
			pods: []*corev1.Pod{podOf("a", "2")}, want: 10000},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := FromObjects(Objects{Quotas: []*corev1.ResourceQuota{c.quota}, Jobs: []*v1alpha1.TrainingJob{job}}, optionsOf())
			for _, pod := range c.pods {
				slim, _ := SlimPod(pod)
				cluster.SetPod(slim.(*corev1.Pod))
			}
			for _, pod := range c.made {
				assume(cluster, pod)
			}
			seen := cluster.Snapshot()
			if len(seen.Quotas) != 1 || len(seen.Counts) != 1 || seen.Quotas[0].Free[0] != c.want {
				t.Errorf("%v: %+v, want %d free", seen.Counts, seen.Quotas, c.want)
			}
		})
	}
}

func TestQuotasOfOthersAreLeftOut(t *testing.T) {
	other := quotaOf("theirs", "10", func(q *corev1.ResourceQuota) { q.Namespace = "web" })
	cluster := FromObjects(Objects{Quotas: []*corev1.ResourceQuota{other, quotaOf("ours", "10")}, Jobs: []*v1alpha1.TrainingJob{jobOf("big", starts)}}, optionsOf())
	if seen := cluster.Snapshot(); len(seen.Quotas) != 1 || seen.Quotas[0].Name != "ours" {
		t.Errorf("%+v, want the quota of the namespace that has a job alone", seen.Quotas)
	}
}

// TestShapesKnowTheirQuotas: a pod of the growth class may count against others than one of the gang.
func TestShapesKnowTheirQuotas(t *testing.T) {
	job := jobOf("big")
	cluster := FromObjects(Objects{Jobs: []*v1alpha1.TrainingJob{job}, Quotas: []*corev1.ResourceQuota{
		quotaOf("all", "10"), quotaOf("growth", "10", byClass(corev1.ScopeSelectorOpIn, "growth")),
		quotaOf("other", "1", func(q *corev1.ResourceQuota) { q.Namespace = "web" }),
	}}, optionsOf())
	seen := cluster.Snapshot()
	names := func(id allocation.ShapeID) (all []string) {
		for _, q := range seen.Shapes[id].Quotas {
			all = append(all, seen.Quotas[q].Name)
		}
		return all
	}
	gang, growth := names(seen.Jobs[0].Gang), names(seen.Jobs[0].Growth)
	if len(gang) != 1 || gang[0] != "all" || len(growth) != 2 {
		t.Errorf("the gang counts against %v, growth against %v", gang, growth)
	}
	if got := seen.Shapes[seen.Jobs[0].Gang].Demand; len(got) != 1 || got[0] != 2000 {
		t.Errorf("a pod counts %v of %v", got, seen.Counts)
	}
}

// Who waits for a scheduler is told when it has last given a worker a node: of any job, but not in the first list.
func TestWhenASchedulerWasLastAtWork(t *testing.T) {
	at := start
	c := FromObjects(Objects{}, optionsOf(func(o *Options) { o.Now = func() time.Time { return at } }))
	under := func(name string) podChange { return func(pod *corev1.Pod) { pod.Spec.SchedulerName = name } }
	gangOf := func(name string) jobChange {
		return func(j *v1alpha1.TrainingJob) { j.Spec.Gang.SchedulerName = name }
	}
	one, two, other := jobOf("one", trains, gangOf("a")), jobOf("two", trains, gangOf("a")), jobOf("other", trains, gangOf("b"))
	for _, job := range []*v1alpha1.TrainingJob{one, two, other} {
		c.SetJob(job)
	}
	c.SetPod(workerOf(one, 0, under("a"), on("n")))
	c.SetPod(workerOf(one, 1, under("a")))
	c.SetPod(podOf("alone", "1", under("b")))
	at = at.Add(time.Minute)
	c.SetPod(podOf("alone", "1", under("b"), on("n")))
	if got := c.Grant(two.UID).Bound; !got.IsZero() {
		t.Errorf("it was at work at %s, nobody has seen that", got)
	}
	c.SetPod(workerOf(one, 1, under("a"), on("n")))
	bound := at
	at = at.Add(time.Minute)
	c.SetPod(workerOf(one, 1, under("a"), on("n"), priority(7)))
	if got := c.Grant(two.UID).Bound; !got.Equal(bound) {
		t.Errorf("it was at work at %s, want %s", got, bound)
	}
	if got := c.Grant(other.UID).Bound; !got.IsZero() {
		t.Errorf("another scheduler was at work at %s", got)
	}
}
