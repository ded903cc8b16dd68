package start

import (
	"fmt"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

// point is a moment on the way to the first step.
type point int

const (
	// bound: the last worker has its node.
	bound point = iota
	// running: the kubelet has reported the last worker's training container as running. It looks
	// at its containers once a second, so this may be up to a second late, and later than what
	// the program does.
	running
	// formed: the job's status says that its world trains.
	formed
	// rendezvous: the last torchrun has loaded its libraries and asks for its peers.
	rendezvous
	// program: the last training process was started.
	program
	// step: the first step of the training is done.
	step
	points
)

// names are those of the figures, after the name of what was measured.
var names = [points]string{
	bound: "bound", running: "containers_running", formed: "world_formed",
	rendezvous: "agents_up", program: "program_started", step: "first_step",
}

// timeline is one start.
type timeline struct {
	// begin is when the job was submitted, or when the later torchrun was started.
	begin time.Time
	// at are the moments; the zero time where one was not seen.
	at [points]time.Time
}

// latest moves a moment to a later time, as for the last of several workers.
func (t *timeline) latest(p point, at time.Time) {
	if at.After(t.at[p]) {
		t.at[p] = at
	}
}

func (t timeline) String() string {
	var parts []string
	for p, at := range t.at {
		switch {
		case at.IsZero():
		case t.begin.IsZero():
			parts = append(parts, names[p])
		default:
			parts = append(parts, fmt.Sprintf("%s %.2fs", names[p], at.Sub(t.begin).Seconds()))
		}
	}
	return strings.Join(parts, ", ")
}

// phases makes the figures of several starts: the time from the begin to every moment that all of
// them have, and the time of two stretches that can be improved apart from the rest.
func phases(name string, all []timeline) []figures.Figure {
	made := figures.Durations(name+"_first_step", between(all, begin, step))
	for p := range points {
		if p != step {
			made = append(made, figures.Durations(name+"_"+names[p], between(all, begin, p))...)
		}
	}
	made = append(made, figures.Durations(name+"_program_to_first_step", between(all, program, step))...)
	return append(made, figures.Durations(name+"_agents_up_to_first_step", between(all, rendezvous, step))...)
}

// begin stands for the begin of a timeline, in between.
const begin point = -1

// between is the time from one moment to another in every start; nil when one has not seen both.
func between(all []timeline, from, to point) []time.Duration {
	var times []time.Duration
	for _, t := range all {
		since := t.begin
		if from != begin {
			since = t.at[from]
		}
		if since.IsZero() || t.at[to].IsZero() {
			return nil
		}
		times = append(times, t.at[to].Sub(since))
	}
	return times
}
