package rendezvous

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestMachineAgainstModel plays random histories of several leaders, killed and replaced at any
// point, over one record that is written by compare-and-swap, with agents whose machine is the real one.
//
// What must hold at every moment:
//   - a round has one digest, in the record, in directives and in agents;
//   - nothing is published that was not durable before, and no term by a leader that does not own it;
//   - terms and rounds of the record never decrease, a leader's terms never do;
//   - a world that has made a step is replaced inside its attempt only when a worker has left it for good, and
//     no world makes a step after it was replaced.
//
// And in the end: one leader that is left alone forms or adopts a world.
func TestMachineAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := newModelCluster(t)
		t.Repeat(map[string]func(*rapid.T){
			"go well":      c.goWell,
			"new leader":   c.newLeader,
			"kill leader":  c.killLeader,
			"expect":       c.tellGang,
			"new attempt":  c.newAttempt,
			"connect":      c.connect,
			"visit":        c.visit,
			"report":       c.reportState,
			"deliver":      c.deliver,
			"hang up":      c.hangUp,
			"apply write":  c.applyWrite,
			"answer write": c.answerWrite,
			"late write":   c.lateWrite,
			"step":         c.step,
			"exit":         c.exit,
			"pass time":    c.passTime,
			"":             func(t *rapid.T) { c.t = t },
		})
		c.t = t
		c.settle()
	})
}

type modelCluster struct {
	t       *rapid.T
	now     time.Time
	record  Record
	digests map[uint64]string // of every round that ever was durable
	owners  map[uint64]int    // of every term that ever was durable
	stepped map[uint64]bool   // rounds that made a step
	leaders map[int]*modelLeader
	born    int
	agents  map[string]*wiredAgent
	attempt int32
	late    []lateWrite
	past    []Record
}

type modelLeader struct {
	id      int
	machine *Machine
	writing *Write
	result  *RecordAnswered
	// term and round are the highest it has spoken with and asked for.
	term, round uint64
	// left are the sessions that have ended last, by pod.
	left map[string]leftSession
	// judged is when the losses were found that were checked, by pod.
	judged map[string]time.Time
}

// leftSession is a session that has ended: word is true once somebody was heard of the world since, heard once the leader
// has looked at that, and step how far the world was at the latest by then.
type leftSession struct {
	word, heard bool
	step        uint64
}

// wiredAgent is an agent with its session: the leader it talks to, and what is on the way to it.
type wiredAgent struct {
	worker
	leader *modelLeader
	queue  []delivery
}

type lateWrite struct {
	owner int
	write Write
}

func newModelCluster(t *rapid.T) *modelCluster {
	c := &modelCluster{
		t: t, now: time.Unix(1e9, 0), digests: map[uint64]string{}, owners: map[uint64]int{},
		stepped: map[uint64]bool{}, leaders: map[int]*modelLeader{}, past: []Record{{}},
	}
	c.startGang()
	return c
}

func (c *modelCluster) startGang() {
	c.attempt++
	c.agents = map[string]*wiredAgent{}
	for i := range rapid.IntRange(1, 3).Draw(c.t, "workers") {
		uid := fmt.Sprintf("%d-%d", c.attempt, i)
		c.agents[uid] = &wiredAgent{worker: newWorker(uid, func() time.Time { return c.now }, InPlace)}
	}
}

func (c *modelCluster) gang() Gang {
	gang := Gang{
		Attempt: c.attempt, ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second,
		Durable: rapid.SampledFrom(c.past).Draw(c.t, "durable"),
	}
	for i, uid := range slices.Sorted(maps.Keys(c.agents)) {
		gang.Members = append(gang.Members, Member{UID: uid, Ordinal: int32(i), Node: fmt.Sprint(i % 2)})
	}
	return gang
}

