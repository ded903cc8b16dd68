package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// onDifferentNodes keeps workers of one job apart.
func onDifferentNodes(spec *corev1.PodSpec) {
	spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey:   corev1.LabelHostname,
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.LabelJob, Operator: metav1.LabelSelectorOpExists}}},
		}},
	}}
}

var _ = Describe("After the loss of one of two workers the other waits with its state, and goes on with a new one", func() {
	// MaxRestarts 0: a loss that counted against the program would end the job.
	start := func(ctx context.Context) *job {
		GinkgoHelper()
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", framework.Endless...).MaxRestarts(0).WithPod(onDifferentNodes))
		j.trains(ctx)
		// By then there is a snapshot of a later step than 0.
		reaches(ctx, j.rankZero(ctx), 60)
		return j
	}
	// goesOn waits for the world that follows the loss of a worker. The attempt is the same, and so are
	// the other pod and its program.
	goesOn := func(ctx context.Context, j *job, before []corev1.Pod, lost *corev1.Pod, infrastructure int, within time.Duration) int64 {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			members := uids(j.members(ctx))
			g.Expect(members).To(HaveLen(2))
			g.Expect(members).NotTo(ContainElement(lost.UID))
			g.Expect(j.get(ctx).Status.World.Round).To(HaveValue(BeNumerically(">", 1)))
		}, within).Should(Succeed())
		round := j.world(ctx, 1, 2)
		resize := j.resize(ctx, round)
		status := j.get(ctx).Status
		Expect(status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		Expect(status.World.FromStep).To(HaveValue(BeNumerically(">", 0)), "from the state that the other kept: %+v", resize)
		j.expectRestarts(ctx, 0, infrastructure)
		for i := range before {
			if before[i].UID == lost.UID {
				continue
			}
			other := &corev1.Pod{}
			Expect(cluster.Get(ctx, client.ObjectKeyFromObject(&before[i]), other)).To(Succeed())
			Expect(uids(j.members(ctx))).To(ContainElement(other.UID), "%s stays", other.Name)
			Expect(other.Status.ContainerStatuses[0].RestartCount).To(BeZero())
		}
		return round
	}

	It("when its pod is deleted by force", short, func(ctx context.Context) {
		j := start(ctx)
		pods := j.members(ctx)
		loseByForce(ctx, &pods[1])
		goesOn(ctx, j, pods, &pods[1], 1, time.Minute)
	})

	It("when its pod is evicted, without a lost step", short, func(ctx context.Context) {
		j := start(ctx)
		pods := j.members(ctx)
		evict(ctx, &pods[0])
		round := goesOn(ctx, j, pods, &pods[0], 0, time.Minute)
		Expect(j.resize(ctx, round).StepsLost).To(HaveValue(BeZero()))
	})

	// Only the local cluster can lose a node and get it back.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}
	// awayFromTheOperator picks a worker on whose node the operator does not run.
	awayFromTheOperator := func(ctx context.Context, pods []corev1.Pod) *corev1.Pod {
		GinkgoHelper()
		operator := operatorNode(ctx)
		for i := range pods {
			if pods[i].Spec.NodeName != operator {
				return &pods[i]
			}
		}
		Fail("all workers are beside the operator")
		return nil
	}
	leaves := func(ctx context.Context, verb string, infrastructure int, within time.Duration) {
		GinkgoHelper()
		j := start(ctx)
		pods := j.members(ctx)
		lost := awayFromTheOperator(ctx, pods)
		node := lost.Spec.NodeName
		DeferCleanup(comesBack, node)
		Expect(cluster.HackCluster(ctx, "node", verb, node)).To(Succeed())
		goesOn(ctx, j, pods, lost, infrastructure, within)
		for _, pod := range j.members(ctx) {
			Expect(pod.Spec.NodeName).NotTo(Equal(node))
		}
	}

	It("when its node is drained", Serial, long, func(ctx context.Context) {
		leaves(ctx, "drain", 0, 2*time.Minute)
	})

	It("when its node loses power", Serial, long, func(ctx context.Context) {
		leaves(ctx, "kill", 1, 5*time.Minute)
	})
})
