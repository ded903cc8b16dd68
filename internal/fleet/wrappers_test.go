package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

var start = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// Wrappers build objects in one line.

type nodeChange func(*corev1.Node)

// nodeOf makes a ready node of 8 CPUs, 32 GiB and 10 pods, in zone a.
func nodeOf(name string, changes ...nodeChange) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: "a"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("10"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, change := range changes {
		change(node)
	}
	return node
}

func tainted(key string, effect corev1.TaintEffect) nodeChange {
	return func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

func inZone(zone string) nodeChange {
	return func(node *corev1.Node) { node.Labels[corev1.LabelTopologyZone] = zone }
}

func offers(name corev1.ResourceName, quantity string) nodeChange {
	return func(node *corev1.Node) { node.Status.Allocatable[name] = resource.MustParse(quantity) }
}

type podChange func(*corev1.Pod)

// podOf makes a pod of one container that requests CPUs.
func podOf(name, cpu string, changes ...podChange) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(start),
			Labels: map[string]string{"app": "train"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func on(node string) podChange { return func(pod *corev1.Pod) { pod.Spec.NodeName = node } }

func asks(name corev1.ResourceName, quantity string) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(quantity)
	}
}

func priority(value int32) podChange {
	return func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To(value) }
}

func onHostPort(number int32) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: number, HostPort: number}}
	}
}

func termOf(app, key string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
}

// apartFrom keeps a pod away from those with a label.
func apartFrom(app, key string) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: termOf(app, key)}}
	}
}

// nearTo has a pod placed only beside those with a label.
func nearTo(app, key string) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: termOf(app, key)}}
	}
}

func spreadOver(key string, skew int32) podChange {
	return func(pod *corev1.Pod) {
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
		}}
	}
}

// nodesOf makes n nodes, n0 to n(n-1).
func nodesOf(n int, changes ...nodeChange) []*corev1.Node {
	var nodes []*corev1.Node
	for i := range n {
		nodes = append(nodes, nodeOf(fmt.Sprintf("n%d", i), changes...))
	}
	return nodes
}

type jobChange func(*v1alpha1.TrainingJob)

// jobOf makes a job of min 2 and max 4, with one container that asks for 2 CPUs.
func jobOf(name string, changes ...jobChange) *v1alpha1.TrainingJob {
	job := &v1alpha1.TrainingJob{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", UID: types.UID("uid-" + name), Generation: 1, ResourceVersion: "1",
			CreationTimestamp: metav1.NewTime(start)},
		Spec: v1alpha1.TrainingJobSpec{
			Workers: v1alpha1.WorkersSpec{Min: ptr.To[int32](2), Max: ptr.To[int32](4), Template: corev1.PodTemplateSpec{Spec: podOf("", "2").Spec}},
			Growth:  v1alpha1.GrowthSpec{PriorityClassName: "growth"},
		},
	}
	for _, change := range changes {
		change(job)
	}
	return job
}

func version(number int) jobChange {
	return func(job *v1alpha1.TrainingJob) { job.ResourceVersion = strconv.Itoa(number) }
}

// trains has a job train in the world of its first attempt.
func trains(job *v1alpha1.TrainingJob) {
	starts(job)
	job.Status.World = &v1alpha1.WorldStatus{Term: ptr.To[int64](1), Round: ptr.To[int64](1), Attempt: ptr.To[int32](1)}
}

// starts has a job wait for the first world of its first attempt.
func starts(job *v1alpha1.TrainingJob) {
	job.Status.Attempt, job.Status.Workers.Target = ptr.To[int32](1), ptr.To[int32](2)
	job.Status.StartTime = ptr.To(metav1.NewTime(start))
}

// workerOf makes a pod of a job's first attempt.
func workerOf(job *v1alpha1.TrainingJob, ordinal int, changes ...podChange) *corev1.Pod {
	gang, _ := shapesOf(job)
	pod := gang.DeepCopy()
	pod.Name = fmt.Sprintf("%s-1-%d", job.Name, ordinal)
	pod.UID, pod.CreationTimestamp = types.UID("uid-"+pod.Name), metav1.NewTime(start)
	pod.Labels = map[string]string{v1alpha1.LabelJob: job.Name, v1alpha1.LabelAttempt: "1"}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind("TrainingJob"))}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func growthRole(pod *corev1.Pod) {
	pod.Labels[v1alpha1.LabelRole] = v1alpha1.RoleGrowth
	pod.Spec.PriorityClassName = "growth"
}

