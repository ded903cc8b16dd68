package rendezvous

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"
)

// secretBytes is the size of the secret with which the agents of a job prove to each other that they
// belong to it.
const secretBytes = 32

const (
	// staleAfter is how long a session may bring no report before another may take its place at any time.
	staleAfter = 3 * time.Second
	// replaceBurst is how often a session that lives may be replaced at once, replaceEvery how soon once
	// more.
	replaceBurst = 5
	replaceEvery = 10 * time.Second
)

// job drives the machine of one job: it gives it events one at a time, and does what they lead to.
type job struct {
	registry *registry
	key      JobKey
	uid      string
	// pods are the members that are expected; it belongs to the registry's lock.
	pods []string

	mu       sync.Mutex
	machine  *machine
	sessions map[string]*session
	// addresses are those of each expected pod, by uid; replaced says how often its session was taken over.
	addresses map[string][]netip.Addr
	replaced  map[string]*rate.Limiter
	// closed says why nothing happens any more; nil while it does.
	closed *refusal
}

func newJob(r *registry, key JobKey, uid string) *job {
	return &job{
		registry: r, key: key, uid: uid,
		machine:  newMachine(r.options.ReconnectGrace, rand.Text()),
		sessions: map[string]*session{}, replaced: map[string]*rate.Limiter{},
	}
}

// know notes the addresses of the members, and ends the sessions of those that have lied about theirs.
func (j *job) know(members []string, addresses map[string][]netip.Addr) {
	j.mu.Lock()
	defer j.mu.Unlock()
	known := make(map[string][]netip.Addr, len(members))
	for _, uid := range members {
		if known[uid] = addresses[uid]; len(known[uid]) == 0 {
			known[uid] = j.addresses[uid]
		}
	}
	j.addresses = known
	maps.DeleteFunc(j.replaced, func(uid string, _ *rate.Limiter) bool { _, stays := known[uid]; return !stays })
	for _, s := range j.sessions {
		if why := j.foreign(s.uid, s.says); why != nil {
			j.registry.options.Logger.Info("a worker names an address that its pod does not have", "job", j.key.String(), "why", why.Error())
			s.end(why)
		}
		s.own = slices.Contains(known[s.uid], s.from)
	}
}

// foreign refuses an address that a pod does not have; nil while nothing is known of its addresses.
func (j *job) foreign(uid string, address netip.Addr) *refusal {
	known := j.addresses[uid]
	if len(known) == 0 || slices.Contains(known, address) {
		return nil
	}
	return &refusal{connect.CodePermissionDenied, fmt.Sprintf(
		"the worker says that its address is %s, and its pod (%s) has %v", address, uid, known)}
}

// admit says why the pod may have no session; nil when it may.
func (j *job) admit(h *hello) *refusal {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed != nil {
		return j.closed
	}
	return j.machine.admit(h.podUID, h.attempt)
}

// takeOver says why a session may not take the place of an older one; nil when it may. An agent that
// connects again comes from the address that it came from. Somebody else who has its token, and an agent
// whose address is hidden, may take over a session that lives a few times only: so two that take turns
// end with one that stays.
func (j *job) takeOver(older, newer *session, now time.Time) *refusal {
	limit := j.replaced[newer.uid]
	if limit == nil {
		limit = rate.NewLimiter(rate.Every(replaceEvery), replaceBurst)
		j.replaced[newer.uid] = limit
	}
	switch {
	case newer.own || now.Sub(older.heard) >= staleAfter:
		return nil
	case older.own:
		return &refusal{connect.CodeUnavailable, fmt.Sprintf("a session of this pod from its own address %s lives: connect again", older.from)}
	case !limit.AllowN(now, 1):
		return &refusal{connect.CodeUnavailable, "sessions of this pod take each other's place too often: connect again"}
	}
	return nil
}

// step gives the machine an event that no session waits for, and returns the uids of the members
// that are expected then.
func (j *job) step(ev event) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed != nil {
		return nil
	}
	j.do(j.machine.handle(j.registry.now(), ev))
	if _, ok := ev.(gangExpected); !ok {
		return nil
	}
	uids := make([]string, 0, len(j.machine.gang.Members))
	for i := range j.machine.gang.Members {
		uids = append(uids, j.machine.gang.Members[i].UID)
	}
	return uids
}

