package peers

import (
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/bench/steps"
)

// timeline is what one member has said of its steps, in their order.
type timeline []steps.Stamp

// sample is what a change has cost.
type sample struct {
	pause time.Duration
	lost  uint64
}

// cost is what a change has cost a member that lived through it: the steps from index mark on came after its cause,
// and round is the world that it led to. The pause is the time without the end of a step wherever the member changed
// its world, less what a step took before; lost are steps that it made, and had to make again.
func (t timeline) cost(mark int, round uint64) (s sample) {
	ordinary := t[:mark].interval()
	for i := max(mark, 1); i < len(t); i++ {
		before, after := t[i-1], t[i]
		if before.Round != after.Round {
			s.pause += after.Done.Sub(before.Done) - ordinary
			if after.Step <= before.Step {
				s.lost += before.Step - after.Step + 1
			}
		}
		if after.Round == round {
			break
		}
	}
	return s
}

// interval is how long it took lately from the end of one step to that of the next, within a world.
func (t timeline) interval() time.Duration {
	var gaps []time.Duration
	for i := max(1, len(t)-between); i < len(t); i++ {
		if t[i].Round == t[i-1].Round {
			gaps = append(gaps, t[i].Done.Sub(t[i-1].Done))
		}
	}
	return figures.Median(gaps)
}

// settled is the round that all members are in, when each has made enough steps there; 0 otherwise.
func settled(all []timeline) uint64 {
	var round uint64
	for _, t := range all {
		if len(t) < between {
			return 0
		}
		last, first := t[len(t)-1].Round, t[len(t)-between].Round
		if first != last || round != 0 && last != round {
			return 0
		}
		round = last
	}
	return round
}

// worst is the cost of a change for a training: that of the member that it cost most.
func worst(all []sample) (s sample) {
	for _, one := range all {
		s.pause, s.lost = max(s.pause, one.pause), max(s.lost, one.lost)
	}
	return s
}
