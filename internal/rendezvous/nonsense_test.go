package rendezvous

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/score"
	"github.com/concertina-dev/concertina/internal/share"
)

// hostile is a machine whose members say whatever passes the reading of reports.
type hostile struct {
	*Machine
	t    *rapid.T
	now  time.Time
	gang Gang
	// durable is the record in the cluster, said what each member has said last, leaders how many there were.
	durable Record
	said    map[string]Report
	leaders int
}

// Whatever members, controller and record say, the machine and all who look at it do not panic, and nothing is
// published that is not durable.
func TestNonsenseIsSurvived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &hostile{Machine: NewMachine(time.Second, "us"), t: t, now: time.Unix(1000, 0), said: map[string]Report{}}
		h.gang = Gang{
			JobUID: "uid", Attempt: 1, Minimum: int32(h.upTo("minimum", 3)), Target: 4, ProcessesPerWorker: int32(1 + h.upTo("processes", 1)),
			Strategy: Strategy(h.upTo("strategy", 1)), HangTimeout: time.Minute,
		}
		if h.gang.Strategy == InPlace && h.either("storage") {
			h.gang.Storage = &Storage{Interval: 10 * time.Second, Keep: 1, Own: rapid.Bool().Draw(t, "own"), From: rapid.SampledFrom([]string{"", "other"}).Draw(t, "from"),
				Known: rapid.Uint64Range(0, 1).Draw(t, "known")}
			if h.either("best") {
				h.gang.Storage.Best = Best{Best: score.Best{Metric: "loss", Lowest: true, Keep: 1 + h.upTo("best", 2)}}
				if h.either("known") {
					h.gang.Storage.Best.Known = []Kept{{Round: 1, Step: 1, Path: "path", Score: 1}, {Round: 1, Step: 2, Path: "other", Score: 0}}
				}
			}
		}
		for i := range 5 {
			h.gang.Members = append(h.gang.Members, Member{UID: fmt.Sprint("u", i), Name: fmt.Sprint("w", i), Ordinal: int32(i), Node: fmt.Sprint("n", i/2)})
		}
		h.take(GangExpected{h.gang})
		h.answer(true)
		t.Repeat(map[string]func(*rapid.T){
			"report": func(*rapid.T) { h.report() },
			"leader": func(*rapid.T) { h.succeed() },
			"obey":   func(*rapid.T) { h.obey() },
			"join":   func(*rapid.T) { h.join() },
			"answer": func(*rapid.T) { h.answer(h.upTo("trouble", 4) > 0) },
			"expect": func(*rapid.T) { h.expect() },
			"time": func(*rapid.T) {
				h.now = h.now.Add(time.Duration(1+h.upTo("seconds", h.upTo("at most", 1)*40)) * time.Second)
				h.take(TimePassed{})
			},
			"hang up": func(*rapid.T) { h.take(SessionLost{h.uid()}) },
			"release": func(*rapid.T) {
				if h.upTo("release", 30) == 0 {
					h.take(GangReleased{})
				}
			},
		})
	})
}

func (h *hostile) upTo(what string, n int) int { return rapid.IntRange(0, n).Draw(h.t, what) }
func (h *hostile) either(what string) bool     { return rapid.Bool().Draw(h.t, what) }
func (h *hostile) uid() string                 { return h.gang.Members[h.upTo("member", len(h.gang.Members)-1)].UID }

// take has the machine take an event, and looks at all that it shows.
func (h *hostile) take(ev Event) {
	out := h.Handle(h.now, ev)
	if out.Write != nil && out.Write.Next.Term <= out.Write.Prev.Term && out.Write.Next.Round <= out.Write.Prev.Round {
		h.t.Fatalf("it would replace %+v by %+v", out.Write.Prev, out.Write.Next)
	}
	h.Observe(h.now)
	h.Inspect(h.now)
	h.Glance()
	h.Underway()
	h.State()
	for i := range h.gang.Members {
		if d, ok := h.Directive(h.gang.Members[i].UID); ok && d.World != nil && d.Abort == nil && d.Round > h.base.Round {
			h.t.Fatalf("round %d is told, and %d is durable", d.Round, h.base.Round)
		}
	}
}

