package integration

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

var _ = Describe("An operator that is killed", func() {
	// A start takes six writes, see the first test of start_test.go.
	for writes := 1; writes <= 6; writes++ {
		It(fmt.Sprintf("after its write %d of a start leaves a job that starts all the same", writes), func(ctx context.Context) {
			namespace := newNamespace(ctx)
			first := startOperator(ctx, namespace, settings{killAfter: writes})
			j := createJob(ctx, namespace)
			Eventually(first.isKilled).Should(BeTrue(), func() string { return strings.Join(first.all(), "\n") })
			first.stop()

			second := startOperator(ctx, namespace, settings{})
			Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(HavePrefix("False WaitingForRoom: 2 of 2"))
			status := j.get(ctx).Status
			attempt, last := *status.Attempt, *status.NextOrdinal
			Expect(j.podNames(ctx)()).To(ConsistOf(
				fmt.Sprintf("digits-%d-%d", attempt, last-2), fmt.Sprintf("digits-%d-%d", attempt, last-1)))
			Expect(j.groupNames(ctx)()).To(ConsistOf(fmt.Sprintf("digits-%d", attempt)))
			Expect(status.Restarts).To(Equal(v1alpha1.RestartsStatus{}))
			expectFreshNames(append(first.all(), second.all()...))
		})
	}

	It("while a world trains takes it over as it is", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		first := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.train(ctx, first, 1, 1)
		first.stop()
		second := startOperator(ctx, namespace, settings{})
		Eventually(second.all).Should(ContainElement(HavePrefix("expect attempt 1: digits-1-0@")))
		// Until the rendezvous knows more, what was true stays true.
		Expect(second.worlds.report(j.key(), func(seen *rendezvous.Observation) { seen.Adopting = true })).To(Succeed())
		Consistently(j.condition(ctx, v1alpha1.ConditionTraining), "300ms").Should(HavePrefix("True WorldFormed: round 1"))
		Expect(second.worlds.report(j.key(), func(seen *rendezvous.Observation) { seen.Adopting = false })).To(Succeed())
		Expect(second.worlds.form(j.key(), 1)).To(Succeed())
		Consistently(j.condition(ctx, v1alpha1.ConditionTraining), "300ms").Should(HavePrefix("True WorldFormed: round 1"))
		Expect(second.all()).NotTo(ContainElement(Or(HavePrefix("create"), HavePrefix("delete"), HavePrefix("event"))))
		for _, pod := range pods {
			uid := pod.UID
			Expect(cluster.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			Expect(pod.UID).To(Equal(uid))
			Expect(pod.DeletionTimestamp).To(BeNil())
		}
	})

	It("does nothing to a job that another leader has taken over", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.train(ctx, op, 1, 1)
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) { seen.Deposed = true })).To(Succeed())
		op.look(j)
		lines := op.all()
		kubelet(ctx, pods[0], ended(1, "boom"))
		Expect(cluster.Delete(ctx, pods[1])).To(Succeed())
		op.look(j)
		Consistently(op.all, "300ms").Should(Equal(lines))
	})
})

// expectFreshNames checks that no name was ever made twice.
func expectFreshNames(lines []string) {
	GinkgoHelper()
	var made []string
	for _, line := range lines {
		if name, ok := strings.CutPrefix(line, "create "); ok && !strings.Contains(line, ": ") {
			Expect(made).NotTo(ContainElement(name))
			made = append(made, name)
		}
	}
}

// pastGrace is longer than the grace period of a pod and what the operator adds to it.
const pastGrace = 2 * time.Minute

