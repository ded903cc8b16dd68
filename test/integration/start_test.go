package integration

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
)

var _ = Describe("A new job", func() {
	It("gets its counters, then its PodGroup, then its pods, and each is told of once", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(
			HavePrefix("False WaitingForRoom: 2 of 2 pods have no node (digits-1-0, digits-1-1)"))

		lines := op.settled()
		Expect(lines[:5]).To(Equal([]string{
			"write status",
			"create PodGroup digits-1",
			"create Pod digits-1-0",
			"create Pod digits-1-1",
			"event Normal GangCreated: attempt 1: 2 workers are to start together (PodGroup digits-1)",
		}))
		Expect(lines[5:]).To(HaveEach(BeElementOf("write status", "patch PodGroup digits-1")), "it waits")
		status := j.get(ctx).Status
		Expect(status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		Expect(status.NextOrdinal).To(HaveValue(BeEquivalentTo(2)))
		Expect(status.Workers.Target).To(HaveValue(BeEquivalentTo(2)))
		Expect(status.Workers.Summary).To(Equal("0/2-2"))
		Expect(status.StartTime).NotTo(BeNil())
		Expect(j.condition(ctx, v1alpha1.ConditionAdmitted)()).To(HavePrefix("True Admitted"))
	})

	It("gets objects that belong to it and ask for the whole batch", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.gangOf(ctx, 1)
		owner := j.get(ctx)

		var group schedv1alpha1.PodGroup
		Expect(cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "digits-1"}, &group)).To(Succeed())
		Expect(metav1.IsControlledBy(&group, owner)).To(BeTrue())
		Expect(group.Spec.MinMember).To(BeEquivalentTo(2))
		Expect(group.Spec.MinResources).To(HaveKeyWithValue(corev1.ResourceCPU, Satisfy(func(q resource.Quantity) bool {
			return q.Equal(resource.MustParse("1"))
		})))
		for _, pod := range pods {
			Expect(metav1.IsControlledBy(pod, owner)).To(BeTrue())
			Expect(pod.Finalizers).To(BeEmpty())
			Expect(pod.Labels).To(HaveKeyWithValue(schedv1alpha1.PodGroupLabel, "digits-1"))
			Expect(pod.Spec.SchedulerName).To(Equal("coscheduling"))
			Expect(plannedNode(pod)).To(Equal(largeNode))
			Expect(pod.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationCABundle, "-----BEGIN CERTIFICATE-----"))
			Expect(pod.Spec.RestartPolicy).To(Equal(corev1.RestartPolicyNever))
			Expect(pod.Spec.InitContainers[0].Command).To(Equal([]string{"/agent", "install", "/concertina/bin/agent"}))
			Expect(pod.Spec.Containers[0].Command).To(Equal([]string{"/concertina/bin/agent", "run", "--", "/train", "--fast"}))
		}
	})

	It("trusts the operator's new authority while it trains, and keeps its ranks", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		var renewed atomic.Bool
		op := startOperator(ctx, namespace, settings{bundle: func() []byte {
			if renewed.Load() {
				return []byte("old and new")
			}
			return []byte("old")
		}})
		j := createJob(ctx, namespace)
		pods := j.train(ctx, op, 1, 1)
		annotated := func() []string {
			var found []string
			for _, pod := range j.pods(ctx, 1) {
				found = append(found, pod.Annotations[v1alpha1.AnnotationCABundle])
			}
			return found
		}
		Eventually(annotated).Should(Equal([]string{"old", "old"}))
		kubelet(ctx, pods[1], ended(0, ""))
		renewed.Store(true)
		op.look(j)
		Eventually(annotated).Should(Equal([]string{"old and new", "old"}), "a pod that has ended calls nobody")
		op.hasSeen(ctx, j.pods(ctx, 1)[0]) // until then it may write the same once more
		op.look(j)
		written := func() int { return op.count("apply Pod digits-1-0") }
		before := written()
		Expect(before).To(BeNumerically(">=", 1))
		op.look(j)
		Expect(written()).To(Equal(before), "what it has is not written again")
	})

	It("takes no object of the user's for its own", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "digits-rendezvous"}, Data: map[string]string{"ca.crt": "mine"}}
		Expect(cluster.Create(ctx, theirs)).To(Succeed())
		createJob(ctx, namespace).train(ctx, op, 1, 1)
		before := theirs.DeepCopy()
		Expect(cluster.Get(ctx, client.ObjectKeyFromObject(theirs), theirs)).To(Succeed())
		Expect(theirs).To(Equal(before))
	})

	It("is left alone when somebody else manages it", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		foreign := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) {
			object.Name, object.Spec.ManagedBy = "foreign", "example.com/queue"
		})
		ours := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) { object.Spec.ManagedBy = v1alpha1.ManagedByOperator })
		ours.gangOf(ctx, 1)
		Expect(foreign.pods(ctx, 0)).To(BeEmpty())
		Expect(foreign.get(ctx).Status).To(Equal(v1alpha1.TrainingJobStatus{}))
		Expect(op.all()).NotTo(ContainElement(ContainSubstring("foreign")))
	})

	It("tells the rendezvous who its members are once each of them has a node", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.gangOf(ctx, 1)
		bind(ctx, pods[0], "node-a")
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(
			HavePrefix("False WaitingForRoom: 1 of 2 pods have no node (digits-1-1)"))
		Expect(op.all()).NotTo(ContainElement(HavePrefix("expect")))
		bind(ctx, pods[1], "node-b")
		Eventually(op.all).Should(ContainElement("expect attempt 1: digits-1-0@node-a digits-1-1@node-b"))
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(HavePrefix("True Scheduled"))
	})

	It("has the scheduler look again at its gang while that waits for room", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		createJob(ctx, namespace).train(ctx, op, 1, 1)
		before := op.count("patch PodGroup digits-1") // it may have waited for a moment too
		createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) { object.Name = "waits" }).gangOf(ctx, 1)
		Eventually(op.all).Should(ContainElement("patch PodGroup waits-1"))
		Expect(op.count("patch PodGroup digits-1")).To(Equal(before))
		var group schedv1alpha1.PodGroup
		Expect(cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "waits-1"}, &group)).To(Succeed())
		Expect(group.Annotations).To(HaveKey("training.concertina.dev/retried-at"))
	})

	It("gets its PodGroup back when somebody deletes it while its pods wait", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		j.gangOf(ctx, 1)
		group := &schedv1alpha1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "digits-1"}}
		Expect(cluster.Get(ctx, client.ObjectKeyFromObject(group), group)).To(Succeed())
		first := group.DeepCopy()
		Expect(cluster.Delete(ctx, group)).To(Succeed())
		op.look(j)
		Eventually(func() error { return cluster.Get(ctx, client.ObjectKeyFromObject(group), group) }).Should(Succeed())
		Expect(group.UID).NotTo(Equal(first.UID))
		Expect(group.Spec.MinMember).To(Equal(first.Spec.MinMember))
		Expect(group.Spec.MinResources).To(HaveLen(len(first.Spec.MinResources)))
		Eventually(op.all).Should(ContainElement(HavePrefix("event Warning PodGroupRestored: PodGroup digits-1 was deleted")))
		j.train(ctx, op, 1, 1)
	})

	It("names the pod that cannot start and the cause", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.gangOf(ctx, 1)
		for _, pod := range pods {
			bind(ctx, pod, "node-a")
		}
		Eventually(op.all).Should(ContainElement(HavePrefix("expect attempt 1")))
		kubelet(ctx, pods[1], waits("ErrImagePull", "no such image"))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(
			Equal("False WaitingForPods: pod digits-1-1, container main: ErrImagePull: no such image"))
	})

	It("trains, and nothing is written to its pods for that", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		pods := j.train(ctx, op, 1, 1)
		Eventually(op.all).Should(ContainElement("event Normal WorldFormed: round 1: 2 workers train as 2 ranks"))
		ranks, attempt := record.Ranks(j.get(ctx))
		Expect(ranks).To(Equal(map[int32]int32{0: 0, 1: 1}))
		Expect(attempt).To(BeEquivalentTo(1))
		for _, pod := range pods {
			Expect(op.count("patch Pod "+pod.Name) + op.count("apply Pod "+pod.Name)).To(BeZero())
		}
		Eventually(func() string { return j.get(ctx).Status.Workers.Summary }).Should(Equal("2/2-2"))
	})
})

