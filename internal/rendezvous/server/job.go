package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"golang.org/x/time/rate"
)

// secretBytes is the size of the secret with which the agents of a job prove to each other that they
// belong to it.
const secretBytes = 32

const (
	// staleBeats is for how many beats a session may bring no report before another may take its place at any time.
	staleBeats = 3
	// replaceBurst is how often a session that lives may be replaced at once, replaceEvery how soon once
	// more.
	replaceBurst = 5
	replaceEvery = 10 * time.Second
	// restPerMember is how long the machine of a large job rests between two decisions, for each member: several
	// times what looking at it takes. One of at most smallJob members never rests.
	restPerMember = 4 * time.Microsecond
	smallJob      = 256
	// tickPerMember is how long, for each member, a job is not told that time passes, up to maxTick.
	tickPerMember = 100 * time.Microsecond
	maxTick       = time.Second
)

// job drives the machine of one job: it gives it events one at a time, and does what they lead to.
type job struct {
	registry *registry
	key      rendezvous.JobKey
	uid      string
	// pods are the members that are expected, had those that were before; they belong to the registry's lock.
	pods []string
	had  formerPods
	// expecting is held while a gang is taken over, so that two do not come through each other.
	expecting sync.Mutex

	mu       sync.Mutex
	machine  *rendezvous.Machine
	sessions map[string]*session
	// gang is what the controller wants, released that it lets this attempt go; fallen is about a machine that panicked.
	gang     rendezvous.Gang
	released bool
	fallen   fallen
	// addresses are those of each expected pod, by uid; replaced says how often its session was taken over, elsewhere whether the
	// last one that it had came from another address than these.
	addresses map[string][]netip.Addr
	replaced  map[string]*rate.Limiter
	elsewhere map[string]bool
	// closed says why nothing happens any more; nil while it does.
	closed *rendezvous.Refusal
	// rested is when the machine may decide again, later the timer of a decision that waits for that; nil for
	// none. told is when the machine was told last that time passes.
	rested, told time.Time
	later        *time.Timer
	// turns are those of the sessions while the job is large.
	turns turns
	large atomic.Bool
	// passing is true while somebody waits to tell it.
	passing atomic.Bool
	// episode is the change that is under way, sent who was sent its world; nil for none. beats says who was heard
	// when.
	episode *episode
	sent    atomic.Pointer[sending]
	beats   beats
}

func newJob(r *registry, key rendezvous.JobKey, uid string) *job {
	return &job{
		registry: r, key: key, uid: uid,
		machine:  rendezvous.NewMachine(r.options.ReconnectGrace, rand.Text()),
		sessions: map[string]*session{}, replaced: map[string]*rate.Limiter{}, elsewhere: map[string]bool{}, turns: newTurns(),
	}
}

// know notes the addresses of the members, and ends the sessions of those that have lied about theirs. j.mu is held.
func (j *job) know(members []string, addresses map[string][]netip.Addr) {
	known := make(map[string][]netip.Addr, len(members))
	for _, uid := range members {
		if known[uid] = addresses[uid]; len(known[uid]) == 0 {
			known[uid] = j.addresses[uid]
		}
	}
	j.addresses = known
	j.large.Store(len(members) > smallJob)
	maps.DeleteFunc(j.replaced, func(uid string, _ *rate.Limiter) bool { _, stays := known[uid]; return !stays })
	maps.DeleteFunc(j.elsewhere, func(uid string, _ bool) bool { _, stays := known[uid]; return !stays })
	j.beats.keep(func(uid string) bool { _, stays := known[uid]; return stays })
	for _, s := range j.sessions {
		if why := j.foreign(s.uid, s.says); why != nil {
			j.registry.options.Logger.Info("a worker names an address that its pod does not have", "job", j.key.String(), "why", why.Error())
			s.end(why)
		}
		s.own = slices.Contains(known[s.uid], s.from)
		j.elsewhere[s.uid] = !s.own
	}
}

// foreign refuses an address that a pod does not have; nil while nothing is known of its addresses.
func (j *job) foreign(uid string, address netip.Addr) *rendezvous.Refusal {
	known := j.addresses[uid]
	if len(known) == 0 || slices.Contains(known, address) {
		return nil
	}
	return &rendezvous.Refusal{Kind: rendezvous.RefusedRight, Message: fmt.Sprintf(
		"the worker says that its address is %s, and its pod (%s) has %v", address, uid, known)}
}

// admit says why the pod may have no session; nil when it may.
func (j *job) admit(h *hello) (refused *rendezvous.Refusal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(&refused)
	if j.closed != nil {
		return j.closed
	}
	return j.machine.Admit(h.podUID, h.attempt)
}