// answer answers a write, if there is one.
func (h *hostile) answer(well bool) {
	if h.writing == nil {
		return
	}
	asked := h.writing.Write
	if well {
		h.durable = asked.Next
		h.take(RecordAnswered{Found: asked.Next, Secret: []byte{1}})
		return
	}
	switch h.upTo("answer", 9) {
	case 0:
		h.take(RecordAnswered{Err: ErrJobGone})
	case 1, 2, 3:
		found := asked.Prev
		if h.either("landed") {
			found = asked.Next
		}
		h.durable = found
		found.Term += uint64(h.upTo("higher", 1))
		found.Leader = rapid.SampledFrom([]string{"us", "them", ""}).Draw(h.t, "leader")
		h.take(RecordAnswered{Found: found, Err: ErrDeposed, Secret: []byte{2}})
	default:
		h.take(RecordAnswered{Err: errors.New("timeout")})
	}
}

// expect changes what the controller wants.
func (h *hostile) expect() {
	m := &h.gang.Members[h.upTo("member", len(h.gang.Members)-1)]
	switch h.upTo("change", 7) {
	case 0:
		m.Leaving = rapid.SampledFrom([]Reason{"", ReasonScaledDown}).Draw(h.t, "leaving")
		m.LeaveBy = h.now.Add(time.Duration(h.upTo("by", 100)) * time.Second)
	case 1:
		m.Lost, m.Ended = rapid.SampledFrom([]string{"", "lost"}).Draw(h.t, "lost"), h.either("ended")
	case 2:
		m.Gone, m.Starting, m.NodeNotReady = h.either("gone"), h.either("starting"), h.either("not ready")
	case 3:
		h.gang.Target, h.gang.Sizes = int32(1+h.upTo("target", 6)), rapid.SampledFrom([][]int32{nil, {1, 2, 4}}).Draw(h.t, "sizes")
	case 4:
		m.replace()
	case 5:
		if h.upTo("another", 10) == 0 {
			h.gang.Attempt++
			for i := range h.gang.Members {
				h.gang.Members[i].replace()
			}
		}
	case 6:
		if s := h.gang.Storage; s != nil {
			s.Park = rapid.SampledFrom([]string{"", "evicted"}).Draw(h.t, "park")
		}
	}
	gang := h.gang
	gang.Members = append([]Member{}, gang.Members...)
	if left := h.upTo("left out", len(gang.Members)*2); left < len(gang.Members) {
		gang.Members = append(gang.Members[:left], gang.Members[left+1:]...)
	}
	h.take(GangExpected{gang})
}

// succeed has another leader take the job over.
func (h *hostile) succeed() {
	if h.upTo("a leader ends", 4) > 0 {
		return
	}
	if h.writing != nil && h.either("it lands") {
		h.durable = h.writing.Next
	}
	h.leaders++
	h.Machine = NewMachine(time.Second, fmt.Sprint("leader ", h.leaders))
	h.gang.Durable = h.durable
	h.take(GangExpected{h.gang})
	h.answer(true)
	for i := range h.gang.Members {
		uid := h.gang.Members[i].UID
		if said, ok := h.said[uid]; ok && h.upTo("is heard", 3) > 0 {
			h.greet(uid, said)
		}
	}
}

// replace puts another pod in the place of one.
func (m *Member) replace() {
	*m = Member{UID: m.UID + "'", Name: m.Name, Ordinal: m.Ordinal + 10, Node: m.Node}
}

func (h *hostile) greet(uid string, r Report) {
	h.take(AgentJoined{UID: uid, Attempt: h.gang.Attempt, Endpoint: Endpoint{"10.0.0." + uid, 4000}, Serves: Server{Port: 1}, Report: r,
		Parts: h.upTo("older", 9) > 0, Puts: h.either("puts parts"),
	})
}

func (h *hostile) join() {
	uid := h.uid()
	h.greet(uid, h.says(uid))
}

func (h *hostile) report() {
	uid := h.uid()
	h.take(AgentReported{uid, h.says(uid)})
}

