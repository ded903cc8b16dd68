package framework

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const (
	// maxPods and maxLines bound what is dumped of one namespace.
	maxPods  = 16
	maxLines = 60
)

// Dump writes what there is to see of a namespace after a failure: its objects, its events, the last
// lines of its pods, and those of the operator.
func (c *Cluster) Dump(ctx context.Context, out io.Writer, namespace string) {
	for _, kind := range []string{
		"training.concertina.dev/v1alpha1 TrainingJob", "scheduling.x-k8s.io/v1alpha1 PodGroup",
		"v1 Pod", "v1 ResourceQuota",
	} {
		c.dumpObjects(ctx, out, namespace, kind)
	}
	c.dumpEvents(ctx, out, namespace)
	c.dumpLogs(ctx, out, namespace, client.InNamespace(namespace))
	c.dumpLogs(ctx, out, OperatorNamespace, operatorLabels)
}

func (c *Cluster) dumpObjects(ctx context.Context, out io.Writer, namespace, kind string) {
	version, kind, _ := strings.Cut(kind, " ")
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": version, "kind": kind + "List"}}
	if err := c.List(ctx, list, client.InNamespace(namespace), client.Limit(maxPods)); err != nil {
		_, _ = fmt.Fprintf(out, "--- %s: %v\n", kind, err)
		return
	}
	for i := range list.Items {
		object := list.Items[i].Object
		unstructured.RemoveNestedField(object, "metadata", "managedFields")
		if kind == "Pod" {
			// What a pod is made of follows from its job; how it fares does not.
			object = map[string]any{"metadata": object["metadata"], "status": object["status"]}
		}
		text, err := yaml.Marshal(object)
		if err != nil {
			text = []byte(err.Error())
		}
		_, _ = fmt.Fprintf(out, "--- %s %s/%s\n%s", kind, namespace, list.Items[i].GetName(), text)
	}
}

func (c *Cluster) dumpEvents(ctx context.Context, out io.Writer, namespace string) {
	var list eventsv1.EventList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		_, _ = fmt.Fprintf(out, "--- events: %v\n", err)
		return
	}
	slices.SortStableFunc(list.Items, func(a, b eventsv1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	_, _ = fmt.Fprintf(out, "--- events of namespace %s\n", namespace)
	for i := range list.Items {
		event := &list.Items[i]
		_, _ = fmt.Fprintf(out, "%s %s %s %s/%s: %s\n", event.CreationTimestamp.Format("15:04:05"), event.Type, event.Reason,
			event.Regarding.Kind, event.Regarding.Name, event.Note)
	}
}

func (c *Cluster) dumpLogs(ctx context.Context, out io.Writer, namespace string, which client.ListOption) {
	var list corev1.PodList
	if err := c.List(ctx, &list, client.InNamespace(namespace), which, client.Limit(maxPods)); err != nil {
		_, _ = fmt.Fprintf(out, "--- pods: %v\n", err)
		return
	}
	for i := range list.Items {
		pod := &list.Items[i]
		for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			for _, previous := range []bool{true, false} {
				options := &corev1.PodLogOptions{Container: container.Name, Previous: previous, TailLines: ptr.To[int64](maxLines)}
				text, err := c.Clientset.CoreV1().Pods(namespace).GetLogs(pod.Name, options).DoRaw(ctx)
				if err != nil {
					continue
				}
				_, _ = fmt.Fprintf(out, "--- log of %s/%s %s (previous: %v)\n%s", namespace, pod.Name, container.Name, previous, text)
			}
		}
	}
}
