package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// upTo lets a job have so many workers, on a node of this test alone.
func upTo(most int32, node string) jobChange {
	return func(object *v1alpha1.TrainingJob) {
		object.Spec.Workers.Max = &most
		object.Spec.Workers.Template.Spec.NodeSelector = map[string]string{"test": node}
		object.Spec.Growth.PriorityClassName = growthClass
	}
}

const growthClass = "concertina-growth"

// elasticNode makes a node with room for so many workers, and the PriorityClass of growth.
func elasticNode(ctx context.Context, namespace string, workers int64) string {
	GinkgoHelper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: growthClass}, Value: -10, PreemptionPolicy: ptr.To(corev1.PreemptNever)}
	Expect(client.IgnoreAlreadyExists(cluster.Create(ctx, class))).To(Succeed())
	node := createNode(ctx, "elastic-"+namespace, 500*workers)
	DeferCleanup(func(ctx context.Context) { Expect(client.IgnoreNotFound(cluster.Delete(ctx, node))).To(Succeed()) })
	return node.Name
}

// trainOn takes the gang to a world of round 1 that can change.
func (j *job) trainOn(ctx context.Context, op *operator, node string) []*corev1.Pod {
	GinkgoHelper()
	pods := j.gangOf(ctx, 1)
	for _, pod := range pods {
		Expect(plannedNode(pod)).To(Equal(node))
		schedule(ctx, pod)
		kubelet(ctx, pod, runs)
	}
	Eventually(func() error { return op.worlds.form(j.key(), 1) }).Should(Succeed())
	Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) {
		seen.Elastic, seen.Phase = true, rendezvous.PhaseTraining
	})).To(Succeed())
	Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(HavePrefix("True WorldFormed: round 1:"))
	return pods
}

// grown waits for a pod of the first attempt beyond its gang, another one than those that are given. Names
// that are reserved and not used leave gaps, so nobody knows its number before.
func (j *job) grown(ctx context.Context, but ...*corev1.Pod) *corev1.Pod {
	GinkgoHelper()
	known := []string{j.name + "-1-0", j.name + "-1-1"}
	for _, pod := range but {
		known = append(known, pod.Name)
	}
	var found *corev1.Pod
	Eventually(func() *corev1.Pod {
		for _, pod := range j.pods(ctx, 1) {
			if !slices.Contains(known, pod.Name) {
				found = pod
				return pod
			}
		}
		return nil
	}).ShouldNot(BeNil())
	return found
}

// refillGroup is the name of the group of a batch that begins with a pod: by its number.
func refillGroup(first *corev1.Pod) string {
	end := strings.LastIndexByte(first.Name, '-')
	return first.Name[:end] + "-r" + first.Name[end+1:]
}

// goOn has the world go on as the next round: those who join get the next ranks, those who leave are
// out.
func (w *worlds) goOn(job rendezvous.JobKey, change rendezvous.Change, join, leave []*corev1.Pod) error {
	var members []rendezvous.NamedMember
	w.mu.Lock()
	for _, member := range w.gangs[job].Members {
		is := func(pod *corev1.Pod) bool { return string(pod.UID) == member.UID }
		stays := w.seen[job].Members[member.UID].InWorld && w.seen[job].Members[member.UID].WorkerRank >= 0
		if slices.ContainsFunc(join, is) || stays && !slices.ContainsFunc(leave, is) {
			members = append(members, rendezvous.NamedMember{Ordinal: member.Ordinal, Node: member.Node})
		}
	}
	w.mu.Unlock()
	if err := w.record(job, change.Round, members); err != nil {
		return err
	}
	return w.report(job, func(seen *rendezvous.Observation) {
		seen.Round, seen.Phase = change.Round, rendezvous.PhaseTraining
		for _, pod := range leave {
			seen.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, WorkerRank: -1, Out: true}
		}
		for i, pod := range join {
			seen.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, Connected: true, InWorld: true, WorkerRank: change.From + int32(i)}
		}
		change.At = time.Now()
		seen.Changes = append(seen.Changes, change)
	})
}

