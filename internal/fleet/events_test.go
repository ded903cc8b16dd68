package fleet

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// apiServer is what is really there, and what a cluster is told of it.
type apiServer struct {
	version    int
	nodes      map[string]*corev1.Node
	pods       map[podKey]*corev1.Pod
	jobs       map[podKey]*v1alpha1.TrainingJob
	classes    map[string]*schedulingv1.PriorityClass
	quotas     map[podKey]*corev1.ResourceQuota
	namespaces map[string]*corev1.Namespace
}

func (s *apiServer) objects() Objects {
	return Objects{
		Nodes: slices.Collect(maps.Values(s.nodes)), Pods: slices.Collect(maps.Values(s.pods)), Jobs: slices.Collect(maps.Values(s.jobs)),
		Classes: slices.Collect(maps.Values(s.classes)), Quotas: slices.Collect(maps.Values(s.quotas)),
		Namespaces: slices.Collect(maps.Values(s.namespaces)),
	}
}

func (s *apiServer) next() string {
	s.version++
	return fmt.Sprint(s.version)
}

// event changes one object, and tells the cluster of it, once or more often.
func (s *apiServer) event(t *rapid.T, c *Cluster) {
	switch rapid.IntRange(0, 11).Draw(t, "kind") {
	case 0, 1:
		node := drawNode(t)
		node.ResourceVersion = s.next()
		tell(t, s.nodes, node.Name, node, handler(c.SetNode, func(n *corev1.Node) { c.DeleteNode(n.Name) }))
	case 2:
		class := classOf(rapid.SampledFrom([]string{"growth", "high", "low"}).Draw(t, "class"), int32(rapid.IntRange(-1, 1).Draw(t, "value")))
		class.GlobalDefault = rapid.IntRange(0, 4).Draw(t, "global") == 0
		tell(t, s.classes, class.Name, class, handler(c.SetClass, func(p *schedulingv1.PriorityClass) { c.DeleteClass(p.Name) }))
	case 3:
		quota := drawQuota(t)
		tell(t, s.quotas, keyOf(quota), quota, handler(c.SetQuota, func(q *corev1.ResourceQuota) { c.DeleteQuota(q.Namespace, q.Name) }))
	case 4:
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: rapid.SampledFrom([]string{"team", "web"}).Draw(t, "namespace")}}
		if rapid.Bool().Draw(t, "terminating") {
			namespace.Status.Phase = corev1.NamespaceTerminating
		}
		tell(t, s.namespaces, namespace.Name, namespace, handler(c.SetNamespace, func(n *corev1.Namespace) { c.DeleteNamespace(n.Name) }))
	case 5, 6, 7:
		job := drawJob(t)
		if old := s.jobs[keyOf(job)]; old != nil && rapid.IntRange(0, 4).Draw(t, "again") > 0 {
			job.UID = old.UID
		} else if old != nil {
			// Another one cannot have the name before the first is gone.
			c.DeleteJob(old)
			job.UID = types.UID(fmt.Sprintf("uid-%s-%d", job.Name, s.version))
		}
		job.ResourceVersion = s.next()
		tell(t, s.jobs, keyOf(job), job, handler(c.SetJob, c.DeleteJob))
	default:
		pod := drawPod(t, s)
		pod.ResourceVersion = s.next()
		tell(t, s.pods, keyOf(pod), pod, handler(c.SetPod, c.DeletePod))
	}
}

// tell has an object stored or removed, and the handler hear of it as informers tell: repeated, with
// tombstones, in their own order.
func tell[K comparable, T any](t *rapid.T, store map[K]T, key K, object T, to toolscache.ResourceEventHandler) {
	old, there := store[key]
	if there && rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
		delete(store, key)
		if rapid.Bool().Draw(t, "tombstone") {
			to.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "key", Obj: any(old)})
		} else {
			to.OnDelete(old)
		}
		if rapid.Bool().Draw(t, "deleted twice") {
			to.OnDelete(old)
		}
		return
	}
	store[key] = object
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		if there {
			to.OnUpdate(old, object)
		} else {
			to.OnAdd(object, false)
		}
	}
}

