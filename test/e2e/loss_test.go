package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
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

var _ = Describe("The loss of a worker starts the whole gang over, and the program is not blamed", func() {
	// MaxRestarts 0: a loss that counted against the program would end the job.
	start := func(ctx context.Context) *job {
		GinkgoHelper()
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", framework.Endless...).MaxRestarts(0).WithPod(onDifferentNodes))
		j.trains(ctx)
		return j
	}
	startsOver := func(ctx context.Context, j *job, within time.Duration) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			status := j.get(ctx).Status
			g.Expect(status.Attempt).To(HaveValue(BeNumerically(">=", 2)))
			g.Expect(status.World.Attempt).To(Equal(status.Attempt))
		}, within).Should(Succeed())
		j.trains(ctx)
		j.expectRestarts(ctx, 0, 1)
		for _, pod := range j.pods(ctx, 1) {
			Expect(framework.Ended(&pod) || pod.DeletionTimestamp != nil).To(BeTrue(), "%s of the old gang still runs", pod.Name)
		}
	}

	It("when its pod is deleted by force", short, func(ctx context.Context) {
		j := start(ctx)
		Expect(cluster.Delete(ctx, &j.pods(ctx, 1)[1], client.GracePeriodSeconds(0))).To(Succeed())
		startsOver(ctx, j, time.Minute)
	})

	It("when its pod is evicted", short, func(ctx context.Context) {
		j := start(ctx)
		pod := j.pods(ctx, 1)[0]
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		Expect(cluster.Clientset.CoreV1().Pods(pod.Namespace).EvictV1(ctx, eviction)).To(Succeed())
		startsOver(ctx, j, time.Minute)
	})

	// Only the local cluster can lose a node and get it back.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}
	comesBack := func(ctx context.Context, node string) {
		GinkgoHelper()
		Expect(cluster.HackCluster(ctx, "node", "add", node)).To(Succeed())
		Eventually(func() []string {
			nodes, err := cluster.ReadyNodes(ctx)
			Expect(err).NotTo(HaveOccurred())
			var names []string
			for _, ready := range nodes {
				names = append(names, ready.Name)
			}
			return names
		}).Should(ContainElement(node))
	}
	// nodeOf picks the node of a worker on which the operator does not run.
	nodeOf := func(ctx context.Context, j *job) string {
		GinkgoHelper()
		operators, err := cluster.OperatorPods(ctx)
		Expect(err).NotTo(HaveOccurred())
		var pods []corev1.Pod
		for _, pod := range j.pods(ctx, 1) {
			if pod.Spec.NodeName != operators[0].Spec.NodeName {
				pods = append(pods, pod)
			}
		}
		Expect(pods).NotTo(BeEmpty(), "all workers are beside the operator")
		return pods[0].Spec.NodeName
	}

	It("when its node is drained", Serial, long, func(ctx context.Context) {
		j := start(ctx)
		node := nodeOf(ctx, j)
		DeferCleanup(comesBack, node)
		Expect(cluster.HackCluster(ctx, "node", "drain", node)).To(Succeed())
		startsOver(ctx, j, 2*time.Minute)
		for _, pod := range j.pods(ctx, 2) {
			Expect(pod.Spec.NodeName).NotTo(Equal(node))
		}
	})

	It("when its node loses power", Serial, long, func(ctx context.Context) {
		j := start(ctx)
		node := nodeOf(ctx, j)
		DeferCleanup(comesBack, node)
		Expect(cluster.HackCluster(ctx, "node", "kill", node)).To(Succeed())
		startsOver(ctx, j, 5*time.Minute)
		for _, pod := range j.pods(ctx, 2) {
			Expect(pod.Spec.NodeName).NotTo(Equal(node))
		}
	})
})
