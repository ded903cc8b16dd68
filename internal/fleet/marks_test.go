package fleet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

func TestAMarkIsReadAsItWasWritten(t *testing.T) {
	for _, reason := range []string{Reclaimed, Evened, Moved} {
		want := Mark{Reason: reason, For: "team/big", At: start.Truncate(time.Second)}
		pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
		for range 2 {
			want.Put(pod)
		}
		if got, found := MarkOf(pod); !found || got.Reason != want.Reason || got.For != want.For || !got.At.Equal(want.At) {
			t.Errorf("%s is read as %+v, %t", want, got, found)
		}
		Mark{}.Put(pod)
		if got, found := MarkOf(pod); found || len(pod.Status.Conditions) != 1 {
			t.Errorf("once it is taken away %+v is read, and the pod says %+v", got, pod.Status.Conditions)
		}
	}
}

// A worker that the planner counts as leaving and that nobody lets go would hold its room for ever.
func TestAMarkThatNobodyUnderstandsHasNobodyLeave(t *testing.T) {
	says := func(status corev1.ConditionStatus, reason, message string) corev1.PodCondition {
		return corev1.PodCondition{Type: v1alpha1.PodLeaving, Status: status, Reason: reason, Message: message}
	}
	for _, text := range []corev1.PodCondition{
		says(corev1.ConditionTrue, "Reclaimed", ""), says(corev1.ConditionTrue, "", "team/big"), says(corev1.ConditionTrue, "Reclaimed", "big"),
		says(corev1.ConditionTrue, "Bored", "team/big"), says(corev1.ConditionFalse, "Reclaimed", "team/big"), {},
	} {
		job := jobOf("j", trains)
		pod := workerOf(job, 5, growthRole, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{text}
		})
		if m, found := MarkOf(pod); found {
			t.Errorf("%+v is read as %+v", text, m)
		}
		cluster := New(optionsOf())
		cluster.SetJob(job)
		cluster.SetPod(pod)
		if seen := seenJob(t, cluster); len(seen.Workers) != 1 || seen.Workers[0].Marked {
			t.Errorf("%+v: the planner sees %+v", text, seen.Workers)
		}
	}
}

// A mark that is written on a pod is seen with the event of that pod, whatever else has stayed as it was.
func TestAMarkIsSeenByItsEventAlone(t *testing.T) {
	job := jobOf("j", trains)
	c := FromObjects(Objects{Nodes: []*corev1.Node{nodeOf("n0")}, Jobs: []*v1alpha1.TrainingJob{job}, Pods: []*corev1.Pod{workerOf(job, 0, on("n0"))}}, optionsOf())
	marked := func() bool { return c.Snapshot().Jobs[0].Workers[0].Marked }
	if marked() {
		t.Fatal("it is marked from the first")
	}
	c.SetPod(workerOf(job, 0, on("n0"), Mark{Reason: Reclaimed, For: "team/big", At: start}.Put))
	if !marked() {
		t.Error("the mark is not seen")
	}
	c.SetPod(workerOf(job, 0, on("n0")))
	if marked() {
		t.Error("it is seen though it is lifted")
	}
}

// Who leaves because a replacement is there is told apart from who leaves so that its job is smaller.
func TestAMarkSaysWhetherAReplacementIsThere(t *testing.T) {
	job := jobOf("j", trains)
	for reason, moves := range map[string]bool{Reclaimed: false, Evened: false, Moved: true} {
		c := New(optionsOf())
		c.SetJob(job)
		c.SetPod(workerOf(job, 5, growthRole, Mark{Reason: reason, For: "team/big", At: start}.Put))
		if w := seenJob(t, c).Workers[0]; !w.Marked || w.Moves != moves {
			t.Errorf("%s: the planner sees %+v", reason, w)
		}
	}
}
