package rendezvous

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestTranscripts plays the files in testdata/transcripts against the machine. A file is one job in one cluster:
//
//	leader                          a new leader takes the place of the old one
//	expect attempt=1 members=(a@n1,b@n2:Deleted:20s,c@n1:lost) [minimum=2] [target=4] [sizes=(2,4)] [restart] [mayfail]
//	                                a member may be starting, lost, ended, notready, or leave for a reason, within a time
//	join a b [foreign] [leaves]     their agents connect and report
//	train 3                         the world makes up to so many steps, as far as its barrier lets it
//	slip a                          a process begins its next step before the others
//	snapshot a                      it takes one
//	report a [step=3] [exit=1] [fault=text] [finished] [stuck|unstuck] [full] [last=9] [terminating]
//	report a stays                  it outlives its program; with [mayfail] that may fail, and is started anew
//	report a held                   it has acknowledged the newest hold
//	report a reaches|cannot         it answers the probes that it is asked for
//	report a [live] [ahead]         it says that its state is whole when it leaves; it has ended a step before the others
//	report a barrier=(1,5)          another leader has had it stop after step 5
//	obey a b                        they take their directives and report again
//	lost a                          their sessions end
//	answer ok|unclear|unclear-written|gone
//	answer crash                    the write is done, and the leader dies before it learns so
//	settle                          answer ok and obey until nothing moves
//	tick 5s
//	release
//	observe
//	record [term=4 round=2]         what stands in the cluster; with arguments, another leader writes
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		play := &transcript{t: t, agents: map[string]*modelAgent{}, leaveBy: map[string]time.Time{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			play.t = t
			play.out.Reset()
			play.run(d)
			if play.out.Len() == 0 {
				return "nothing"
			}
			return play.out.String()
		})
	})
}

type transcript struct {
	t       *testing.T
	now     time.Time
	machine *Machine
	leaders int
	record  Record
	writing *Write
	agents  map[string]*modelAgent
	attempt int
	hang    time.Duration
	leaveBy map[string]time.Time
	out     strings.Builder
}

func (p *transcript) printf(format string, args ...any) { fmt.Fprintf(&p.out, format+"\n", args...) }

func (p *transcript) run(d *datadriven.TestData) {
	switch d.Cmd {
	case "leader":
		p.leaders++
		p.machine, p.writing = NewMachine(10*time.Second, fmt.Sprint("leader ", p.leaders)), nil
	case "expect":
		p.expect(d)
	case "train":
		steps, err := strconv.Atoi(d.CmdArgs[0].Key)
		if err != nil {
			p.t.Fatal(err)
		}
		p.train(steps)
	case "join", "report", "lost", "obey", "slip", "snapshot":
		for _, arg := range d.CmdArgs {
			if len(arg.Vals) == 0 && len(arg.Key) == 1 {
				p.agentCommand(d, arg.Key)
			}
		}
	case "answer":
		p.answer(d.CmdArgs[0].Key)
	case "settle":
		p.settle()
	case "tick":
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			p.t.Fatal(err)
		}
		p.now = p.now.Add(wait)
		p.event(TimePassed{})
	case "release":
		p.event(GangReleased{})
	case "observe":
		p.observe()
	case "record":
		for _, arg := range d.CmdArgs {
			value, err := strconv.ParseUint(arg.Vals[0], 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			switch arg.Key {
			case "term":
				if p.record.Term, p.record.Leader = value, "another"; value == 0 {
					p.record.Leader = ""
				}
			case "round":
				p.record.Round = value
			}
		}
		p.printf("%s", p.show(p.record))
	default:
		p.t.Fatalf("unknown command %s", d.Cmd)
	}
}

func (p *transcript) expect(d *datadriven.TestData) {
	gang := Gang{
		ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second, BarrierTimeout: 20 * time.Second,
		GrowthWindow: 5 * time.Second, HangTimeout: p.hang, Durable: p.record,
	}
	number := func(text string) int32 {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			p.t.Fatal(err)
		}
		return int32(n)
	}
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "attempt":
			attempt, err := strconv.Atoi(arg.Vals[0])
			if err != nil {
				p.t.Fatal(err)
			}
			gang.Attempt = int32(attempt)
			p.attempt = max(p.attempt, attempt)
		case "stale":
			gang.Durable = Record{}
		case "members":
			for _, text := range arg.Vals {
				gang.Members = append(gang.Members, p.member(text))
			}
		case "minimum":
			gang.Minimum = number(arg.Vals[0])
		case "target":
			gang.Target = number(arg.Vals[0])
		case "spares":
			gang.Spares = number(arg.Vals[0])
		case "sizes":
			for _, text := range arg.Vals {
				gang.Sizes = append(gang.Sizes, number(text))
			}
		case "restart":
			gang.Strategy = Restart
			for _, agent := range p.agents {
				agent.restarts = true
			}
		case "mayfail":
			gang.MayRestart = true
		case "hang":
			p.hang = 10 * time.Second
			gang.HangTimeout = p.hang
		}
	}
	p.event(GangExpected{gang})
}