var _ = Describe("An operator that is not alone or sees the past", func() {
	It("takes a pod for its own that it made and forgot", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		// The first request is lost on its way back, and the client sends it again.
		var lost atomic.Bool
		op.answer(func(ctx context.Context, line string) error {
			if line != "create Pod digits-1-0" || !lost.CompareAndSwap(false, true) {
				return nil
			}
			return makeAhead(ctx, namespace)
		})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(HavePrefix("False WaitingForRoom: 2 of 2"))
		Eventually(op.all).Should(ContainElements("create Pod digits-1-0: AlreadyExists", "create Pod digits-1-1"))
		Expect(j.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		Expect(j.podNames(ctx)()).To(ConsistOf("digits-1-0", "digits-1-1"))
	})

	It("says who holds the name of its pod, and goes on under other names", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "digits-1-1"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "digits"}}}}
		Expect(cluster.Create(ctx, foreign)).To(Succeed())
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(
			HavePrefix("False PodsForbidden: a pod named digits-1-1 is there already and does not belong to this job"))
		Eventually(j.podNames(ctx)).Should(BeEmpty())
		Eventually(j.groupNames(ctx)).Should(BeEmpty())
		op.clock.advance(lastRefusal)
		j.touch(ctx)
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-2-2", "digits-2-3"))
		Expect(cluster.Get(ctx, client.ObjectKeyFromObject(foreign), foreign)).To(Succeed())
	})

	It("leaves a PodGroup of somebody else alone, says so, and goes on under another name", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		// Even one that looks like the job's.
		foreign := &schedv1alpha1.PodGroup{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "digits-1",
				Labels: map[string]string{v1alpha1.LabelJob: "digits", v1alpha1.LabelAttempt: "1"}},
			Spec: schedv1alpha1.PodGroupSpec{MinMember: 7}}
		Expect(cluster.Create(ctx, foreign)).To(Succeed())
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(HavePrefix(
			"False PodsForbidden: PodGroup " + namespace + "/digits-1 is there already: it does not belong to this job: delete it, or rename the job"))
		op.look(j)
		Expect(j.podNames(ctx)()).To(BeEmpty())
		op.clock.advance(lastRefusal)
		j.touch(ctx)
		j.train(ctx, op, 2, 1)
		Expect(j.update(ctx, suspended(true))).To(Succeed())
		Eventually(op.all).Should(ContainElement("delete PodGroup digits-2"))
		before := foreign.DeepCopy()
		Expect(cluster.Get(ctx, client.ObjectKeyFromObject(foreign), foreign)).To(Succeed())
		Expect(foreign).To(Equal(before))
	})

	It("makes nothing twice while its cache lags behind its writes", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		var stale atomic.Bool
		stale.Store(true)
		op := startOperator(ctx, namespace, settings{stale: stale.Load})
		j := createJob(ctx, namespace)
		j.gangOf(ctx, 1)
		op.look(j)
		stale.Store(false)
		j.train(ctx, op, 1, 1)
		Expect(j.get(ctx).Status.Restarts).To(Equal(v1alpha1.RestartsStatus{}))
		for _, line := range []string{"create PodGroup digits-1", "create Pod digits-1-0", "create Pod digits-1-1"} {
			Expect(op.count(line)).To(Equal(1), line)
		}
	})

	It("plans on no job that is older than what it has written", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		var lags, unlimited atomic.Bool
		op := startOperator(ctx, namespace, settings{lags: lags.Load, clock: stoppedClock()})
		op.answer(func(_ context.Context, line string) error {
			if line == "write status" && !unlimited.Load() {
				lags.Store(true) // from the first decision on
			}
			return nil
		})
		j := createJob(ctx, namespace)
		Eventually(op.all).Should(Equal([]string{"write status"}))
		j.touch(ctx)
		Consistently(op.all, "300ms").Should(Equal([]string{"write status"}), "it is not decided a second time")
		// A cache that stays behind is not waited for.
		op.clock.advance(2 * time.Second)
		j.gangOf(ctx, 1)
		unlimited.Store(true)
		lags.Store(false)
		j.train(ctx, op, 1, 1)
		Expect(op.count("create PodGroup digits-1")).To(Equal(1))
	})

	It("decides anew when the job has changed under its hands", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		var once atomic.Bool
		op.answer(func(ctx context.Context, line string) error {
			if line != "write status" || !once.CompareAndSwap(false, true) {
				return nil
			}
			return (&job{namespace: namespace, name: "digits"}).update(ctx, func(object *v1alpha1.TrainingJob) {
				object.Spec.Suspend = new(bool)
				*object.Spec.Suspend = true
			})
		})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended)).Should(HavePrefix("True Suspended"))
		Eventually(op.all).Should(ContainElement("write status: Conflict"))
		Expect(op.all()).NotTo(ContainElement(HavePrefix("create")))
		Expect(j.get(ctx).Status.Attempt).To(Or(BeNil(), HaveValue(BeZero())))
	})
})

// makeAhead creates the first pod of the job digits as the operator would, for an AlreadyExists.
func makeAhead(ctx context.Context, namespace string) error {
	var owner v1alpha1.TrainingJob
	if err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "digits"}, &owner); err != nil {
		return err
	}
	if owner.UID == "" {
		return errors.New("the job has no uid")
	}
	template := owner.Spec.Workers.Template.DeepCopy()
	return cluster.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "digits-1-0",
			Labels: map[string]string{
				v1alpha1.LabelJob: "digits", v1alpha1.LabelAttempt: "1", schedv1alpha1.PodGroupLabel: "digits-1",
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&owner, v1alpha1.GroupVersion.WithKind("TrainingJob"))},
		},
		Spec: template.Spec,
	})
}
