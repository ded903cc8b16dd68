package console

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// mostChanges is how many changes of the world are told.
const mostChanges = 5

// changes are the last changes of the world, the newest first.
func (l *Look) changes(j *job) []string {
	resizes := slices.Clone(j.object.Status.Resizes)
	slices.Reverse(resizes)
	var all []string
	for i := range resizes[:min(len(resizes), mostChanges)] {
		all = append(all, l.change(&resizes[i]))
	}
	if earlier := len(resizes) - mostChanges; earlier > 0 {
		all = append(all, fmt.Sprintf("%s before that: see status.resizes.", count(earlier, "change")))
	}
	return all
}

func (l *Look) change(r *v1alpha1.Resize) string {
	text := fmt.Sprintf("Round %d: from %d to %d workers", value(r.Round), value(r.From), value(r.To))
	if value(r.From) == value(r.To) {
		text = fmt.Sprintf("Round %d: with %d workers as before", value(r.Round), value(r.To))
	}
	if r.At != nil {
		text = fmt.Sprintf("%s ago, %s", span(l.since(r.At)), "r"+text[1:])
	}
	text += fmt.Sprintf(" (%s)", r.Reason)
	if r.Message != "" {
		text += ": " + r.Message
	}
	if r.Pause != nil {
		text += "; training paused for " + pause(r.Pause.Duration)
	}
	switch {
	case r.StepsLost == nil:
	case *r.StepsLost == 0:
		text += "; no step was lost"
	default:
		text += fmt.Sprintf("; %s had to be made again", count(*r.StepsLost, "step"))
	}
	return sentence(text)
}

// past is how often the job started over, and what its time went into.
func (l *Look) past(j *job) []string {
	status := &j.object.Status
	program, others := value(status.Restarts.Program), value(status.Restarts.Infrastructure)
	var all []string
	switch {
	case program+others > 0:
		all = append(all, fmt.Sprintf("Its own program has failed %s, of %d that it may (spec.failure.maxRestarts). "+
			"The infrastructure has taken workers from it %s, which does not count.",
			count(program, "time"), value(j.object.Spec.Failure.MaxRestarts), count(others, "time")))
	case value(status.Attempt) > 0 && value(status.Retries) == 0:
		all = append(all, "Nothing of it was lost so far, neither to its own program nor to the infrastructure.")
	}
	if n := value(status.Retries); n > 0 {
		all = append(all, fmt.Sprintf("%s in a row came to nothing lately, before one had trained for a minute (status.retries): the pause before the next one doubles with each.",
			count(n, "attempt")))
	}
	if part, err := strconv.ParseFloat(status.Progress.Goodput, 64); err == nil {
		all = append(all, fmt.Sprintf("%.1f%% of its time since its first step went into steps that count (goodput %s); "+
			"the rest were pauses, steps that were made again, and waiting.", 100*part, status.Progress.Goodput))
	}
	return all
}

// median is the pause that half of the last changes were no longer than; false when none was seen.
func median(resizes []v1alpha1.Resize) (time.Duration, bool) {
	var all []time.Duration
	for i := range resizes {
		if p := resizes[i].Pause; p != nil {
			all = append(all, p.Duration)
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all)
	return all[(len(all)-1)/2], true
}
