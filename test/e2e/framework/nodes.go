package framework

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cordon closes a node to new pods, or opens it again, as kubectl does.
func (c *Cluster) Cordon(ctx context.Context, name string, closed bool) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed))
	if err := c.Patch(ctx, node, patch); err != nil {
		return fmt.Errorf("cordon node %s (%t): %w", name, closed, err)
	}
	return nil
}
