package controller

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// reclaims has a lender fill two nodes, and a gang that needs half of them come, with an operator that
// crashes at one of its writes after that; 0 for never. It returns how many writes there were.
func (s *fleetSim) reclaims(crashAt int) int {
	defer s.stop()
	jobOf := func(name, class string, least, most int32) *v1alpha1.TrainingJob {
		return jobWith(func(j *v1alpha1.TrainingJob) {
			j.Name, j.UID, j.ResourceVersion = name, "", ""
			j.Spec.Workers.Min, j.Spec.Workers.Max = ptr.To(least), ptr.To(most)
			template := &j.Spec.Workers.Template.Spec
			template.PriorityClassName = class
			template.Containers[0].Resources = corev1.ResourceRequirements{Requests: simResources("1", "1", "1")}
			delete(template.Containers[0].Resources.Requests, corev1.ResourcePods)
		})
	}
	submit := func(job *v1alpha1.TrainingJob) {
		if err := s.server.create(job); err != nil {
			s.fail("submit %s: %v", job.Name, err)
		}
		s.lengths[job.UID] = 1e9
	}
	workers := func(job *v1alpha1.TrainingJob) int32 {
		now := s.server.job(client.ObjectKeyFromObject(job))
		if world := now.Status.World; world != nil && isTrue(now.Status.Conditions, v1alpha1.ConditionTraining) {
			return value(world.Workers)
		}
		return 0
	}
	lender, big := jobOf("lender", "low", 2, 8), jobOf("big", "high", 4, 4)
	s.do(func() {
		_ = s.server.create(nodeCalled("node-0", "4"))
		_ = s.server.create(nodeCalled("node-1", "4"))
		submit(lender)
		s.startOperator()
	})
	s.pass(5*time.Minute, func() bool { return workers(lender) == 8 })
	s.pass(time.Minute, nil)
	before := 0
	s.do(func() {
		before = s.writes
		if crashAt > 0 {
			s.crashAt = s.writes + crashAt
		}
		submit(big)
	})
	s.pass(5*time.Minute, func() bool { return workers(big) == 4 && workers(lender) == 4 })
	s.pass(time.Minute, nil)
	s.do(func() {
		if workers(big) != 4 || workers(lender) != 4 {
			s.fail("big has %d workers and the lender %d, both should have 4", workers(big), workers(lender))
		}
		// A gang of which a part was made when the operator died is given up, and room is made for another.
		again := value(s.server.job(client.ObjectKeyFromObject(big)).Status.Attempt) > 1
		if len(s.watch.marked) != 4 && !again || s.counts["lifted"] > 0 {
			s.fail("%d workers were ever told to leave and %d marks were lifted, want 4 and 0: %v", len(s.watch.marked), s.counts["lifted"], s.watch.marked)
		}
	})
	return s.writes - before
}

// TestAReclaimSurvivesACrashAtAnyWrite: whoever leads next goes on with the same victims, and with no more.
func TestAReclaimSurvivesACrashAtAnyWrite(t *testing.T) {
	most, writes := 1, 0
	for crashAt := 0; crashAt <= most; crashAt++ {
		t.Run(fmt.Sprintf("write %d", crashAt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { writes = newFleetSim(t, 2).reclaims(crashAt) })
		})
		if crashAt == 0 {
			most = min(writes, 40)
		}
	}
	t.Logf("%d writes", writes)
}