var _ = Describe("A gang that is lost", func() {
	It("to its program starts over after a pause, with the culprit named and kept", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.train(ctx, op, 1, 1)
		kubelet(ctx, pods[1], ended(3, "ValueError: bad shape"))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(And(
			HavePrefix("False BackOff: the next attempt is due at"),
			ContainSubstring("worker digits-1-1 (worker rank 1, node large) exited with code 3: ValueError: bad shape")))
		Expect(j.get(ctx).Status.Restarts.Program).To(HaveValue(BeEquivalentTo(1)))
		Expect(j.get(ctx).Status.Restarts.Infrastructure).To(Or(BeNil(), HaveValue(BeZero())))
		// The surviving worker holds its room until it has ended, and no new gang comes before.
		Eventually(op.all).Should(ContainElements("release digits", "delete Pod digits-1-0", "delete PodGroup digits-1"))
		op.clock.advance(6 * time.Second)
		op.look(j)
		Expect(op.all()).NotTo(ContainElement("create PodGroup digits-2"))
		reap(ctx, namespace)
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-1-1", "digits-2-2", "digits-2-3"))
		Eventually(op.all).Should(ContainElement(HavePrefix("event Warning ProgramFailure: attempt 1 ended: worker digits-1-1")))
	})

	It("to the infrastructure starts over, and the program is not blamed", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) { object.Spec.Failure.MaxRestarts = ptr.To[int32](0) })
		pods := j.train(ctx, op, 1, 1)
		// Both fail, one because its node is going.
		kubelet(ctx, pods[0], func(status *corev1.PodStatus) {
			ended(1, "RuntimeError: something else")(status)
			container(status).State.Terminated.FinishedAt = metav1.NewTime(time.Now().Add(time.Minute))
		})
		kubelet(ctx, pods[1], func(status *corev1.PodStatus) {
			ended(143, "")(status)
			status.Conditions = append(status.Conditions, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "drained"})
		})
		Eventually(j.podNames(ctx)).Should(ContainElements("digits-2-2", "digits-2-3"))
		status := j.get(ctx).Status
		Expect(status.Restarts.Infrastructure).To(HaveValue(BeEquivalentTo(1)))
		Expect(status.Restarts.Program).To(Or(BeNil(), HaveValue(BeZero())))
		Eventually(op.all).Should(ContainElement(ContainSubstring("EvictionByEvictionAPI: drained")))
	})

	It("because somebody deleted a pod starts over whole", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.train(ctx, op, 1, 1)
		Expect(cluster.Delete(ctx, pods[0], client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(op.all).Should(ContainElement("delete Pod digits-1-1"))
		reap(ctx, namespace)
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-2-2", "digits-2-3"))
		Expect(j.get(ctx).Status.Restarts.Infrastructure).To(HaveValue(BeEquivalentTo(1)))
	})

	It("to a node that does not answer starts over without it, if another worker is known to have ended", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.train(ctx, op, 1, 1)
		kubelet(ctx, pods[1], ended(1, "boom"))
		Eventually(op.all).Should(ContainElement("delete Pod digits-1-0"))
		op.clock.advance(pastGrace)
		j.touch(ctx)
		Eventually(j.podNames(ctx)).Should(ContainElements("digits-1-0", "digits-2-2", "digits-2-3"))
	})

	It("to nodes of which none answers waits for somebody who knows", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.train(ctx, op, 1, 1)
		Expect(op.worlds.member(j.key(), pods[0], func(member *rendezvous.MemberObservation) { member.Silent = true })).To(Succeed())
		Eventually(op.all).Should(ContainElements("delete Pod digits-1-0", "delete Pod digits-1-1"))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(HavePrefix("False BackOff"))
		Eventually(op.all).Should(ContainElement(ContainSubstring("worker digits-1-0 on node large has been silent for 5s and no step was made")))
		op.clock.advance(pastGrace)
		j.touch(ctx)
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(HavePrefix("False Stopping: no worker of the last attempt is known to have ended"))
		Consistently(j.podNames(ctx), "300ms").Should(ConsistOf("digits-1-0", "digits-1-1"))
		// The nodes come back, and their kubelets say that the workers have ended.
		reap(ctx, namespace)
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-2-2", "digits-2-3"))
	})

	It("too often to its program fails the job with the last lines", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) { object.Spec.Failure.MaxRestarts = ptr.To[int32](1) })
		for attempt := 1; attempt <= 2; attempt++ {
			pods := j.train(ctx, op, attempt, uint64(attempt))
			kubelet(ctx, pods[0], ended(1, fmt.Sprintf("line one\nfailure %d", attempt)))
			Eventually(op.all).Should(ContainElement(fmt.Sprintf("delete Pod %s", pods[1].Name)))
			reap(ctx, namespace)
			op.clock.advance(lastRefusal)
			j.touch(ctx)
		}
		Eventually(j.condition(ctx, v1alpha1.ConditionFailed)).Should(And(
			HavePrefix("True ProgramFailed: the program failed and spec.failure.maxRestarts (1) is used up"), HaveSuffix("line one\nfailure 2")))
		Eventually(j.groupNames(ctx)).Should(BeEmpty())
		// The culprit is kept for its logs.
		Expect(j.podNames(ctx)()).To(ContainElement("digits-2-2"))
		Eventually(op.all).Should(ContainElement(HavePrefix("event Warning ProgramFailed")))
	})

	It("because it does not start in time lets go of its room and tries again", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.gangOf(ctx, 1)
		for _, pod := range pods {
			bind(ctx, pod, "node-a")
			kubelet(ctx, pod, waits("ImagePullBackOff", "no such image"))
		}
		Eventually(op.all).Should(ContainElement(HavePrefix("expect attempt 1")))
		op.clock.advance(10 * time.Minute)
		j.touch(ctx)
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(And(
			HavePrefix("False BackOff: attempt 1 did not start within spec.gang.startTimeout (10m0s): pod digits-1-0, container main: ImagePullBackOff: no such image"),
			ContainSubstring("the next attempt is due at")))
		Eventually(op.all).Should(ContainElements("delete Pod digits-1-0", "delete Pod digits-1-1", "delete PodGroup digits-1"))
		reap(ctx, namespace)
		op.clock.advance(lastRefusal)
		j.touch(ctx)
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-2-2", "digits-2-3"))
		Expect(j.get(ctx).Status.Restarts).To(Equal(v1alpha1.RestartsStatus{}), "a slow start is no failure")
	})
})
