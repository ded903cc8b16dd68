package fleet

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
)

// grows makes the pods of a grant, and has nobody place those that name no node.
func grows(t *testing.T, c *Cluster, job *v1alpha1.TrainingJob, first int) int32 {
	t.Helper()
	c.PlanNow()
	g := c.Grant(job.UID)
	var pods []*corev1.Pod
	for k, place := range g.Places {
		pod := workerOf(job, first+k, growthRole)
		pod.UID = ""
		if place.Node != "" {
			Pin(pod, place.Node)
		}
		pods = append(pods, pod)
	}
	if !c.Take(job.UID, pods) {
		t.Fatalf("what was granted may not be taken: %+v", g)
	}
	return g.Count
}

// Workers that wait for the scheduler have their room, whoever places them: it is granted once.
func TestRoomIsGrantedOnce(t *testing.T) {
	for _, capacity := range []Capacity{Fixed, Autoscaled} {
		t.Run(string(capacity), func(t *testing.T) {
			o := Objects{
				Nodes:   []*corev1.Node{nodeOf("n", offers("cpu", "12"))},
				Classes: []*schedulingv1.PriorityClass{classOf("growth", -10)},
			}
			for i := range 2 {
				job := jobOf(fmt.Sprint("j", i), trains, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To[int32](64) })
				o.Jobs = append(o.Jobs, job)
				o.Pods = append(o.Pods, workerOf(job, 0, on("n")), workerOf(job, 1, on("n")))
			}
			c := FromObjects(o, optionsOf(func(o *Options) { o.Plan = allocation.NewPlan; o.Settings.Capacity = capacity }))
			for _, job := range o.Jobs {
				c.Report(job, Facts{Elastic: true})
			}
			counts := make([]int32, 2)
			for i := range 6 {
				for k, job := range o.Jobs {
					counts[k] = grows(t, c, job, 10+i*10)
				}
			}
			if counts[0] != 3 || counts[1] != 3 {
				t.Errorf("the jobs have %d workers in 6 places", counts)
			}
		})
	}
}
