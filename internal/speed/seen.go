package speed

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// MostSizes bounds how many sizes of a job are remembered.
const MostSizes = 16

// remembered is the age beyond which what was seen at a size weighs no less: a sixteenth is still more than what is expected
// of any job. Were it forgotten, a job would be taken from time to time for one that scales better than it does, and others
// would give it workers to find that out once more.
const remembered = 4 * halfLife

// believed is how many seconds of steps have to be seen at a size before it counts: the first ones are slower in many
// programs. They outweigh what is expected of any job.
const believed = 5.0

// Seen is what was seen of a job at one size, over its life.
type Seen struct {
	// Workers and Nodes are how many there were, at least 1.
	Workers, Nodes int
	// StepsPerSecond is the pace there, Steps how many steps were seen.
	StepsPerSecond float64
	Steps          int64
	// At is when the last of them was.
	At time.Time
}

// Add enters steps that were seen into what was seen before, which stays as it is: in the order of sizes, at most
// MostSizes, those that were seen last. What cannot be true counts for nothing, and is left out. What was seen earlier at the same
// size counts by its seconds, at most a minute of them, and less the longer ago it was: so a change of pace shows within
// minutes.
func Add(all []Seen, more Seen) []Seen {
	if o := more.observation(more.At); !o.usable() {
		return all
	}
	all = slices.DeleteFunc(slices.Clone(all), func(s Seen) bool {
		o := s.observation(more.At)
		return !o.usable()
	})
	slices.SortFunc(all, bySize)
	at, found := slices.BinarySearchFunc(all, more, bySize)
	if found {
		all[at] = all[at].with(more)
	} else {
		all = slices.Insert(all, at, more)
	}
	if len(all) > MostSizes {
		first := 0
		for i := range all {
			if all[i].At.Before(all[first].At) {
				first = i
			}
		}
		all = slices.Delete(all, first, first+1)
	}
	return all
}

func bySize(a, b Seen) int {
	return cmp.Or(cmp.Compare(a.Workers, b.Workers), cmp.Compare(a.Nodes, b.Nodes))
}

// with is what was seen together with more of the same size.
func (s Seen) with(more Seen) Seen {
	before, now := s.observation(more.At), more.observation(more.At)
	old, fresh := weight(&before), weight(&now)
	more.StepsPerSecond = (old*s.StepsPerSecond + fresh*more.StepsPerSecond) / (old + fresh)
	more.Steps += min(s.Steps, math.MaxInt64-more.Steps)
	return more
}

// observation is what it says at a time. What is said to have been later was now: clocks jump.
func (s *Seen) observation(now time.Time) Observation {
	return Observation{
		Workers: s.Workers, Nodes: s.Nodes, StepsPerSecond: s.StepsPerSecond, Steps: s.Steps,
		Age: min(max(0, now.Sub(s.At)), remembered),
	}
}

// Observations are those sizes of which enough was seen to count.
func Observations(all []Seen, now time.Time) []Observation {
	var some []Observation
	for i := range all {
		if o := all[i].observation(now); o.usable() && float64(o.Steps)/o.StepsPerSecond >= believed {
			some = append(some, o)
		}
	}
	return some
}
