package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
)

// fullWorker is a pod of which all is there that decisions look at, as an API server would show it.
func fullWorker(job *v1alpha1.TrainingJob) *corev1.Pod {
	pod := newGrowthPod(job, settings, 1, 3)
	pin(pod, "n1")
	pod.UID, pod.ResourceVersion, pod.Spec.NodeName = "uid-3", "17", "n1"
	pod.CreationTimestamp, pod.DeletionTimestamp = metav1.NewTime(start), ptr.To(metav1.NewTime(start.Add(time.Minute)))
	pod.DeletionGracePeriodSeconds = ptr.To[int64](30)
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	pod.Labels[schedv1alpha1.PodGroupLabel], pod.Labels["theirs"] = "digits-1-r3", "long"
	for key, text := range map[string]string{
		annotationRefill: "3-2", annotationMoves: "true", annotationChecks: "true", v1alpha1.AnnotationCABundle: "bundle", "theirs": "long",
		networkStatus[0]: `[{"ips": ["10.1.0.7"]}]`,
	} {
		pod.Annotations[key] = text
	}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "broken", Operator: corev1.TolerationOpExists}}
	pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "Evicted", Message: "the node was low on memory", StartTime: ptr.To(metav1.NewTime(start)),
		PodIP: "10.0.0.7", PodIPs: []corev1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "long"},
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes", LastTransitionTime: metav1.NewTime(start)},
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "gone", LastTransitionTime: metav1.NewTime(start)},
			fleet.Mark{Reason: fleet.Reclaimed, For: "team/big", At: start}.Condition(),
		},
		InitContainerStatuses: []corev1.ContainerStatus{{Name: agentName, ImageID: "long", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: "long", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "OOMKilled", Message: "last words", FinishedAt: metav1.NewTime(start)}}}},
	}
	return pod
}

// Whatever a decision asks of a worker's pod, the cache knows.
func TestTheCacheKeepsWhatDecisionsRead(t *testing.T) {
	job := trains(4)
	whole := fullWorker(job)
	questions := map[string]func(*corev1.Pod) any{
		"who it is": func(p *corev1.Pod) any {
			return []any{p.Name, p.Namespace, p.UID, p.ResourceVersion, p.OwnerReferences}
		},
		"attempt, ordinal": func(p *corev1.Pod) any { return []int32{podAttempt(p), podOrdinal(p)} },
		"class":            func(p *corev1.Pod) any { return []any{isGrowth(p), isRefill(p), p.Annotations[annotationMoves]} },
		"batch": func(p *corev1.Pod) any {
			first, size, ok := refillOf(p)
			return []any{first, size, ok, p.Labels[schedv1alpha1.PodGroupLabel], p.Spec.SchedulerName, batchResources(p, 2)}
		},
		"trust": func(p *corev1.Pod) any { return p.Annotations[v1alpha1.AnnotationCABundle] },
		"place": func(p *corev1.Pod) any { return []string{nodeOf(p), pinned(p), unschedulable(p)} },
		"scheduler": func(p *corev1.Pod) any {
			q := p.DeepCopy()
			q.Spec.NodeName = ""
			return gang.Coscheduling{}.Why([]*corev1.Pod{q})
		},
		"tolerates": func(p *corev1.Pod) any { return fleet.Tolerated(p.Spec.Tolerations, &corev1.Taint{Key: "broken"}) },
		"times": func(p *corev1.Pod) any {
			first, _ := placement([]*corev1.Pod{p})
			return []any{p.CreationTimestamp, deletionTime(p), grace(p), p.Status.StartTime, first}
		},
		"addresses":  func(p *corev1.Pod) any { return fmt.Sprint(addressesOf([]*corev1.Pod{p})) },
		"stuck":      func(p *corev1.Pod) any { return stuckPods([]*corev1.Pod{p}) },
		"ended":      func(p *corev1.Pod) any { return []bool{podEnded(p), containersEnded(p)} },
		"exit":       func(p *corev1.Pod) any { return trainerExit(p, &job.Spec.Workers) },
		"disruption": func(p *corev1.Pod) any { return disruptionTarget(p) },
		"lost": func(p *corev1.Pod) any {
			q := p.DeepCopy()
			q.Status.Conditions = nil
			reason, message := disruption(q)
			return []string{reason, message}
		},
		"mark": func(p *corev1.Pod) any { mark, ok := fleet.MarkOf(p); return []any{mark, ok} },
	}
	slim := slimmed(whole)
	for name, question := range questions {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(question(whole), question(slim)); diff != "" {
				t.Errorf("(-whole +slim):\n%s", diff)
			}
		})
	}
	if c := slim.Spec.Containers[0]; slim.Spec.Volumes != nil || c.Env != nil || slim.ManagedFields != nil || slim.Labels["theirs"] != "" {
		t.Errorf("what nobody reads is kept: %+v", slim)
	}
}

func TestOfOthersNothingIsKeptOnceTheyHaveEnded(t *testing.T) {
	pod := fullWorker(trains(4))
	delete(pod.Labels, v1alpha1.LabelJob)
	slim := slimmed(pod)
	if slim.Spec.Containers != nil || slim.Status.ContainerStatuses != nil || slim.Status.Phase != corev1.PodFailed {
		t.Errorf("%+v", slim)
	}
	if same, err := SlimPod("tombstone"); same != "tombstone" || err != nil {
		t.Errorf("%v, %v", same, err)
	}
}

// Two pods that say the same have one list of containers, and none of them has the other's words.
func TestPodsShareWhatTheyHaveInCommon(t *testing.T) {
	job := trains(4)
	a, b := newPod(job, settings, 1, 0), newPod(job, settings, 1, 1)
	c := newPod(trains(4, func(j *v1alpha1.TrainingJob) {
		j.Spec.Workers.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("501m")
	}), settings, 1, 0)
	x, y, z := slimmed(a), slimmed(b), slimmed(c)
	if &x.Spec.Containers[0] != &y.Spec.Containers[0] {
		t.Error("two equal pods have a list each")
	}
	if cpu := z.Spec.Containers[0].Resources.Requests.Cpu().String(); cpu != "501m" {
		t.Errorf("one that asks for 501m has %s", cpu)
	}
}

// The cache has all pods of the cluster: one that loses its label does not leave it.
func TestAPodThatLosesItsLabelMayTrainOn(t *testing.T) {
	job := trains(2)
	pod := podOf(job, 1, 0, trainerRuns)
	bare := pod.DeepCopy()
	delete(bare.Labels, v1alpha1.LabelJob)
	var gone []string
	h := podHandler{EventHandler: handler.Funcs{}, gone: func(pod *corev1.Pod) { gone = append(gone, pod.Name) }}
	h.Update(context.Background(), event.UpdateEvent{ObjectOld: pod, ObjectNew: pod.DeepCopy()}, nil)
	if len(gone) != 0 {
		t.Errorf("%v are said to be gone", gone)
	}
	h.Update(context.Background(), event.UpdateEvent{ObjectOld: pod, ObjectNew: bare}, nil)
	if diff := cmp.Diff([]string{pod.Name}, gone); diff != "" {
		t.Error(diff)
	}
}
