package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// Nodes are closed and filled up here, so nothing else may run meanwhile.
var _ = Describe("A worker that has to go", Serial, short, func() {
	It("leaves a node that will be removed without a lost step, and one that is only cordoned not at all", func(ctx context.Context) {
		e := startElastic(ctx, 2, 4, "--epochs=60")
		before := e.whole(ctx, 4)
		node := e.spareNode(ctx)
		DeferCleanup(cluster.Cordon, node, false)
		Expect(cluster.Cordon(ctx, node, true)).To(Succeed())
		e.trainsOn(ctx, 5*time.Second)
		Expect(e.get(ctx).Status.World.Round).To(HaveValue(Equal(before)))

		taint(ctx, node, "ToBeDeletedByClusterAutoscaler")
		Eventually(func() []corev1.Pod { return e.on(ctx, node) }).Should(BeEmpty())
		round := e.world(ctx, before, 4)
		// The world is written before what led to it.
		Eventually(func() (reasons []string) {
			for _, resize := range e.get(ctx).Status.Resizes {
				if resize.Round != nil && *resize.Round > before {
					reasons = append(reasons, resize.Reason)
				}
			}
			return reasons
		}).Should(ContainElement("NodeTainted"), "until round %d", round)
		e.completes(ctx, 3*time.Minute)
		e.expectNothingLost(ctx)
	})

	It("trains on when it is deleted while no operator leads, until the next one lets it go without a lost step", func(ctx context.Context) {
		e := startElastic(ctx, 2, 3, "--epochs=90")
		before := e.whole(ctx, 3)
		killOperator(ctx, e.job)
		deleted := pick(e.members(ctx))
		Expect(cluster.Delete(ctx, deleted)).To(Succeed())
		e.world(ctx, before, 3)
		Expect(uids(e.members(ctx))).NotTo(ContainElement(deleted.UID))
		e.completes(ctx, 3*time.Minute)
		e.expectNothingLost(ctx)
	})

	It("makes room for a pod of higher priority without a lost step, and comes back after it", func(ctx context.Context) {
		// Each worker has all devices of a node.
		all, err := cluster.DevicesOfANode(ctx)
		Expect(err).NotTo(HaveOccurred())
		devices := corev1.ResourceList{framework.GPU: all}
		e := launchElastic(ctx, 2, 3, func(spec *v1alpha1.TrainingJobSpec) {
			spec.Workers.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: devices, Limits: devices}
		}, "--epochs=60")
		e.trains(ctx)
		before := e.whole(ctx, 3)
		urgent := createUrgent(ctx, e.namespace, devices)
		Eventually(func() (corev1.PodPhase, error) {
			pod := &corev1.Pod{}
			err := cluster.Get(ctx, client.ObjectKeyFromObject(urgent), pod)
			return pod.Status.Phase, err
		}).Should(Equal(corev1.PodRunning))
		round := e.world(ctx, before, 2)
		Expect(e.resize(ctx, round).Reason).To(Equal("Preempted"))
		Expect(cluster.Delete(ctx, urgent, client.GracePeriodSeconds(0))).To(Succeed())
		e.world(ctx, round, 3)
		e.completes(ctx, 3*time.Minute)
		e.expectNothingLost(ctx)
	})
})

// taint announces until the spec ends that a node is about to go.
func taint(ctx context.Context, node, key string) {
	GinkgoHelper()
	set := func(ctx context.Context, taint string) {
		GinkgoHelper()
		out, err := cluster.Kubectl(ctx, "taint", "node", node, taint)
		Expect(err).NotTo(HaveOccurred(), out)
	}
	DeferCleanup(set, key+"-")
	set(ctx, key+"=soon:NoSchedule")
}

// createUrgent creates a pod that preempts others for its devices.
func createUrgent(ctx context.Context, namespace string, devices corev1.ResourceList) *corev1.Pod {
	GinkgoHelper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-urgent-"}, Value: 1000}
	Expect(cluster.Create(ctx, class)).To(Succeed())
	DeferCleanup(func(ctx context.Context) error { return cluster.Delete(ctx, class) })
	spec := framework.NewJob("urgent", framework.Endless...).In(namespace).Spec.Workers.Template.Spec
	spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: devices, Limits: devices}
	spec.RestartPolicy, spec.PriorityClassName = corev1.RestartPolicyNever, class.Name
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "urgent"}, Spec: spec}
	// The API server knows of a new priority class a moment later.
	Eventually(func() error { return cluster.Create(ctx, pod) }).Should(Succeed())
	return pod
}