// shapesOf makes pods as the controller would, without the agent.
func shapesOf(job *v1alpha1.TrainingJob) (gang, growth *corev1.Pod) {
	if len(job.Spec.Workers.Template.Spec.Containers) == 0 {
		return nil, nil
	}
	gang = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace}, Spec: *job.Spec.Workers.Template.Spec.DeepCopy()}
	growth = gang.DeepCopy()
	growth.Spec.PriorityClassName, growth.Spec.Priority = job.Spec.Growth.PriorityClassName, nil
	return gang, growth
}

func classOf(name string, value int32) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
}

func optionsOf(changes ...func(*Options)) Options {
	settings, err := ParseSettings(nil)
	if err != nil {
		panic(err)
	}
	options := Options{Settings: settings, DrainTaints: []string{"going"}, Shapes: shapesOf,
		Plan: func(*allocation.Cluster) allocation.Plan { return allocation.Plan{} }, Now: func() time.Time { return start }}
	for _, change := range changes {
		change(&options)
	}
	return options
}

// words puts a cluster into words that do not depend on what was interned when.
func words(cluster *allocation.Cluster) map[string]any {
	amounts := func(names []string, vector allocation.Amounts) map[string]int64 {
		all := map[string]int64{}
		for i, n := range vector {
			if n != 0 && n != allocation.Unbounded {
				all[names[i]] = n
			}
		}
		return all
	}
	node := func(id allocation.NodeID) string {
		if id < 0 {
			return ""
		}
		return cluster.Nodes[id].Name
	}
	shape := func(id allocation.ShapeID) any {
		s := cluster.Shapes[id]
		var nodes, quotas []string
		for i := range cluster.Nodes {
			if s.Nodes.Has(i) {
				nodes = append(nodes, cluster.Nodes[i].Name)
			}
		}
		for _, q := range s.Quotas {
			quotas = append(quotas, cluster.Quotas[q].Name)
		}
		slices.Sort(nodes)
		demand := map[string]int64{}
		for _, q := range s.Quotas {
			for i, hard := range cluster.Quotas[q].Hard { // what no quota bounds is of no use
				if hard != allocation.Unbounded {
					demand[cluster.Counts[i]] = s.Demand[i]
				}
			}
		}
		return []any{amounts(cluster.Resources, s.Request), nodes, demand, quotas, s.Unmodelled}
	}
	all := map[string]any{}
	for _, n := range cluster.Nodes {
		if n.Name != "" {
			all["node "+n.Name] = []any{amounts(cluster.Resources, n.Capacity), amounts(cluster.Resources, n.Free), n.Closed, n.DeviceType, n.Autoscaled}
		}
	}
	for _, q := range cluster.Quotas {
		all["quota "+cluster.Namespaces[q.Namespace].Name+"/"+q.Name] = []any{amounts(cluster.Counts, q.Hard), amounts(cluster.Counts, q.Free)}
	}
	for _, n := range cluster.Namespaces {
		all["namespace "+n.Name] = n
	}
	for _, j := range cluster.Jobs {
		var workers []any
		for _, w := range j.Workers {
			benefits := ""
			if w.For >= 0 {
				benefits = cluster.Jobs[w.For].Name
			}
			where, what := node(w.Node), shape(w.Shape)
			w.Node, w.Shape, w.For = 0, 0, 0
			workers = append(workers, []any{w, where, what, benefits})
		}
		var avoid []string
		for _, id := range j.Avoid {
			avoid = append(avoid, node(id))
		}
		slices.Sort(avoid)
		gang, growth, namespace := shape(j.Gang), shape(j.Growth), cluster.Namespaces[j.Namespace].Name
		j.Gang, j.Growth, j.Namespace, j.Workers, j.Tally, j.Avoid = 0, 0, 0, nil, nil, nil
		all["job "+j.Name] = []any{j, gang, growth, namespace, workers, avoid}
	}
	return all
}
