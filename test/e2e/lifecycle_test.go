package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// soon is how long the pods of a job may take to go once nobody wants them any more: agents leave at
// once, well before the grace period is over.
const soon = 20 * time.Second

var _ = Describe("A job", short, func() {
	It("lets go of its workers when it is suspended, and starts anew when it is resumed", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", framework.Endless...))
		j.trains(ctx)
		round := *j.get(ctx).Status.World.Round
		j.suspend(ctx, true)
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended), soon).Should(HavePrefix("True Suspended"))
		Expect(j.holding(ctx)()).To(BeZero())
		Eventually(j.podNames(ctx), soon).Should(BeEmpty())
		Eventually(groups(ctx, namespace)).Should(BeEmpty())

		j.suspend(ctx, false)
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended)).Should(HavePrefix("False Resumed"))
		j.trains(ctx)
		Expect(*j.get(ctx).Status.World.Round).To(BeNumerically(">", round))
		Expect(j.pods(ctx, 2)).To(HaveLen(2))
		j.expectRestarts(ctx, 0, 0)
	})

	It("that is born suspended makes nothing", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", "--epochs=1").With(func(spec *v1alpha1.TrainingJobSpec) {
			suspend := true
			spec.Suspend = &suspend
		}))
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended)).Should(HavePrefix("True Suspended"))
		Expect(leftIn(ctx, namespace)).To(BeEmpty())
		j.suspend(ctx, false)
		j.completes(ctx, time.Minute)
	})

	It("fails when its time is up, and lets go of its workers", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", framework.Endless...).With(func(spec *v1alpha1.TrainingJobSpec) {
			spec.ActiveDeadline = &metav1.Duration{Duration: 5 * time.Second}
		}))
		Eventually(j.condition(ctx, v1alpha1.ConditionFailed)).Should(
			Equal("True DeadlineExceeded: the job was not complete within its spec.activeDeadline of 5s"))
		Eventually(j.holding(ctx), soon).Should(BeZero())
		Eventually(groups(ctx, namespace)).Should(BeEmpty())
		status := j.get(ctx).Status
		Expect(status.CompletionTime.Sub(status.StartTime.Time)).To(BeNumerically("~", 5*time.Second, 3*time.Second))
	})

	It("is deleted with everything once its ttl is over", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", "--epochs=1").With(func(spec *v1alpha1.TrainingJobSpec) {
			spec.TTLAfterFinished = &metav1.Duration{Duration: 2 * time.Second}
		}))
		Eventually(j.condition(ctx, v1alpha1.ConditionComplete)).Should(HavePrefix("True Completed"))
		Eventually(func() bool { return j.gone(ctx) }, soon).Should(BeTrue())
		Eventually(leftIn, soon).WithContext(ctx).WithArguments(namespace).Should(BeEmpty())
	})

	It("that somebody else manages is left alone", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		foreign := submit(ctx, namespace, framework.NewJob("foreign").With(func(spec *v1alpha1.TrainingJobSpec) { spec.ManagedBy = "example.com/queue" }))
		// What comes after it is served, so it was passed over.
		submit(ctx, namespace, framework.NewJob("ours", "--epochs=1")).completes(ctx, time.Minute)
		Expect(foreign.get(ctx).Status).To(Equal(v1alpha1.TrainingJobStatus{}))
		Expect(foreign.podNames(ctx)()).To(BeEmpty())
	})

	It("leaves nothing behind when it is deleted while it trains", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", framework.Endless...).Workers(3, 3))
		j.trains(ctx)
		Expect(cluster.Delete(ctx, j.get(ctx))).To(Succeed())
		Eventually(leftIn, soon).WithContext(ctx).WithArguments(namespace).Should(BeEmpty())
		Expect(j.gone(ctx)).To(BeTrue())
	})

	It("says why it waits for room, and leaves nothing behind when it is deleted meanwhile", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits").GPUs(1000))
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(And(HavePrefix("False Queued: "), ContainSubstring("example.com/gpu")))
		Expect(j.pods(ctx, 0)).To(BeEmpty(), "what waits holds nothing")
		Expect(j.get(ctx).Status.State).To(Equal("Queued"))
		Expect(cluster.Delete(ctx, j.get(ctx))).To(Succeed())
		Eventually(leftIn, soon).WithContext(ctx).WithArguments(namespace).Should(BeEmpty())
	})
})