func drawNode(t *rapid.T) *corev1.Node {
	node := nodeOf(fmt.Sprintf("n%d", rapid.IntRange(0, 3).Draw(t, "node")), inZone(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")),
		offers(corev1.ResourceCPU, rapid.SampledFrom([]string{"0", "4", "8"}).Draw(t, "cpu")))
	if rapid.Bool().Draw(t, "has device") {
		offers("example.com/gpu", "2")(node)
	}
	switch rapid.IntRange(0, 5).Draw(t, "state") {
	case 0:
		node.Spec.Unschedulable = true
		tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)(node)
	case 1:
		tainted("gpu", corev1.TaintEffectNoSchedule)(node)
	case 2:
		node.Status.Conditions[0].Status = corev1.ConditionUnknown
	}
	return node
}

func drawQuota(t *rapid.T) *corev1.ResourceQuota {
	hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("5")}
	if rapid.Bool().Draw(t, "bounds cpu") {
		hard[corev1.ResourceRequestsCPU] = resource.MustParse("10")
	}
	if rapid.Bool().Draw(t, "bounds devices") {
		hard["requests.example.com/gpu"] = resource.MustParse("0")
	}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: rapid.SampledFrom([]string{"team", "web"}).Draw(t, "of"), Name: rapid.SampledFrom([]string{"q", "r"}).Draw(t, "quota")},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard},
		Status:     corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse(fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "used")))}},
	}
	if rapid.Bool().Draw(t, "scoped") {
		quota.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating}
	}
	return quota
}

func drawJob(t *rapid.T) *v1alpha1.TrainingJob {
	job := jobOf(rapid.SampledFrom([]string{"big", "small"}).Draw(t, "job"))
	job.Spec.Workers.Template.Spec.PriorityClassName = rapid.SampledFrom([]string{"", "high", "none"}).Draw(t, "job class")
	switch rapid.IntRange(0, 3).Draw(t, "stage") {
	case 0:
		job.Spec.Suspend = ptr.To(true)
	case 1:
		starts(job)
	case 2:
		trains(job)
	}
	return job
}

func drawPod(t *rapid.T, s *apiServer) *corev1.Pod {
	var pod *corev1.Pod
	if job := s.jobs[podKey{Namespace: "team", Name: "big"}]; job != nil && rapid.Bool().Draw(t, "ours") {
		pod = workerOf(job, rapid.IntRange(0, 3).Draw(t, "ordinal"))
		switch rapid.IntRange(0, 3).Draw(t, "sort") {
		case 0:
			growthRole(pod)
			Mark{Reason: Reclaimed, For: "team/small", At: start}.Put(pod)
		case 1:
			Pin(pod, "n1")
		}
	} else {
		pod = podOf(fmt.Sprintf("p%d", rapid.IntRange(0, 4).Draw(t, "pod")), rapid.SampledFrom([]string{"0", "1", "3"}).Draw(t, "pod cpu"),
			priority(int32(rapid.IntRange(-2, 1).Draw(t, "priority"))))
		pod.UID = types.UID(fmt.Sprintf("%s-%d", pod.Name, rapid.IntRange(0, 1).Draw(t, "uid")))
		pod.Namespace = rapid.SampledFrom([]string{"team", "web"}).Draw(t, "in")
		if rapid.Bool().Draw(t, "asks device") {
			asks("example.com/gpu", "1")(pod)
		}
		if rapid.Bool().Draw(t, "ends") {
			pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](60)
		}
	}
	if rapid.Bool().Draw(t, "bound") {
		pod.Spec.NodeName = fmt.Sprintf("n%d", rapid.IntRange(0, 4).Draw(t, "on"))
	}
	switch rapid.IntRange(0, 5).Draw(t, "pod state") {
	case 0:
		pod.Status.Phase = corev1.PodFailed
	case 1:
		pod.DeletionTimestamp = ptr.To(metav1.NewTime(start.Add(-time.Duration(rapid.IntRange(0, 1).Draw(t, "long")) * time.Minute)))
	case 2:
		pod.Status.NominatedNodeName = "n2"
	}
	return pod
}