// member reads uid@node[:what[:time]].
func (p *transcript) member(text string) Member {
	text, what, _ := strings.Cut(text, ":")
	uid, node, _ := strings.Cut(text, "@")
	want := Member{UID: uid, Name: uid, Ordinal: int32(uid[0] - 'a'), Node: node}
	what, by, _ := strings.Cut(what, ":")
	switch what {
	case "":
	case "starting":
		want.Starting = true
	case "lost":
		want.Lost = "its node is gone"
	case "ended":
		want.Lost, want.Ended = "its node is gone", true
	case "done":
		want.Ended = true
	case "notready":
		want.NodeNotReady = true
	default:
		want.Leaving = Reason(what)
	}
	if by != "" {
		after, err := time.ParseDuration(by)
		if err != nil {
			p.t.Fatal(err)
		}
		if p.leaveBy[uid].IsZero() {
			p.leaveBy[uid] = p.now.Add(after)
		}
		want.LeaveBy = p.leaveBy[uid]
	}
	if p.agents[uid] == nil {
		p.agents[uid] = &modelAgent{uid: uid}
	}
	return want
}

// train lets the world make steps, all ranks together, and has its members report.
func (p *transcript) train(steps int) {
	for range steps {
		var world []*modelAgent
		may := true
		for _, uid := range slices.Sorted(maps.Keys(p.agents)) {
			if a := p.agents[uid]; a.round > 0 && p.machine.world != nil && a.round == p.machine.world.record.Round {
				world = append(world, a)
				may = a.gate() && may
			}
		}
		if may = may && len(world) > 0 && len(world) == int(world[0].workers); !may {
			break
		}
		for _, a := range world {
			a.step(p.now)
			if a.lastStep > 0 && a.done == a.lastStep {
				a.waiting = waitingFinished
			}
		}
		for _, a := range world {
			a.gate()
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(p.agents)) {
		if mem := p.machine.members[uid]; mem != nil && mem.connected {
			p.event(AgentReported{uid, p.agents[uid].report()})
		}
	}
}

func (p *transcript) agentCommand(d *datadriven.TestData, uid string) {
	agent := p.agents[uid]
	if agent == nil {
		agent = &modelAgent{uid: uid}
		p.agents[uid] = agent
	}
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "step":
			agent.done, _ = strconv.ParseUint(arg.Vals[0], 10, 64)
			agent.entered, agent.begun, agent.ended = agent.done, true, p.now
		case "last":
			agent.lastStep, _ = strconv.ParseUint(arg.Vals[0], 10, 64)
		case "fault":
			agent.fault, agent.waiting = strings.Join(arg.Vals, " "), waitingFault
		case "finished":
			agent.waiting = waitingFinished
		case "stuck":
			agent.stuck = true
		case "unstuck":
			agent.stuck = false
		case "full":
			agent.full = true
		case "live":
			agent.live = true
		case "ahead":
			agent.done++
			for _, other := range p.agents { // it could only because all have begun that step
				if other.round == agent.round {
					other.entered = max(other.entered, agent.done)
				}
			}
			agent.state = append(agent.state, agent.round)
		case "foreign":
			agent.foreign = true
		case "leaves":
			agent.leaves = true
		case "term":
			agent.term, _ = strconv.ParseUint(arg.Vals[0], 10, 64)
		case "round":
			agent.round, _ = strconv.ParseUint(arg.Vals[0], 10, 64)
		case "members":
			agent.digest = MembersDigest(arg.Vals)
		case "rank":
			rank, _ := strconv.Atoi(arg.Vals[0])
			agent.rank = int32(rank)
		case "exit":
			code, _ := strconv.Atoi(arg.Vals[0])
			agent.exits = []int32{int32(code)}
		case "terminating":
			agent.terminating = true
		case "stays":
			agent.stays = true
		case "reaches", "cannot", "refused":
			agent.probed = nil
			told, _ := p.machine.Directive(uid)
			for _, asked := range told.Probes {
				agent.probed = append(agent.probed, Probed{asked.Number, arg.Key == "reaches", arg.Key == "refused"})
			}
		case "held":
			agent.hold = p.machine.hold
		case "barrier":
			agent.attempt, _ = strconv.ParseUint(arg.Vals[0], 10, 64)
			agent.stop, _ = strconv.ParseUint(arg.Vals[1], 10, 64)
			agent.gate()
		}
	}
	switch d.Cmd {
	case "join":
		attempt := p.attempt
		if d.HasArg("attempt") {
			d.ScanArgs(p.t, "attempt", &attempt)
		}
		p.event(agent.join(int32(attempt)))
	case "report":
		p.event(AgentReported{uid, agent.report()})
	case "lost":
		p.event(SessionLost{uid})
	case "slip":
		agent.entered = agent.done + 1
		p.event(AgentReported{uid, agent.report()})
	case "snapshot":
		agent.save()
		p.event(AgentReported{uid, agent.report()})
	case "obey":
		p.obey(agent)
	}
}

