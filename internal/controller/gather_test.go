package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// seen is a rendezvous that has seen one job.
type seen struct {
	rendezvous.Coordinator
	rendezvous.Observation
}

func (s seen) Observe(rendezvous.JobKey) rendezvous.Observation { return s.Observation }

// What was seen of a job that was deleted says nothing about the next one of its name.
func TestObservationBelongsToOneJob(t *testing.T) {
	r := &Reconciler{Rendezvous: seen{Observation: rendezvous.Observation{Known: true, JobUID: "first", Round: 7}}}
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Name: "digits", UID: "first"}}
	if round := r.observe(job).Round; round != 7 {
		t.Errorf("of the job round %d is seen, not 7", round)
	}
	job.UID = "second"
	if observed := r.observe(job); observed.Known || observed.Round != 0 {
		t.Errorf("of the next job of that name %+v is seen", observed)
	}
}
