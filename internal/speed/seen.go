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

const (
	// drifts is from which ratio on a pace is another one than it was, and not noise, rests how near to it what is seen now
	// has to be until that is certain. A pace counts by the last minute, so that takes minutes: the more, the further it falls.
	drifts, rests = 1.15, 1.2
	// mostChange bounds by how much one change of pace at one size moves the others.
	mostChange = 16
)

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
	// Took is how long those steps took, each at the pace of then; 0 for not known.
	Took time.Duration
	// Settled is the pace at which it was before it began to change, 0 where that is the same.
	Settled float64
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
		was := all[at].settled()
		all[at] = all[at].with(more)
		if pace := all[at].StepsPerSecond; !alike(pace, was, drifts) && alike(more.StepsPerSecond, pace, rests) {
			change(all, pace/was)
			all[at].StepsPerSecond, all[at].Settled = pace, 0
		}
	} else {
		all = slices.Insert(all, at, more)
	}
	if len(all) > MostSizes {
		first := -1
		for i := range all {
			// What is said to have been later than now was now: it would outlast all that a clock that is right has seen.
			if all[i].At.After(more.At) {
				all[i].At = more.At
			}
			if i != at && (first < 0 || all[i].At.Before(all[first].At)) {
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
	if more.Took > 0 {
		more.Took += min(s.Spent(), math.MaxInt64-more.Took)
	}
	more.Steps += min(s.Steps, math.MaxInt64-more.Steps)
	// The first minute is what the size is known by, however it goes.
	if was := s.settled(); was != more.StepsPerSecond && float64(s.Steps)/was >= enough {
		more.Settled = was
	}
	return more
}

// Spent is how long its steps took; as long as at its pace of now where that is not known.
func (s *Seen) Spent() time.Duration {
	if s.Took > 0 {
		return s.Took
	}
	if !(s.StepsPerSecond > 0) || s.Steps <= 0 {
		return 0
	}
	spent := float64(s.Steps) / s.StepsPerSecond * float64(time.Second)
	if !(spent < math.MaxInt64) {
		return math.MaxInt64
	}
	return time.Duration(spent)
}

// settled is the pace that is certain.
func (s *Seen) settled() float64 {
	if s.Settled >= slowest && s.Settled <= fastest {
		return s.Settled
	}
	return s.StepsPerSecond
}

// Withdraw takes back what had begun to change at a size, where it is known that it was no matter of the size.
func Withdraw(all []Seen, workers, nodes int) []Seen {
	all = slices.Clone(all)
	for i := range all {
		if s := &all[i]; s.Workers == workers && s.Nodes == nodes {
			s.StepsPerSecond, s.Settled = s.settled(), 0
		}
	}
	return all
}

// change moves all paces by a ratio. What had begun to change at another size is forgotten: it was the same change.
func change(all []Seen, ratio float64) {
	ratio = min(max(ratio, 1.0/mostChange), mostChange)
	for i := range all {
		all[i].StepsPerSecond = min(max(all[i].settled()*ratio, slowest), fastest)
		all[i].Settled = 0
	}
}

// alike says whether two paces differ by less than a ratio.
func alike(a, b, ratio float64) bool { return a < b*ratio && b < a*ratio }

// observation is what it says at a time. What is being seen of it moves it no further than noise could until it is certain. What is
// said to have been later was now: clocks jump.
func (s *Seen) observation(now time.Time) Observation {
	was := s.settled()
	return Observation{
		Workers: s.Workers, Nodes: s.Nodes, StepsPerSecond: min(max(s.StepsPerSecond, was/drifts), was*drifts), Steps: s.Steps,
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