// obey has an agent take its directive, and report if that changed anything.
func (p *transcript) obey(agent *modelAgent) bool {
	d, ok := p.machine.Directive(agent.uid)
	if !ok {
		return false
	}
	before := agent.report()
	obeyed, err := agent.obey(d)
	switch {
	case err != nil:
		p.t.Fatal(err)
	case !obeyed:
		p.printf("%s refuses %s", agent.uid, p.showDirective(d))
		return false
	}
	agent.gate()
	if reflect.DeepEqual(agent.report(), before) {
		return false
	}
	p.printf("%s obeys %s", agent.uid, p.showDirective(d))
	p.event(AgentReported{agent.uid, agent.report()})
	return true
}

func (p *transcript) answer(how string) {
	if p.writing == nil {
		p.t.Fatal("there is no write to answer")
	}
	asked := p.writing
	p.writing = nil
	matches := asked.Prev.Equal(p.record)
	switch {
	case how == "crash":
		p.record, p.machine = asked.Next, nil
	case how == "gone":
		p.event(RecordAnswered{Err: ErrJobGone})
	case how == "unclear":
		p.event(RecordAnswered{Err: errors.New("timeout")})
	case !matches:
		p.event(RecordAnswered{Found: p.record, Err: ErrDeposed})
	case how == "unclear-written":
		p.record = asked.Next
		p.event(RecordAnswered{Err: errors.New("timeout")})
	case how == "ok":
		p.record = asked.Next
		p.event(RecordAnswered{Found: asked.Next})
	default:
		p.t.Fatalf("unknown answer %s", how)
	}
}

func (p *transcript) settle() {
	for moved := true; moved; {
		moved = false
		for p.writing != nil {
			p.answer("ok")
			moved = true
		}
		for _, uid := range slices.Sorted(maps.Keys(p.machine.members)) {
			if p.machine.members[uid].connected && p.obey(p.agents[uid]) {
				moved = true
			}
		}
	}
}

// event hands an event over and prints what should be done.
func (p *transcript) event(ev Event) {
	out := p.machine.Handle(p.now, ev)
	for _, n := range out.Notes {
		p.printf("note: %s", n.Text)
	}
	if out.Refuse != nil {
		p.printf("refuse: %s: %s", out.Refuse.Kind, out.Refuse.Message)
		switch ev := ev.(type) {
		case AgentJoined:
			p.machine.Handle(p.now, SessionLost{ev.UID})
		case AgentReported:
			p.machine.Handle(p.now, SessionLost{ev.UID})
		}
	}
	for _, e := range out.End {
		p.printf("end %s: %s: %s", e.UID, e.Why.Kind, e.Why.Message)
		p.machine.Handle(p.now, SessionLost{e.UID})
	}
	for _, uid := range out.Tell {
		if d, ok := p.machine.Directive(uid); ok {
			p.printf("tell %s: %s", uid, p.showDirective(d))
		}
	}
	if out.Publish {
		for _, uid := range slices.Sorted(maps.Keys(p.machine.members)) {
			if d, ok := p.machine.Directive(uid); ok && p.machine.members[uid].connected {
				p.printf("publish to %s: %s", uid, p.showDirective(d))
			}
		}
	}
	if out.Write != nil {
		p.writing = out.Write
		p.printf("write: %s -> %s", p.show(out.Write.Prev), p.show(out.Write.Next))
	}
	if out.Changed {
		p.printf("changed")
	}
}

