package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// order is in which order a status was written and a rendezvous told.
type order struct {
	said   []string
	refuse error
}

type orderClient struct {
	client.Client
	*order
}

func (c orderClient) Status() client.SubResourceWriter { return orderWriter{order: c.order} }

type orderWriter struct {
	client.SubResourceWriter
	*order
}

func (w orderWriter) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	w.said = append(w.said, "status")
	return w.refuse
}

type orderRendezvous struct {
	rendezvous.Coordinator
	*order
}

func (r orderRendezvous) Expect(rendezvous.JobKey, rendezvous.Gang) {
	r.said = append(r.said, "expect")
}

type deafFleet struct{ fleet.Fleet }

func (deafFleet) Report(*v1alpha1.TrainingJob, fleet.Facts) {}

// A rendezvous that hears of a job for the first time writes the same status at once: two writes from the same version
// are one too many. Later it writes when a world is formed, and waits for nobody's sentence.
func TestANewRendezvousIsToldWhenTheStatusIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		known  bool
		refuse error
		want   []string
	}{
		"it has not heard of the job":       {want: []string{"status", "expect"}},
		"and the status is not written":     {refuse: errors.New("no"), want: []string{"status"}},
		"it knows the job":                  {known: true, want: []string{"expect", "status"}},
		"and the status is not written now": {known: true, refuse: errors.New("no"), want: []string{"expect", "status"}},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobWith(running)
			state := stateOf(job, podOf(job, 1, 0, onNode("n1")), podOf(job, 1, 1, onNode("n1")))
			if c.known {
				state.World = worldOf(0)
			}
			said := &order{refuse: c.refuse}
			r := &Reconciler{
				Client: orderClient{order: said}, Rendezvous: orderRendezvous{order: said}, Fleet: deafFleet{}, Events: events.NewFakeRecorder(9),
				CABundle: func() []byte { return []byte(settings.CABundle) }, Now: func() time.Time { return state.Now },
			}
			plan := NewPlan(state, settings)
			if err := r.carryOut(t.Context(), state, &plan); !errors.Is(err, c.refuse) {
				t.Fatal(err)
			}
			if !slices.Equal(said.said, c.want) {
				t.Errorf("%v, not %v", said.said, c.want)
			}
		})
	}
}
