package integration

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// named gives a job another name.
func named(name string) jobChange {
	return func(object *v1alpha1.TrainingJob) { object.Name = name }
}

// ofClass gives the workers of a job a PriorityClass.
func ofClass(name string) jobChange {
	return func(object *v1alpha1.TrainingJob) { object.Spec.Workers.Template.Spec.PriorityClassName = name }
}

// createClass makes a PriorityClass of this test alone.
func createClass(ctx context.Context, name string, value int32) *schedulingv1.PriorityClass {
	GinkgoHelper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	Expect(cluster.Create(ctx, class)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { Expect(client.IgnoreNotFound(cluster.Delete(ctx, class))).To(Succeed()) })
	return class
}

// position is the place of a job in the queue; 0 for none.
func (j *job) position(ctx context.Context) func() int32 {
	return func() int32 { return ptr.Deref(j.get(ctx).Status.Queue.Position, 0) }
}

// finish ends the programs of all pods well.
func (j *job) finish(ctx context.Context) {
	GinkgoHelper()
	for _, pod := range j.pods(ctx, 0) {
		kubelet(ctx, pod, ended(0, ""))
	}
	Eventually(j.condition(ctx, v1alpha1.ConditionComplete)).Should(HavePrefix("True Completed"))
}

// foreignPod puts a pod of somebody else on a node.
func foreignPod(ctx context.Context, namespace, node, cpu string) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "foreign"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "foreign",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}}
	Expect(cluster.Create(ctx, pod)).To(Succeed())
	bind(ctx, pod, node)
	return pod
}

var _ = Describe("Jobs that share the cluster", func() {
	It("wait in a queue without pods, and start when the room is free", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 2)
		op := startOperator(ctx, namespace, settings{})
		first := createJob(ctx, namespace, named("first"), upTo(2, node))
		first.train(ctx, op, 1, 1)
		second := createJob(ctx, namespace, named("second"), upTo(2, node))
		const waits = "waits for 2 places of 0.5 cpu: 0 are free, and what others have cannot be taken"
		Eventually(second.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(Equal("False Queued: " + waits))
		status := second.get(ctx).Status
		Expect(status.State).To(Equal("Queued"))
		Expect(status.Queue.Position).To(HaveValue(BeEquivalentTo(1)))
		Expect(status.Queue.WaitsFor).To(Equal(waits))
		Expect(status.Queue.Since).NotTo(BeNil())
		Expect(status.StartTime).To(BeNil())
		Expect(status.Attempt).To(Or(BeNil(), HaveValue(BeZero())))
		Eventually(op.count).WithArguments("event Normal Queued: " + waits).Should(Equal(1)) // told once it is written
		op.look(second)
		Expect(second.podNames(ctx)()).To(BeEmpty())
		Expect(op.all()).NotTo(ContainElement(Or(ContainSubstring("create PodGroup second"), ContainSubstring("create Pod second"))))

		first.finish(ctx)
		pods := second.train(ctx, op, 1, 1)
		for _, pod := range pods {
			Expect(plannedNode(pod)).To(Equal(node))
		}
		Expect(second.get(ctx).Status.Queue).To(Equal(v1alpha1.QueueStatus{}))
		Expect(second.get(ctx).Status.State).To(Equal("Training"))
	})

	It("are told by how much one is larger than the cluster", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 4)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(5, node), func(object *v1alpha1.TrainingJob) { object.Spec.Workers.Min = ptr.To[int32](5) })
		const waits = "the job is larger than the cluster: 5 workers are wanted and 4 would fit an empty cluster"
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(Equal("False Queued: " + waits))
		Expect(j.get(ctx).Status.Queue.WaitsFor).To(Equal(waits))
		Eventually(op.count).WithArguments("event Normal Queued: " + waits).Should(Equal(1)) // told once it is written
		// It keeps nobody from the room that it cannot use.
		createJob(ctx, namespace, named("small"), upTo(2, node)).train(ctx, op, 1, 1)
		Expect(j.podNames(ctx)()).To(BeEmpty())
		Expect(j.groupNames(ctx)()).To(ConsistOf("small-1"))
	})

	It("stand by their age once the PriorityClass of one is deleted", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 2)
		class := createClass(ctx, "important-"+namespace, 1000)
		op := startOperator(ctx, namespace, settings{})
		first := createJob(ctx, namespace, named("first"), upTo(2, node))
		first.train(ctx, op, 1, 1)
		plain := createJob(ctx, namespace, named("plain"), upTo(2, node))
		Eventually(plain.position(ctx)).Should(BeEquivalentTo(1))
		vip := createJob(ctx, namespace, named("vip"), upTo(2, node), ofClass(class.Name))
		Eventually(vip.position(ctx)).Should(BeEquivalentTo(1))
		Eventually(plain.position(ctx)).Should(BeEquivalentTo(2))

		Expect(cluster.Delete(ctx, class)).To(Succeed())
		Eventually(plain.position(ctx)).Should(BeEquivalentTo(1))
		Eventually(vip.position(ctx)).Should(BeEquivalentTo(2))
		first.finish(ctx)
		plain.train(ctx, op, 1, 1)
		Expect(vip.podNames(ctx)()).To(BeEmpty())
		plain.finish(ctx)
		// The API server makes no pod of a class that is not there.
		Eventually(vip.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False PodsForbidden: the API server refuses pod vip-1-0"), ContainSubstring(class.Name)))
		Eventually(vip.podNames(ctx)).Should(BeEmpty())

		again := createClass(ctx, class.Name, 1000)
		Eventually(func() []string {
			op.clock.advance(15 * time.Second)
			op.look(vip)
			return vip.podNames(ctx)()
		}).Should(HaveLen(2))
		for _, pod := range vip.pods(ctx, 0) {
			Expect(pod.Spec.Priority).To(HaveValue(Equal(again.Value)))
		}
	})

	It("let a gang go whose room somebody else has taken, and it waits again", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 2)
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace, upTo(2, node))
		j.gangOf(ctx, 1)
		foreign := foreignPod(ctx, namespace, node, "1")
		op.clock.advance(44 * time.Second)
		op.look(j)
		Expect(j.podNames(ctx)()).To(HaveLen(2), "the scheduler may take its time")
		op.clock.advance(2 * time.Second)
		op.look(j)
		op.clock.goOn()
		Eventually(op.all).Should(ContainElement(HavePrefix(
			"event Warning GangUnplaced: attempt 1 ended: no scheduler has looked at the gang: does one run under the name coscheduling (spec.gang.schedulerName)? 2 of 2 pods have no node")))
		expectNothing(ctx, j)
		Expect(j.get(ctx).Status.Restarts).To(Equal(v1alpha1.RestartsStatus{}), "nobody was lost")
		op.clock.advance(46 * time.Second)
		Eventually(func() string {
			op.look(j)
			return j.condition(ctx, v1alpha1.ConditionGangScheduled)()
		}).Should(Equal("False Queued: waits for 2 places of 0.5 cpu: 0 are free, and what others have cannot be taken"))
		Expect(j.position(ctx)()).To(BeEquivalentTo(1))
		Expect(j.podNames(ctx)()).To(BeEmpty())
		Expect(j.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))

		Expect(cluster.Delete(ctx, foreign, client.GracePeriodSeconds(0))).To(Succeed())
		j.train(ctx, op, 2, 1)
		Expect(op.count(fmt.Sprintf("create Pod %s-1-0", j.name))).To(Equal(1))
	})
})
