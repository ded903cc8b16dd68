package controller

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// A job is looked at for each thing of its pods that a decision reads, and for no other.
func TestAJobIsLookedAtForWhatDecisionsReadOfItsPods(t *testing.T) {
	later := metav1.NewTime(start.Add(time.Hour))
	condition := func(conditionType corev1.PodConditionType) podChange {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append([]corev1.PodCondition{{Type: conditionType, Status: corev1.ConditionTrue, Reason: "other"}}, p.Status.Conditions...)
		}
	}
	status := func(change func(*corev1.ContainerStatus)) podChange {
		return func(p *corev1.Pod) { change(&p.Status.ContainerStatuses[0]) }
	}
	annotation := func(key string) podChange { return func(p *corev1.Pod) { p.Annotations[key] = "other" } }
	label := func(key string) podChange { return func(p *corev1.Pod) { p.Labels[key] = "other" } }
	read := map[string]podChange{
		"uid":               func(p *corev1.Pod) { p.UID = "other" },
		"owner":             func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" },
		"created":           func(p *corev1.Pod) { p.CreationTimestamp = later },
		"deleted":           func(p *corev1.Pod) { p.DeletionTimestamp = &later },
		"no more deleted":   func(p *corev1.Pod) { p.DeletionTimestamp = nil },
		"grace of deletion": func(p *corev1.Pod) { *p.DeletionGracePeriodSeconds = 1 },
		"grace":             func(p *corev1.Pod) { *p.Spec.TerminationGracePeriodSeconds = 1 },
		"job":               label(v1alpha1.LabelJob),
		"attempt":           label(v1alpha1.LabelAttempt),
		"role":              label(v1alpha1.LabelRole),
		"group":             label(schedv1alpha1.PodGroupLabel),
		"refill":            annotation(annotationRefill),
		"moves":             annotation(annotationMoves),
		"looks":             annotation(annotationChecks),
		"trust":             annotation(v1alpha1.AnnotationCABundle),
		"network":           annotation(networkStatus[0]),
		"other network":     annotation(networkStatus[1]),
		"node":              func(p *corev1.Pod) { p.Spec.NodeName = "n2" },
		"pinned to":         func(p *corev1.Pod) { pin(p, "n2") },
		"scheduler":         func(p *corev1.Pod) { p.Spec.SchedulerName = "other" },
		"tolerations":       func(p *corev1.Pod) { p.Spec.Tolerations = nil },
		"requests": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("7")
		},
		"overhead":   func(p *corev1.Pod) { p.Spec.Overhead = nil },
		"phase":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning },
		"reason":     func(p *corev1.Pod) { p.Status.Reason = "other" },
		"message":    func(p *corev1.Pod) { p.Status.Message = "other" },
		"start time": func(p *corev1.Pod) { p.Status.StartTime = &later },
		"address":    func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.8" },
		"addresses":  func(p *corev1.Pod) { p.Status.PodIPs = nil },
		"scheduled":  condition(corev1.PodScheduled),
		"disruption": condition(corev1.DisruptionTarget),
		"resize":     condition(corev1.PodResizePending),
		"resizing":   condition(corev1.PodResizeInProgress),
		"mark":       condition(v1alpha1.PodLeaving),
		"waits": status(func(s *corev1.ContainerStatus) {
			s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
		}),
		"runs": status(func(s *corev1.ContainerStatus) {
			s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: later}}
		}),
		"exit code":  status(func(s *corev1.ContainerStatus) { s.State.Terminated.ExitCode = 4 }),
		"why":        status(func(s *corev1.ContainerStatus) { s.State.Terminated.Reason = "Error" }),
		"last words": status(func(s *corev1.ContainerStatus) { s.State.Terminated.Message = "other" }),
		"ended":      status(func(s *corev1.ContainerStatus) { s.State.Terminated.FinishedAt = later }),
		"given": status(func(s *corev1.ContainerStatus) {
			s.AllocatedResources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("7")}
		}),
		"no image":              func(p *corev1.Pod) { p.Status.InitContainerStatuses[0].State.Waiting.Message = "other" },
		"the cache's own round": func(p *corev1.Pod) { p.ResourceVersion = "17" },
	}
	unread := map[string]podChange{
		"a version":                 func(*corev1.Pod) {},
		"who wrote it":              func(p *corev1.Pod) { p.ManagedFields = nil },
		"another's label":           label("theirs"),
		"another's annotation":      annotation("theirs"),
		"ready":                     func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue },
		"its containers' condition": condition(corev1.ContainersReady),
		"the node's address":        func(p *corev1.Pod) { p.Status.HostIP = "10.9.9.9" },
		"an image's id":             status(func(s *corev1.ContainerStatus) { s.ImageID = "other" }),
		"readiness":                 status(func(s *corev1.ContainerStatus) { s.Ready = true }),
	}
	woken := func(change podChange, prepare ...podChange) bool {
		was := fullWorker(trains(4))
		for _, p := range prepare {
			p(was)
		}
		is := was.DeepCopy()
		is.ResourceVersion = "18"
		change(is)
		asked := false
		h := podHandler{gone: func(*corev1.Pod) {}, EventHandler: handler.Funcs{
			UpdateFunc: func(context.Context, event.UpdateEvent, workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				asked = true
			},
		}}
		h.Update(t.Context(), event.UpdateEvent{ObjectOld: slimmed(was), ObjectNew: slimmed(is)}, nil)
		return asked
	}
	for name, change := range read {
		if !woken(change) {
			t.Errorf("%s: nobody looks at the job", name)
		}
	}
	for name, change := range unread {
		if woken(change) {
			t.Errorf("%s: the job is looked at", name)
		}
	}
	// It is withdrawn by its version, which may just have failed.
	if noNode := func(p *corev1.Pod) { p.Spec.NodeName = "" }; !woken(func(*corev1.Pod) {}, noNode) {
		t.Error("a version of a pod without a node: nobody looks at the job")
	}
}
