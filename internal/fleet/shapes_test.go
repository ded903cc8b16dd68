package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// templateOf makes the changes to the template of a job.
func templateOf(changes ...podChange) jobChange {
	return func(job *v1alpha1.TrainingJob) {
		pod := &corev1.Pod{Spec: job.Spec.Workers.Template.Spec}
		for _, change := range changes {
			change(pod)
		}
		job.Spec.Workers.Template.Spec = pod.Spec
	}
}

// allowed are the nodes that a shape may go to.
func allowed(cluster *allocation.Cluster, id allocation.ShapeID) []string {
	var names []string
	for i := range cluster.Nodes {
		if cluster.Shapes[id].Nodes.Has(i) {
			names = append(names, cluster.Nodes[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestWhereShapesMayGo(t *testing.T) {
	now := metav1.Now()
	expression := func(operator corev1.NodeSelectorOperator, values ...string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelTopologyZone, Operator: operator, Values: values}}}}}}}
		}
	}
	tolerates := func(t corev1.Toleration) podChange {
		return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
	}
	for _, c := range []struct {
		name     string
		node     nodeChange
		template podChange
		allowed  bool
		closed   string
	}{
		{name: "any", allowed: true},
		{name: "cordoned: closed, not forbidden", node: func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)(n)
		}, allowed: true, closed: "cordoned"},
		{name: "not ready", node: func(n *corev1.Node) {
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
			tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)(n)
		}, allowed: true, closed: "not ready"},
		{name: "no word of readiness", node: func(n *corev1.Node) { n.Status.Conditions = nil }, allowed: true, closed: "not ready"},
		{name: "being deleted", node: func(n *corev1.Node) { n.DeletionTimestamp = &now }, allowed: true, closed: "being deleted"},
		{name: "about to go, even if tolerated", node: tainted("going", corev1.TaintEffectPreferNoSchedule),
			template: tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists}), allowed: true, closed: "about to go"},
		{name: "tainted", node: tainted("gpu", corev1.TaintEffectNoSchedule)},
		{name: "tainted, tolerated", node: tainted("gpu", corev1.TaintEffectNoSchedule),
			template: tolerates(corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}), allowed: true},
		{name: "tainted, another effect tolerated", node: tainted("gpu", corev1.TaintEffectNoExecute),
			template: tolerates(corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})},
		{name: "a preference keeps nobody out", node: tainted("gpu", corev1.TaintEffectPreferNoSchedule), allowed: true},
		{name: "selected", template: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "a"} }, allowed: true},
		{name: "not selected", template: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "b"} }},
		{name: "affinity", template: expression(corev1.NodeSelectorOpIn, "a", "c"), allowed: true},
		{name: "another affinity", template: expression(corev1.NodeSelectorOpNotIn, "a")},
		{name: "affinity that nobody can read", template: expression("Like", "a")},
		{name: "affinity of no terms", template: func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
		}},
		{name: "pinned by its author", template: onto("n0"), allowed: true},
		{name: "pinned elsewhere by its author", template: onto("n1")},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := New(optionsOf())
			changes := []jobChange{}
			if c.template != nil {
				changes = append(changes, templateOf(c.template))
			}
			job := jobOf("j", changes...)
			cluster.SetJob(job)
			cluster.Snapshot() // the shape is there before the node
			node := nodeOf("n0")
			cluster.SetNode(node)
			if c.node != nil {
				node = node.DeepCopy()
				c.node(node)
				cluster.SetNode(node)
			}
			seen := cluster.Snapshot()
			if got := allowed(seen, seen.Jobs[0].Gang); (len(got) == 1) != c.allowed || seen.Nodes[0].Closed != c.closed {
				t.Errorf("allowed on %v, closed %q", got, seen.Nodes[0].Closed)
			}
			cluster.DeleteNode("n0")
			if seen := cluster.Snapshot(); len(allowed(seen, seen.Jobs[0].Gang)) != 0 {
				t.Error("a node that is gone is allowed")
			}
		})
	}
}

func TestUnmodelled(t *testing.T) {
	for _, c := range []struct {
		name   string
		change podChange
		says   string
	}{
		{"plain", func(*corev1.Pod) {}, ""},
		{"affinity", nearTo("train", "zone"), "affinity to other pods"},
		{"anti-affinity", apartFrom("train", "zone"), "anti-affinity to other pods"},
		{"preferred affinity", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1}}}}
		}, ""},
		{"spreading", spreadOver("zone", 1), "DoNotSchedule"},
		{"spreading where it can be", func(p *corev1.Pod) {
			spreadOver("zone", 1)(p)
			p.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
		}, ""},
		{"claims", func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }, "resource claims"},
		{"host port", onHostPort(80), "host port 80"},
		{"volume claim", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}, "volume data"},
		{"host path", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}}
		}, ""},
		{"node name", on("n0"), "nodeName"},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := FromObjects(Objects{Jobs: []*v1alpha1.TrainingJob{jobOf("j", templateOf(c.change))}}, optionsOf()).Snapshot()
			got := seen.Shapes[seen.Jobs[0].Gang].Unmodelled
			if (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
				t.Errorf("%q, want %q", got, c.says)
			}
		})
	}
}

