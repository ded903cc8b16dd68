package integration

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

type jobChange func(*v1alpha1.TrainingJob)

// createJob makes a job named digits of two workers with half a CPU each.
func createJob(ctx context.Context, namespace string, changes ...jobChange) *job {
	GinkgoHelper()
	object := &v1alpha1.TrainingJob{
		ObjectMeta: metav1.ObjectMeta{Name: "digits", Namespace: namespace},
		Spec: v1alpha1.TrainingJobSpec{Workers: v1alpha1.WorkersSpec{
			Min: ptr.To[int32](2), Max: ptr.To[int32](2),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "main", Image: "digits", Command: []string{"/train", "--fast"},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}},
			}}}},
		}},
	}
	for _, change := range changes {
		change(object)
	}
	Expect(cluster.Create(ctx, object)).To(Succeed())
	return &job{namespace: namespace, name: object.Name}
}

// restricted makes the template one that Pod Security "restricted" allows.
func restricted(object *v1alpha1.TrainingJob) {
	spec := &object.Spec.Workers.Template.Spec
	spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// job is a TrainingJob in the cluster.
type job struct{ namespace, name string }

func (j *job) key() rendezvous.JobKey {
	return rendezvous.JobKey{Namespace: j.namespace, Name: j.name}
}

func (j *job) get(ctx context.Context) *v1alpha1.TrainingJob {
	GinkgoHelper()
	object := &v1alpha1.TrainingJob{}
	Expect(cluster.Get(ctx, client.ObjectKey{Namespace: j.namespace, Name: j.name}, object)).To(Succeed())
	return object
}

// update changes the job as a user does.
func (j *job) update(ctx context.Context, change jobChange) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object := &v1alpha1.TrainingJob{}
		if err := cluster.Get(ctx, client.ObjectKey{Namespace: j.namespace, Name: j.name}, object); err != nil {
			return err
		}
		change(object)
		return cluster.Update(ctx, object)
	})
}

// touch has the controller look at the job once more.
func (j *job) touch(ctx context.Context) {
	GinkgoHelper()
	Expect(j.update(ctx, touched)).To(Succeed())
}

func touched(object *v1alpha1.TrainingJob) {
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, "test/touched", time.Now().Format(time.RFC3339Nano))
}

// condition is "True Reason: message" of one condition; empty when it is not there.
func (j *job) condition(ctx context.Context, conditionType string) func() string {
	return func() string {
		found := meta.FindStatusCondition(j.get(ctx).Status.Conditions, conditionType)
		if found == nil {
			return ""
		}
		return fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
	}
}

// pods are the job's pods of one attempt, by ordinal; attempt 0 means of all attempts.
func (j *job) pods(ctx context.Context, attempt int) []*corev1.Pod {
	GinkgoHelper()
	labels := client.MatchingLabels{v1alpha1.LabelJob: j.name}
	if attempt > 0 {
		labels[v1alpha1.LabelAttempt] = fmt.Sprint(attempt)
	}
	var list corev1.PodList
	Expect(cluster.List(ctx, &list, client.InNamespace(j.namespace), labels)).To(Succeed())
	var pods []*corev1.Pod
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods
}

func (j *job) podNames(ctx context.Context) func() []string {
	return func() []string {
		names := []string{}
		for _, pod := range j.pods(ctx, 0) {
			names = append(names, pod.Name)
		}
		return names
	}
}

func (j *job) groupNames(ctx context.Context) func() []string {
	return func() []string {
		var list schedv1alpha1.PodGroupList
		Expect(cluster.List(ctx, &list, client.InNamespace(j.namespace))).To(Succeed())
		names := []string{}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names
	}
}

// gangOf waits for both pods of an attempt.
func (j *job) gangOf(ctx context.Context, attempt int) []*corev1.Pod {
	GinkgoHelper()
	var pods []*corev1.Pod
	Eventually(func() int { pods = j.pods(ctx, attempt); return len(pods) }).Should(Equal(2))
	return pods
}

// train takes the gang of an attempt to where its world trains as the round.
func (j *job) train(ctx context.Context, op *operator, attempt int, round uint64) []*corev1.Pod {
	GinkgoHelper()
	pods := j.gangOf(ctx, attempt)
	for _, pod := range pods {
		schedule(ctx, pod)
		kubelet(ctx, pod, runs)
	}
	Eventually(op.all).Should(ContainElement(HavePrefix(fmt.Sprintf("expect attempt %d:", attempt))))
	Eventually(func() error { return op.worlds.form(j.key(), round) }).Should(Succeed())
	Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(HavePrefix("True WorldFormed: round %d:", round))
	Eventually(op.all).Should(ContainElement(HavePrefix("event Normal WorldFormed: round %d:", round)))
	Eventually(func() *int32 { return j.get(ctx).Status.Workers.Running }).Should(HaveValue(BeEquivalentTo(2)))
	return pods
}