// obey has most members do what they are told.
func (h *hostile) obey() {
	entered, deaf := uint64(h.upTo("entered", 3)), h.upTo("deaf", 2*len(h.gang.Members))
	for i := range h.gang.Members {
		uid := h.gang.Members[i].UID
		d, ok := h.Directive(uid)
		if h.members[uid] == nil || !ok || i == deaf {
			continue
		}
		r := Report{Term: d.Term, Round: d.Round, Hold: d.Hold, MasterPort: 4000, Standby: d.Round == 0, Begun: true, StepTime: time.Second}
		p := Process{Elastic: true, ProgramPhase: phaseStep, Waiting: waitingJoin}
		if d.World != nil {
			r.Digest, r.WorkerRank, r.Before = d.World.Digest, uint32(d.World.WorkerRank), d.World.Parent
			p.Waiting, p.Entered, p.Done = waitingNone, d.World.FromStep+entered, d.World.FromStep+max(entered, 1)-1
		}
		if d.Barrier != nil {
			p.Waiting, p.Barrier, p.Stop, p.Done = waitingParked, d.Barrier.Attempt, d.Barrier.Step, d.Barrier.Step
			if d.Barrier.Save {
				r.Snapshots = append(r.Snapshots, Snapshot{Round: d.Round, Step: d.Barrier.Step, Bytes: 1})
			}
		}
		if d.Abort != nil {
			r.Out, p.Waiting, p.Clean, p.CleanStep = true, WaitingAborted, true, p.Done
		}
		for range h.gang.ProcessesPerWorker {
			r.Processes = append(r.Processes, p)
		}
		if d.World != nil && d.World.Writer && p.Done > 0 {
			r.Snapshots = append(r.Snapshots, Snapshot{Round: d.Round, Step: p.Done, Bytes: 1})
		}
		for _, probe := range d.Probes {
			r.Probed = append(r.Probed, Probed{probe.Number, h.either("reached"), h.either("refused")})
		}
		if d.Restore != nil {
			r.Restored = Restored{Number: d.Restore.Number}
		}
		if r.Durable = h.said[uid].Durable; d.Upload != nil {
			r.Durable = Durable{d.Upload.Snapshot, "path"}
			r.Put = d.Upload.Put
		}
		h.said[uid] = r
		if !h.members[uid].connected {
			h.greet(uid, r)
			continue
		}
		h.take(AgentReported{uid, r})
	}
}

// says is what a member has said before, but for one thing.
func (h *hostile) says(uid string) Report {
	r := h.said[uid]
	switch h.upTo("what", 5) {
	case 5:
		r.Stays, r.Restarts = h.either("stays"), r.Restarts+uint64(h.upTo("restarts", 1))
		r.Failure = Failure{Round: min(uint64(h.upTo("failed in", 3)), r.Round), Code: 1, Killed: h.either("killed")}
	case 0:
		h.mutateRound(&r)
	case 1:
		r.Processes = nil
		for range h.upTo("processes", int(h.gang.ProcessesPerWorker)) {
			r.Processes = append(r.Processes, h.anyProcess())
		}
	case 2:
		h.mutateSnapshots(&r)
	case 3:
		for n := range h.upTo("probed", 2) {
			r.Probed = append(r.Probed, Probed{h.probes + uint64(n), h.either("reached"), h.either("refused")})
		}
		r.Unreached = nil
		for range h.upTo("unreached", 3) {
			if other := h.members[h.uid()]; other != nil {
				r.Unreached = append(r.Unreached, Unreached{other.endpoint.Address, other.serves, "i/o timeout"})
			}
		}
		r.Terminating, r.Begun, r.Pause = h.upTo("terminating", 9) == 0, h.either("begun"), time.Duration(h.upTo("pause", 100))*time.Second
	case 4:
		for i := range r.Processes {
			r.Processes = append([]Process{}, r.Processes...)
			p := &r.Processes[i]
			p.Entered, p.Done = p.Entered+1, p.Done+1
		}
	}
	return r
}

func (h *hostile) mutateRound(r *Report) {
	rounds, digests := []uint64{0, h.base.Round, h.base.Parent, h.base.Round + 1}, []string{h.base.MembersDigest, h.base.ParentDigest, strings.Repeat("0", 64)}
	if h.world != nil {
		rounds, digests = append(rounds, h.world.record.Round), append(digests, h.world.record.MembersDigest)
	}
	r.Term, r.Hold = h.term+uint64(h.upTo("term", 2)), uint64(h.upTo("hold", 3))
	r.Round, r.Digest = rapid.SampledFrom(rounds).Draw(h.t, "round"), rapid.SampledFrom(digests).Draw(h.t, "digest")
	r.WorkerRank, r.Standby, r.Out = uint32(h.upTo("rank", 5)), h.either("standby"), r.Round > 0 && h.either("out")
	if r.Round == 0 {
		r.Digest, r.WorkerRank = "", 0
	}
	if r.Before = 0; r.Round > 1 && h.either("before") {
		r.Before = r.Round - 1
	}
	r.Refused = rapid.SampledFrom(rounds).Draw(h.t, "refused")
}

