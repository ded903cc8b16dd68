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
	"github.com/concertina-dev/concertina/internal/fleet"
)

// simScaling is how long a step takes: serial + parallel/n seconds with n workers.
type simScaling struct{ serial, parallel float64 }

func (p simScaling) stepTime(n int) float64 { return p.serial + p.parallel/float64(n) }

// settles has jobs that scale in such ways share three nodes with four devices each, and returns which sizes they have once
// nobody has had less than half its share for long. From then on nobody trades workers, although what the programs tell of
// their steps is noisy.
func (s *fleetSim) settles(scalings ...simScaling) (sizes []int32) {
	defer s.stop()
	s.paced, s.settings.Sharing = true, fleet.ByValue
	var jobs []*v1alpha1.TrainingJob
	s.do(func() {
		for i := range 3 {
			_ = s.server.create(nodeCalled(fmt.Sprintf("node-%d", i), "4"))
		}
		for i, scaling := range scalings {
			jobs = append(jobs, s.submitScaling(fmt.Sprintf("j%d", i), scaling))
		}
		s.startOperator()
	})
	s.pass(s.settings.Backfill.Duration+3*time.Minute, nil)
	before := 0
	s.do(func() { before = s.counts["worlds"] })
	s.pass(15*time.Minute, nil)
	s.do(func() {
		if made := s.counts["worlds"] - before; made > 0 {
			s.fail("%d worlds were made in a quarter of an hour in which nothing happened", made)
		}
		for _, job := range jobs {
			status := &s.server.job(client.ObjectKeyFromObject(job)).Status
			if status.World == nil {
				s.fail("%s does not train", job.Name)
				return
			}
			sizes = append(sizes, value(status.World.Workers))
			s.say("%s: %+v", job.Name, fleet.SizesSeen(&status.Speed))
		}
	})
	return sizes
}

// submitScaling submits a job that has so much to do that little of it is done in a simulation: the order of jobs by what
// is left stays.
func (s *fleetSim) submitScaling(name string, scaling simScaling) *v1alpha1.TrainingJob {
	job := jobWith(func(j *v1alpha1.TrainingJob) {
		j.Name, j.UID, j.ResourceVersion = name, "", ""
		j.Spec.Workers.Min, j.Spec.Workers.Max = ptr.To[int32](1), ptr.To[int32](12)
		template := &j.Spec.Workers.Template.Spec
		template.PriorityClassName = "low"
		template.Containers[0].Resources = corev1.ResourceRequirements{Requests: simResources("1", "1", "1")}
		delete(template.Containers[0].Resources.Requests, corev1.ResourcePods)
	})
	if err := s.server.create(job); err != nil {
		s.fail("submit %s: %v", job.Name, err)
	}
	s.lengths[job.UID], s.stepTimes[job.UID] = 1e6/scaling.stepTime(4), scaling.stepTime
	return job
}

// TestJobsSettleByWhatTheyMakeOfWorkers: workers are where they are worth most, and stay there.
func TestJobsSettleByWhatTheyMakeOfWorkers(t *testing.T) {
	for _, seed := range []uint64{3, 5} {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sizes := newFleetSim(t, seed).settles(simScaling{0, 1}, simScaling{1, 0.001}, simScaling{0.25, 1})
				if len(sizes) != 3 || sizes[0] < 6 || sizes[1] > 2 || sizes[0]+sizes[1]+sizes[2] != 12 {
					t.Errorf("the one that scales, the one that does not and the one between have %v workers of 12", sizes)
				}
			})
		})
	}
}
