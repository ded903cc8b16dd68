package controller

import (
	"testing"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// A program that makes more steps than it said is one that has little left, and that by the agent's own words; and after many of them one
// of which nothing is known.
func TestATotalThatWasPassedIsJudged(t *testing.T) {
	page, err := gate.New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = page.Close() })
	program, err := gate.Open(page.File(), 0)
	if err != nil {
		t.Fatal(err)
	}
	program.SetLastStep(100)
	l := newPace(t, "n1", "n1")
	for _, test := range []struct {
		step uint64
		left float64
	}{{99, 1}, {100, 1}, {101, 1}, {114, 1}, {116, 0}, {117, 0}} {
		program.Enter(test.step)
		program.Done(test.step, 0)
		says := page.Progress(0)
		l.refresh(int(test.step)*10, rendezvous.Progress{Step: says.Done, TotalSteps: says.LastStep})
		told := fleet.ProgressOf(&l.job.Status)
		if told.Left() != test.left {
			t.Errorf("after %d steps of 100 it has %g left, want %g", test.step, told.Left(), test.left)
		}
	}
	if len(l.notes) != 1 || l.notes[0].Reason != v1alpha1.EventTotalDoubted {
		t.Errorf("it is told as %+v", l.notes)
	}
}
