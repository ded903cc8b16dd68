package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simRegistry is the rendezvous of one operator: the real machine of each job, and the sessions of its agents.
type simRegistry struct {
	training *simTraining
	op       *simOperator
	jobs     map[rendezvous.JobKey]*simMachine
	// gone are the attempts of jobs that are over.
	gone map[rendezvous.JobKey]int32
}

// simMachine drives the machine of one job as the operator's server does: one event at a time.
type simMachine struct {
	registry *simRegistry
	key      rendezvous.JobKey
	uid      string
	machine  *rendezvous.Machine
	sessions map[types.UID]*simSession
	closed   bool
	// telling is true while the controller is about to hear that something has changed.
	telling bool
}

// simTick is how often a machine is told that time passes.
const simTick = 100 * time.Millisecond

func newSimRegistry(training *simTraining, op *simOperator) *simRegistry {
	return &simRegistry{training: training, op: op, jobs: map[rendezvous.JobKey]*simMachine{}, gone: map[rendezvous.JobKey]int32{}}
}

// close ends all sessions, as the end of a process does. The caller holds the lock.
func (r *simRegistry) close() {
	for _, key := range slices.SortedFunc(maps.Keys(r.jobs), func(a, b rendezvous.JobKey) int { return compareKeys(a, b) }) {
		r.jobs[key].end(false)
	}
}

func compareKeys(a, b rendezvous.JobKey) int {
	switch {
	case a.String() < b.String():
		return -1
	case a.String() > b.String():
		return 1
	}
	return 0
}

// Expect implements rendezvous.Coordinator.
func (r *simRegistry) Expect(key rendezvous.JobKey, gang rendezvous.Gang) {
	r.training.do(func() {
		if r.op.dead {
			return
		}
		j := r.jobs[key]
		if j != nil && j.uid != gang.JobUID {
			j.end(true)
			j = nil
		}
		if j == nil {
			j = &simMachine{
				registry: r, key: key, uid: gang.JobUID, sessions: map[types.UID]*simSession{},
				machine: rendezvous.NewMachine(10*time.Second, fmt.Sprint("operator ", r.op.number)),
			}
			r.jobs[key] = j
			j.tick()
		}
		delete(r.gone, key)
		_ = j.handle(rendezvous.GangExpected{Gang: gang})
	})
}

// Release implements rendezvous.Coordinator.
func (r *simRegistry) Release(key rendezvous.JobKey, uid string) {
	r.training.do(func() {
		j := r.jobs[key]
		if j != nil && j.uid == uid {
			_ = j.handle(rendezvous.GangReleased{})
		}
		if j != nil {
			return
		}
		if _, known := r.gone[key]; !known && !r.op.dead {
			r.gone[key] = 0
		}
	})
}

// Forget implements rendezvous.Coordinator.
func (r *simRegistry) Forget(key rendezvous.JobKey, uid string) {
	r.training.do(func() {
		if j := r.jobs[key]; j != nil && j.uid == uid && !j.machine.IsDeposed() && !r.op.dead {
			r.gone[key] = j.machine.Attempt()
			delete(r.jobs, key)
			j.end(true)
		}
	})
}

// Changed implements rendezvous.Coordinator.
func (r *simRegistry) Changed() <-chan rendezvous.JobKey { return r.op.worlds }

// Observe implements rendezvous.Coordinator.
func (r *simRegistry) Observe(key rendezvous.JobKey) (seen rendezvous.Observation) {
	r.training.do(func() {
		if j := r.jobs[key]; j != nil {
			seen = j.machine.Observe(r.op.clock.now())
		}
	})
	return seen
}

// tick tells the machine that time passes.
func (j *simMachine) tick() {
	j.registry.training.after(simTick, func() {
		if !j.closed {
			_ = j.handle(rendezvous.TimePassed{})
			j.tick()
		}
	})
}

// end ends the sessions of a job, with the word that nobody knows it any more or without one.
func (j *simMachine) end(good bool) {
	j.closed = true
	for _, uid := range slices.Sorted(maps.Keys(j.sessions)) {
		j.sessions[uid].end(good)
	}
	clear(j.sessions)
}

// handle gives the machine an event, and does what it leads to.
func (j *simMachine) handle(ev rendezvous.Event) *rendezvous.Refusal {
	if j.closed {
		return &rendezvous.Refusal{Kind: rendezvous.RefusedForNow}
	}
	s := j.registry.training
	out := j.machine.Handle(j.registry.op.clock.now(), ev)
	for _, note := range out.Notes {
		s.say("  operator %d, %s: %s", j.registry.op.number, j.key, note.Text)
	}
	var over []string
	for _, e := range out.End {
		if session := j.sessions[types.UID(e.UID)]; session != nil {
			delete(j.sessions, types.UID(e.UID))
			session.end(e.Why.Kind == rendezvous.RefusedForGood)
			over = append(over, e.UID)
		}
	}
	for _, uid := range out.Tell {
		if session := j.sessions[types.UID(uid)]; session != nil {
			session.publish()
			s.effect(j.registry.op, "it has told "+uid)
		}
	}
	if out.Publish {
		for _, uid := range slices.Sorted(maps.Keys(j.sessions)) {
			if session := j.sessions[uid]; session != nil {
				session.publish()
				s.effect(j.registry.op, "it has published to "+string(uid))
			}
		}
	}
	if out.Write != nil {
		s.effect(j.registry.op, "it has decided on a write")
	}
	if j.closed {
		return out.Refuse
	}
	if out.Write != nil {
		asked := *out.Write
		s.history.asked(j, &asked)
		j.registry.op.running.Go(func() { j.write(asked) })
	}
	if out.Changed {
		j.tell()
	}
	for _, uid := range over {
		_ = j.handle(rendezvous.SessionLost{UID: uid})
	}
	return out.Refuse
}

