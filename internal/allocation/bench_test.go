package allocation

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkRoom: a large cluster, a tenth of it free, with pods that wait.
func BenchmarkRoom(b *testing.B) {
	var cluster Cluster
	for i := range 5000 {
		node := nodeOf(fmt.Sprintf("n%d", i))
		cluster.Nodes = append(cluster.Nodes, node)
		for j := range 4 {
			if i%10 != 0 {
				cluster.Pods = append(cluster.Pods, podOf(fmt.Sprintf("p%d-%d", i, j), "2", on(node.Name)))
			}
		}
	}
	for i := range 200 {
		cluster.Pods = append(cluster.Pods, podOf(fmt.Sprintf("w%d", i), "4", labelled("web")))
	}
	for name, shape := range map[string]*corev1.Pod{
		"plain": podOf("s", "2"), "apart": podOf("s", "2", apartFrom("train", corev1.LabelHostname)), "spread": podOf("s", "2", spreadOver(corev1.LabelHostname, 1)),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Room(cluster, Wanted{Shape: shape, Limit: 64})
			}
		})
	}
}
