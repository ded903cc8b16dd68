package fleet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// TestAPodThatWaitsTakesNothingFromTheMoreImportant: it may never be placed (say, its volume is in another zone), and the gang
// neither waits for that nor has one more leave for it.
func TestAPodThatWaitsTakesNothingFromTheMoreImportant(t *testing.T) {
	for name, c := range map[string]struct {
		priority int32
		starts   bool
	}{"less important": {0, true}, "as important": {1000, false}} {
		t.Run(name, func(t *testing.T) {
			const gpu = "example.com/gpu"
			k := &clock{now: start}
			options := k.options()
			options.Plan = allocation.NewPlan
			low := jobOf("low", templateOf(asks(gpu, "1")), trains, func(j *v1alpha1.TrainingJob) {
				j.Spec.Workers.Min, j.Spec.Workers.Max, j.Status.Workers.Target = ptr.To[int32](1), ptr.To[int32](4), ptr.To[int32](4)
			})
			high := jobOf("high", templateOf(asks(gpu, "1"), func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }), func(j *v1alpha1.TrainingJob) {
				j.Spec.Workers.Max = ptr.To[int32](2)
			})
			nodes := nodesOf(4, offers(gpu, "1"), offers("cpu", "8"), offers("pods", "110"))
			cluster := FromObjects(Objects{Nodes: nodes}, options)
			cluster.SetClass(classOf("high", 1000))
			cluster.SetClass(classOf("growth", -10))
			cluster.SetPod(podOf("waits", "1", asks(gpu, "1"), priority(c.priority)))
			facts := Facts{Elastic: true, Ranks: map[types.UID]int32{}}
			var workers []*corev1.Pod
			for i := range 4 {
				change := []podChange{on(nodes[i].Name)}
				if i > 0 {
					change = append(change, growthRole)
				}
				workers = append(workers, workerOf(low, i, change...))
				cluster.SetPod(workers[i])
				facts.Ranks[workers[i].UID] = int32(i)
			}
			cluster.SetJob(low)
			cluster.Report(low, facts)
			cluster.SetJob(high)
			cluster.Report(high, Facts{})
			cluster.PlanNow()
			leave := cluster.Grant(low.UID).Leave
			if len(leave) != 2 {
				t.Fatalf("%d leave for 2 workers", len(leave))
			}
			for _, w := range workers {
				if _, leaves := leave[w.UID]; leaves {
					cluster.DeletePod(w)
					delete(facts.Ranks, w.UID)
				}
			}
			low = low.DeepCopy()
			low.ResourceVersion, low.Status.Workers.Target = "2", ptr.To[int32](2)
			low.Status.Resizes = []v1alpha1.Resize{{Round: ptr.To[int64](2), Reason: Reclaimed, At: ptr.To(metav1.NewTime(k.now))}}
			cluster.SetJob(low)
			cluster.Report(low, facts)
			k.now = k.now.Add(time.Second)
			cluster.PlanNow()
			if got := cluster.Grant(high.UID); got.Start != c.starts {
				t.Errorf("once they have left the gang starts: %v (%s)", got.Start, got.Why)
			}
			if got := len(cluster.Grant(low.UID).Leave); c.starts && got > 0 {
				t.Errorf("%d more leave", got)
			}
		})
	}
}
