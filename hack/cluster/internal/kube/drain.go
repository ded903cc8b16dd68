package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Cordon sets whether the node is closed to new pods.
func (c Client) Cordon(ctx context.Context, name string, closed bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed)
	_, err := c.typed.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cordon node %s: %w", name, err)
	}
	return nil
}

// Drain closes the node to new pods and evicts those that it has, as often as
// disruption budgets refuse, until all are gone or the time is over.
func (c Client) Drain(ctx context.Context, name string, within time.Duration) error {
	if err := c.Cordon(ctx, name, true); err != nil {
		return err
	}
	var left []string
	err := wait.PollUntilContextTimeout(ctx, time.Second, within, true, func(ctx context.Context) (bool, error) {
		pods, err := c.evictable(ctx, name)
		if err != nil {
			return false, err
		}
		left = nil
		for i := range pods {
			pod := &pods[i]
			left = append(left, pod.Namespace+"/"+pod.Name)
			if pod.DeletionTimestamp != nil {
				continue
			}
			if err := c.evict(ctx, pod); err != nil {
				return false, err
			}
		}
		return len(left) == 0, nil
	})
	if wait.Interrupted(err) && len(left) > 0 {
		return fmt.Errorf("drain node %s: after %s it still has %s", name, within, strings.Join(left, ", "))
	}
	if err != nil {
		return fmt.Errorf("drain node %s: %w", name, err)
	}
	return nil
}

// evictable lists the node's pods but for those of daemon sets and static ones,
// which would be back at once.
func (c Client) evictable(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := c.typed.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var pods []corev1.Pod
	for _, pod := range list.Items {
		owner := metav1.GetControllerOf(&pod)
		_, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
		if static || (owner != nil && owner.Kind == "DaemonSet") {
			continue
		}
		pods = append(pods, pod)
	}
	return pods, nil
}

// evict asks for one eviction. A refusal by a disruption budget is no error.
func (c Client) evict(ctx context.Context, pod *corev1.Pod) error {
	err := c.typed.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
	})
	if err != nil && !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
