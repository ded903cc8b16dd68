package rendezvous

import (
	"fmt"
	"testing"
	"time"
)

// obedient is a job whose members do at once what they are told, and whose writes are answered at once: nothing but the
// machine itself bounds how often it writes.
type obedient struct {
	*Machine
	t    *testing.T
	now  time.Time
	said map[string]Report
	// terms and rounds are what was written.
	terms, rounds int
}

func newObedient(t *testing.T, members int) *obedient {
	o := &obedient{Machine: NewMachine(time.Second, "us"), t: t, now: time.Unix(1000, 0), said: map[string]Report{}}
	gang := Gang{
		JobUID: "uid", Attempt: 1, Minimum: 1, Target: int32(members), ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second,
		BarrierTimeout: 10 * time.Second, MayRestart: true,
	}
	for i := range members {
		gang.Members = append(gang.Members, Member{UID: fmt.Sprint("u", i), Name: fmt.Sprint("w", i), Ordinal: int32(i), Node: fmt.Sprint("n", i)})
	}
	o.take(GangExpected{gang})
	for _, m := range gang.Members {
		o.take(AgentJoined{UID: m.UID, Attempt: 1, Endpoint: Endpoint{Address: "10.0.0.1", Port: 4000}, Report: o.obey(m.UID)})
	}
	return o
}

// take has the machine take an event, and answers what it writes.
func (o *obedient) take(ev Event) {
	out := o.Handle(o.now, ev)
	if out.Refuse != nil {
		o.t.Fatalf("%+v is refused: %s", ev, out.Refuse.Message)
	}
	for out.Write != nil {
		w := *out.Write
		if w.Next.Round > w.Prev.Round {
			o.rounds++
		} else {
			o.terms++
		}
		out = o.Handle(o.now, RecordAnswered{Found: w.Next, Secret: []byte{1}})
	}
}

// obey is the next report of a member that does what it is told, and makes a step.
func (o *obedient) obey(uid string) Report {
	r := o.said[uid]
	d, ok := o.Directive(uid)
	if ok {
		r.Term = d.Term
	}
	p := Process{Elastic: true, ProgramPhase: phaseStep}
	if len(r.Processes) > 0 {
		p = r.Processes[0]
	}
	switch {
	case !ok || d.World == nil:
		r.Standby, p.Waiting = true, waitingJoin
	case d.Round > r.Round:
		r.Before, r.Round, r.Digest, r.WorkerRank = r.Round, d.Round, d.World.Digest, uint32(d.World.WorkerRank)
		r.Out, r.Standby, p = false, false, Process{Elastic: true, ProgramPhase: phaseStep}
		p.Done = d.World.FromStep
		p.Entered = p.Done + 1
	case d.Abort != nil:
		r.Out, p = r.Round > 0, o.leaves(p, WaitingAborted)
	default:
		p.Done, p.Entered = p.Entered, p.Entered+1
	}
	r.Processes = []Process{p}
	o.said[uid] = r
	return r
}

// leaves is a process that has left its world, after the step that others have made last.
func (o *obedient) leaves(p Process, waiting Waiting) Process {
	p.Waiting, p.Done, p.Clean = waiting, max(p.Done, o.furthest()), true
	p.Entered, p.CleanStep = p.Done, p.Done
	return p
}

// play lets everybody get on for so long; lie changes what the first member says.
func (o *obedient) play(d time.Duration, lie func(*Report)) {
	for end := o.now.Add(d); o.now.Before(end); o.now = o.now.Add(10 * time.Millisecond) {
		o.take(TimePassed{})
		for _, uid := range o.Expected() {
			r := o.obey(uid)
			if uid == "u0" {
				lie(&r)
			}
			o.take(AgentReported{uid, r})
		}
	}
}

// Whatever a member says again and again, it costs the API server one write in a second at most.
func TestAMemberCausesFewWrites(t *testing.T) {
	const played = time.Minute
	for name, lie := range map[string]func(o *obedient, r *Report){
		"a higher term each time": func(o *obedient, r *Report) { r.Term = o.term + 1 },
		"a fault of communication": func(o *obedient, r *Report) {
			if !r.Out && r.Round > 0 {
				r.Processes = []Process{o.leaves(r.Processes[0], waitingFault)}
				r.Processes[0].Fault = "connection reset by peer"
			}
		},
		"that it has left": func(o *obedient, r *Report) {
			if r.Round > 0 {
				r.Out, r.Processes = true, []Process{o.leaves(r.Processes[0], WaitingAborted)}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newObedient(t, 3)
			o.play(time.Second, func(*Report) {})
			if o.terms != 1 || o.rounds != 1 || o.world == nil || !o.hasBegun() {
				t.Fatalf("%d terms, %d rounds were written before", o.terms, o.rounds)
			}
			o.play(played, func(r *Report) { lie(o, r) })
			if most := 1 + int(played/paced); o.terms > most || o.rounds > most || o.terms+o.rounds == 2 {
				t.Errorf("%d terms and %d rounds were written in %s, want %d at most, and some", o.terms, o.rounds, played, most)
			}
		})
	}
}

// A worker that cannot begin in a world, as when no snapshot is to be had, says so before the others have started their programs:
// nobody knows yet that these could not go on in another one.
func TestAWorldIsGivenUpBeforeAllProgramsAreStarted(t *testing.T) {
	o := newObedient(t, 3)
	for _, uid := range []string{"u1", "u2"} {
		r := o.obey(uid)
		r.Processes = nil
		o.take(AgentReported{UID: uid, Report: r})
	}
	r := o.obey("u0")
	r.Out, r.Processes[0].Waiting, r.Processes[0].Entered, r.Processes[0].Done = true, WaitingAborted, 0, 0
	o.take(AgentReported{UID: "u0", Report: r})
	if o.fatal != "" {
		t.Fatalf("the attempt is given up: %s", o.fatal)
	}
	for range 20 {
		for _, uid := range []string{"u0", "u1", "u2"} {
			o.take(AgentReported{UID: uid, Report: o.obey(uid)})
		}
		o.now = o.now.Add(time.Second)
	}
	if o.fatal != "" || o.world.record.Round < 2 || !o.world.formed() {
		t.Errorf("round %d is formed: %v; %s", o.world.record.Round, o.world.formed(), o.fatal)
	}
}
