package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// sink keeps the events that are made.
type sink struct {
	mu   sync.Mutex
	made []string
}

func (s *sink) Create(_ context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = append(s.made, event.Note)
	return event, nil
}

func (s *sink) Update(_ context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	return event, nil
}

func (s *sink) Patch(_ context.Context, event *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	return event, nil
}

func (s *sink) notes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.made))
}

// What is told of several workers at once is told of each, though the job is the same, and the reason.
func TestEachWorkerHasItsEvent(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	made := &sink{}
	broadcaster := events.NewBroadcaster(made)
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	job := trains(3)
	r := &Reconciler{Events: broadcaster.NewRecorder(scheme, "concertina")}
	p := &planner{}
	var want []string
	for _, pod := range crewOf(job) {
		p.noteOf(pod, corev1.EventTypeWarning, v1alpha1.EventWorkerUnheard, "nobody hears %s", pod.Name)
		want = append(want, fmt.Sprintf("nobody hears %s", pod.Name))
	}
	for _, note := range p.plan.Notes {
		r.tell(job, note)
	}
	for end := time.Now().Add(10 * time.Second); len(made.notes()) < len(want) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if got := made.notes(); !slices.Equal(got, want) {
		t.Errorf("the events are %q", got)
	}
}
