package rendezvous

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// secretBytes is the size of the secret with which the agents of a job prove to each other that they
// belong to it.
const secretBytes = 32

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
	// closed says why nothing happens any more; nil while it does.
	closed *refusal
}

func newJob(r *registry, key JobKey, uid string) *job {
	return &job{
		registry: r, key: key, uid: uid,
		machine:  newMachine(r.options.ReconnectGrace),
		sessions: map[string]*session{},
	}
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
	out := j.machine.handle(j.registry.now(), agentJoined{
		uid: s.uid, attempt: h.attempt, endpoint: h.endpoint, serves: h.serves, report: first,
	})
	if out.refuse != nil {
		j.do(out)
		return out.refuse
	}
	if older := j.sessions[s.uid]; older != nil {
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
	out := j.machine.handle(j.registry.now(), agentReported{uid: s.uid, report: r})
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

// do does what an event has led to. Nothing here waits.
func (j *job) do(out effects) {
	for _, note := range out.notes {
		j.registry.metrics.decisions.WithLabelValues(string(note.kind)).Inc()
		j.registry.options.Logger.Info(note.text, "job", j.key.String())
	}
	for i := range out.end {
		end := &out.end[i]
		if s := j.sessions[end.uid]; s != nil {
			delete(j.sessions, end.uid)
			s.end(&end.why)
			j.machine.handle(j.registry.now(), sessionLost{end.uid})
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