func (c *modelCluster) pick(label string) *modelLeader {
	if len(c.leaders) == 0 {
		c.t.Skip("no leader")
	}
	return c.leaders[rapid.SampledFrom(slices.Sorted(maps.Keys(c.leaders))).Draw(c.t, label)]
}

func (c *modelCluster) pickAgent() *wiredAgent {
	return c.agents[rapid.SampledFrom(slices.Sorted(maps.Keys(c.agents))).Draw(c.t, "agent")]
}

// tell is handle for events that cannot be refused.
func (c *modelCluster) tell(l *modelLeader, ev Event) { _ = c.handle(l, ev) }

// handle gives an event to a leader and checks what it may say afterwards.
func (c *modelCluster) handle(l *modelLeader, ev Event) *Refusal {
	before := l.machine.State()
	out := l.machine.Handle(c.now, ev)
	followed(c.t, before, ev, l.machine.State())
	if out.Write != nil {
		if l.writing != nil {
			c.t.Fatalf("leader %d asks for a write while one is under way", l.id)
		}
		l.writing, l.result = out.Write, nil
		if next := out.Write.Next; next.Round > out.Write.Prev.Round {
			if next.Round <= l.round {
				c.t.Fatalf("leader %d tries round %d, after round %d", l.id, next.Round, l.round)
			}
			l.round = next.Round
		}
	}
	for _, e := range out.End {
		c.drop(c.agents[e.UID], l)
	}
	for _, uid := range slices.Sorted(maps.Keys(c.agents)) {
		d, ok := l.machine.Directive(uid)
		if !ok {
			continue
		}
		c.check(l, d)
		if agent := c.agents[uid]; out.Publish && agent.leader == l {
			agent.queue = append(agent.queue, delivery{d, agent.reported})
		}
	}
	return out.Refuse
}

func (c *modelCluster) check(l *modelLeader, d Directive) {
	if owner, ok := c.owners[d.Term]; !ok || owner != l.id {
		c.t.Fatalf("leader %d speaks with term %d, which it does not own", l.id, d.Term)
	}
	if d.Term < l.term {
		c.t.Fatalf("leader %d went back from term %d to %d", l.id, l.term, d.Term)
	}
	l.term = d.Term
	if d.Round > 0 && c.digests[d.Round] != d.World.Digest {
		c.t.Fatalf("leader %d publishes round %d with %.6s, durable is %.6s", l.id, d.Round, d.World.Digest, c.digests[d.Round])
	}
}

// drop ends the session between an agent and a leader.
func (c *modelCluster) drop(agent *wiredAgent, l *modelLeader) {
	if agent == nil || agent.leader != l {
		return
	}
	agent.leader, agent.queue = nil, nil
	if c.leaders[l.id] == l {
		c.tell(l, SessionLost{agent.uid})
	}
}

func (c *modelCluster) newLeader(t *rapid.T) {
	c.t = t
	if len(c.leaders) >= 3 {
		t.Skip("enough leaders")
	}
	c.born++
	l := &modelLeader{id: c.born, machine: NewMachine(10*time.Second, fmt.Sprint("leader ", c.born))}
	c.leaders[l.id] = l
	c.tell(l, GangExpected{c.gang()})
}

func (c *modelCluster) killLeader(t *rapid.T) {
	c.t = t
	l := c.pick("leader")
	delete(c.leaders, l.id)
	if l.writing != nil && l.result == nil {
		c.late = append(c.late, lateWrite{l.id, *l.writing})
	}
	for _, agent := range c.agents {
		c.drop(agent, l)
	}
}

func (c *modelCluster) tellGang(t *rapid.T) {
	c.t = t
	c.tell(c.pick("leader"), GangExpected{c.gang()})
}

// newAttempt ends every pod of the gang, and only then tells one of the leaders of the next.
func (c *modelCluster) newAttempt(t *rapid.T) {
	c.t = t
	l := c.pick("leader")
	if rapid.Bool().Draw(t, "released") {
		c.tell(l, GangReleased{})
	}
	for _, agent := range c.agents {
		if agent.leader != nil {
			c.drop(agent, agent.leader)
		}
	}
	c.startGang()
	c.tell(l, GangExpected{c.gang()})
}

