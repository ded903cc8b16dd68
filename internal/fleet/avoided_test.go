package fleet

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// A gang that some nodes refuse for what the planner does not know is tried on each of the others, however long the pauses between its
// attempts are beside the time for which a node is avoided; and so is one of those that has come to take it.
func TestNodesThatRefuseAGangKeepItOffNoOther(t *testing.T) {
	const most = 5 * time.Minute // for which a node is avoided
	for _, c := range []struct {
		bad int
		// full says that the good node has no room during so many attempts, mends that the last of the bad ones takes the gang then.
		full  int
		mends bool
	}{{bad: 2}, {bad: 3}, {bad: 6}, {bad: 2, full: 12}, {bad: 3, full: 12}, {bad: 3, full: 1000, mends: true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			k := &clock{now: start}
			options := k.options()
			options.Plan = allocation.NewPlan
			job := jobOf("j")
			cluster := FromObjects(Objects{Nodes: nodesOf(c.bad + 1), Jobs: []*v1alpha1.TrainingJob{job}}, options)
			good := fmt.Sprintf("n%d", c.bad)
			busy := podOf("busy", "8", on(good))
			pause := 30 * time.Second
			for attempt := range min(c.full, 12) + 4*c.bad {
				if attempt == 0 && c.full > 0 {
					cluster.SetPod(busy)
				} else if attempt == c.full {
					cluster.DeletePod(busy)
				}
				if c.mends && attempt == 12 {
					good = fmt.Sprintf("n%d", c.bad-1)
				}
				cluster.Report(job, Facts{})
				cluster.PlanNow()
				grant := cluster.Grant(job.UID)
				if !grant.Start || len(grant.Places) != 2 {
					t.Fatalf("attempt %d: it is not started: %+v", attempt, grant)
				}
				at := grant.Places[0].Node
				if at == good {
					return
				}
				due := k.now.Add(5*time.Second + pause) // it is refused
				pause = min(2*pause, 30*time.Minute)
				job = job.DeepCopy()
				job.ResourceVersion = fmt.Sprint(attempt + 2)
				job.Status.Retries = ptr.To(int32(attempt + 1))
				nodes, failures := job.Status.AvoidedNodes, int32(1)
				if i := slices.IndexFunc(nodes, func(n v1alpha1.AvoidedNode) bool { return n.Name == at }); i >= 0 {
					failures += *nodes[i].Failures
					nodes = slices.Delete(nodes, i, i+1)
				}
				until := due.Add(min(30*time.Second<<min(failures-1, 9), most))
				job.Status.AvoidedNodes = append(nodes, v1alpha1.AvoidedNode{Name: at, Failures: &failures, Until: ptr.To(metav1.NewTime(until))})
				k.now = due
				cluster.SetJob(job)
			}
			t.Errorf("it was never tried on %s in %s", good, k.now.Sub(start))
		})
	}
}

// What is known of nodes is forgotten by time where a job trains: it grows there as soon as it may.
func TestAJobThatTrainsGrowsWhereItMayAgain(t *testing.T) {
	for name, change := range map[string]jobChange{"trains": trains, "queues": func(*v1alpha1.TrainingJob) {}} {
		for retries, want := range map[int32]int{0: 0, 1: 1, 2: 2} {
			job := jobOf("j", change, avoids(start.Add(-time.Minute), "n0"), avoids(start.Add(-time.Second), "n1"), func(job *v1alpha1.TrainingJob) {
				job.Status.Retries = &retries
			})
			objects := Objects{Nodes: nodesOf(3), Jobs: []*v1alpha1.TrainingJob{job}}
			if name == "trains" {
				want, objects.Pods = 0, []*corev1.Pod{workerOf(job, 0, on("n2")), workerOf(job, 1, on("n2"))}
			}
			if got := FromObjects(objects, optionsOf()).Snapshot().Jobs[0].Avoid; len(got) != want {
				t.Errorf("%s, %d attempts came to nothing: avoids %v, want %d nodes", name, retries, got, want)
			}
		}
	}
}