// TestPinned: a pinned pod goes to its node if it might have gone there before, and nowhere else; and
// what it asks for without the pin is what it asked for before.
func TestPinned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := podOf("p", "1")
		requirement := func(key string, values ...string) corev1.NodeSelectorRequirement {
			return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
		}
		terms := rapid.IntRange(0, 2).Draw(t, "terms")
		if terms > 0 {
			required := &corev1.NodeSelector{}
			for range terms {
				term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					requirement(corev1.LabelTopologyZone, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone"))}}
				if rapid.Bool().Draw(t, "fields") {
					term.MatchFields = []corev1.NodeSelectorRequirement{requirement("metadata.name", "n0", "n1")}
				}
				required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
			}
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
		}
		nodes := []*corev1.Node{nodeOf("n0"), nodeOf("n1", inZone("b")), nodeOf("n2", inZone("c"))}
		goes := func(p *corev1.Pod, node *corev1.Node) bool {
			match, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node)
			return err == nil && match
		}
		aim := rapid.SampledFrom(nodes).Draw(t, "aim")
		planned := pod.DeepCopy()
		Pin(planned, aim.Name)
		for _, node := range nodes {
			if goes(planned, node) != (node == aim && goes(pod, node)) {
				t.Errorf("on %s: %t, before: %t, aimed at %s", node.Name, goes(planned, node), goes(pod, node), aim.Name)
			}
		}
		if Pinned(planned) != aim.Name || Pinned(pod) != "" {
			t.Errorf("pinned to %q, before to %q", Pinned(planned), Pinned(pod))
		}
		whole := planned.DeepCopy()
		if reachKey(unpinned(planned)) != reachKey(pod) || !equality.Semantic.DeepEqual(whole, planned) {
			t.Errorf("without the pin it asks for %s, before for %s", reachKey(unpinned(planned)), reachKey(pod))
		}
	})
}

// TestWorkersOfOneTemplateAreOfOneShape: wherever they are planned, and what their author has pinned.
func TestWorkersOfOneTemplateAreOfOneShape(t *testing.T) {
	for name, changes := range map[string][]jobChange{"plain": {trains}, "pinned by its author": {trains, templateOf(onto("n0"))}} {
		job := jobOf("j", changes...)
		seen := FromObjects(Objects{Nodes: nodesOf(2), Jobs: []*v1alpha1.TrainingJob{job}, Pods: []*corev1.Pod{
			workerOf(job, 0), workerOf(job, 1, onto("n0")), workerOf(job, 2, onto("n1"), on("n1")),
		}}, optionsOf()).Snapshot()
		for _, w := range seen.Jobs[0].Workers {
			if w.Shape != seen.Jobs[0].Gang {
				t.Errorf("%s: worker %d has a shape of its own", name, w.Ordinal)
			}
		}
	}
}

// TestAdmissionIsLearnedFrom: what was done to one pod of the job will be done to the next.
func TestAdmissionIsLearnedFrom(t *testing.T) {
	job := jobOf("j", trains)
	admitted := workerOf(job, 0, on("n0"), func(p *corev1.Pod) {
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
		p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "a"}
	})
	request := func(c *Cluster, id func(allocation.Job) allocation.ShapeID) int64 {
		seen := c.Snapshot()
		for i, name := range seen.Resources {
			if name == "cpu" {
				return seen.Shapes[id(seen.Jobs[0])].Request[i]
			}
		}
		return 0
	}
	gang := func(j allocation.Job) allocation.ShapeID { return j.Gang }
	growth := func(j allocation.Job) allocation.ShapeID { return j.Growth }
	c := FromObjects(Objects{Jobs: []*v1alpha1.TrainingJob{job}, Pods: []*corev1.Pod{admitted}}, optionsOf())
	if got := [2]int64{request(c, gang), request(c, growth)}; got != [2]int64{2500, 2500} {
		t.Errorf("requests are %v", got)
	}
	next := job.DeepCopy()
	next.ResourceVersion, next.Generation = "2", 2
	*next.Status.Attempt = 2
	c.SetJob(next)
	if got := request(c, gang); got != 2500 {
		t.Errorf("the next attempt has the same template: %d", got)
	}
	next = next.DeepCopy()
	next.ResourceVersion, next.Generation, next.Spec.Workers.Template.Spec.ServiceAccountName = "3", 3, "other"
	c.SetJob(next)
	if got := request(c, gang); got != 2000 {
		t.Errorf("another template may have other pods: %d", got)
	}
}