// takeOver says why a session may not take the place of an older one; nil when it may. An agent that
// connects again comes from the address that it came from. Somebody else who has its token, and an agent
// whose address is hidden, may take over a session that lives a few times only: so two that take turns
// end with one that stays.
func (j *job) takeOver(older, newer *session, now time.Time) *rendezvous.Refusal {
	limit := j.replaced[newer.uid]
	if limit == nil {
		limit = rate.NewLimiter(rate.Every(replaceEvery), replaceBurst)
		j.replaced[newer.uid] = limit
	}
	switch {
	case newer.own || now.Sub(older.heard) >= staleBeats*j.machine.Beat():
		return nil
	case older.own:
		return &rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: fmt.Sprintf("a session of this pod from its own address %s lives: connect again", older.from)}
	case !limit.AllowN(now, 1):
		return &rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: "sessions of this pod take each other's place too often: connect again"}
	}
	return nil
}

// step gives the machine an event that no session waits for.
func (j *job) step(ev rendezvous.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	if j.closed == nil {
		j.do(j.handle(j.registry.now(), ev))
	}
}

// release says that every member may go.
func (j *job) release() {
	j.mu.Lock()
	j.released = true
	j.mu.Unlock()
	j.step(rendezvous.GangReleased{})
}

// answer gives a machine the answer to its write, if it still is the job's.
func (j *job) answer(asks *rendezvous.Machine, ev rendezvous.RecordAnswered) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	if j.closed == nil && j.machine == asks {
		j.do(j.handle(j.registry.now(), ev))
	}
}

// expect says what the next world is to be made of. It returns false when the job is closed.
func (j *job) expect(gang rendezvous.Gang) bool {
	j.expecting.Lock()
	defer j.expecting.Unlock()
	members, ok := j.expected(gang)
	if ok {
		j.registry.own(j, members)
	}
	return ok
}

// expected gives the machine a gang, and returns the uids of the members that are expected then.
func (j *job) expected(gang rendezvous.Gang) (members []string, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	if j.closed != nil {
		return nil, false
	}
	j.wants(gang)
	if j.fallen.again != nil {
		return nil, true // nobody is expected before it is taken over again
	}
	j.do(j.handle(j.registry.now(), rendezvous.GangExpected{Gang: gang}))
	members = j.machine.Expected()
	j.know(members, gang.Addresses)
	return members, true
}

// pass tells the machine that time passes. Nobody waits for a job that is busy: it is told as soon as it is not, by one of
// the late ones.
func (j *job) pass(late *sync.WaitGroup) {
	switch {
	case j.mu.TryLock():
		defer j.mu.Unlock()
		j.passed(j.registry.now())
	case j.passing.CompareAndSwap(false, true):
		late.Go(func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.passing.Store(false)
			j.passed(j.registry.now())
		})
	}
}

// passed does it; a large job hears of it less often, since it looks at all members then. j.mu is held.
func (j *job) passed(now time.Time) {
	defer j.survive(nil)
	if j.closed != nil || now.Sub(j.told) < min(time.Duration(j.machine.Size())*tickPerMember, maxTick) {
		return
	}
	j.told = now
	j.do(j.handle(now, rendezvous.TimePassed{}))
}

// handle has the machine take an event and decide at once.
func (j *job) handle(now time.Time, ev rendezvous.Event) rendezvous.Effects {
	j.rest(now)
	return j.machine.Handle(now, ev)
}

// decide has the machine decide what the events before have made possible: at once, or when it has rested from the
// last time. A decision looks at all members; so a storm of reports costs a bounded share of one processor, and no
// decision for each.
func (j *job) decide(now time.Time) {
	switch {
	case !j.machine.MayDecide() || j.later != nil:
	case now.Before(j.rested):
		j.later = time.AfterFunc(j.rested.Sub(now), func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			defer j.survive(nil)
			if j.later = nil; j.closed == nil {
				j.decide(j.registry.now())
			}
		})
	default:
		j.rest(now)
		j.do(j.machine.Settled(now))
	}
}

// rest notes a decision.
func (j *job) rest(now time.Time) {
	if n := j.machine.Size(); n > smallJob {
		j.rested = now.Add(time.Duration(n) * restPerMember)
	}
}

// join makes this the session of its pod.
func (j *job) join(s *session, h *hello, first rendezvous.Report) (refused *rendezvous.Refusal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(&refused)
	if j.closed != nil {
		return j.closed
	}
	if why := j.foreign(s.uid, s.says); why != nil {
		return why
	}
	now := j.registry.now()
	s.own, s.heard = slices.Contains(j.addresses[s.uid], s.from), now
	older := j.sessions[s.uid]
	if older != nil {
		if why := j.takeOver(older, s, now); why != nil {
			return why
		}
	}
	out := j.machine.Absorb(now, rendezvous.AgentJoined{
		UID: s.uid, Attempt: h.attempt, Endpoint: h.endpoint, Serves: h.serves, Parts: h.parts, Puts: h.puts, Report: first,
		Disowns: s.own && j.elsewhere[s.uid],
	})
	if out.Refuse != nil {
		j.do(out)
		return out.Refuse
	}
	if older != nil {
		older.end(&rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: "a newer session of this pod has taken the place of this one"})
	}
	j.sessions[s.uid], j.elsewhere[s.uid] = s, !s.own
	s.joined = now
	j.beats.heard(s.uid, now)
	j.registry.metrics.sessions.Inc()
	s.publish()
	j.do(out)
	j.decide(now)
	return nil
}