// TestEventsAddUpToWhatIsThere: whatever the order of events, and however often they are told, the
// cluster is the same as one that is made of what is there.
func TestEventsAddUpToWhatIsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &apiServer{nodes: map[string]*corev1.Node{}, pods: map[podKey]*corev1.Pod{}, jobs: map[podKey]*v1alpha1.TrainingJob{},
			classes: map[string]*schedulingv1.PriorityClass{}, quotas: map[podKey]*corev1.ResourceQuota{}, namespaces: map[string]*corev1.Namespace{}}
		c := New(optionsOf())
		c.sweepEvery = uint64(rapid.IntRange(1, 3).Draw(t, "sweeps"))
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			s.event(t, c)
			if rapid.IntRange(0, 3).Draw(t, "look") == 0 {
				c.Snapshot()
			}
		}
		known, fresh := c.Snapshot(), FromObjects(s.objects(), optionsOf()).Snapshot()
		for _, j := range known.Jobs {
			if !reflect.DeepEqual(j.Tally, allocation.TallyOf(j.Workers)) {
				t.Fatalf("the tally of %s is not that of its workers", j.Name)
			}
		}
		got, want := words(known), words(fresh)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("the cluster is not what is there (-there +known):\n%s", diff)
		}
	})
}

// TestWhatChangesNothingHasNoPlanMade: in a large cluster something happens all the time.
func TestWhatChangesNothingHasNoPlanMade(t *testing.T) {
	job, pod := jobOf("j", trains), podOf("a", "1", on("n0"))
	worker := workerOf(job, 0, on("n0"))
	quota := quotaOf("q", "10", used("1"))
	c := FromObjects(Objects{Nodes: nodesOf(1), Jobs: []*v1alpha1.TrainingJob{job}, Pods: []*corev1.Pod{pod, worker},
		Quotas: []*corev1.ResourceQuota{quota}, Classes: []*schedulingv1.PriorityClass{classOf("growth", -1)}}, optionsOf())
	c.PlanNow()
	for name, do := range map[string]func(){
		"a pod is ready": func() { p := pod.DeepCopy(); p.ResourceVersion, p.Status.Phase = "2", corev1.PodRunning; c.SetPod(p) },
		"a worker is ready": func() {
			p := worker.DeepCopy()
			p.ResourceVersion, p.Status.Phase = "2", corev1.PodRunning
			c.SetPod(p)
		},
		"a job has come further": func() {
			j := job.DeepCopy()
			j.ResourceVersion, j.Status.Progress.Step = "2", ptr.To[int64](5)
			c.SetJob(j)
		},
		"a class has another text":  func() { p := classOf("growth", -1); p.Description = "new"; c.SetClass(p) },
		"a quota is told once more": func() { c.SetQuota(quota.DeepCopy()) },
		"somebody unknown is gone": func() {
			c.DeletePod(podOf("x", "1"))
			c.DeleteQuota("web", "q")
			c.DeleteClass("x")
			c.DeleteNamespace("x")
		},
		"a namespace goes its way":   func() { c.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}) },
		"the deletion of a namesake": func() { p := pod.DeepCopy(); p.UID = "other"; c.DeletePod(p) },
	} {
		do()
		select {
		case <-c.wake:
			t.Errorf("%s: a plan is made", name)
		default:
		}
	}
	c.DeletePod(pod)
	select {
	case <-c.wake:
	default:
		t.Error("room came free, and no plan is made")
	}
}