// tell has the controller look at the job soon, once however much has changed.
func (j *simMachine) tell() {
	if j.telling {
		return
	}
	j.telling = true
	t := j.registry.training
	t.after(t.span(100*time.Microsecond, 10*time.Millisecond), func() {
		j.telling = false
		j.registry.op.changed(j.key)
	})
}

// write makes a record durable by the code that operators do it with, which knows the simulated server's faults.
func (j *simMachine) write(asked rendezvous.Write) {
	op := j.registry.op
	recorder := record.Status{Live: &simClient{op: op, live: true}, Writer: (&simClient{op: op}).Status()}
	answered := j.registry.training.history.writes.Wrote(asked.Prev, asked.Next)
	found, err := recorder.Record(context.Background(), j.key, asked.Prev, asked.Next)
	answered(found, err)
	j.registry.training.do(func() {
		j.registry.training.effect(op, "a write was made")
		_ = j.handle(rendezvous.RecordAnswered{Found: found, Err: err, Secret: fmt.Appendf(nil, "%032d", asked.Next.Term)})
	})
}

// simSession is one connection of an agent to an operator. What is sent on it arrives in order, or not at all.
type simSession struct {
	agent   *simAgent
	machine *simMachine
	// over is true once it has ended for the agent, ended once it has for the operator.
	over, ended bool
	// heardAt and toldAt are when the last report and the last directive arrive.
	heardAt, toldAt time.Time
	// answered is when the report was sent that the next directive answers, heard when the last one came.
	answered, heard time.Time
	spoken          bool
	opened          time.Time
	// told is what the operator has been told on it.
	told simTold
}

// up has something of the agent's arrive at the operator, where nobody knows yet that the agent has hung up: what it has
// said may come after the first words of its next session.
func (c *simSession) up(what func()) {
	c.arrives(&c.heardAt, func() {
		if t := c.agent.training; !c.ended && !c.machine.registry.op.dead && !t.mute[c.agent.pod.Spec.NodeName] {
			what()
		}
	})
}

// down has something of the operator's arrive at the agent.
func (c *simSession) down(what func()) {
	c.arrives(&c.toldAt, func() {
		if t := c.agent.training; !c.over && !t.deaf[c.agent.pod.Spec.NodeName] {
			what()
		}
	})
}

// arrives has something arrive at the other end, after what was sent before it.
func (c *simSession) arrives(last *time.Time, what func()) {
	s := c.agent.training
	at := time.Now().Add(s.delay())
	if !at.After(*last) {
		at = last.Add(time.Microsecond)
	}
	*last = at
	s.after(time.Until(at), what)
}

// end ends the session from the operator's side, and tells the agent, who finds out by itself if it does not hear that.
func (c *simSession) end(good bool) {
	if c.ended {
		return
	}
	c.ended = true
	c.down(func() {
		c.over = true
		if a := c.agent; a.session == c {
			a.session = nil
			a.reconnect()
		}
		if good {
			c.agent.step(lifecycle.Gone{})
		}
	})
}

// hangUp ends the session from the agent's side.
func (c *simSession) hangUp() {
	if c.over {
		return
	}
	c.over = true
	a, j := c.agent, c.machine
	if a.session == c {
		a.session = nil
		a.reconnect()
	}
	c.up(func() {
		if j.sessions[a.pod.UID] == c {
			delete(j.sessions, a.pod.UID)
			_ = j.handle(rendezvous.SessionLost{UID: string(a.pod.UID)})
		}
	})
}

// publish sends the directive of this moment.
func (c *simSession) publish() {
	s := c.agent.training
	d, ok := c.machine.machine.Directive(string(c.agent.pod.UID))
	if !ok || s.unlucky(0.02) {
		return // it is lost: the next one says all of it
	}
	times := 1
	if s.unlucky(0.02) {
		times = 2
	}
	sent := c.answered
	for range times {
		c.down(func() { c.agent.heed(c, d, sent) })
	}
}

// report takes a report that has arrived.
func (c *simSession) report(r rendezvous.Report, sent time.Time, left simLeft) {
	j := c.machine
	if j.sessions[c.agent.pod.UID] != c {
		c.agent.training.counts["reports of an older session"]++
		c.end(false)
		return
	}
	c.answered = sent
	c.learns(&r, left)
	if why := j.handle(rendezvous.AgentReported{UID: string(c.agent.pod.UID), Report: r}); why != nil {
		c.refused(why)
		return
	}
	c.publish()
}

func (c *simSession) refused(why *rendezvous.Refusal) {
	j, uid := c.machine, c.agent.pod.UID
	c.agent.training.say("  operator %d refuses %s: %s", j.registry.op.number, c.agent.pod.Name, why.Message)
	if j.sessions[uid] == c {
		delete(j.sessions, uid)
		_ = j.handle(rendezvous.SessionLost{UID: string(uid)})
	}
	c.end(why.Kind == rendezvous.RefusedForGood)
}