// hear gives the machine a report that came on a session.
func (j *job) hear(s *session, sequence uint64, r rendezvous.Report) (refused *rendezvous.Refusal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(&refused)
	switch {
	case j.closed != nil:
		return j.closed
	case j.sessions[s.uid] != s:
		return &rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: "this session is over: connect again"}
	}
	s.heard = j.registry.now()
	j.beats.heard(s.uid, s.heard)
	j.heed(s, &r, s.heard)
	out := j.machine.Absorb(s.heard, rendezvous.AgentReported{UID: s.uid, Report: r})
	j.do(out)
	if out.Refuse == nil {
		s.sequence.Store(sequence)
	}
	j.decide(s.heard)
	return out.Refuse
}

// leave ends a session.
func (j *job) leave(s *session) {
	j.registry.metrics.sessions.Dec()
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	if j.closed == nil && j.sessions[s.uid] == s {
		delete(j.sessions, s.uid)
		now := j.registry.now()
		j.do(j.machine.Absorb(now, rendezvous.SessionLost{UID: s.uid}))
		j.decide(now)
	}
}

// directive returns what a session should send now; false for nothing.
func (j *job) directive(s *session) (d rendezvous.Directive, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	if j.closed != nil || j.sessions[s.uid] != s {
		return rendezvous.Directive{}, false
	}
	return j.machine.Directive(s.uid)
}

// measure returns what is measured of the job all the time, how many members have a session, and when the one was
// heard that was heard longest ago, of those that train; zero for none.
func (j *job) measure() (g rendezvous.Glance, connected int, oldest time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	return j.machine.Glance(), len(j.sessions), j.beats.oldest(j.machine.Awaits)
}

// inspect returns what people ask about; false when no gang is expected.
func (j *job) inspect(now time.Time) (seen rendezvous.Inspection, known bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	return j.machine.Inspect(now), j.machine.Size() > 0
}

func (j *job) observe(now time.Time) (seen rendezvous.Observation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	return j.machine.Observe(now)
}

func (j *job) deposed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.machine.IsDeposed()
}

// end ends a job that nobody finds any more, and returns the attempt that it was at.
func (j *job) end() int32 {
	return j.close(rendezvous.Refusal{Kind: rendezvous.RefusedForGood, Message: rendezvous.GoneMessage}, outcomeEnded)
}

// close ends every session, and returns the attempt that the job was at. What is under way comes to that outcome.
func (j *job) close(why rendezvous.Refusal, as outcome) (attempt int32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.survive(nil)
	if j.closed == nil {
		j.closed = &why
		j.interrupt(as)
		for _, s := range j.sessions {
			s.end(&why)
		}
		clear(j.sessions)
		for _, timer := range []*time.Timer{j.later, j.fallen.again} {
			if timer != nil {
				timer.Stop()
			}
		}
	}
	return j.machine.Attempt()
}

// do does what an event has led to, and what follows from the sessions that it ends. Nothing here waits.
func (j *job) do(out rendezvous.Effects) {
	ended := j.carryOut(out)
	for len(ended) > 0 {
		next := ended[0]
		ended = append(ended[1:], j.carryOut(j.handle(j.registry.now(), next))...)
	}
}

// carryOut does what one event has led to, and returns what the machine is to be told then.
func (j *job) carryOut(out rendezvous.Effects) []rendezvous.SessionLost {
	var ended []rendezvous.SessionLost
	j.watch(j.registry.now(), &out)
	for _, note := range out.Notes {
		j.registry.metrics.decisions.WithLabelValues(string(note.Kind)).Inc()
		j.registry.options.Logger.Info(note.Text, "job", j.key.String())
	}
	for i := range out.End {
		end := &out.End[i]
		if s := j.sessions[end.UID]; s != nil {
			delete(j.sessions, end.UID)
			s.end(&end.Why)
			ended = append(ended, rendezvous.SessionLost{UID: end.UID})
		}
	}
	if out.Publish {
		for _, s := range j.sessions {
			s.publish()
		}
	}
	for _, uid := range out.Tell {
		if s := j.sessions[uid]; s != nil {
			s.publish()
		}
	}
	if out.Write != nil {
		asked, asks := *out.Write, j.machine
		j.registry.writes.Go(func() { j.write(asks, asked) })
	}
	if out.Changed {
		j.registry.changes.add(j.key)
	}
	return ended
}

// write has the Recorder make something durable, and gives its answer to the machine that asks for it.
func (j *job) write(asks *rendezvous.Machine, asked rendezvous.Write) {
	if asked.TakesOver() {
		defer j.registry.awaitTurn()()
	}
	ctx, cancel := context.WithTimeout(j.registry.writing, j.registry.options.RecordTimeout)
	defer cancel()
	begun := time.Now()
	found, err := j.registry.options.Recorder.Record(ctx, j.key, asked.Prev, asked.Next)
	j.registry.metrics.recorded(time.Since(begun), err)
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // never fails
	j.answer(asks, rendezvous.RecordAnswered{Found: found, Err: err, Secret: secret})
}