// TestFurtherPodsAreOfTheSizeOfTheState: those that are there keep what they have, and further ones are placed by what they will
// ask for. Of one of those that was seen is learned what admission does to them.
func TestFurtherPodsAreOfTheSizeOfTheState(t *testing.T) {
	sized := func(size string, cpu ...string) podChange {
		return func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{v1alpha1.AnnotationMemory: size}
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse(size)
			if len(cpu) > 0 {
				pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu[0])}
			}
		}
	}
	c := New(optionsOf(func(o *Options) {
		o.Shapes = func(job *v1alpha1.TrainingJob) (gang, growth *corev1.Pod) {
			gang, growth = shapesOf(job)
			for _, pod := range []*corev1.Pod{gang, growth} {
				pod.Labels = map[string]string{v1alpha1.LabelJob: job.Name}
				sized(fmt.Sprintf("%dMi", 512+value(job.Status.Checkpoint.Size.State)))(pod)
			}
			return gang, growth
		}
	}))
	job := jobOf("j", trains)
	c.SetJob(job)
	first := workerOf(job, 0, on("n0"), sized("512Mi", "500m"))
	c.SetPod(first)
	is := func(what string, workers, next, cpu int64) {
		t.Helper()
		seen := c.Snapshot()
		at := map[string]int{}
		for i, name := range seen.Resources {
			at[name] = i
		}
		j := seen.Jobs[0]
		for _, id := range []allocation.ShapeID{j.Gang, j.Growth} {
			if r := seen.Shapes[id].Request; r[at["memory"]] != next<<20 || r[at["cpu"]] != cpu {
				t.Errorf("%s further pods ask for %d MiB and %d thousandths of CPUs, not %d and %d", what, r[at["memory"]]>>20, r[at["cpu"]], next, cpu)
			}
		}
		if r := seen.Shapes[j.Workers[0].Shape].Request; r[at["memory"]] != workers<<20 {
			t.Errorf("%s the worker that is there has %d MiB", what, r[at["memory"]]>>20)
		}
	}
	is("at first", 512, 512, 2500)
	next := job.DeepCopy()
	next.ResourceVersion, next.Status.Checkpoint.Size.State = "2", ptr.To[int64](100)
	c.SetJob(next)
	is("once the state is known", 512, 612, 2000)
	c.SetPod(workerOf(job, 1, on("n0"), sized("612Mi", "700m")))
	is("once such a pod was seen", 512, 612, 2700)
}

func TestShapesThatNobodyHasAreDropped(t *testing.T) {
	c := New(optionsOf())
	for i := range 5 * sweepEvery {
		job := jobOf("j", version(i+1), templateOf(asks(corev1.ResourceMemory, fmt.Sprint(i)), func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"a": fmt.Sprint(i)}
		}), func(j *v1alpha1.TrainingJob) { j.Generation = int64(i + 1) })
		c.SetJob(job)
		seen := c.Snapshot()
		if s := seen.Shapes[seen.Jobs[0].Gang]; s.Request == nil {
			t.Fatal("the job has a shape that is not there")
		}
	}
	if n := len(c.shapes.slots); n > 3*sweepEvery || len(c.reaches) > 2*sweepEvery {
		t.Errorf("%d shapes and %d reaches are kept", n, len(c.reaches))
	}
}

// TestSlimObjectsAreAsGood: the cache may forget what nobody reads.
func TestSlimObjectsAreAsGood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &apiServer{jobs: map[podKey]*v1alpha1.TrainingJob{}}
		job := drawJob(t)
		s.jobs[keyOf(job)] = job
		whole, slim := Objects{Jobs: []*v1alpha1.TrainingJob{job}}, Objects{Jobs: []*v1alpha1.TrainingJob{job}}
		whole.Quotas = []*corev1.ResourceQuota{drawQuota(t)}
		slim.Quotas = whole.Quotas
		for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
			pod := drawPod(t, s)
			pod.Name, pod.UID = fmt.Sprintf("%s-%d", pod.Name, i), types.UID(fmt.Sprint(i))
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LONG"}}
			pod.ManagedFields = []metav1.ManagedFieldsEntry{{}}
			one, err := SlimPod(pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if p := one.(*corev1.Pod); p.ManagedFields != nil || len(p.Spec.Containers) > 0 && p.Spec.Containers[0].Env != nil {
				t.Fatal("nothing was forgotten")
			}
			whole.Pods, slim.Pods = append(whole.Pods, pod), append(slim.Pods, one.(*corev1.Pod))
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "nodes") {
			node := drawNode(t)
			node.Name, node.Annotations = fmt.Sprintf("n%d", i), map[string]string{"long": "text"}
			node.Status.Images = []corev1.ContainerImage{{Names: []string{"digits"}}}
			one, err := slimNode(node.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if n := one.(*corev1.Node); n.Status.Images != nil || n.Annotations != nil {
				t.Fatal("nothing of a node was forgotten")
			}
			whole.Nodes, slim.Nodes = append(whole.Nodes, node), append(slim.Nodes, one.(*corev1.Node))
		}
		if diff := cmp.Diff(words(FromObjects(whole, optionsOf()).Snapshot()), words(FromObjects(slim, optionsOf()).Snapshot())); diff != "" {
			t.Fatalf("(-whole +slim):\n%s", diff)
		}
	})
	for _, slim := range []func(any) (any, error){SlimPod, slimNode, slimNamespace, slimClass} {
		if got, err := slim("tombstone"); got != "tombstone" || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	}
}
