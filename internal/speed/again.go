package speed

import "time"

// Here is with how many workers a job was seen last, and when, and when it was last seen with any other number; 0 and zero for never.
// Sizes count from five seconds of steps on.
func Here(all []Seen) (workers int, last, elsewhere time.Time) {
	for i := range all {
		if s := &all[i]; s.counts() && (workers == 0 || s.At.After(last)) {
			workers, last = s.Workers, s.At
		}
	}
	for i := range all {
		if s := &all[i]; s.counts() && s.Workers != workers && s.At.After(elsewhere) {
			elsewhere = s.At
		}
	}
	return workers, last, elsewhere
}

// PaceWith is how many steps a second were seen with so many workers, on the nodes on which they were last; 0 for never.
func PaceWith(all []Seen, workers int) (pace float64) {
	var last time.Time
	for i := range all {
		if s := &all[i]; s.counts() && s.Workers == workers && (pace == 0 || s.At.After(last)) {
			pace, last = s.StepsPerSecond, s.At
		}
	}
	return pace
}

// counts says whether enough was seen of a size.
func (s *Seen) counts() bool {
	o := s.observation(s.At)
	return o.usable() && float64(o.Steps)/o.StepsPerSecond >= believed
}
