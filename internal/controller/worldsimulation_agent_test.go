package controller

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simAgent is the agent of one pod: the real machine, a session with an operator, a keeper of snapshots, and one
// process. Everything that it does takes time.
type simAgent struct {
	training *simTraining
	pod      *corev1.Pod
	machine  *lifecycle.Machine
	clock    *simClock
	process  simProcess
	session  *simSession
	ended    bool
	released bool
	// refused is true once the directive that is heard is refused.
	refused bool
	// ticking is the deadline that is waited for, connecting true while a session is looked for.
	ticking    time.Time
	connecting bool
	backOff    time.Duration
	// connections counts those of processes.
	connections uint64

	// left is the state with which its process has left a world last, as far as the agent has heard.
	left simLeft
	// lastWords is what the process before the last had said of why it failed.
	lastWords string
	snapshots []rendezvous.Snapshot
	states    map[rendezvous.Snapshot][]uint64
	// lastEnded, before and begun are the end of the process's last step, the same when it was given its world, and
	// when it has begun its first step there.
	lastEnded, before, begun time.Time
	// took is how long the last steps of its process took in this world, without the first.
	took []time.Duration
	// probes are those that it was asked for last, in the term probedIn, and probed what has come of them.
	probes   []rendezvous.Probe
	probedIn uint64
	probed   []rendezvous.Probed
}

// start starts the agent of a pod.
func (t *simTraining) start(pod *corev1.Pod) {
	if pod == nil || podEnded(pod) || t.agents[pod.UID] != nil {
		return
	}
	a := &simAgent{
		training: t, pod: pod, clock: t.clock(pod.Spec.NodeName), states: map[rendezvous.Snapshot][]uint64{},
		machine: lifecycle.New(t.clock(pod.Spec.NodeName).now(), lifecycle.DefaultLimits(30*time.Second), lifecycle.Shape{Programs: 1, Processes: 1}),
	}
	t.agents[pod.UID] = a
	t.kubelets.agents[pod.UID] = true
	a.beat()
	a.reconnect()
	if pod.DeletionTimestamp != nil {
		t.terminate(pod.UID)
	}
}

// kill ends everything in a pod at once.
func (t *simTraining) kill(uid types.UID) {
	if a := t.agents[uid]; a != nil && !a.ended {
		a.ended = true
		a.process.end()
		t.leaves(a)
		if a.session != nil {
			a.session.hangUp()
		}
	}
}

// terminate gives an agent SIGTERM. It returns false when there is none.
func (t *simTraining) terminate(uid types.UID) bool {
	a := t.agents[uid]
	if a == nil || a.ended {
		return false
	}
	a.step(lifecycle.Terminated{})
	return true
}

// step gives the agent's machine an event, and does what follows.
func (a *simAgent) step(event lifecycle.Event) {
	if a.ended {
		return
	}
	tell := false
	effects := a.machine.Step(a.clock.now(), event)
	for len(effects) > 0 && !a.ended {
		effect := effects[0]
		effects = effects[1:]
		if _, ok := effect.(lifecycle.Tell); ok {
			tell = true
			continue
		}
		effects = append(effects, a.carryOut(effect)...)
	}
	if tell {
		a.report()
	}
	a.setDeadline()
}

// setDeadline has the machine's deadline come.
func (a *simAgent) setDeadline() {
	due, ok := a.machine.Deadline()
	if !ok || due.Equal(a.ticking) || a.ended {
		return
	}
	a.ticking = due
	a.training.after(max(due.Sub(a.clock.now()), time.Millisecond), func() {
		if a.ticking.Equal(due) {
			a.ticking = time.Time{}
			a.step(lifecycle.Tick{})
		}
	})
}

