package server

import (
	"crypto/rand"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// Nothing that members, the controller or the record say is to make a machine panic. Should one panic all the same, the
// operator goes on, and with it the rendezvous of all other jobs. That one job is taken over anew, as another operator
// would after the end of this one: its sessions end, what was known of it is forgotten, and another machine, which has
// another name, raises the term and finds out who is where. Its world trains on meanwhile.

const (
	// firstFall and lastFall bound the wait until a job is taken over that has fallen; it doubles from one fall to the
	// next, so that a job that falls again and again costs others nothing.
	firstFall = time.Second
	lastFall  = time.Minute
	// calmAfter is how long after a fall the next one counts as the first.
	calmAfter = 10 * time.Minute
)

// fallen is how often a job has fallen of late, and when last. The timer takes it over; it is nil while nothing waits.
type fallen struct {
	times int
	at    time.Time
	again *time.Timer
}

// wait is how long it takes until a job is taken over that has just fallen once more.
func (f *fallen) wait(now time.Time) time.Duration {
	if now.Sub(f.at) > calmAfter {
		f.times = 0
	}
	f.times, f.at = f.times+1, now
	return min(firstFall<<min(f.times-1, 16), lastFall)
}

// survive is deferred by whoever holds the job's lock: it keeps a panic from the operator. What was asked for is refused
// then; nil where nobody waits for an answer.
func (j *job) survive(refused **rendezvous.Refusal) {
	why := recover()
	if why == nil {
		return
	}
	j.registry.metrics.falls.Inc()
	falls := &rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: "this operator has failed at this job, and takes it over anew: connect again"}
	if refused != nil {
		*refused = falls
	}
	for _, s := range j.sessions {
		s.end(falls)
	}
	clear(j.sessions)
	if j.closed != nil || j.machine.IsDeposed() {
		j.registry.options.Logger.Error(fmt.Errorf("%v", why), "the rendezvous of a job that is not ours any more has panicked: this is a defect of "+
			"the operator, please report it", "job", j.key.String(), "stack", string(debug.Stack()))
		return
	}
	wait := j.fallen.wait(j.registry.now())
	j.forget()
	j.registry.changes.add(j.key)
	j.fallen.again = time.AfterFunc(wait, j.takeAgain)
	j.registry.options.Logger.Error(fmt.Errorf("%v", why), "the rendezvous of a job has panicked, and takes it over anew; other jobs notice nothing, and its "+
		"world trains on. This is a defect of the operator, please report it", "job", j.key.String(), "in", wait.String(), "stack", string(debug.Stack()))
}

// forget forgets all that was known of a job but what the controller wants. An episode that ends so has no spans, like one
// that an operator dies in.
func (j *job) forget() {
	j.machine = rendezvous.NewMachine(j.registry.options.ReconnectGrace, rand.Text())
	j.beats, j.rested, j.told = beats{}, time.Time{}, time.Time{}
	j.episode = nil
	j.sent.Store(nil)
	if j.later != nil {
		j.later.Stop()
		j.later = nil
	}
}

// takeAgain takes the job over that has fallen.
func (j *job) takeAgain() {
	j.mu.Lock()
	j.fallen.again = nil
	gang, released := j.gang, j.released
	j.mu.Unlock()
	if j.expect(gang) && released {
		j.step(rendezvous.GangReleased{})
	}
}

// wants notes what the controller says of a job.
func (j *job) wants(gang rendezvous.Gang) {
	if gang.Attempt != j.gang.Attempt {
		j.released = false
	}
	j.gang = gang
}
