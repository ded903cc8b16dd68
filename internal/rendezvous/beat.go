package rendezvous

import "time"

// silentBeats is how many beats a member may miss before it can be silent.
const silentBeats = 3

// changeBeat is the longest time between two reports while a planned change is under way. What a member acknowledges of a
// hold may have been given two beats and renewEvery before, and that must be well below half of holdTime.
const changeBeat = 2 * time.Second

// beat is the longest time between two reports now.
func (m *Machine) beat() time.Duration {
	if m.change != nil {
		return min(m.Beat(), changeBeat)
	}
	return m.Beat()
}

// BeatOf is the longest time between two reports of a worker, in a job of so many: an operator hears at most some
// thousand of each job in a second. It does not depend on other jobs: how soon a loss is found in one does not either.
func BeatOf(members int) time.Duration {
	switch {
	case members <= 1000:
		return time.Second
	case members <= 2000:
		return 2 * time.Second
	case members <= 5000:
		return 5 * time.Second
	}
	return 10 * time.Second
}
