package scale

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// device is the resource that jobs compete for, devicesPerNode how many of them a node has.
	device         = "example.com/gpu"
	devicesPerNode = 8
	// loaders is how many requests the bench makes at a time.
	loaders = 64
)

// each calls do for 0 to count-1, many at a time.
func each(ctx context.Context, count int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(loaders)
	for i := range count {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// nodes creates so many nodes, which are ready and stay so: nobody watches over them.
func (s *server) nodes(ctx context.Context, count int) error {
	return each(ctx, count, func(ctx context.Context, i int) error {
		if _, err := s.core.CoreV1().Nodes().Create(ctx, node(i), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create node %d: %w", i, err)
		}
		return nil
	})
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func node(i int) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"),
		corev1.ResourcePods: resource.MustParse("110"), device: *resource.NewQuantity(devicesPerNode, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname: nodeName(i), corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
			corev1.LabelInstanceTypeStable: "gpu-8", corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			// As kubelets of the API server's own version say it; the operator asks which nodes mount images.
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.37.1", ContainerRuntimeVersion: "containerd://2.2.1"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
}

// others creates so many pods that belong to no job, spread over the nodes; they want no device.
func (s *server) others(ctx context.Context, namespace string, count, nodes int) error {
	return each(ctx, count, func(ctx context.Context, i int) error {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("other-%05d", i), Labels: map[string]string{"app": "other"}},
			Spec:       corev1.PodSpec{NodeName: nodeName(i % nodes), Containers: []corev1.Container{plainContainer("main", 0)}},
		}
		if _, err := s.core.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
		return nil
	})
}

// plainContainer is the container of every pod here; nothing runs in it.
func plainContainer(name string, devices int64) corev1.Container {
	c := corev1.Container{
		Name: name, Image: "localhost/none:1", Command: []string{"/program"},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		}},
	}
	if devices > 0 {
		quantity := *resource.NewQuantity(devices, resource.DecimalSI)
		c.Resources.Requests[device] = quantity
		c.Resources.Limits = corev1.ResourceList{device: quantity}
	}
	return c
}
