package integration

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

var _ = Describe("The status", func() {
	It("is written when it changes and at no other time", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace)
		j.train(ctx, op, 1, 1)
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) { seen.Progress.Step = 1 })).To(Succeed())
		Eventually(func() *int64 { return j.get(ctx).Status.Progress.Step }).Should(HaveValue(BeEquivalentTo(1)))
		op.look(j)
		version := j.get(ctx).ResourceVersion
		writes := op.count("write status")
		op.look(j)
		Expect(op.count("write status")).To(Equal(writes))
		Expect(j.get(ctx).ResourceVersion).To(Equal(version))
	})

	It("comes before the events that tell of it", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		j.gangOf(ctx, 1)
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(HavePrefix("False WaitingForRoom: 2 of 2 pods"))
		// The write that tells of the release fails twice.
		var failures atomic.Int32
		op.answer(func(_ context.Context, line string) error {
			if line == "write status" && failures.Add(1) <= 2 {
				return apierrors.NewInternalError(errKilled)
			}
			return nil
		})
		before := len(op.all())
		Expect(j.update(ctx, suspended(true))).To(Succeed())
		told := func() int {
			return slices.IndexFunc(op.all()[before:], func(line string) bool { return strings.HasPrefix(line, "event Normal Suspended") })
		}
		Eventually(told).Should(BeNumerically(">", 0))
		lines := op.all()[before:]
		Expect(lines[:told()]).To(ContainElements("write status: InternalError", "write status: InternalError"), "told before it was durable")
		Expect(lines[told()-1]).To(Equal("write status"))
	})

	It("leaves the world to its own writer", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		j.gangOf(ctx, 1)
		object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{
			"world": map[string]any{"term": int64(3), "round": int64(7), "workers": int64(2)},
		}}}
		object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TrainingJob"))
		object.SetNamespace(namespace)
		object.SetName(j.name)
		Expect(cluster.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("the-rendezvous"))).To(Succeed())

		j.train(ctx, op, 1, 7)
		world := j.get(ctx).Status.World
		Expect(world).NotTo(BeNil())
		Expect(world.Term).To(HaveValue(BeEquivalentTo(3)))
		Expect(world.Round).To(HaveValue(BeEquivalentTo(7)))
		for _, entry := range j.get(ctx).ManagedFields {
			if entry.Manager == "concertina-controller" && entry.Subresource == "status" {
				Expect(entry.FieldsV1.GetRawString()).NotTo(ContainSubstring("f:world"))
			}
		}
	})

	It("tells how far the training is, at once when the world is new", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.gangOf(ctx, 1)
		for _, pod := range pods {
			bind(ctx, pod, "node-a")
		}
		Eventually(op.all).Should(ContainElement(HavePrefix("expect attempt 1")))
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) {
			seen.Round = 1
			seen.Progress = rendezvous.Progress{Step: 7, TotalSteps: 90, Samples: 700, Metrics: []rendezvous.Metric{{Name: "loss", Value: 0.25}}}
		})).To(Succeed())
		Eventually(func() *int64 { return j.get(ctx).Status.Progress.Step }).Should(HaveValue(BeEquivalentTo(7)))
		progress := j.get(ctx).Status.Progress
		Expect(progress.TotalSteps).To(HaveValue(BeEquivalentTo(90)))
		Expect(progress.Metrics).To(Equal([]v1alpha1.Metric{{Name: "loss", Value: "0.25"}}))
		Expect(progress.Since.Time).To(BeTemporally("~", time.Now(), time.Minute))
		Expect(progress.KeptTime).NotTo(BeNil())
	})
})

var _ = Describe("The spec", func() {
	It("is the same to a client that reads and writes it with types", func(ctx context.Context) {
		// Durations come back in another spelling, 10m as 10m0s.
		j := createJob(ctx, newNamespace(ctx))
		Expect(j.update(ctx, func(object *v1alpha1.TrainingJob) { object.Labels = map[string]string{"team": "vision"} })).To(Succeed())
		Expect(j.update(ctx, func(object *v1alpha1.TrainingJob) { object.Spec.Gang.StartTimeout.Duration *= 2 })).To(
			MatchError(ContainSubstring("spec.gang cannot change")))
	})

	It("keeps its template while workers run, and takes another while the job is suspended", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		j.train(ctx, op, 1, 1)
		other := func(object *v1alpha1.TrainingJob) {
			object.Spec.Workers.Template.Spec.Containers[0].Image = "digits:2"
		}
		err := j.update(ctx, other)
		Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("spec.workers.template cannot change while the job may have workers: set spec.suspend to true")))

		Expect(j.update(ctx, suspended(true))).To(Succeed())
		// They are deleted at once, in any order.
		Eventually(op.all).Should(ContainElements("delete Pod digits-1-0", "delete Pod digits-1-1"))
		reap(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended)).Should(HavePrefix("True Suspended"))
		Expect(j.update(ctx, other)).To(Succeed())
		Expect(j.update(ctx, suspended(false))).To(Succeed())
		for _, pod := range j.gangOf(ctx, 2) {
			Expect(pod.Spec.Containers[0].Image).To(Equal("digits:2"))
		}
	})
})

func suspended(suspend bool) jobChange {
	return func(object *v1alpha1.TrainingJob) { object.Spec.Suspend = &suspend }
}
