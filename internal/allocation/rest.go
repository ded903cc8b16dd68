package allocation

import "time"

// until is when a rule that holds for a while after an event ends; zero when it does not hold now. An event
// that lies in the future by more than the rule lasts was stamped by a clock that is wrong: it says nothing.
func until(event time.Time, lasts time.Duration, now time.Time) time.Time {
	if event.IsZero() || lasts <= 0 || event.After(now.Add(lasts)) {
		return time.Time{}
	}
	if end := event.Add(lasts); end.After(now) {
		return end
	}
	return time.Time{}
}

// RegrowDelay is how long a job does not grow after room was taken from it for the given number of times
// lately: it doubles each time, up to LastRegrow.
func (s *Settings) RegrowDelay(reclaims int32) time.Duration {
	if reclaims <= 0 || s.FirstRegrow <= 0 {
		return 0
	}
	delay, last := s.FirstRegrow, max(s.LastRegrow, s.FirstRegrow)
	for ; reclaims > 1 && delay < last; reclaims-- {
		delay *= 2
	}
	return min(delay, last)
}

// patience is how many times a delay must pass in quiet until it halves. Were it one or two, a stream of gangs
// that come a little less often than that would be lent to and taken back from each time.
const patience = 4

// Lately is how often room was taken lately, when it had been taken so many times at a time that is now so
// long ago: one time is forgotten whenever it was quiet for several times the delay that it brought about.
func (s *Settings) Lately(reclaims int32, quiet time.Duration) int32 {
	for ; reclaims > 0; reclaims-- {
		delay := s.RegrowDelay(reclaims)
		if delay <= 0 {
			return 0
		}
		if quiet < patience*delay {
			return reclaims
		}
		quiet -= patience * delay
	}
	return 0
}
