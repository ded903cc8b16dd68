// Package kube does what the cluster's tool needs of the API server.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
)

// Device is the resource that the nodes' pretended devices are counted as.
const Device corev1.ResourceName = "example.com/gpu"

// poll is how often a condition is looked at, patience how long.
const (
	poll     = 100 * time.Millisecond
	patience = 2 * time.Minute
)

// Client talks to the cluster as its administrator.
type Client struct {
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

// Connect returns a client for a kubeconfig. It does not contact the server.
func Connect(kubeconfig string) (Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return Client{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 100, 200
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Client{}, fmt.Errorf("connect to the API server: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return Client{}, fmt.Errorf("connect to the API server: %w", err)
	}
	return Client{typed: typed, dynamic: dyn}, nil
}

// ErrEnded says that the process which was waited for has ended.
var ErrEnded = errors.New("its process has ended")

// until polls a condition; alive guards against waiting for the dead.
func until(ctx context.Context, alive func() bool, done func(context.Context) bool) error {
	return wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		if !alive() {
			return false, ErrEnded
		}
		return done(ctx), nil
	})
}

// WaitForServer waits until the API server says that it is ready.
func (c Client) WaitForServer(ctx context.Context, alive func() bool) error {
	err := until(ctx, alive, func(ctx context.Context) bool { return c.Ready(ctx) == nil })
	if err != nil {
		return fmt.Errorf("the API server does not become ready: %w", err)
	}
	return nil
}

// Ready says why the API server is not ready, nil when it is.
func (c Client) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.typed.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// WaitForAccounts waits until pods can be created in the namespace default.
func (c Client) WaitForAccounts(ctx context.Context, alive func() bool) error {
	err := until(ctx, alive, func(ctx context.Context) bool {
		_, err := c.typed.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("the controller manager does not make service accounts: %w", err)
	}
	return nil
}

// WaitForDNS waits until the cluster's names resolve through the DNS service.
func (c Client) WaitForDNS(ctx context.Context, alive func() bool) error {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, proto, _ string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: time.Second}
		return dialer.DialContext(ctx, proto, net.JoinHostPort(network.DNSIP.String(), "53"))
	}}
	err := until(ctx, alive, func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+network.ClusterDomain+".")
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("the cluster's DNS service does not answer: %w", err)
	}
	return nil
}

// WaitForNode waits until the node has reported itself ready at or after the
// given instant: an older report may be that of a kubelet which is dead.
func (c Client) WaitForNode(ctx context.Context, name string, since time.Time, alive func() bool) error {
	since = since.Truncate(time.Second) // the report has no finer time
	err := until(ctx, alive, func(ctx context.Context) bool {
		node, err := c.typed.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		ready := readiness(node)
		return ready != nil && ready.Status == corev1.ConditionTrue && !ready.LastHeartbeatTime.Time.Before(since)
	})
	if err != nil {
		return fmt.Errorf("node %s does not become ready: %w", name, err)
	}
	return nil
}

func readiness(node *corev1.Node) *corev1.NodeCondition {
	for i, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// SetDevices gives the node its pretended devices. The kubelet leaves resources
// alone that it does not know, and copies none from capacity to allocatable.
func (c Client) SetDevices(ctx context.Context, name string, count int) error {
	devices := corev1.ResourceList{Device: *resource.NewQuantity(int64(count), resource.DecimalSI)}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": devices, "allocatable": devices}})
	if err != nil {
		return fmt.Errorf("give node %s its devices: %w", name, err)
	}
	_, err = c.typed.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("give node %s its devices: %w", name, err)
	}
	return nil
}

// DeleteNode removes the node's object; that it is gone already is no error.
func (c Client) DeleteNode(ctx context.Context, name string) error {
	err := c.typed.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	return nil
}

// NodeStatus is what the API server says about a node.
type NodeStatus struct {
	// Ready is True, False or Unknown.
	Ready string
	// Cordoned nodes take no new pods.
	Cordoned bool
	// Devices are all pretended devices, Pods the pods that have not finished.
	Devices, Pods int
}

// Nodes returns what the API server says about the nodes, by name.
func (c Client) Nodes(ctx context.Context) (map[string]NodeStatus, error) {
	nodes, err := c.typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := c.typed.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	all := map[string]NodeStatus{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		status := NodeStatus{Ready: string(corev1.ConditionUnknown), Cordoned: n.Spec.Unschedulable}
		if ready := readiness(n); ready != nil {
			status.Ready = string(ready.Status)
		}
		devices := n.Status.Allocatable[Device]
		status.Devices = int(devices.Value())
		all[n.Name] = status
	}
	for _, pod := range pods.Items {
		status, known := all[pod.Spec.NodeName]
		if known && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			status.Pods++
			all[pod.Spec.NodeName] = status
		}
	}
	return all, nil
}
