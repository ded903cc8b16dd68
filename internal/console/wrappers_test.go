package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const gpu corev1.ResourceName = "example.com/gpu"

var start = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// ago is a time before the plan is made.
func ago(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(start.Add(-d))) }

// cluster gathers objects.
type cluster struct {
	fleet.Objects
	// settings are those of the operator, as its file has them.
	settings string
}

// clusterOf has nodes n0, n1 and so on, with so many devices each, and two priority classes.
func clusterOf(devices ...int64) *cluster {
	c := &cluster{}
	for i, n := range devices {
		c.Nodes = append(c.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourcePods: resource.MustParse("110"),
					gpu: *resource.NewQuantity(n, resource.DecimalSI),
				},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	for name, priority := range map[string]int32{"high": 100, "concertina-growth": -1} {
		c.Classes = append(c.Classes, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: priority})
	}
	return c
}

type jobChange func(*v1alpha1.TrainingJob)

// add adds a job in namespace team, from least to most workers of one device each.
func (c *cluster) add(name string, least, most int32, changes ...jobChange) *v1alpha1.TrainingJob {
	job := &v1alpha1.TrainingJob{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: *ago(time.Hour)},
		Spec: v1alpha1.TrainingJobSpec{
			Workers: v1alpha1.WorkersSpec{Min: &least, Max: &most, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					gpu: resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("2"),
				}}}},
			}}},
			Preemption: v1alpha1.PreemptionSpec{Policy: v1alpha1.PreemptionShrink},
			Growth:     v1alpha1.GrowthSpec{Policy: v1alpha1.GrowthAuto, PriorityClassName: "concertina-growth"},
			Failure:    v1alpha1.FailureSpec{MaxRestarts: ptr.To[int32](10)},
		},
	}
	for _, change := range changes {
		change(job)
	}
	c.Jobs = append(c.Jobs, job)
	return job
}

func important(job *v1alpha1.TrainingJob) {
	job.Spec.Workers.Template.Spec.PriorityClassName = "high"
}

// queued has a job wait for room.
func queued(job *v1alpha1.TrainingJob) {
	job.Status.State, job.Status.Queue.Since = "Queued", ago(5*time.Minute)
}

// in puts a job into another namespace.
func in(namespace string) jobChange {
	return func(job *v1alpha1.TrainingJob) { job.Namespace = namespace }
}

func condition(kind, reason, message string) jobChange {
	return func(job *v1alpha1.TrainingJob) {
		job.Status.State = reason
		job.Status.Conditions = append(job.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: *ago(time.Minute)})
	}
}

// trains has a job train with a worker on each of some nodes; those beyond min are of the growth class.
func (c *cluster) trains(job *v1alpha1.TrainingJob, nodes ...string) []*corev1.Pod {
	n := int32(len(nodes))
	job.Status.State, job.Status.StartTime, job.Status.Attempt = "Training", ago(time.Hour), ptr.To[int32](1)
	job.Status.Workers = v1alpha1.WorkersStatus{Target: &n, Running: &n}
	made := rendezvous.Record{Workers: n}
	var members []rendezvous.NamedMember
	for i, node := range nodes {
		members = append(members, rendezvous.NamedMember{Ordinal: int32(i), Node: node})
	}
	made.Name(members)
	job.Status.World = &v1alpha1.WorldStatus{Term: ptr.To[int64](1), Round: ptr.To[int64](3), Attempt: ptr.To[int32](1), Workers: &n,
		Members: made.Members, Nodes: made.Nodes}
	job.Status.Progress = v1alpha1.ProgressStatus{Step: ptr.To[int64](1832), TotalSteps: ptr.To[int64](9000),
		SamplesPerSecond: ptr.To[int64](911), Goodput: "0.993", Since: ago(time.Hour)}
	var pods []*corev1.Pod
	for i, node := range nodes {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: fmt.Sprintf("%s-1-%d", job.Name, i),
				UID: types.UID(fmt.Sprintf("uid-%s-%d", job.Name, i)), CreationTimestamp: *ago(time.Hour),
				Labels:          map[string]string{v1alpha1.LabelJob: job.Name, v1alpha1.LabelAttempt: "1"},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind("TrainingJob"))}},
			Spec:   *job.Spec.Workers.Template.Spec.DeepCopy(),
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
		pod.Spec.NodeName = node
		if int32(i) >= *job.Spec.Workers.Min {
			pod.Labels[v1alpha1.LabelRole] = v1alpha1.RoleGrowth
			pod.Spec.PriorityClassName = job.Spec.Growth.PriorityClassName
		}
		pods = append(pods, pod)
	}
	c.Pods = append(c.Pods, pods...)
	return pods
}

// bounded gives the namespace team a quota.
func (c *cluster) bounded(hard corev1.ResourceList) {
	c.Quotas = append(c.Quotas, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "devices", Namespace: "team"},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard}, Status: corev1.ResourceQuotaStatus{Hard: hard}})
}

func options(t *testing.T) fleet.Options {
	t.Helper()
	return optionsOf(t, "")
}

// optionsOf are those of an operator with such settings.
func optionsOf(t *testing.T, text string) fleet.Options {
	t.Helper()
	settings, err := fleet.ParseSettings([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return fleet.Options{Settings: settings, Shapes: shapes, Plan: allocation.NewPlan, Now: func() time.Time { return start }}
}

// shapes are pods as the controller makes them, without the agent.
func shapes(job *v1alpha1.TrainingJob) (gang, growth *corev1.Pod) {
	if len(job.Spec.Workers.Template.Spec.Containers) == 0 {
		return nil, nil
	}
	gang = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace}, Spec: *job.Spec.Workers.Template.Spec.DeepCopy()}
	growth = gang.DeepCopy()
	growth.Spec.PriorityClassName = job.Spec.Growth.PriorityClassName
	return gang, growth
}

func (c *cluster) look(t *testing.T) *Look {
	t.Helper()
	return NewLook(c.Objects, optionsOf(t, c.settings))
}

// explained is what is said about a job of namespace team.
func explained(t *testing.T, l *Look, name string) string {
	t.Helper()
	told, found := l.Explain(types.NamespacedName{Namespace: "team", Name: name})
	if !found {
		t.Fatalf("job %s is not found", name)
	}
	var text strings.Builder
	if err := told.Write(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}