func (a *simAgent) carryOut(effect lifecycle.Effect) []lifecycle.Effect {
	t, p := a.training, &a.process
	switch effect := effect.(type) {
	case lifecycle.Start:
		t.after(t.span(100*time.Millisecond, 2*time.Second), func() { a.startProcess() })
	case lifecycle.Remember:
		a.lastWords = p.fault
		t.counts["programs started anew"]++
	case lifecycle.Refuse:
		a.refused = true
		t.say("  %s refuses a directive: %s", a.pod.Name, effect.Why)
	case lifecycle.Terminate:
		a.tellProcess(p.connection, func() { a.exit(128 + 15) })
	case lifecycle.Kill:
		a.exit(128 + 9)
	case lifecycle.Note:
		t.say("  %s: %s", a.pod.Name, effect.Text)
	case lifecycle.Leave:
		t.say("  %s: its agent ends with %d", a.pod.Name, effect.Code)
		a.leave(int32(effect.Code))
	case lifecycle.Arm:
		p.stop = max(effect.Step, p.begunStep(), p.armed, 1)
		p.armed = p.stop
		return a.machine.Step(a.clock.now(), lifecycle.Armed{Slot: 0, Stop: p.stop})
	case lifecycle.Lift:
		p.stop, p.armed = 0, 0
	case lifecycle.Interrupt:
		p.stop, p.armed = 1, 1
		a.tellProcess(effect.Connection, a.abort)
	case lifecycle.Enter:
		a.enter(effect)
	case lifecycle.Fetch:
		t.after(t.span(5*time.Millisecond, 2*time.Second), func() { a.step(a.fetched(effect)) })
	case lifecycle.Give:
		if effect.Connection == p.connection {
			p.stop, p.armed = 0, 0
			p.entered, p.done = effect.Start.World.FromStep, effect.Start.World.FromStep
			a.before, a.begun, a.took = a.lastEnded, time.Time{}, nil
			a.tellProcess(effect.Connection, func() { a.take(effect.Start) })
		}
	case lifecycle.Deny:
		a.tellProcess(effect.Connection, func() { a.exit(1) })
	case lifecycle.Word:
		a.tellProcess(effect.Connection, func() { a.hear(effect) })
	}
	return nil
}

// leave is the end of the agent, and of its container.
func (a *simAgent) leave(code int32) {
	if a.ended {
		return
	}
	t := a.training
	a.process.end()
	t.leaves(a)
	session := a.session
	if session != nil && !session.over {
		r, sent, left := a.state(), a.clock.now(), a.left
		session.up(func() { session.report(r, sent, left) })
	}
	a.ended = true
	t.after(t.span(20*time.Millisecond, time.Second), func() {
		if session != nil {
			session.hangUp()
		}
		t.kubelets.exit(a.pod, code)
		if now := t.kubelets.now(a.pod); now != nil && now.DeletionTimestamp != nil {
			t.kubelets.end(a.pod)
		}
	})
}

// enter is what the keeper does: only snapshots of the history of the new world stay.
func (a *simAgent) enter(e lifecycle.Enter) {
	a.snapshots = slices.DeleteFunc(slices.Clone(a.snapshots), func(s rendezvous.Snapshot) bool {
		named := e.World.Snapshot != nil && s == simSnapshot(*e.World.Snapshot)
		return !named && (!e.Continues || s.Step > e.World.FromStep)
	})
}

func simSnapshot(s lifecycle.Snapshot) rendezvous.Snapshot {
	return rendezvous.Snapshot{Round: s.Round, Step: s.Step, Bytes: s.Bytes, Hash: s.Hash}
}

func simUnreached(all []lifecycle.Unreached) (read []rendezvous.Unreached) {
	for _, u := range all {
		read = append(read, rendezvous.Unreached{
			Address: u.Address, Serves: rendezvous.Server{Port: uint32(u.Port), Certificate: u.Certificate}, Why: u.Why,
		})
	}
	return read
}

// fetched gets a snapshot from one of its holders.
func (a *simAgent) fetched(f lifecycle.Fetch) lifecycle.Event {
	want := simSnapshot(*f.World.Snapshot)
	if slices.Contains(a.snapshots, want) {
		return lifecycle.Fetched{Round: f.Round}
	}
	var unreached []lifecycle.Unreached
	for _, h := range f.Holders {
		other := a.training.agents[types.UID(strings.TrimPrefix(h.Address, "at "))]
		switch {
		case other == nil || other.ended || !a.training.meet(a, other):
			unreached = append(unreached, lifecycle.Unreached{Address: h.Address, Port: h.Port, Certificate: h.Certificate, Why: "i/o timeout"})
		case slices.Contains(other.snapshots, want):
			a.keep(want, other.states[want])
			return lifecycle.Fetched{Round: f.Round}
		}
	}
	return lifecycle.Fetched{Round: f.Round, Why: "nobody has it", Unreached: unreached != nil, Holders: unreached}
}

func (a *simAgent) keep(s rendezvous.Snapshot, state []uint64) {
	if slices.Contains(a.snapshots, s) {
		return
	}
	a.states[s] = state
	a.snapshots = append([]rendezvous.Snapshot{s}, a.snapshots...)
	a.snapshots = a.snapshots[:min(2, len(a.snapshots))]
}