func (h *hostile) anyProcess() Process {
	step := func(what string) uint64 { return uint64(h.upTo(what, 4)) }
	return Process{
		ProgramPhase: ProgramPhase(h.upTo("phase", int(phaseFinished))), Waiting: Waiting(h.upTo("waiting", int(waitingFinished))),
		Entered: step("entered"), Done: step("done"), LastStep: step("last"), Barrier: step("barrier"), Stop: step("stop"),
		Exited: h.upTo("exited", 5) == 0, ExitCode: int32(h.upTo("code", 1)), Fault: rapid.SampledFrom([]string{"", "", "EOF", "ValueError"}).Draw(h.t, "fault"),
		Elastic: h.upTo("elastic", 5) > 0, Clean: h.either("clean"), CleanStep: step("clean step"),
		Leaves: h.either("leaves"), Leaving: step("leaving") / 4,
	}
}

func (h *hostile) mutateSnapshots(r *Report) {
	r.Snapshots = nil
	for range h.upTo("snapshots", 2) {
		one := Snapshot{Round: min(uint64(h.upTo("of", 3)), r.Round), Step: uint64(h.upTo("after", 4)), Bytes: 1}
		r.Snapshots = append(r.Snapshots, one)
		if of := 2 + h.upTo("shares", 2); h.either("in parts") {
			r.Snapshots = r.Snapshots[:len(r.Snapshots)-1]
			for i := range of + 1 {
				one.Part = share.Key{Index: i % of, Of: of, Rank: i == of, Layout: "0123456789abcdef"}.String()
				r.Snapshots = append(r.Snapshots, one)
			}
		}
	}
	part := func() Snapshot {
		key := share.Key{Rank: h.either("rank"), Index: h.upTo("index", 1), Of: 2, Layout: "0123456789abcdef"}
		return Snapshot{Round: min(uint64(h.upTo("of", 3)), r.Round), Step: uint64(h.upTo("after", 4)), Bytes: 1, Part: key.String()}
	}
	for range h.upTo("parts", 4) {
		r.Snapshots = append(r.Snapshots, part())
	}
	for range h.upTo("put", 4) {
		r.Put = append(r.Put, part())
	}
	r.SnapshotError = rapid.SampledFrom([]string{"", "full"}).Draw(h.t, "error")
	r.UploadError, r.SnapshotTrouble = r.SnapshotError, r.SnapshotError
	r.Uncopied = Uncopied{r.Round, uint64(h.upTo("uncopied", 4)), r.SnapshotError}
	if len(r.Snapshots) > 0 && h.either("durable") {
		r.Durable = Durable{r.Snapshots[0], "path"}
	}
	if r.Durable.Path != "" && h.either("scored") {
		r.Scored, r.Score = true, float64(h.upTo("score", 2))
	}
	for range h.upTo("scores", 3) {
		of := Score{Round: uint64(h.upTo("scored in", 4)), Step: uint64(h.upTo("scored after", 4)), Value: float64(h.upTo("score", 2))}
		if len(r.Snapshots) > 0 && h.either("held") {
			of.Round, of.Step = r.Snapshots[0].Round, r.Snapshots[0].Step
		}
		if h.either("why") {
			of.Value, of.Why = 0, "nothing is reported"
		}
		r.Scores = append(r.Scores, of)
	}
	if h.restoring != nil && h.either("restored") {
		r.Restored = Restored{Number: h.restoring.number, Found: h.either("found"), Durable: Durable{Snapshot{Step: 3}, "path"}, Error: r.SnapshotError}
		for range h.upTo("restored parts", 3) {
			r.RestoredParts = append(r.RestoredParts, part())
		}
		for range h.upTo("restored of", 3) {
			r.RestoredOf = append(r.RestoredOf, part())
		}
	}
}