func (c *modelCluster) connect(t *rapid.T) {
	c.t = t
	c.connectTo(c.pickAgent(), c.pick("leader"))
}

// visit has an agent look in at one leader, and come back to another.
func (c *modelCluster) visit(t *rapid.T) {
	c.t = t
	if len(c.leaders) < 2 {
		c.newLeader(t)
	}
	agent := c.pickAgent()
	first, second := c.pick("first"), c.pick("second")
	for _, l := range []*modelLeader{first, second} {
		if l.writing != nil && l.result == nil && rapid.Bool().Draw(t, "write") {
			answer := c.apply(l.id, *l.writing)
			l.writing = nil
			c.tell(l, answer)
		}
		c.connectTo(agent, l)
		for len(agent.queue) > 0 && rapid.Bool().Draw(t, "deliver") {
			c.deliverTo(agent)
		}
	}
}

func (c *modelCluster) connectTo(agent *wiredAgent, l *modelLeader) {
	if agent.leader != nil {
		c.drop(agent, agent.leader)
	}
	agent.leader = l
	c.told(agent, c.handle(l, agent.join(c.attempt)))
}

// told goes on after a report: the session ends, or the directive comes back.
func (c *modelCluster) told(agent *wiredAgent, refused *Refusal) {
	if agent.leader == nil {
		return
	}
	if refused != nil {
		c.drop(agent, agent.leader)
		return
	}
	if d, ok := agent.leader.machine.Directive(agent.uid); ok {
		agent.queue = append(agent.queue, delivery{d, agent.reported})
	}
}

func (c *modelCluster) reportState(t *rapid.T) {
	c.t = t
	agent := c.pickAgent()
	if agent.leader == nil {
		t.Skip("not connected")
	}
	c.told(agent, c.handle(agent.leader, AgentReported{agent.uid, agent.report()}))
}

func (c *modelCluster) deliver(t *rapid.T) {
	c.t = t
	agent := c.pickAgent()
	if len(agent.queue) == 0 {
		t.Skip("nothing on the way")
	}
	c.deliverTo(agent)
}

func (c *modelCluster) deliverTo(agent *wiredAgent) {
	d := agent.queue[0]
	agent.queue = agent.queue[1:]
	if agent.left {
		return
	}
	obeyed, err := agent.heed(d)
	if err != nil {
		c.t.Fatal(err)
	}
	if !obeyed {
		c.drop(agent, agent.leader)
	}
}

func (c *modelCluster) hangUp(t *rapid.T) {
	c.t = t
	agent := c.pickAgent()
	if agent.leader == nil {
		t.Skip("not connected")
	}
	c.drop(agent, agent.leader)
}

// apply is the compare-and-swap. It returns what the Recorder would answer.
func (c *modelCluster) apply(owner int, w Write) RecordAnswered {
	if !w.Prev.Equal(c.record) {
		return RecordAnswered{Found: c.record, Err: ErrDeposed}
	}
	next := w.Next
	switch {
	case next.Term < c.record.Term || next.Round < c.record.Round:
		c.t.Fatalf("the record would go back: %+v to %+v", c.record, next)
	case next.Round == c.record.Round && next.MembersDigest != c.record.MembersDigest:
		c.t.Fatalf("round %d would change its members", next.Round)
	case next.Round > c.record.Round && next.Attempt == c.record.Attempt && c.lives():
		c.t.Fatalf("round %d lives and would be replaced by round %d", c.record.Round, next.Round)
	case next.Term == c.record.Term && c.owners[next.Term] != owner:
		c.t.Fatalf("leader %d writes with term %d of leader %d", owner, next.Term, c.owners[next.Term])
	}
	if next.Term > c.record.Term {
		c.owners[next.Term] = owner
	}
	c.record = next
	c.digests[next.Round] = next.MembersDigest
	c.past = append(c.past, next)
	return RecordAnswered{Found: next}
}

