package e2e

import (
	"context"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/hack/containers"
)

// pick is one of them, at random.
func pick(pods []corev1.Pod) *corev1.Pod {
	GinkgoHelper()
	Expect(pods).NotTo(BeEmpty())
	return &pods[random.IntN(len(pods))]
}

// killProgram ends the training program of a worker as a crash does.
func killProgram(pod *corev1.Pod) {
	GinkgoHelper()
	programs, err := containers.Children(pod, "trainer")
	Expect(err).NotTo(HaveOccurred())
	Expect(programs).NotTo(BeEmpty(), "%s runs no program", pod.Name)
	Expect(containers.Signal(programs, syscall.SIGKILL)).To(Succeed())
}

// signalAll sends a signal to the agent of a worker and to all that it has started.
func signalAll(pod *corev1.Pod, signal syscall.Signal) {
	GinkgoHelper()
	processes, err := containers.Processes(pod, "trainer")
	Expect(err).NotTo(HaveOccurred())
	Expect(containers.Signal(processes, signal)).To(Succeed())
}

// forceDelete takes a pod out of the API, without grace. Its kubelet still gives it a second: where its agent's word is the
// first that the operator hears of it, it leaves its world as planned; where the pod's deletion is, it is lost.
func forceDelete(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	Expect(client.IgnoreNotFound(cluster.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
}

// loseByForce takes a pod out of the API whose processes stand still by then, so that they cannot leave their world, and end
// with it.
func loseByForce(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	processes, err := containers.Processes(pod, "trainer")
	Expect(err).NotTo(HaveOccurred())
	Expect(containers.Signal(processes, syscall.SIGSTOP)).To(Succeed())
	forceDelete(ctx, pod)
	Expect(containers.Signal(processes, syscall.SIGKILL)).To(Succeed())
}

func evict(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	eviction := &policyv1.Eviction{}
	eviction.Namespace, eviction.Name = pod.Namespace, pod.Name
	Expect(client.IgnoreNotFound(cluster.Clientset.CoreV1().Pods(pod.Namespace).EvictV1(ctx, eviction))).To(Succeed())
}

// operatorNode is where the operator runs.
func operatorNode(ctx context.Context) string {
	GinkgoHelper()
	var operators []corev1.Pod
	Eventually(func(g Gomega) {
		var err error
		operators, err = cluster.OperatorPods(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(operators).NotTo(BeEmpty())
	}).Should(Succeed())
	return operators[0].Spec.NodeName
}

// comesBack adds a node again that was killed or drained, and waits until it takes pods.
func comesBack(ctx context.Context, node string) {
	GinkgoHelper()
	Expect(cluster.HackCluster(ctx, "node", "add", node)).To(Succeed())
	isReady(ctx, node)
}

// rejoins lets a node that was cut off back onto the network, and waits until it takes pods.
func rejoins(ctx context.Context, node string) {
	GinkgoHelper()
	Expect(cluster.HackCluster(ctx, "node", "join", node)).To(Succeed())
	isReady(ctx, node)
}

func isReady(ctx context.Context, node string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		nodes, err := cluster.ReadyNodes(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		var names []string
		for _, ready := range nodes {
			names = append(names, ready.Name)
		}
		g.Expect(names).To(ContainElement(node))
	}).Should(Succeed())
}
