package server

import (
	"context"
	"fmt"
	"testing"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// slowRecorder answers one write for each turn that it is given, and tells of each that has come.
type slowRecorder struct {
	rendezvous.Recorder
	entered, turns chan struct{}
}

func (r slowRecorder) Record(ctx context.Context, job rendezvous.JobKey, prev, next rendezvous.Record) (rendezvous.Record, error) {
	r.entered <- struct{}{}
	select {
	case <-r.turns:
	case <-ctx.Done():
		return rendezvous.Record{}, ctx.Err()
	}
	return r.Recorder.Record(ctx, job, prev, next)
}

// TestATakeoverIsPaced: a leader that begins does not write the terms of all jobs at once.
func TestATakeoverIsPaced(t *testing.T) {
	const jobs = 3 * maxTakeovers
	slow := slowRecorder{entered: make(chan struct{}, jobs), turns: make(chan struct{})}
	f := serve(t, func(o *Options) { slow.Recorder, o.Recorder = o.Recorder, &slow })
	for i := range jobs {
		name := fmt.Sprintf("job-%d", i)
		f.Expect(rendezvous.JobKey{Namespace: "team", Name: name}, gangOf(1, name))
	}
	under := 0
	for came, answered := 0, 0; answered < jobs; {
		if came < jobs && under < maxTakeovers {
			<-slow.entered
			came, under = came+1, under+1
			continue
		}
		if more, turns := len(slow.entered), len(f.jobs.takeovers); more > 0 || turns < under {
			t.Fatalf("%d writes are under way with %d turns, want %d at most", under+more, turns, maxTakeovers)
		}
		slow.turns <- struct{}{}
		answered, under = answered+1, under-1
	}
}
