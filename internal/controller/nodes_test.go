package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestOneReadingOfTolerations: whom the scheduler lets onto a node its taints do not ask to leave.
func TestOneReadingOfTolerations(t *testing.T) {
	for name, c := range map[string]struct {
		toleration corev1.Toleration
		leaves     bool
	}{
		"equal":             {corev1.Toleration{Key: "sla", Value: "95", Effect: corev1.TaintEffectNoExecute}, false},
		"another value":     {corev1.Toleration{Key: "sla", Value: "90"}, true},
		"exists":            {corev1.Toleration{Operator: corev1.TolerationOpExists}, false},
		"of another effect": {corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, true},
		"more than":         {corev1.Toleration{Key: "sla", Operator: corev1.TolerationOpGt, Value: "90"}, false},
		"not more than":     {corev1.Toleration{Key: "sla", Operator: corev1.TolerationOpGt, Value: "99"}, true},
		"less than":         {corev1.Toleration{Key: "sla", Operator: corev1.TolerationOpLt, Value: "99"}, false},
		"not less than":     {corev1.Toleration{Key: "sla", Operator: corev1.TolerationOpLt, Value: "95"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "sla", Value: "95", Effect: corev1.TaintEffectNoExecute}}}}
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Tolerations: []corev1.Toleration{c.toleration}}}
			if got := (Nodes{ByName: map[string]*corev1.Node{"n": node}}).drains(pod, nil); (got != "") != c.leaves {
				t.Errorf("the taint that has it leave: %q", got)
			}
		})
	}
}