func (c *modelCluster) applyWrite(t *rapid.T) {
	c.t = t
	l := c.pick("leader")
	if l.writing == nil || l.result != nil {
		t.Skip("nothing to write")
	}
	result := c.apply(l.id, *l.writing)
	l.result = &result
}

func (c *modelCluster) answerWrite(t *rapid.T) {
	c.t = t
	l := c.pick("leader")
	if l.writing == nil {
		t.Skip("no write")
	}
	answer := RecordAnswered{Err: errors.New("timeout")}
	if l.result != nil && rapid.IntRange(0, 3).Draw(t, "clear") > 0 {
		answer = *l.result
	}
	if l.result == nil {
		c.late = append(c.late, lateWrite{l.id, *l.writing})
	}
	l.writing, l.result = nil, nil
	c.tell(l, answer)
}

// lateWrite lets a write land that its leader has given up, or did not live to see.
func (c *modelCluster) lateWrite(t *rapid.T) {
	c.t = t
	if len(c.late) == 0 {
		t.Skip("none")
	}
	w := c.late[0]
	c.late = c.late[1:]
	c.apply(w.owner, w.write)
}

// step lets a world make a step, if all of its ranks are in it.
func (c *modelCluster) step(t *rapid.T) {
	c.t = t
	if !c.together() {
		t.Skip("no world")
	}
	round := c.pickAgent().in().Round
	if c.record.Attempt == c.attempt && c.record.Round != round {
		t.Fatalf("round %d makes a step, and round %d has replaced it", round, c.record.Round)
	}
	c.stepped[round] = true
	for _, agent := range c.agents {
		agent.enterStep()
		agent.endStep()
	}
}

func (c *modelCluster) exit(t *rapid.T) {
	c.t = t
	if agent := c.pickAgent(); agent.in().Round > 0 {
		agent.exits(1)
	}
}

func (c *modelCluster) passTime(t *rapid.T) {
	c.t = t
	c.now = c.now.Add(time.Duration(rapid.IntRange(1, 8000).Draw(t, "milliseconds")) * time.Millisecond)
	for _, id := range slices.Sorted(maps.Keys(c.leaders)) {
		c.tell(c.leaders[id], TimePassed{})
	}
}

// goWell lets one leader and the agents get on for a while, up to any point.
func (c *modelCluster) goWell(t *rapid.T) {
	c.t = t
	if len(c.leaders) == 0 {
		c.newLeader(t)
	}
	l := c.pick("leader")
	c.tell(l, GangExpected{c.gang()})
	for moves := rapid.IntRange(1, 60).Draw(t, "moves"); moves > 0; {
		c.advance(l, &moves)
	}
	if rapid.Bool().Draw(t, "steps") && c.together() {
		c.step(t)
	}
}

// advance lets everybody who has to do with a leader do what comes next, as long as moves are left.
func (c *modelCluster) advance(l *modelLeader, moves *int) {
	move := func(do func()) {
		if *moves--; *moves >= 0 {
			do()
		}
	}
	if l.writing != nil {
		move(func() {
			answer := l.result
			if answer == nil {
				applied := c.apply(l.id, *l.writing)
				answer = &applied
			}
			l.writing, l.result = nil, nil
			c.tell(l, *answer)
		})
	}
	for _, uid := range slices.Sorted(maps.Keys(c.agents)) {
		agent := c.agents[uid]
		move(func() {
			if agent.leader != l {
				c.connectTo(agent, l)
			} else {
				c.told(agent, c.handle(l, AgentReported{uid, agent.report()}))
			}
		})
		for len(agent.queue) > 0 && *moves > 0 {
			move(func() { c.deliverTo(agent) })
		}
	}
	move(func() {
		c.now = c.now.Add(time.Second)
		c.tell(l, TimePassed{})
	})
}

