package controller

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// noting is a fleet that notes of how many pods it was told that they are made.
type noting struct {
	lavishFleet
	made *int
}

func (f noting) Made(pods []*corev1.Pod) { *f.made += len(pods) }

// TestTheFleetIsToldWhenPodsAreMade: until then it keeps their room, whatever becomes of them.
func TestTheFleetIsToldWhenPodsAreMade(t *testing.T) {
	for _, err := range []error{nil, errors.New("nobody there")} {
		made := 0
		r := &Reconciler{Fleet: noting{made: &made}, Now: func() time.Time { return now }}
		state := &State{Job: jobWith(scheduled)}
		pods := []*corev1.Pod{podOf(state.Job, 1, 0), podOf(state.Job, 1, 1)}
		got := r.makePods(t.Context(), state, nil, pods, func(*corev1.Pod) error {
			if made > 0 {
				t.Error("it is told before they are made")
			}
			return err
		})
		if !errors.Is(got, err) || made != len(pods) {
			t.Errorf("%v: it is told of %d pods, and %v", err, made, got)
		}
	}
}
