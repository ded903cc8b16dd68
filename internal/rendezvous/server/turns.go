package server

import (
	"sync"
	"time"
)

const (
	// sendersAtOnce is how many sessions of one job send unasked at the same time.
	sendersAtOnce = 32
	// turnTime is for how long each of them holds up others. To send takes some 50 µs.
	turnTime = 100 * time.Millisecond
)

// turns are the places of those who send unasked. Without them a world of 10,000 members that is published would have
// 10,000 goroutines ready to run, and what another job has to say would wait behind all of them. An agent that does not
// read keeps its place for a moment only.
type turns chan struct{}

// take waits for a place, and returns what gives it back.
func (t turns) take() func() {
	t <- struct{}{}
	leave := sync.OnceFunc(func() { <-t })
	late := time.AfterFunc(turnTime, leave)
	return func() {
		late.Stop()
		leave()
	}
}
