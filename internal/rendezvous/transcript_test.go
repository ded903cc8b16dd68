package rendezvous

import (
	"errors"
	"fmt"
	"maps"
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
//	expect attempt=1 members=(a@n1,b@n2) [timeout=5s]
//	join a b                        their agents connect and report
//	report a [step=3] [exit=1] [terminating]
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
		play := &transcript{t: t, agents: map[string]*modelAgent{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
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
	machine *machine
	record  Record
	writing *write
	agents  map[string]*modelAgent
	attempt int
	out     strings.Builder
}

func (p *transcript) printf(format string, args ...any) { fmt.Fprintf(&p.out, format+"\n", args...) }

func (p *transcript) run(d *datadriven.TestData) {
	switch d.Cmd {
	case "leader":
		p.machine, p.writing = newMachine(10*time.Second), nil
	case "expect":
		p.expect(d)
	case "join", "report", "lost", "obey":
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
		p.event(timePassed{})
	case "release":
		p.event(gangReleased{})
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
				p.record.Term = value
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
	gang := Gang{ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second, Durable: p.record}
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
			for i, text := range arg.Vals {
				uid, node, _ := strings.Cut(text, "@")
				gang.Members = append(gang.Members, Member{UID: uid, Ordinal: int32(i), Node: node})
				if p.agents[uid] == nil {
					p.agents[uid] = &modelAgent{uid: uid}
				}
			}
		}
	}
	p.event(gangExpected{gang})
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
			agent.step, _ = strconv.ParseUint(arg.Vals[0], 10, 64)
		case "term":
			agent.term, _ = strconv.ParseUint(arg.Vals[0], 10, 64)
		case "round":
			agent.round, _ = strconv.ParseUint(arg.Vals[0], 10, 64)
		case "members":
			agent.digest = membersDigest(arg.Vals)
		case "rank":
			rank, _ := strconv.Atoi(arg.Vals[0])
			agent.rank = int32(rank)
		case "exit":
			code, _ := strconv.Atoi(arg.Vals[0])
			agent.exits = []int32{int32(code)}
		case "terminating":
			agent.terminating = true
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
		p.event(agentReported{uid, agent.report()})
	case "lost":
		p.event(sessionLost{uid})
	case "obey":
		p.obey(agent)
	}
}

// obey has an agent take its directive, and report if that changed anything.
func (p *transcript) obey(agent *modelAgent) bool {
	d, ok := p.machine.directive(agent.uid)
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
	if after := agent.report(); after.term == before.term && after.round == before.round {
		return false
	}
	p.printf("%s obeys %s", agent.uid, p.showDirective(d))
	p.event(agentReported{agent.uid, agent.report()})
	return true
}

func (p *transcript) answer(how string) {
	if p.writing == nil {
		p.t.Fatal("there is no write to answer")
	}
	asked := p.writing
	p.writing = nil
	matches := asked.prev.Equal(p.record)
	switch {
	case how == "crash":
		p.record, p.machine = asked.next, nil
	case how == "gone":
		p.event(recordAnswered{err: ErrJobGone})
	case how == "unclear":
		p.event(recordAnswered{err: errors.New("timeout")})
	case !matches:
		p.event(recordAnswered{found: p.record, err: ErrDeposed})
	case how == "unclear-written":
		p.record = asked.next
		p.event(recordAnswered{err: errors.New("timeout")})
	case how == "ok":
		p.record = asked.next
		p.event(recordAnswered{found: asked.next})
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
func (p *transcript) event(ev event) {
	out := p.machine.handle(p.now, ev)
	for _, n := range out.notes {
		p.printf("note: %s", n.text)
	}
	if out.refuse != nil {
		p.printf("refuse: %s: %s", out.refuse.code, out.refuse.message)
		switch ev := ev.(type) {
		case agentJoined:
			p.machine.handle(p.now, sessionLost{ev.uid})
		case agentReported:
			p.machine.handle(p.now, sessionLost{ev.uid})
		}
	}
	for _, e := range out.end {
		p.printf("end %s: %s: %s", e.uid, e.why.code, e.why.message)
		p.machine.handle(p.now, sessionLost{e.uid})
	}
	if out.publish {
		for _, uid := range slices.Sorted(maps.Keys(p.machine.members)) {
			if d, ok := p.machine.directive(uid); ok && p.machine.members[uid].connected {
				p.printf("publish to %s: %s", uid, p.showDirective(d))
			}
		}
	}
	if out.write != nil {
		p.writing = out.write
		p.printf("write: %s -> %s", p.show(out.write.prev), p.show(out.write.next))
	}
	if out.changed {
		p.printf("changed")
	}
}

func (p *transcript) show(r Record) string {
	text := fmt.Sprintf("term %d round %d", r.Term, r.Round)
	if r.Round > 0 {
		text += fmt.Sprintf(" attempt %d workers %d %.6s", r.Attempt, r.Workers, r.MembersDigest)
	}
	return text
}

func (p *transcript) showDirective(d directive) string {
	text := fmt.Sprintf("term %d round %d", d.term, d.round)
	if d.world != nil {
		text += fmt.Sprintf(" rank %d/%d %.6s", d.world.workerRank, d.world.workers, d.world.digest)
		if d.world.master.address != "" {
			text += fmt.Sprintf(" master %s:%d", d.world.master.address, d.world.master.port)
		}
	}
	if d.released {
		text += " released"
	}
	return text
}

func (p *transcript) observe() {
	o := p.machine.observe(p.now)
	p.printf("attempt %d round %d adopting=%v deposed=%v step %d/%d samples %d",
		o.Attempt, o.Round, o.Adopting, o.Deposed, o.Progress.Step, o.Progress.TotalSteps, o.Progress.Samples)
	for _, uid := range slices.Sorted(maps.Keys(o.Members)) {
		seen := o.Members[uid]
		text := fmt.Sprintf("%s: rank %d", uid, seen.WorkerRank)
		for _, flag := range []struct {
			name string
			set  bool
		}{
			{"joined", seen.Joined}, {"connected", seen.Connected}, {"in-world", seen.InWorld},
			{"silent", seen.Silent}, {"terminating", seen.Terminating},
			{fmt.Sprintf("exited(%d)", seen.ExitCode), seen.Exited}, {"failed", !seen.FailedAt.IsZero()},
		} {
			if flag.set {
				text += " " + flag.name
			}
		}
		p.printf("%s", text)
	}
}
