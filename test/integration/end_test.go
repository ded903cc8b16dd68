package integration

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

var _ = Describe("A job that ends", func() {
	It("is complete when every program has ended with 0, and is deleted after its ttl", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) {
			object.Spec.TTLAfterFinished = &metav1.Duration{Duration: time.Hour}
		})
		pods := j.train(ctx, op, 1, 1)
		kubelet(ctx, pods[0], ended(0, ""))
		Consistently(j.condition(ctx, v1alpha1.ConditionComplete), "300ms").Should(BeEmpty())
		kubelet(ctx, pods[1], ended(0, ""))
		Eventually(j.condition(ctx, v1alpha1.ConditionComplete)).Should(Equal("True Completed: all 2 workers ended with exit code 0"))
		Expect(j.condition(ctx, v1alpha1.ConditionTraining)()).To(HavePrefix("False Finished"))
		Expect(j.get(ctx).Status.CompletionTime).NotTo(BeNil())
		Eventually(j.groupNames(ctx)).Should(BeEmpty())
		Eventually(op.all).Should(ContainElement("forget digits"))
		Expect(j.podNames(ctx)()).To(HaveLen(2), "pods stay for their logs")

		// A look that was under way may delete the job as soon as the clock has moved: the touch may come too late.
		op.clock.advance(time.Hour)
		Expect(client.IgnoreNotFound(j.update(ctx, touched))).To(Succeed())
		Eventually(func() bool {
			err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "digits"}, &v1alpha1.TrainingJob{})
			return apierrors.IsNotFound(err)
		}).Should(BeTrue())
	})

	It("fails when its time is up", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) {
			object.Spec.ActiveDeadline = &metav1.Duration{Duration: time.Hour}
		})
		j.train(ctx, op, 1, 1)
		op.clock.advance(time.Hour)
		j.touch(ctx)
		Eventually(j.condition(ctx, v1alpha1.ConditionFailed)).Should(
			Equal("True DeadlineExceeded: the job was not complete within its spec.activeDeadline of 1h0m0s"))
		Eventually(op.all).Should(ContainElements("release digits", "delete Pod digits-1-0", "delete Pod digits-1-1"))
		reap(ctx, namespace)
		expectNothing(ctx, j)
	})

	It("is let go of when it is deleted", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		j.train(ctx, op, 1, 1)
		Expect(cluster.Delete(ctx, j.get(ctx))).To(Succeed())
		// The garbage collector, which is not here, takes the objects.
		Eventually(op.all).Should(ContainElements("release digits", "forget digits"))
	})

	It("lets go of its workers when it is suspended, and starts anew when it is resumed", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		j.train(ctx, op, 1, 1)
		Expect(j.update(ctx, suspended(true))).To(Succeed())
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(Equal("False Stopping: 2 workers are still ending"))
		Eventually(op.all).Should(ContainElements("delete Pod digits-1-0", "delete Pod digits-1-1"))
		Expect(j.condition(ctx, v1alpha1.ConditionSuspended)()).NotTo(HavePrefix("True"), "workers still hold room")
		reap(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended)).Should(HavePrefix("True Suspended"))
		expectNothing(ctx, j)
		Eventually(op.all).Should(ContainElement("forget digits"))
		Expect(j.get(ctx).Status.StartTime).To(BeNil())

		Expect(j.update(ctx, suspended(false))).To(Succeed())
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended)).Should(HavePrefix("False Resumed"))
		j.train(ctx, op, 2, 2)
		Expect(j.podNames(ctx)()).To(ConsistOf("digits-2-2", "digits-2-3"))
		status := j.get(ctx).Status
		Expect(status.Restarts).To(Equal(v1alpha1.RestartsStatus{}))
		Expect(status.ObservedGeneration).To(HaveValue(Equal(j.get(ctx).Generation)))
	})
})