func (p *transcript) show(r Record) string {
	text := fmt.Sprintf("term %d round %d", r.Term, r.Round)
	if r.Round > 0 {
		text += fmt.Sprintf(" attempt %d workers %d %.6s", r.Attempt, r.Workers, r.MembersDigest)
	}
	if r.Parent > 0 {
		text += fmt.Sprintf(" after round %d step %d of %d: %s", r.Parent, r.FromStep, r.From, r.Reason)
	}
	return text
}

func (p *transcript) showDirective(d Directive) string {
	text := fmt.Sprintf("term %d round %d", d.Term, d.Round)
	if d.World != nil {
		text += fmt.Sprintf(" rank %d/%d %.6s", d.World.WorkerRank, d.World.Workers, d.World.Digest)
		if d.World.Master.Address != "" {
			text += fmt.Sprintf(" master %s:%d", d.World.Master.Address, d.World.Master.Port)
		}
	}
	if w := d.World; w != nil {
		switch {
		case w.Restore && w.Snapshot != nil:
			text += fmt.Sprintf(" loads %d-%d", w.Snapshot.Round, w.Snapshot.Step)
			if len(w.Holders) > 0 {
				text += fmt.Sprintf(" from %d", len(w.Holders))
			}
		case w.Restore:
			text += " begins"
		}
		if w.Writer {
			text += " writer"
		}
	}
	if b := d.Barrier; b != nil {
		text += fmt.Sprintf(" barrier %d at step %d", b.Attempt, b.Step)
		if b.Save {
			text += " save"
		}
	}
	if a := d.Abort; a != nil {
		text += fmt.Sprintf(" abort (%s)", a.Reason)
		if a.Planned {
			text += " planned"
		}
		if a.Save > 0 {
			text += fmt.Sprintf(" save %d", a.Save)
		}
		if a.Leave > 0 {
			text += fmt.Sprintf(" leave after %d", a.Leave)
		}
	}
	if f := d.Prefetch; f != nil {
		text += fmt.Sprintf(" prefetch %d-%d from %d", f.Snapshot.Round, f.Snapshot.Step, len(f.Holders))
	}
	for _, asked := range d.Probes {
		text += fmt.Sprintf(" probe %d of %s", asked.Number, asked.Peer.Address)
	}
	if d.Restarts != nil && *d.Restarts > 0 {
		text += fmt.Sprintf(" restarts %d", *d.Restarts)
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"raise", d.Raise}, {"finish", d.Finish}, {"standby", d.Standby}, {"released", d.Released}} {
		if flag.set {
			text += " " + flag.name
		}
	}
	return text
}

func (p *transcript) observe() {
	o := p.machine.Observe(p.now)
	p.printf("attempt %d round %d adopting=%v deposed=%v step %d/%d samples %d",
		o.Attempt, o.Round, o.Adopting, o.Deposed, o.Progress.Step, o.Progress.TotalSteps, o.Progress.Samples)
	if o.Why != "" {
		p.printf("%s: %s", o.Phase, o.Why)
	} else {
		p.printf("%s", o.Phase)
	}
	for _, c := range o.Changes {
		joined := ""
		if c.Joined != "" {
			joined = "; in their place " + c.Joined
		}
		p.printf("change: round %d, %d to %d workers, %s, paused %s, %d steps lost: %s%s", c.Round, c.From, c.To, c.Reason, c.Pause, c.StepsLost, c.Message, joined)
	}
	for _, l := range o.Losses {
		p.printf("loss: %s in round %d, program=%v: %s", l.UID, l.Round, l.Program, l.Message)
	}
	if o.Fatal != "" {
		p.printf("fatal: %s", o.Fatal)
	}
	for _, uid := range slices.Sorted(maps.Keys(o.Members)) {
		seen := o.Members[uid]
		text := fmt.Sprintf("%s: rank %d", uid, seen.WorkerRank)
		for _, flag := range []struct {
			name string
			set  bool
		}{
			{"joined", seen.Joined}, {"connected", seen.Connected}, {"in-world", seen.InWorld},
			{"standby", seen.Standby}, {"out", seen.Out}, {"silent", seen.Silent}, {"cut-off", seen.CutOff}, {"terminating", seen.Terminating},
			{fmt.Sprintf("exited(%d)", seen.ExitCode), seen.Exited}, {"failed", !seen.FailedAt.IsZero()}, {"stays", seen.Stays},
		} {
			if flag.set {
				text += " " + flag.name
			}
		}
		p.printf("%s", text)
	}
}
