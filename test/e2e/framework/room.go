package framework

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DevicesOfANode is how many devices the largest node has.
func (c *Cluster) DevicesOfANode(ctx context.Context) (resource.Quantity, error) {
	nodes, err := c.ReadyNodes(ctx)
	var most resource.Quantity
	for _, node := range nodes {
		if all := node.Status.Allocatable[GPU]; all.Cmp(most) > 0 {
			most = all
		}
	}
	return most, err
}

// LeaveRoom fills the cluster up with pods in the namespace until only so many devices are free, on
// as many nodes as there are, and returns those pods. What other pods hold is not free.
func (c *Cluster) LeaveRoom(ctx context.Context, namespace string, devices int64) ([]*corev1.Pod, error) {
	free, err := c.freeDevices(ctx)
	if err != nil {
		return nil, err
	}
	keep := spread(free, devices)
	var fillers []*corev1.Pod
	for _, node := range slices.Sorted(maps.Keys(free)) {
		devices -= keep[node]
		if free[node] == keep[node] {
			continue
		}
		filler := fillerPod(namespace, node, free[node]-keep[node])
		if err := c.Create(ctx, filler); err != nil {
			return fillers, fmt.Errorf("fill up node %s: %w", node, err)
		}
		fillers = append(fillers, filler)
	}
	if devices > 0 {
		return fillers, fmt.Errorf("the cluster has %d free %s too few", devices, GPU)
	}
	return fillers, nil
}

// spread deals devices out to nodes, one at a time in turn, as far as they have any.
func spread(free map[string]int64, devices int64) map[string]int64 {
	keep := map[string]int64{}
	for dealt := true; dealt && devices > 0; {
		dealt = false
		for _, node := range slices.Sorted(maps.Keys(free)) {
			if devices > 0 && keep[node] < free[node] {
				keep[node]++
				devices--
				dealt = true
			}
		}
	}
	return keep
}

// FreeDevices is how many devices of all nodes no pod holds.
func (c *Cluster) FreeDevices(ctx context.Context) (int64, error) {
	free, err := c.freeDevices(ctx)
	var sum int64
	for _, devices := range free {
		sum += devices
	}
	return sum, err
}

// freeDevices is how many devices of each node no pod holds.
func (c *Cluster) freeDevices(ctx context.Context) (map[string]int64, error) {
	nodes, err := c.ReadyNodes(ctx)
	if err != nil {
		return nil, err
	}
	free := map[string]int64{}
	for _, node := range nodes {
		quantity := node.Status.Allocatable[GPU]
		free[node.Name] = quantity.Value()
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if _, known := free[pod.Spec.NodeName]; !known || Ended(pod) {
			continue
		}
		for _, container := range pod.Spec.Containers {
			quantity := container.Resources.Requests[GPU]
			free[pod.Spec.NodeName] -= quantity.Value()
		}
	}
	return free, nil
}

func fillerPod(namespace, node string, devices int64) *corev1.Pod {
	quantity := corev1.ResourceList{GPU: *resource.NewQuantity(devices, resource.DecimalSI)}
	job := NewJob("filler", "--epochs=1", "--step-time=1h")
	spec := job.object.Spec.Workers.Template.Spec
	spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: quantity, Limits: quantity}
	spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	spec.RestartPolicy = corev1.RestartPolicyNever
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "filler-"},
		Spec:       spec,
	}
}