// reconnect looks for an operator until there is one.
func (a *simAgent) reconnect() {
	if a.connecting || a.ended || a.session != nil {
		return
	}
	a.connecting = true
	a.backOff = min(max(2*a.backOff, 100*time.Millisecond), 2*time.Second)
	a.training.after(a.training.span(a.backOff/2, a.backOff), func() {
		a.connecting = false
		a.connect()
	})
}

// connect joins the job at an operator.
func (a *simAgent) connect() {
	t := a.training
	if a.ended || a.session != nil {
		return
	}
	op := t.dial()
	if op == nil || !t.connects(a, op) {
		a.reconnect()
		return
	}
	key, attempt := rendezvous.JobKey(jobOf(a.pod)), podAttempt(a.pod)
	j := op.registry.jobs[key]
	if j == nil {
		if gone, known := op.registry.gone[key]; known && attempt <= gone {
			a.step(lifecycle.Gone{})
		}
		a.reconnect()
		return
	}
	c := &simSession{agent: a, machine: j, heard: time.Now(), answered: a.clock.now(), opened: time.Now()}
	a.session = c
	first, left := a.state(), a.left
	c.up(func() {
		if older := j.sessions[a.pod.UID]; older != nil {
			if older.opened.After(c.opened) {
				t.counts["hellos after a newer one"]++
			}
			older.end(false)
		}
		join := rendezvous.AgentJoined{
			UID: string(a.pod.UID), Attempt: attempt, Endpoint: rendezvous.Endpoint{Address: "at " + string(a.pod.UID), Port: 4000},
			Serves: rendezvous.Server{Port: 5000, Certificate: [32]byte{1}}, Report: first,
		}
		j.sessions[a.pod.UID] = c
		c.learns(&first, left)
		if why := j.handle(join); why != nil {
			c.refused(why)
			return
		}
		c.publish()
	})
}

// beat reports once a second, and gives up an operator that does not answer.
func (a *simAgent) beat() {
	a.training.after(time.Second, func() {
		if a.ended {
			return
		}
		if c := a.session; c != nil {
			patience := 3 * time.Second
			if !c.spoken {
				patience = 30 * time.Second
			}
			if time.Since(c.heard) > patience {
				c.hangUp()
			}
		}
		a.report()
		a.beat()
	})
}

// report tells the operator of this moment.
func (a *simAgent) report() {
	c := a.session
	if c == nil || c.over || a.ended || a.training.unlucky(0.02) {
		return
	}
	r, sent, left := a.state(), a.clock.now(), a.left
	times := 1
	if a.training.unlucky(0.02) {
		times = 2
	}
	for range times {
		c.up(func() { c.report(r, sent, left) })
	}
}

// heed obeys a directive.
func (a *simAgent) heed(c *simSession, d rendezvous.Directive, sent time.Time) {
	if a.ended || a.session != c {
		return
	}
	a.training.history.told(a, &d)
	c.heard, c.spoken, a.refused, a.backOff = time.Now(), true, false, 0
	a.step(lifecycle.Heard{Directive: simHeard(&d), Sent: sent})
	if d.Released && !a.refused {
		a.released = true
		a.training.kubelets.released[a.pod.UID] = true
	}
	if a.refused {
		c.hangUp()
		return
	}
	a.probe(&d)
}

// probe has the agent find out which others it reaches, each probe once.
func (a *simAgent) probe(d *rendezvous.Directive) {
	before := a.probes
	if d.Term != a.probedIn {
		before, a.probed = nil, nil
	}
	a.probes, a.probedIn = slices.Clone(d.Probes), d.Term
	a.probed = slices.DeleteFunc(a.probed, func(said rendezvous.Probed) bool {
		return !slices.ContainsFunc(a.probes, func(p rendezvous.Probe) bool { return p.Number == said.Number })
	})
	t := a.training
	for _, p := range a.probes {
		if slices.Contains(before, p) {
			continue
		}
		t.after(t.span(time.Millisecond, time.Second), func() {
			if a.probedIn != d.Term || !slices.Contains(a.probes, p) {
				return
			}
			peer := t.agents[types.UID(strings.TrimPrefix(p.Peer.Address, "at "))]
			meet := peer != nil && t.meet(a, peer)
			a.probed = append(a.probed, rendezvous.Probed{Number: p.Number, Reached: meet && !peer.ended, Refused: meet && peer.ended && !t.unlucky(0.5)})
			a.report()
		})
	}
}

