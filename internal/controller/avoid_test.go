package controller

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// avoided are the names of the nodes that a plan avoids.
func avoided(plan Plan) []string {
	var nodes []string
	for _, node := range plan.Status.AvoidedNodes {
		nodes = append(nodes, node.Name)
	}
	return nodes
}

func TestANodeIsAvoidedForLongerEachTime(t *testing.T) {
	for limit, want := range map[time.Duration][]int{
		0:               {30, 60, 120, 240, 300, 300},
		time.Hour:       {30, 60, 120, 240, 480, 960, 1920, 3600, 3600},
		2 * time.Second: {2, 2},
	} {
		p := &planner{State: stateOf(jobWith())}
		if limit > 0 {
			p.Job.Spec.Failure.MaxBackOff = &metav1.Duration{Duration: limit}
		}
		for i, seconds := range want {
			p.avoid([]string{"n1", "", "n1"}, "it fails")
			all := p.plan.Status.AvoidedNodes
			if len(all) != 1 || all[0].Name != "n1" || value(all[0].Failures) != int32(i+1) || all[0].Until.Sub(p.Now) != time.Duration(seconds)*time.Second {
				t.Fatalf("with a limit of %s, after failure %d: %+v, want one node for %ds", limit, i+1, all, seconds)
			}
		}
	}
}

// Of more nodes than the status holds, those are kept that are avoided for longest.
func TestOfManyNodesThoseAvoidedLongestAreKept(t *testing.T) {
	p := &planner{State: stateOf(jobWith())}
	p.avoid([]string{"n00", "n01"}, "first")
	p.avoid([]string{"n00"}, "again")
	for i := 2; i < mostAvoided+4; i++ {
		p.Now = p.Now.Add(time.Second)
		p.avoid([]string{fmt.Sprintf("n%02d", i)}, "later")
	}
	kept := avoided(p.plan)
	if len(kept) != mostAvoided || kept[0] != "n00" || kept[1] != "n05" {
		t.Errorf("%d are kept: %v", len(kept), kept)
	}
}

// What is counted of a node is forgotten once the job has trained for a minute since it may be used again, and not while a newcomer
// is on its way there.
func TestAnAvoidedNodeIsForgotten(t *testing.T) {
	job := trains(2)
	trained := now.Add(-time.Hour)
	for i := range job.Status.Conditions {
		job.Status.Conditions[i].LastTransitionTime = metav1.NewTime(trained)
	}
	state := elasticState(job, crewOf(job)...)
	job = state.Job
	job.Status.AvoidedNodes = []v1alpha1.AvoidedNode{
		{Name: "n1", Failures: ptr.To[int32](2), Until: ptr.To(metav1.NewTime(now.Add(-trainedWell)))},
		{Name: "n2", Failures: ptr.To[int32](2), Until: ptr.To(metav1.NewTime(now.Add(time.Second - trainedWell)))},
		{Name: "n3", Failures: ptr.To[int32](2), Until: ptr.To(metav1.NewTime(now.Add(-trainedWell)))},
	}
	job.Status.Workers.Target, job.Status.NextOrdinal = ptr.To[int32](3), ptr.To[int32](3)
	growthPod(state, 2, onNode("n3"))
	giveRoom(state, 0)
	plan := NewPlan(state, settings)
	if got := avoided(plan); len(got) != 2 || got[0] != "n2" || got[1] != "n3" {
		t.Errorf("%v are kept", got)
	}
	if plan.After > time.Second {
		t.Errorf("looks again after %s", plan.After)
	}
	for i := range job.Status.Conditions {
		job.Status.Conditions[i].LastTransitionTime = metav1.NewTime(now.Add(-time.Second))
	}
	if got := avoided(NewPlan(state, settings)); len(got) != 3 {
		t.Errorf("the job has trained for a second, and %v are kept", got)
	}
}
