package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// job is a TrainingJob in the cluster.
type job struct{ namespace, name string }

// submit creates a job.
func submit(ctx context.Context, namespace string, builder *framework.Job) *job {
	GinkgoHelper()
	object := builder.In(namespace)
	Expect(cluster.Create(ctx, object)).To(Succeed())
	return &job{namespace: namespace, name: object.Name}
}

func (j *job) key() client.ObjectKey { return client.ObjectKey{Namespace: j.namespace, Name: j.name} }

func (j *job) get(ctx context.Context) *v1alpha1.TrainingJob {
	GinkgoHelper()
	object := &v1alpha1.TrainingJob{}
	Expect(cluster.Get(ctx, j.key(), object)).To(Succeed())
	return object
}

// gone says whether the job is not in the API any more.
func (j *job) gone(ctx context.Context) bool {
	return apierrors.IsNotFound(cluster.Get(ctx, j.key(), &v1alpha1.TrainingJob{}))
}

// update changes the job as a user does.
func (j *job) update(ctx context.Context, change func(*v1alpha1.TrainingJobSpec)) {
	GinkgoHelper()
	Expect(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object := &v1alpha1.TrainingJob{}
		if err := cluster.Get(ctx, j.key(), object); err != nil {
			return err
		}
		change(&object.Spec)
		return cluster.Update(ctx, object)
	})).To(Succeed())
}

func (j *job) suspend(ctx context.Context, suspend bool) {
	GinkgoHelper()
	j.update(ctx, func(spec *v1alpha1.TrainingJobSpec) { spec.Suspend = &suspend })
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

// trains waits until a world trains.
func (j *job) trains(ctx context.Context) {
	GinkgoHelper()
	Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(HavePrefix("True WorldFormed"))
}

// hasTrained waits until the job trains or, should it be a short one that was never seen at it, has ended.
func (j *job) hasTrained(ctx context.Context) {
	GinkgoHelper()
	Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(Or(HavePrefix("True WorldFormed"), HavePrefix("False Finished")))
}

// completes waits until the job is complete, and fails at once when it has failed.
func (j *job) completes(ctx context.Context, timeout time.Duration) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		if failed := j.condition(ctx, v1alpha1.ConditionFailed)(); strings.HasPrefix(failed, "True") {
			StopTrying("the job has failed: " + failed).Now()
		}
		g.Expect(j.condition(ctx, v1alpha1.ConditionComplete)()).To(HavePrefix("True Completed"))
	}, timeout).Should(Succeed())
}

// expectRestarts checks how often the job started over, by cause.
func (j *job) expectRestarts(ctx context.Context, program, infrastructure int) {
	GinkgoHelper()
	restarts := j.get(ctx).Status.Restarts
	value := func(count *int32) int {
		if count == nil {
			return 0
		}
		return int(*count)
	}
	Expect([]int{value(restarts.Program), value(restarts.Infrastructure)}).To(Equal([]int{program, infrastructure}),
		"restarts by program and by infrastructure")
}

// pods are the job's pods, by name. attempt 0 means of any attempt.
func (j *job) pods(ctx context.Context, attempt int) []corev1.Pod {
	GinkgoHelper()
	labels := client.MatchingLabels{v1alpha1.LabelJob: j.name}
	if attempt > 0 {
		labels[v1alpha1.LabelAttempt] = strconv.Itoa(attempt)
	}
	var list corev1.PodList
	Expect(cluster.List(ctx, &list, client.InNamespace(j.namespace), labels)).To(Succeed())
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
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

// holding counts the pods of the job that hold room or quota.
func (j *job) holding(ctx context.Context) func() int {
	return func() int {
		return len(slices.DeleteFunc(j.pods(ctx, 0), func(pod corev1.Pod) bool { return framework.Ended(&pod) }))
	}
}

// line is a line that a pod printed, and when.
type line struct {
	at   time.Time
	text string
}

// lines are what a pod's training container printed. Where a kubelet cannot read them yet it answers with what stood in its way.
func lines(ctx context.Context, pod *corev1.Pod) []line {
	GinkgoHelper()
	options := &corev1.PodLogOptions{Container: "trainer", Timestamps: true}
	var all []line
	Eventually(func(g Gomega) {
		text, err := cluster.Clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).DoRaw(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		all = nil
		for printed := range strings.Lines(string(text)) {
			stamp, rest, _ := strings.Cut(strings.TrimSpace(printed), " ")
			at, err := time.Parse(time.RFC3339Nano, stamp)
			g.Expect(err).NotTo(HaveOccurred(), "%q", printed)
			all = append(all, line{at: at, text: rest})
		}
	}).Should(Succeed())
	return all
}

// rankZero is the pod of worker rank 0, which prints how the training goes.
func (j *job) rankZero(ctx context.Context) *corev1.Pod {
	GinkgoHelper()
	var found *corev1.Pod
	Eventually(func() *corev1.Pod {
		attempt, ranks := int(*j.get(ctx).Status.Attempt), j.ranks(ctx)
		for _, pod := range j.pods(ctx, attempt) {
			if rank, member := ranks[pod.Name]; member && rank == 0 {
				found = &pod
			}
		}
		return found
	}).ShouldNot(BeNil())
	return found
}

var stepLine = regexp.MustCompile(`^step (\d+)/\d+ loss`)

// step is a training step and when it was done.
type step struct {
	at     time.Time
	number int
}

// steps are those that a pod has told of.
func steps(ctx context.Context, pod *corev1.Pod) []step {
	GinkgoHelper()
	var all []step
	for _, printed := range lines(ctx, pod) {
		if match := stepLine.FindStringSubmatch(printed.text); match != nil {
			number, err := strconv.Atoi(match[1])
			Expect(err).NotTo(HaveOccurred())
			all = append(all, step{at: printed.at, number: number})
		}
	}
	return all
}

// reaches waits until the pod has told of a step.
func reaches(ctx context.Context, pod *corev1.Pod, number int) {
	GinkgoHelper()
	Eventually(func() int {
		done := steps(ctx, pod)
		if len(done) == 0 {
			return 0
		}
		return done[len(done)-1].number
	}).Should(BeNumerically(">=", number))
}

var accuracyLine = regexp.MustCompile(`^test accuracy (\d\.\d+)$`)

// accuracies are the test accuracies that the workers of a job have told of.
func (j *job) accuracies(ctx context.Context) []float64 {
	GinkgoHelper()
	var all []float64
	for _, pod := range j.pods(ctx, 0) {
		for _, printed := range lines(ctx, &pod) {
			if match := accuracyLine.FindStringSubmatch(printed.text); match != nil {
				accuracy, err := strconv.ParseFloat(match[1], 64)
				Expect(err).NotTo(HaveOccurred())
				all = append(all, accuracy)
			}
		}
	}
	return all
}