// simHeard is a directive as the agent's session hands it over.
func simHeard(d *rendezvous.Directive) lifecycle.Directive {
	heard := lifecycle.Directive{
		Term: d.Term, Round: d.Round, Released: d.Released, Standby: d.Standby, Key: string(d.Key),
		Raise: d.Raise, Finish: d.Finish, Hold: d.Hold, Restarts: d.Restarts,
	}
	if w := d.World; w != nil {
		heard.World = lifecycle.World{
			Digest: w.Digest, Parent: w.Parent, FromStep: w.FromStep, WorkerRank: int(w.WorkerRank),
			Workers: int(w.Workers), Processes: int(w.Processes), MasterAddress: w.Master.Address,
			MasterPort: int(w.Master.Port), Restore: w.Restore, Writer: w.Writer, Holders: simHolders(w.Holders),
		}
		if s := w.Snapshot; s != nil {
			heard.World.Snapshot = &lifecycle.Snapshot{Round: s.Round, Step: s.Step, Bytes: s.Bytes, Hash: s.Hash}
		}
	}
	if b := d.Barrier; b != nil {
		heard.Barrier = lifecycle.Barrier{Attempt: b.Attempt, Step: b.Step, Save: b.Save}
	}
	if d.Abort != nil {
		heard.Abort = &lifecycle.Abort{Reason: d.Abort.Reason, Planned: d.Abort.Planned, SaveStep: d.Abort.Save}
	}
	return heard
}

func simHolders(all []rendezvous.Supplier) []lifecycle.Holder {
	var holders []lifecycle.Holder
	for i := range all {
		holders = append(holders, lifecycle.Holder{Address: all[i].Address, Port: int(all[i].Port), Certificate: all[i].Certificate, Ticket: all[i].Ticket})
	}
	return holders
}

// state is the agent's whole state, as it reports it.
func (a *simAgent) state() rendezvous.Report {
	m, p := a.machine, &a.process
	r := rendezvous.Report{
		Term: m.Term(), Refused: m.Refused(), Hold: m.Hold(), Before: m.Before(), Terminating: m.Terminating(),
		Standby: m.Ready(), Out: m.Out(), Snapshots: slices.Clone(a.snapshots), Probed: slices.Clone(a.probed),
		Unreached: simUnreached(m.Unreached()),
		Stays:     m.Stays(), Restarts: m.Restarts(),
	}
	if f := m.LastFailure(); f.Round > 0 {
		r.Failure = rendezvous.Failure{Round: f.Round, Code: int32(f.Code), Killed: f.Killed, Message: a.lastWords}
	}
	if in := m.In(); in != nil {
		r.Round, r.Digest, r.WorkerRank = in.Round, in.World.Digest, uint32(in.World.WorkerRank)
	}
	if m.In() == nil && !m.Started() {
		return r
	}
	standing := m.Process(0)
	one := rendezvous.Process{
		ProgramPhase: 3, Entered: p.entered, Done: p.done, LastStep: a.training.lastStep, Samples: 10 * p.done,
		Waiting: rendezvous.Waiting(standing.Waiting), Barrier: standing.Attempt, Stop: standing.Stop, Elastic: standing.Elastic,
	}
	if standing.Clean {
		one.Clean, one.CleanStep = true, standing.Step
	}
	if standing.Entering && standing.Elastic && m.In() != nil {
		one.ProgramPhase, one.Entered, one.Done = 1, m.In().World.FromStep, m.In().World.FromStep
	}
	if p.fault != "" && (!standing.Entering || standing.Waiting == lifecycle.WaitsFault) {
		one.Fault = p.fault
	}
	if code, ended := m.Exit(0); ended {
		one.Exited, one.ExitCode = true, int32(code)
		if one.Fault == "" {
			one.Fault = m.Unsupplied()
		}
	}
	r.Processes = []rendezvous.Process{one}
	if !standing.Entering && !a.begun.IsZero() {
		r.Begun = true
		if !a.before.IsZero() {
			r.Pause = a.begun.Sub(a.before)
		}
	}
	if !standing.Entering && len(a.took) > 0 {
		took := slices.Sorted(slices.Values(a.took))
		r.StepTime = took[(len(took)-1)/2]
	}
	return r
}
