package server

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// kind is what an episode is, in one word.
type kind string

const (
	kindStart    kind = "start"
	kindResize   kind = "resize"
	kindRecovery kind = "recovery"
	kindTakeover kind = "takeover"
)

// outcome is what became of an episode.
type outcome string

const (
	// outcomeDone: the next world trains; of a takeover, it is known which world there is.
	outcomeDone outcome = "done"
	// outcomeCalledOff: the world trains on as it was.
	outcomeCalledOff outcome = "called-off"
	// outcomeLeft: the next world was left before it made a step.
	outcomeLeft outcome = "left"
	// outcomeEnded: the attempt ended. outcomeHandedOver: this operator does not lead the job any more.
	outcomeEnded      outcome = "ended"
	outcomeHandedOver outcome = "handed-over"
)

// reasonTakenOver stands for the reason of a takeover, which changes no world.
const reasonTakenOver rendezvous.Reason = "TakenOver"

// phasePublish is the part of StageForm until the next world was sent to all of its members.
const phasePublish = "publish"

const (
	// maxParts and maxRemarks bound what is kept of an episode that goes to and fro. Whatever comes after that
	// counts for the last part, and is not remarked.
	maxParts   = 64
	maxRemarks = 64
)

// episode is one change of a job's world as its driver sees it: from the decision to the first step of the last
// member of the next world, or until it came to nothing. The times are this operator's.
type episode struct {
	kind         kind
	begun, ended time.Time
	// left is the round that is left, round the one that was published instead; 0 for none. The round of a takeover
	// is the one that was found.
	left, round uint64
	// underway is what the machine said last.
	underway rendezvous.Underway
	// barrier is the newest attempt of a barrier, barrierAt when it was published.
	barrier   uint64
	barrierAt time.Time
	parts     []part
	remarks   []remark
	// advanced is when a member was heard last that its first step had begun.
	advanced time.Time
	// sent counts to whom the next world was sent; nil before it is published.
	sent    *sending
	outcome outcome
	// told is what the change has cost, once it is known.
	told rendezvous.Change
}

// part is a time in which an episode waited for one thing.
type part struct {
	stage        rendezvous.Stage
	begun, ended time.Time
}

// remark is something that was decided in the middle of an episode.
type remark struct {
	at         time.Time
	kind, text string
}

// sending counts the members that were not sent a world yet.
type sending struct {
	round uint64
	left  atomic.Int64
	done  atomic.Int64 // Unix time of the last one in ns; 0 before
}

func newEpisode(now time.Time, u rendezvous.Underway) *episode {
	e := &episode{begun: now, left: u.Left, round: u.Round}
	switch {
	case u.Round > 0:
		e.kind = kindTakeover
	case u.Left == 0:
		e.kind = kindStart
	case u.Planned:
		e.kind = kindResize
	default:
		e.kind = kindRecovery
	}
	return e
}

// continues says whether what the machine is about still belongs to the episode.
func (e *episode) continues(u rendezvous.Underway) bool {
	switch {
	case u.Stage == rendezvous.StageNone:
		return false
	case e.round == 0:
		return u.Round > 0 || u.Left == e.left
	}
	return u.Round > 0
}

// see takes note of how far the change is.
func (e *episode) see(now time.Time, u rendezvous.Underway) {
	if last := len(e.parts) - 1; last < 0 || e.parts[last].stage != u.Stage && last+1 < maxParts {
		e.close(now)
		e.parts = append(e.parts, part{stage: u.Stage, begun: now})
	}
	if u.Round > 0 && e.round != u.Round {
		e.round = u.Round
		if u.Stage == rendezvous.StageForm || u.Stage == rendezvous.StageStep {
			e.sent = &sending{round: u.Round}
			e.sent.left.Store(int64(u.To))
		}
	}
	if u.Begun && (!e.underway.Begun || u.Awaited != e.underway.Awaited) {
		e.advanced = now
	}
	e.underway = u
}

// close ends the last part.
func (e *episode) close(now time.Time) {
	if last := len(e.parts) - 1; last >= 0 && e.parts[last].ended.IsZero() {
		e.parts[last].ended = now
	}
}

func (e *episode) remark(at time.Time, kind, text string) {
	if len(e.remarks) < maxRemarks {
		e.remarks = append(e.remarks, remark{at, kind, text})
	}
}

// since is when the episode came to a stage last; zero when it did not.
func (e *episode) since(stage rendezvous.Stage) time.Time {
	for _, p := range slices.Backward(e.parts) {
		if p.stage == stage {
			return p.begun
		}
	}
	return time.Time{}
}

// conclude ends the episode: u is what the machine is about instead, told the change that became known last, of
// which unsaid members had not said when they began.
func (e *episode) conclude(now time.Time, u rendezvous.Underway, told rendezvous.Change, unsaid int) {
	e.ended = now
	published := e.published()
	if published && told.Round == e.round {
		e.told = told
		if unsaid > 0 && !e.advanced.IsZero() {
			e.ended = e.advanced // whoever has not said it was not waited for
		}
	}
	switch {
	case published && (e.told.Begun || e.underway.Begun):
		e.outcome = outcomeDone
	case u.Over:
		e.outcome = outcomeEnded
	case published:
		e.outcome = outcomeLeft
	case e.kind == kindTakeover:
		e.outcome = outcomeDone
	default:
		e.outcome = outcomeCalledOff
	}
	e.close(e.ended)
}

// published says whether the episode has led to a round.
func (e *episode) published() bool { return e.round > 0 && e.kind != kindTakeover }

// reason is the reason of the change, as far as it became known.
func (e *episode) reason() rendezvous.Reason {
	switch {
	case e.kind == kindTakeover:
		return reasonTakenOver
	case e.told.Reason != "":
		return e.told.Reason
	}
	return e.underway.Reason
}

// publishing is the part in which the next world was sent to its members; false when not all of them were.
func (e *episode) publishing() (part, bool) {
	if e.sent == nil || e.sent.done.Load() == 0 {
		return part{}, false
	}
	return part{phasePublish, e.since(rendezvous.StageForm), time.Unix(0, e.sent.done.Load())}, true
}
