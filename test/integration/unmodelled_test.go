package integration

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// spread has only the scheduler know where the workers of a job fit.
func spread(object *v1alpha1.TrainingJob) {
	object.Spec.Workers.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 4, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelJob: object.Name}},
	}}
}

var _ = Describe("A template of which only the scheduler knows where its pods fit", func() {
	const why = "; the template has a topology spread constraint (DoNotSchedule), and only the scheduler knows where such a pod fits: " +
		"its gang is one attempt, all pods or none, and more workers are tried one at a time"

	It("has its gang made at once without places, grows one by one, and says why", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		node := elasticNode(ctx, namespace, 4)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, upTo(4, node), spread)
		pods := j.gangOf(ctx, 1)
		for _, pod := range pods {
			Expect(pod.Spec.Affinity).To(BeNil(), "%s is for one node", pod.Name)
		}
		Expect(j.groupNames(ctx)()).To(ConsistOf("digits-1"))
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(And(HavePrefix("False WaitingForRoom: "), HaveSuffix(why)))
		for _, pod := range pods {
			bind(ctx, pod, node)
			kubelet(ctx, pod, runs)
		}
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(Equal("True Scheduled: all 2 workers have a node" + why))
		Eventually(func() error { return op.worlds.form(j.key(), 1) }).Should(Succeed())
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) {
			seen.Elastic, seen.Phase = true, rendezvous.PhaseTraining
		})).To(Succeed())

		third := j.grown(ctx)
		Expect(third.Labels).To(HaveKeyWithValue(v1alpha1.LabelRole, v1alpha1.RoleGrowth))
		Expect(third.Spec.Affinity).To(BeNil())
		op.look(j)
		Consistently(j.podNames(ctx), "300ms").Should(HaveLen(3), "there may be room for a fourth, which is tried when this one has a node")
		Expect(j.condition(ctx, v1alpha1.ConditionFullSize)()).To(And(HavePrefix("False "), ContainSubstring("the template has a topology spread constraint")))

		kubelet(ctx, third, func(status *corev1.PodStatus) {
			status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node fits"}}
		})
		op.hasSeen(ctx, third)
		op.clock.advance(31 * time.Second)
		j.touch(ctx)
		Eventually(op.all).Should(ContainElement(HavePrefix("event Warning GrowthWithdrawn: " + third.Name + " has no node after")))
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-1-0", "digits-1-1"))
		Eventually(j.condition(ctx, v1alpha1.ConditionFullSize)).Should(And(HavePrefix("False GrowthBackOff: "), HaveSuffix(why)))
		op.clock.advance(31 * time.Second)
		j.touch(ctx)
		j.grown(ctx, third)
	})
})
