package integration

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// createNode makes a node that is ready, with so many thousandths of a CPU and plenty of the rest. Its label
// test is its name.
func createNode(ctx context.Context, name string, cpu int64) *corev1.Node {
	GinkgoHelper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": name}}}
	Expect(cluster.Create(ctx, node)).To(Succeed())
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	node.Status.Capacity = node.Status.Allocatable
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	Expect(cluster.Status().Update(ctx, node)).To(Succeed())
	// The node controller would take this away once the node is ready.
	Expect(cluster.Get(ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
	node.Spec.Taints = nil
	Expect(cluster.Update(ctx, node)).To(Succeed())
	return node
}

// bind gives a pod a node, as a scheduler does.
func bind(ctx context.Context, pod *corev1.Pod, node string) {
	GinkgoHelper()
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	Expect(cluster.SubResource("binding").Create(ctx, pod, binding)).To(Succeed())
}

// plannedNode is the node that a pod is for, and may go to only.
func plannedNode(pod *corev1.Pod) string {
	GinkgoHelper()
	Expect(pod.Spec.Affinity).NotTo(BeNil(), "%s has a choice of nodes", pod.Name)
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	Expect(terms).To(HaveLen(1))
	Expect(terms[0].MatchFields).To(HaveLen(1))
	Expect(terms[0].MatchFields[0].Key).To(Equal("metadata.name"))
	Expect(terms[0].MatchFields[0].Operator).To(Equal(corev1.NodeSelectorOpIn))
	Expect(terms[0].MatchFields[0].Values).To(HaveLen(1))
	return terms[0].MatchFields[0].Values[0]
}

// schedule gives a pod the node that it is for.
func schedule(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	bind(ctx, pod, plannedNode(pod))
}

// kubelet writes a pod's status, as the kubelet of its node does.
func kubelet(ctx context.Context, pod *corev1.Pod, change func(*corev1.PodStatus)) {
	GinkgoHelper()
	Expect(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := cluster.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		change(&pod.Status)
		return cluster.Status().Update(ctx, pod)
	})).To(Succeed())
}

// runs is a pod whose training container runs.
func runs(status *corev1.PodStatus) {
	status.Phase, status.PodIP, status.PodIPs = corev1.PodRunning, "10.0.0.1", []corev1.PodIP{{IP: "10.0.0.1"}}
	container(status).State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

// ended is a pod whose training container has ended, long enough ago to be sure of the cause.
func ended(code int32, lastLines string) func(*corev1.PodStatus) {
	return func(status *corev1.PodStatus) {
		status.Phase = corev1.PodSucceeded
		reason := "Completed"
		if code != 0 {
			status.Phase, reason = corev1.PodFailed, "Error"
		}
		container(status).State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, Reason: reason, Message: lastLines, FinishedAt: metav1.NewTime(time.Now().Add(-5 * time.Second)),
		}}
	}
}

// waits is a pod whose training container cannot start.
func waits(reason, message string) func(*corev1.PodStatus) {
	return func(status *corev1.PodStatus) {
		container(status).State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
}

func container(status *corev1.PodStatus) *corev1.ContainerStatus {
	if len(status.ContainerStatuses) == 0 {
		status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "digits"}}
	}
	return &status.ContainerStatuses[0]
}

// reap lets the pods go that are being deleted, as kubelets do once the containers have ended.
func reap(ctx context.Context, namespace string) {
	GinkgoHelper()
	for _, pod := range podsIn(ctx, namespace) {
		if pod.DeletionTimestamp != nil {
			if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
				kubelet(ctx, &pod, ended(143, "")) // a kubelet says so before it lets the pod go
			}
			options := &client.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &pod.UID}}
			Expect(client.IgnoreNotFound(cluster.Delete(ctx, &pod, options))).To(Succeed())
		}
	}
}

func podsIn(ctx context.Context, namespace string) []corev1.Pod {
	GinkgoHelper()
	var pods corev1.PodList
	Expect(cluster.List(ctx, &pods, client.InNamespace(namespace))).To(Succeed())
	return pods.Items
}
