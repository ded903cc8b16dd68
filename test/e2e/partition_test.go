package e2e

import (
	"context"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// A whole node is cut off here, so nothing else may run meanwhile.
var _ = Describe("A node that is cut off", Serial, func() {
	// Only hack/cluster can cut a node off.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}

	It("from everybody is left behind, and its workers are in the world again when it is back, or have gone", short, func(ctx context.Context) {
		e := startElastic(ctx, 2, 5, "--epochs=100")
		before := e.whole(ctx, 5)
		node := e.spareNode(ctx)
		stale := e.on(ctx, node)
		cut(ctx, node)
		left := e.world(ctx, before, int32(5-len(stale)))
		rejoins(ctx, node)
		// Their agents stay, and start the programs anew where others do not have their places already.
		e.world(ctx, left, 5)
		Eventually(func() []types.UID {
			members := uids(e.members(ctx))
			return slices.DeleteFunc(uids(e.pods(ctx, 0)), func(uid types.UID) bool {
				return !slices.Contains(uids(stale), uid) || slices.Contains(members, uid)
			})
		}).Should(BeEmpty(), "workers of the old world")
		e.completes(ctx, 3*time.Minute)
		e.expectRestarts(ctx, 0, 1)
		e.expectEachSampleOnce(ctx)
	})

	It("from the operator alone trains on", short, func(ctx context.Context) {
		e := startElastic(ctx, 2, 5, "--epochs=60")
		before := e.whole(ctx, 5)
		node := e.spareNode(ctx)
		cut(ctx, node, operatorIPs(ctx)...)
		e.trainsOn(ctx, 15*time.Second)
		Expect(*e.get(ctx).Status.World.Round).To(Equal(before))
		for _, pod := range e.on(ctx, node) {
			Eventually(e.events(ctx, v1alpha1.EventWorkerUnheard)).Should(ContainElement(ContainSubstring(pod.Name)))
		}
		rejoins(ctx, node)
		e.completes(ctx, 3*time.Minute)
		e.expectRestarts(ctx, 0, 0)
		e.expectEachSampleOnce(ctx)
	})

	It("from its peers alone makes workers give up, and others come, until all reach each other", long, func(ctx context.Context) {
		e := launchElastic(ctx, 2, 3, func(spec *v1alpha1.TrainingJobSpec) {
			spec.Failure.HangTimeout = &metav1.Duration{Duration: 10 * time.Second}
			onDifferentNodes(&spec.Workers.Template.Spec)
		}, "--epochs=100")
		e.trains(ctx)
		e.whole(ctx, 3)
		node := e.spareNode(ctx)
		var peers []string
		for _, pod := range e.members(ctx) {
			if pod.Spec.NodeName != node {
				peers = append(peers, pod.Status.PodIP)
			}
		}
		cut(ctx, node, peers...)
		// Whoever came to that node next would be cut off too.
		DeferCleanup(cluster.Cordon, node, false)
		Expect(cluster.Cordon(ctx, node, true)).To(Succeed())
		// All agents are heard and all programs live, so all are tried once more. Then it is the programs'
		// patience that ends, of one after the other.
		Eventually(func() []string { return e.sizes(ctx) }, "3m").Should(ContainElements("3 to 3: Hung", "3 to 2: ProgramFailed"))
		e.completes(ctx, 5*time.Minute)
		gaveUp := slices.DeleteFunc(e.sizes(ctx), func(change string) bool { return !strings.HasSuffix(change, ": ProgramFailed") })
		e.expectRestarts(ctx, len(gaveUp), 0)
		e.expectEachSampleOnce(ctx)
	})
})

// cut takes a node off the network until the spec ends: from those addresses, or from everybody.
func cut(ctx context.Context, node string, from ...string) {
	GinkgoHelper()
	arguments := []string{"node", "cut", node}
	if len(from) > 0 {
		arguments = append(arguments, "--from", strings.Join(from, ","))
	}
	DeferCleanup(rejoins, node)
	Expect(cluster.HackCluster(ctx, arguments...)).To(Succeed())
}

// whole waits for a world of so many workers, none of which is about to go.
func (e *elasticJob) whole(ctx context.Context, workers int32) int64 {
	GinkgoHelper()
	round := e.world(ctx, 0, workers)
	Eventually(e.members).WithContext(ctx).Should(HaveLen(int(workers)))
	return round
}

// spareNode is a node with workers, but not all, and without the operator.
func (e *elasticJob) spareNode(ctx context.Context) string {
	GinkgoHelper()
	operator, members := operatorNode(ctx), e.members(ctx)
	elsewhere := slices.DeleteFunc(slices.Clone(members), func(pod corev1.Pod) bool { return pod.Spec.NodeName == operator })
	node := pick(elsewhere).Spec.NodeName
	Expect(len(e.on(ctx, node))).To(BeNumerically("<", len(members)))
	return node
}

// on are the members on a node.
func (e *elasticJob) on(ctx context.Context, node string) []corev1.Pod {
	return slices.DeleteFunc(e.members(ctx), func(pod corev1.Pod) bool { return pod.Spec.NodeName != node })
}

func operatorIPs(ctx context.Context) []string {
	GinkgoHelper()
	pods, err := cluster.OperatorPods(ctx)
	Expect(err).NotTo(HaveOccurred())
	var ips []string
	for _, pod := range pods {
		ips = append(ips, pod.Status.PodIP)
	}
	return ips
}

// trainsOn checks that steps are made, and goes on for a time.
func (e *elasticJob) trainsOn(ctx context.Context, long time.Duration) {
	GinkgoHelper()
	began, last := time.Now(), e.step()
	for time.Since(began) < long {
		Eventually(e.step, "5s").WithContext(ctx).Should(BeNumerically(">", last))
		last = e.step()
	}
}
