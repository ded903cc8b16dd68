package fleet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// The scheduler's sentences are those of kube-scheduler. What is not known may be for room.
func TestWhatTheSchedulerSaysOfRoom(t *testing.T) {
	for message, want := range map[string]bool{
		"0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.":                           true,
		"0/9 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules, 8 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/9 n": true,
		"0/2 nodes are available: 1 node(s) had untolerated taint {example.com/a: b}, 1 node(s) had untolerated taint(s).":                                                                         true,
		"0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found":                                                                                                     true,
		"0/2 nodes are available: persistentvolumeclaim \"data\" not found.":                                                                                                                       true,
		"0/2 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity], 1 node(s) had volume node affinity conflict.":                                                                 true,
		"0/3 nodes are available: 1 Insufficient example.com/gpu, 2 node(s) had volume node affinity conflict. preemption: 0/3 nodes are available: 3 x.":                                          false,
		"0/3 nodes are available: 1 Too many pods, 2 node(s) were unschedulable.":                                                                                                                  false,
		"0/3 nodes are available: 3 cannot align pod: node(s) were unschedulable.":                                                                                                                 false,
		"optimistic rejection in PostFilter":                     false,
		"0/3 nodes are available":                                false,
		"3/3 nodes are available: 3 node(s) were unschedulable.": false,
		"": false,
	} {
		pod := podOf("a", "1", refused(message))
		if got := RefusedBeyondRoom(pod); got != want {
			t.Errorf("%q: %v, want %v", message, got, want)
		}
		if pod.Spec.NodeName = "n0"; RefusedBeyondRoom(pod) {
			t.Errorf("%q: it has a node by now", message)
		}
	}
}

func refused(message string) podChange {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message,
			LastTransitionTime: metav1.NewTime(start.Add(time.Second))}}
	}
}

// No room is kept for a pod that the scheduler refuses for another reason, on nodes that are as they were when it did.
func TestRoomIsNotKeptForThoseWhomItDoesNotHelp(t *testing.T) {
	const volume = "0/2 nodes are available: 2 node(s) had volume node affinity conflict."
	old := func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour)) }
	for _, events := range []bool{false, true} { // what was there from the beginning, and what came as it happened
		k := &clock{now: start.Add(2 * time.Second)}
		objects := Objects{Nodes: nodesOf(1, old), Jobs: []*v1alpha1.TrainingJob{jobOf("big")}}
		if !events {
			objects.Pods = []*corev1.Pod{podOf("a", "2", priority(0), refused(volume)), podOf("b", "1", priority(0))}
		}
		cluster := FromObjects(objects, k.options())
		free := func(when, node string, want int64) {
			t.Helper()
			if got := freeCPU(t, cluster.Snapshot(), node); got != want {
				t.Errorf("events %v, %s: %d are free, want %d", events, when, got, want)
			}
		}
		set := func(pod *corev1.Pod) {
			slim, err := SlimPod(pod)
			if err != nil {
				t.Fatal(err)
			}
			cluster.SetPod(slim.(*corev1.Pod))
		}
		if events {
			set(podOf("a", "2", priority(0)))
			set(podOf("b", "1", priority(0)))
			free("nobody has said anything", "n0", 5000)
			k.now = k.now.Add(time.Second)
			set(podOf("a", "2", priority(0), refused(volume)))
		}
		free("it is refused", "n0", 7000)
		k.now = k.now.Add(time.Second)
		cluster.SetNode(nodeOf("n1", func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(k.now) }))
		free("a node came of which the scheduler has not spoken", "n1", 6000)
		k.now = k.now.Add(time.Second)
		set(podOf("a", "2", priority(0), refused("0/2 nodes are available: 2 node(s) were unschedulable, 1 node(s) had volume node affinity conflict.")))
		free("it has spoken of that as well", "n1", 8000)
		k.now = k.now.Add(time.Second)
		cluster.SetNode(nodeOf("n0", old, inZone("b")))
		free("a node is another one", "n0", 5000)
		k.now = k.now.Add(time.Second)
		set(podOf("a", "2", priority(0), refused("0/2 nodes are available: 2 Insufficient cpu.")))
		free("it is for room", "n0", 5000)
	}
}