// together says whether all agents are in one world, and none has left it or ended.
func (c *modelCluster) together() bool {
	var round uint64
	for _, agent := range c.agents {
		if !agent.trains() || round != 0 && agent.process.round != round {
			return false
		}
		round = agent.process.round
	}
	return true
}

// lives says whether the durable round may make another step: it has made one, its attempt has not ended, and no
// worker has left it for good. A leader that has not heard of somebody in time lets the others go on.
func (c *modelCluster) lives() bool {
	if !c.stepped[c.record.Round] || c.record.Attempt != c.attempt {
		return false
	}
	for _, agent := range c.agents {
		if agent.in().Round == c.record.Round && agent.machine.Out() {
			return false
		}
	}
	return true
}

// A round whose attempt has ended lives no more: a leader that has not heard of the next attempt may write another
// round over it that it has planned before, since its workers had left the world.
func TestRoundsOfAnAttemptThatHasEndedDoNotLive(t *testing.T) {
	c := modelCluster{attempt: 1, record: Record{Round: 2, Attempt: 1}, stepped: map[uint64]bool{2: true}}
	if !c.lives() {
		t.Error("a round that makes steps does not live")
	}
	if c.attempt++; c.lives() {
		t.Error("a round lives whose pods have all ended")
	}
}

// settle leaves one leader alone with agents that answer, and expects a world.
func (c *modelCluster) settle() {
	c.replaceEnded()
	var left *modelLeader
	if len(c.leaders) > 0 && rapid.Bool().Draw(c.t, "keep") {
		left = c.pick("kept")
	}
	for _, id := range slices.Sorted(maps.Keys(c.leaders)) {
		if l := c.leaders[id]; l != left {
			delete(c.leaders, id)
			for _, agent := range c.agents {
				c.drop(agent, l)
			}
		}
	}
	c.late = nil
	lived := c.lives()
	before := c.record.Round
	left = c.runAlone(left)
	if lived && c.record.Round != before && c.record.Parent != before {
		c.t.Fatalf("round %d lived and was replaced by round %d", before, c.record.Round)
	}
	// A program that has failed may have been waiting for a word on whether it is started anew, and its pod has ended now.
	if c.replaceEnded() {
		left = c.runAlone(left)
	}
	for _, agent := range c.agents {
		if in := agent.in(); in.Round == 0 || in.Round != c.record.Round || in.World.Digest != c.record.MembersDigest {
			c.t.Fatalf("%s is in round %d, the record says round %d", agent.uid, in.Round, c.record.Round)
		}
	}
	if o := left.machine.Observe(c.now); o.Round != c.record.Round || o.Adopting {
		c.t.Fatalf("the leader sees round %d (adopting %v), the record says %d", o.Round, o.Adopting, c.record.Round)
	}
}

// runAlone runs the leader that is left, or a new one where it does not lead any more, and returns who leads then.
func (c *modelCluster) runAlone(left *modelLeader) *modelLeader {
	if left != nil && c.run(left) {
		return left
	}
	if left != nil {
		delete(c.leaders, left.id)
	}
	c.newLeader(c.t)
	left = c.leaders[c.born]
	if !c.run(left) {
		c.t.Fatal("a leader that is alone was deposed")
	}
	return left
}

// replaceEnded starts the gang over when the pod of a worker has ended, and says whether it has.
func (c *modelCluster) replaceEnded() bool {
	for _, agent := range c.agents {
		if agent.left {
			c.startGang()
			return true
		}
	}
	return false
}

// run gives a leader all the time it needs. It returns false when the leader finds itself deposed.
func (c *modelCluster) run(l *modelLeader) bool {
	c.tell(l, GangExpected{c.gang()})
	forever := 1 << 20
	for range 40 {
		c.advance(l, &forever)
	}
	return !l.machine.Observe(c.now).Deposed
}