// join makes this the session of its pod.
func (j *job) join(s *session, h *hello, first report) *refusal {
	j.mu.Lock()
	defer j.mu.Unlock()
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
	out := j.machine.handle(now, agentJoined{
		uid: s.uid, attempt: h.attempt, endpoint: h.endpoint, serves: h.serves, report: first,
	})
	if out.refuse != nil {
		j.do(out)
		return out.refuse
	}
	if older != nil {
		older.end(&refusal{connect.CodeUnavailable, "a newer session of this pod has taken the place of this one"})
	}
	j.sessions[s.uid] = s
	j.registry.metrics.sessions.Inc()
	s.answer()
	j.do(out)
	return nil
}

// hear gives the machine a report that came on a session.
func (j *job) hear(s *session, sequence uint64, r report) *refusal {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.closed != nil:
		return j.closed
	case j.sessions[s.uid] != s:
		return &refusal{connect.CodeUnavailable, "this session is over: connect again"}
	}
	s.heard = j.registry.now()
	out := j.machine.handle(s.heard, agentReported{uid: s.uid, report: r})
	j.do(out)
	if out.refuse == nil {
		s.sequence.Store(sequence)
		s.answer()
	}
	return out.refuse
}

// leave ends a session.
func (j *job) leave(s *session) {
	j.registry.metrics.sessions.Dec()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed == nil && j.sessions[s.uid] == s {
		delete(j.sessions, s.uid)
		j.do(j.machine.handle(j.registry.now(), sessionLost{s.uid}))
	}
}

// directive returns what a session should send now; false for nothing.
func (j *job) directive(s *session) (directive, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed != nil || j.sessions[s.uid] != s {
		return directive{}, false
	}
	return j.machine.directive(s.uid)
}

func (j *job) observe(now time.Time) Observation {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.machine.observe(now)
}

func (j *job) deposed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.machine.deposed
}

// close ends every session, and returns the attempt that the job was at.
func (j *job) close(why refusal) int32 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed == nil {
		j.closed = &why
		for _, s := range j.sessions {
			s.end(&why)
		}
		clear(j.sessions)
	}
	return j.machine.gang.Attempt
}

// do does what an event has led to, and what follows from the sessions that it ends. Nothing here waits.
func (j *job) do(out effects) {
	ended := j.carryOut(out)
	for len(ended) > 0 {
		next := ended[0]
		ended = append(ended[1:], j.carryOut(j.machine.handle(j.registry.now(), next))...)
	}
}

// carryOut does what one event has led to, and returns what the machine is to be told then.
func (j *job) carryOut(out effects) []sessionLost {
	var ended []sessionLost
	for _, note := range out.notes {
		j.registry.metrics.decisions.WithLabelValues(string(note.kind)).Inc()
		j.registry.options.Logger.Info(note.text, "job", j.key.String())
	}
	for i := range out.end {
		end := &out.end[i]
		if s := j.sessions[end.uid]; s != nil {
			delete(j.sessions, end.uid)
			s.end(&end.why)
			ended = append(ended, sessionLost{end.uid})
		}
	}
	if out.publish {
		for _, s := range j.sessions {
			s.answer()
		}
	}
	if out.write != nil {
		asked := *out.write
		j.registry.writes.Go(func() { j.write(asked) })
	}
	if out.changed {
		j.registry.changes.add(j.key)
	}
	return ended
}

// write has the Recorder make something durable, and gives its answer to the machine.
func (j *job) write(asked write) {
	if asked.takesOver() {
		defer j.registry.awaitTurn()()
	}
	ctx, cancel := context.WithTimeout(j.registry.writing, j.registry.options.RecordTimeout)
	defer cancel()
	begun := time.Now()
	found, err := j.registry.options.Recorder.Record(ctx, j.key, asked.prev, asked.next)
	j.registry.metrics.recorded(time.Since(begun), err)
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // never fails
	j.step(recordAnswered{found: found, err: err, secret: secret})
}
