package fleet

import (
	"strings"
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
		if got := verdictOn(pod) != nil; got != (want && !strings.Contains(message, "existing pods")) {
			t.Errorf("%q: %v that it holds as long as the nodes are as they are", message, got)
		}
		if pod.Spec.NodeName = "n0"; RefusedBeyondRoom(pod) || verdictOn(pod) != nil {
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

// A pod that waits for what another pod has, such as a host port in the update of a Deployment, waits for that one's room as well: that is
// not given away once it is free.
func TestTheRoomOfAPredecessorIsKeptForItsSuccessor(t *testing.T) {
	old := func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour)) }
	for _, reason := range reasonsOfPods {
		t.Run(reason, func(t *testing.T) {
			k := &clock{now: start.Add(2 * time.Second)}
			cluster := FromObjects(Objects{Nodes: nodesOf(1, old), Jobs: []*v1alpha1.TrainingJob{jobOf("big")}}, k.options())
			expect := func(when string, want int64) {
				t.Helper()
				if got := freeCPU(t, cluster.Snapshot(), "n0"); got != want {
					t.Errorf("%s: %d are free, want %d", when, got, want)
				}
			}
			cluster.SetPod(podOf("old", "6", priority(0), onHostPort(80), on("n0")))
			cluster.SetPod(podOf("new", "6", priority(0), onHostPort(80)))
			k.now = k.now.Add(time.Second)
			cluster.SetPod(podOf("new", "6", priority(0), onHostPort(80), refused("0/1 nodes are available: 1 "+reason+".")))
			expect("it is refused", 2000)
			k.now = k.now.Add(20 * time.Second)
			cluster.DeletePod(podOf("old", "6", on("n0")))
			expect("the old one is gone", 2000)
		})
	}
}

// The scheduler may have yet to hear of the node of a worker that it refuses: the room is the worker's until it is withdrawn.
func TestTheRoomOfANewcomerIsKeptWhateverTheSchedulerSays(t *testing.T) {
	k := &clock{now: start.Add(2 * time.Second)}
	old := func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour)) }
	job := jobOf("elastic", trains)
	newcomer := workerOf(job, 1, growthRole, refused("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."))
	objects := Objects{Nodes: nodesOf(1, old), Jobs: []*v1alpha1.TrainingJob{job}, Pods: []*corev1.Pod{newcomer}}
	said := freeCPU(t, FromObjects(objects, k.options()).Snapshot(), "n0")
	newcomer.Status.Conditions = nil
	if want := freeCPU(t, FromObjects(objects, k.options()).Snapshot(), "n0"); said != want || said == 8000 {
		t.Errorf("%d are free where the scheduler refuses it, %d where it says nothing", said, want)
	}
}

// Each node that comes or goes has the scheduler count anew, for all pods that wait. That is no news of those that it refuses on all
// nodes as they are.
func TestACountOfTheSchedulerIsNoNews(t *testing.T) {
	k := &clock{now: start.Add(2 * time.Second)}
	old := func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour)) }
	cluster := FromObjects(Objects{Nodes: nodesOf(1, old), Jobs: []*v1alpha1.TrainingJob{jobOf("big")}}, k.options())
	looks := func(message string) bool {
		for len(cluster.wake) > 0 {
			<-cluster.wake
		}
		k.now = k.now.Add(time.Second)
		cluster.SetPod(podOf("a", "2", priority(0), refused(message)))
		return len(cluster.wake) > 0
	}
	const one, two = "0/1 nodes are available: 1 node(s) were unschedulable.", "0/2 nodes are available: 2 node(s) were unschedulable."
	if !looks(one) {
		t.Error("that it is refused is news")
	}
	if looks(two) {
		t.Error("that it is refused on one node more is none, where no node has come that is known here")
	}
	k.now = k.now.Add(time.Second)
	cluster.SetNode(nodeOf("n1", func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(k.now) }))
	if got := freeCPU(t, cluster.Snapshot(), "n1"); got != 6000 {
		t.Errorf("%d are free on a node of which the scheduler has not spoken, want 6000", got)
	}
	if !looks(one) {
		t.Error("that it is refused on a node that came is news")
	}
	if got := freeCPU(t, cluster.Snapshot(), "n1"); got != 8000 {
		t.Errorf("%d are free on a node of which the scheduler has spoken, want 8000", got)
	}
	if !looks("0/2 nodes are available: 2 Insufficient cpu.") {
		t.Error("that it is for room is news")
	}
}