var _ = Describe("A job whose world can change", func() {
	It("grows into the room that there is, and shrinks when its ceiling is lowered", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(4, node))
		pods := j.trainOn(ctx, op, node)
		third := j.grown(ctx)
		Expect(third.Labels).To(HaveKeyWithValue(v1alpha1.LabelRole, v1alpha1.RoleGrowth))
		Expect(third.Labels).NotTo(HaveKey("scheduling.x-k8s.io/pod-group"))
		Expect(third.Spec.PriorityClassName).To(Equal(growthClass))
		Expect(plannedNode(third)).To(Equal(node))
		Expect(j.get(ctx).Status.Workers.Target).To(HaveValue(BeEquivalentTo(3)))

		bind(ctx, third, node)
		Eventually(op.all).Should(ContainElement(And(HavePrefix("expect attempt 1:"), ContainSubstring(third.Name+"@"+node))))
		kubelet(ctx, third, runs)
		Expect(op.worlds.goOn(j.key(), rendezvous.Change{Round: 2, From: 2, To: 3, Reason: rendezvous.ReasonCapacityAvailable, Pause: 180 * time.Millisecond},
			[]*corev1.Pod{third}, nil)).To(Succeed())
		Eventually(op.all).Should(ContainElement("event Normal Resized: round 2: from 2 to 3 workers (CapacityAvailable); training paused for 180ms"))
		Expect(j.get(ctx).Status.Resizes).To(HaveLen(1))
		Consistently(j.podNames(ctx), "300ms").Should(HaveLen(3), "there is no room for a fourth")

		Expect(j.update(ctx, func(object *v1alpha1.TrainingJob) { object.Spec.Workers.Max = ptr.To[int32](2) })).To(Succeed())
		Eventually(op.all).Should(ContainElement(HavePrefix("event Normal WorkerLeaving: worker " + third.Name)))
		Consistently(op.all, "300ms").ShouldNot(ContainElement(HavePrefix("delete Pod")), "the world still counts on it")
		Expect(op.worlds.goOn(j.key(), rendezvous.Change{Round: 3, From: 3, To: 2, Reason: rendezvous.ReasonScaledDown}, nil, []*corev1.Pod{third})).To(Succeed())
		Eventually(op.all).Should(ContainElement("delete Pod " + third.Name))
		reap(ctx, namespace)
		Eventually(j.podNames(ctx)).Should(ConsistOf(pods[0].Name, pods[1].Name))
		status := j.get(ctx).Status
		Expect(status.Restarts).To(Equal(v1alpha1.RestartsStatus{}))
		Expect(status.Selector).To(Equal("training.concertina.dev/job=digits"))
		expectFreshNames(op.all())
	})

	It("withdraws a worker that finds no node, and says why", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(4, node))
		j.trainOn(ctx, op, node)
		third := j.grown(ctx)
		kubelet(ctx, third, func(status *corev1.PodStatus) {
			status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "somebody was faster"}}
		})
		op.hasSeen(ctx, third)
		op.clock.advance(31 * time.Second)
		j.touch(ctx)
		Eventually(op.all).Should(ContainElement(And(
			HavePrefix("event Warning GrowthWithdrawn: " + third.Name + " has no node after spec.growth.stabilization (30s): somebody was faster"))))
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-1-0", "digits-1-1"))
		// Its node is avoided: that there is no other is for the next plan of the fleet to say.
		Eventually(func() *int32 { return j.get(ctx).Status.Workers.Target }).Should(HaveValue(BeEquivalentTo(2)))
		op.clock.advance(20 * time.Second)
		j.touch(ctx)
		Consistently(j.podNames(ctx), "300ms").Should(HaveLen(2))
		// Room appears elsewhere: nobody waits for the end of the pause.
		var object corev1.Node
		Expect(cluster.Get(ctx, client.ObjectKey{Name: node}, &object)).To(Succeed())
		object.Labels["bigger"] = "yes"
		Expect(cluster.Update(ctx, &object)).To(Succeed())
		j.grown(ctx, third)
	})

	It("does not grow while the PriorityClass of its growth is missing, and says so", func(ctx context.Context) {
		const missing = "nobody-made-this"
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(4, node), func(object *v1alpha1.TrainingJob) { object.Spec.Growth.PriorityClassName = missing })
		j.trainOn(ctx, op, node)
		Eventually(j.condition(ctx, v1alpha1.ConditionFullSize)).Should(Equal("False GrowthRefused: " +
			"PriorityClass nobody-made-this of spec.growth.priorityClassName does not exist: create it, or name another one"))
		op.look(j)
		Expect(op.all()).NotTo(ContainElement(Or(HavePrefix("create Pod digits-1-2"), HavePrefix("create Pod digits-1-3"), HavePrefix("event Warning"))), "a pod of it was tried")
		Expect(j.get(ctx).Status.Workers.Target).To(HaveValue(BeEquivalentTo(2)))

		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: missing}, Value: -20, PreemptionPolicy: ptr.To(corev1.PreemptNever)}
		Expect(cluster.Create(ctx, class)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(cluster.Delete(ctx, class)).To(Succeed()) })
		Expect(j.grown(ctx).Spec.PriorityClassName).To(Equal(missing))
	})

	It("goes on without the workers that the API server fails to make", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		var heals atomic.Bool
		op.answer(func(_ context.Context, line string) error {
			if strings.HasPrefix(line, "create Pod digits-1-") && line > "create Pod digits-1-1" && !heals.Load() {
				return apierrors.NewInternalError(errors.New("a webhook is down"))
			}
			return nil
		})
		tries := func() (tries int) {
			for _, line := range op.all() {
				if strings.HasSuffix(line, ": InternalError") {
					tries++
				}
			}
			return tries
		}
		j := createJob(ctx, namespace, upTo(4, node))
		j.trainOn(ctx, op, node)
		Eventually(tries).Should(Equal(1))
		Consistently(tries, "300ms").Should(Equal(1), "it is tried in a loop")
		Eventually(op.all).Should(ContainElement(And(HavePrefix("event Warning GrowthWithdrawn:"), ContainSubstring("a webhook is down"))))
		for n, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			op.clock.advance(pause - time.Millisecond)
			op.look(j)
			Expect(tries()).To(Equal(n+1), "the pause was not kept")
			op.clock.advance(time.Millisecond)
			op.look(j)
			Eventually(tries).Should(Equal(n + 2))
		}
		// Meanwhile the job is looked after, and its status kept.
		Eventually(func() *int32 { return j.get(ctx).Status.Workers.Running }).Should(HaveValue(BeEquivalentTo(2)))
		Expect(j.update(ctx, func(object *v1alpha1.TrainingJob) { object.Spec.Workers.Max = ptr.To[int32](3) })).To(Succeed())
		Eventually(func() *int64 { return j.get(ctx).Status.ObservedGeneration }).Should(HaveValue(Equal(j.get(ctx).Generation)))
		heals.Store(true)
		op.clock.advance(8 * time.Second)
		op.look(j)
		j.grown(ctx)
		expectFreshNames(op.all())
	})

	It("fills up to min with a batch of its own, and counts the loss once", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(2, node))
		pods := j.trainOn(ctx, op, node)
		kubelet(ctx, pods[1], ended(137, "Killed"))
		lost := rendezvous.Loss{UID: string(pods[1].UID), Name: pods[1].Name, Message: "its session ended", Round: 1, At: time.Now()}
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) {
			seen.Phase, seen.Why, seen.Losses = rendezvous.PhaseRegrouping, "1 of 2 workers is left", []rendezvous.Loss{lost}
		})).To(Succeed())
		refill := j.grown(ctx)
		group := refillGroup(refill)
		Expect(j.groupNames(ctx)()).To(ConsistOf("digits-1", group))
		Expect(refill.Labels).To(HaveKeyWithValue("scheduling.x-k8s.io/pod-group", group))
		Expect(refill.Labels).NotTo(HaveKey(v1alpha1.LabelRole))
		Expect(plannedNode(refill)).To(Equal(node))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(Equal("False Regrouping: 1 of 2 workers is left"))

		bind(ctx, refill, node)
		kubelet(ctx, refill, runs)
		Eventually(op.all).Should(ContainElement(And(HavePrefix("expect attempt 1:"), ContainSubstring(refill.Name+"@"+node))))
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) {
			seen.Members[string(pods[1].UID)] = rendezvous.MemberObservation{Joined: true, WorkerRank: -1}
			seen.Losses = []rendezvous.Loss{lost}
		})).To(Succeed())
		Expect(op.worlds.goOn(j.key(), rendezvous.Change{Round: 2, From: 2, To: 2, Reason: rendezvous.ReasonWorkerLost, StepsLost: 4}, []*corev1.Pod{refill}, nil)).To(Succeed())
		Eventually(func() v1alpha1.RestartsStatus { return j.get(ctx).Status.Restarts }).Should(Equal(v1alpha1.RestartsStatus{Program: ptr.To[int32](1)}))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(HavePrefix("True WorldFormed: round 2: 2 workers"))
		Expect(j.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		Eventually(op.all).Should(ContainElement(And(HavePrefix("event Warning Recovered: round 2: 2 workers go on (WorkerLost), 4 steps"), ContainSubstring("exited with code 137"))))
	})

	It("lets go of all when too few are left for too long", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(2, node))
		pods := j.trainOn(ctx, op, node)
		Expect(cluster.Delete(ctx, pods[1], client.GracePeriodSeconds(0))).To(Succeed())
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) {
			seen.Phase, seen.Why = rendezvous.PhaseRegrouping, "1 of 2 workers is left"
			seen.Losses = []rendezvous.Loss{{UID: string(pods[1].UID), Name: pods[1].Name, Message: "its pod is gone", Round: 1, At: time.Now()}}
		})).To(Succeed())
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(HavePrefix("False Regrouping"))
		refill := j.grown(ctx)
		op.clock.advance(2 * time.Minute)
		j.touch(ctx)
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(And(HavePrefix("False BackOff"),
			ContainSubstring("its pod is gone; fewer than spec.workers.min (2) workers were left for spec.failure.regroupTimeout (2m0s)")))
		Eventually(op.all).Should(ContainElements("delete Pod digits-1-0", "delete Pod "+refill.Name, "delete PodGroup "+refillGroup(refill), "delete PodGroup digits-1"))
		Expect(j.get(ctx).Status.Restarts).To(Equal(v1alpha1.RestartsStatus{Infrastructure: ptr.To[int32](1)}))
		reap(ctx, namespace)
		op.clock.advance(time.Minute)
		j.touch(ctx)
		again := j.gangOf(ctx, 2)
		Eventually(j.podNames(ctx)).Should(ConsistOf(again[0].Name, again[1].Name))
		expectFreshNames(op.all())
	})

	It("is complete with a standby around", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(4, node))
		pods := j.trainOn(ctx, op, node)
		third := j.grown(ctx)
		bind(ctx, third, node)
		kubelet(ctx, third, runs)
		Eventually(op.all).Should(ContainElement(ContainSubstring(third.Name + "@" + node)))
		Expect(op.worlds.member(j.key(), third, func(member *rendezvous.MemberObservation) {
			*member = rendezvous.MemberObservation{Joined: true, Connected: true, Standby: true, WorkerRank: -1}
		})).To(Succeed())
		Eventually(func() *int32 { return j.get(ctx).Status.Workers.Standby }).Should(HaveValue(BeEquivalentTo(1)))
		for _, pod := range pods {
			kubelet(ctx, pod, ended(0, ""))
		}
		Eventually(j.condition(ctx, v1alpha1.ConditionComplete)).Should(Equal("True Completed: all 2 workers ended with exit code 0"))
		Eventually(op.all).Should(ContainElement("delete Pod " + third.Name))
	})

	It("leaves a node that is tainted, and replaces who leaves where there is room", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 3)
		other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other-" + namespace}}
		Expect(cluster.Create(ctx, other)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(client.IgnoreNotFound(cluster.Delete(ctx, other))).To(Succeed()) })
		op := startOperator(ctx, namespace, settings{drainTaints: []string{"example.com/going"}})
		j := createJob(ctx, namespace, upTo(2, node))
		pods := j.gangOf(ctx, 1)
		for i, name := range []string{node, other.Name} {
			bind(ctx, pods[i], name)
			kubelet(ctx, pods[i], runs)
		}
		Eventually(op.all).Should(ContainElement(HavePrefix("expect attempt 1:")))
		Expect(op.worlds.form(j.key(), 1)).To(Succeed())
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) { seen.Elastic, seen.Phase = true, rendezvous.PhaseTraining })).To(Succeed())
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(HavePrefix("True WorldFormed"))
		Expect(cluster.Get(ctx, client.ObjectKeyFromObject(other), other)).To(Succeed())
		other.Spec.Taints = []corev1.Taint{{Key: "example.com/going", Effect: corev1.TaintEffectNoSchedule}}
		Expect(cluster.Update(ctx, other)).To(Succeed())
		Eventually(op.all).Should(ContainElement(HavePrefix(fmt.Sprintf(
			"event Normal WorkerLeaving: worker digits-1-1 on node %s is to leave (NodeTainted): node %s is tainted example.com/going:NoSchedule", other.Name, other.Name))))
		// One is left, and min is two: what is missing comes as a batch.
		Eventually(j.groupNames(ctx)).Should(ContainElement(refillGroup(j.grown(ctx))))
		Expect(op.all()).NotTo(ContainElement(HavePrefix("delete Pod")))
	})
})
