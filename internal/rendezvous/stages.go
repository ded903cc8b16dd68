package rendezvous

// Stage is what a change of a job's world waits for.
type Stage string

// The stages of a change, in the order in which they come.
const (
	// StageNone: nothing changes.
	StageNone Stage = ""
	// StageTerm: a new leader takes its term over a round that stands in the cluster.
	StageTerm Stage = "term"
	// StageAdopt: it hears the members, to find out what became of that round.
	StageAdopt Stage = "adopt"
	// StageBarrier: every process of the world is to stop after the same step.
	StageBarrier Stage = "barrier"
	// StageLeave: everybody is to leave a world that cannot go on, and it is found out whose fault that is.
	StageLeave Stage = "leave"
	// StageRegroup: too few are left, and they wait for others.
	StageRegroup Stage = "regroup"
	// StageSnapshot: a member saves the state.
	StageSnapshot Stage = "snapshot"
	// StageRecord: the next world is being made durable.
	StageRecord Stage = "record"
	// StageForm: the next world is published, and not all of its members have entered it.
	StageForm Stage = "form"
	// StageStep: all are in it, and not all have begun their first step there.
	StageStep Stage = "step"
)

// Stages are all of them, in the order in which they come.
var Stages = []Stage{
	StageTerm, StageAdopt, StageBarrier, StageLeave, StageRegroup, StageSnapshot, StageRecord, StageForm, StageStep,
}

// Underway is the change of a job's world that is under way, for those who watch how long it takes. It costs the
// same for a job of any size.
type Underway struct {
	Stage Stage
	// Over is true when nothing will change in this attempt any more, or not by this leader.
	Over bool
	// Left is the round that is left, Round the one that was published instead: one of them is 0. Of a round that
	// an earlier leader has made, and that is not adopted yet, it is Round.
	Left, Round uint64
	// Planned is false when the world is left because it cannot go on.
	Planned bool
	Reason  Reason
	Why     string
	// From and To are numbers of workers; 0 while they are not known.
	From, To int32
	// Barrier is the newest attempt to stop all processes after the same step; 0 for none.
	Barrier uint64
	// Begun is true once a step of the next world was seen, Awaited how many of its members have yet to say when
	// they began theirs.
	Begun   bool
	Awaited int
}

// Underway says what change is under way.
func (m *Machine) Underway() Underway {
	switch {
	case m.over() || m.fatal != "":
		return Underway{Over: true}
	case m.world == nil && len(m.gang.Members) == 0:
		return Underway{}
	case m.world == nil:
		return m.underwayWithoutWorld()
	}
	record := &m.world.record
	u := Underway{Left: record.Round, From: record.Workers, Planned: true}
	switch {
	case m.broken != nil:
		u.Planned, u.Reason, u.Why = m.broken.planned, m.broken.reason, m.broken.why
		u.Stage = m.stageOf(m.broken.regrouping, m.broken.saves(), StageLeave)
	case m.change != nil:
		u.Reason, u.Why, u.To, u.Barrier = m.change.reason, m.change.why, m.change.to, m.change.attempt
		u.Stage = StageBarrier
		if m.change.arrived {
			u.Stage = m.stageOf(false, m.change.saves(), StageRecord)
		}
	case m.pending != nil && m.pending.Round == record.Round && (!m.pending.Inherited || !m.pending.Begun):
		u = m.pending.underway(m.world)
	default:
		return Underway{}
	}
	if p := m.planned(); p != nil {
		u.Reason, u.Why, u.To = p.reason, p.why, int32(len(p.members))
	}
	return u
}

// underwayWithoutWorld is the change to the first world that this leader knows of.
func (m *Machine) underwayWithoutWorld() Underway {
	switch p := m.planned(); {
	case m.mayLive():
		u := Underway{Stage: StageAdopt, Round: m.base.Round, Planned: true, Reason: m.base.Reason, From: m.base.From, To: m.base.Workers}
		if m.term == 0 {
			u.Stage = StageTerm
		}
		return u
	case p != nil:
		return Underway{Stage: StageRecord, Planned: true, Reason: p.reason, To: int32(len(p.members))}
	}
	return Underway{}
}

// planned is the next world while it is being made durable; nil when none is.
func (m *Machine) planned() *plan {
	if m.writing == nil {
		return nil
	}
	return m.writing.plan
}

// stageOf is how far a change has come that the world stands still for: otherwise, while it waits for nothing
// else.
func (m *Machine) stageOf(regrouping, saving bool, otherwise Stage) Stage {
	switch {
	case m.planned() != nil || m.failures > 0:
		return StageRecord
	case regrouping:
		return StageRegroup
	case saving:
		return StageSnapshot
	}
	return otherwise
}

// underway is a change whose world was published.
func (u *untold) underway(w *world) Underway {
	way := Underway{
		Stage: StageForm, Round: u.Round, Planned: w.phase != PhaseRecovering, Reason: u.Reason, Why: u.Message,
		From: u.From, To: u.To, Begun: !u.begunAt.IsZero(), Awaited: len(u.awaited),
	}
	if u.Inherited {
		way.Awaited = max(0, int(w.record.Workers)-len(u.said))
	}
	if w.formed() {
		way.Stage = StageStep
	}
	return way
}

// Told is the change whose cost became known last, and how many members have not said when they began their first
// step by then: nobody waits for them for ever. The change is the zero value when there was none.
func (m *Machine) Told() (last Change, unsaid int) {
	if len(m.changes) == 0 {
		return Change{}, 0
	}
	return m.changes[len(m.changes)-1], m.unsaid
}

// Reasons are all reasons of worlds.
var Reasons = []Reason{
	ReasonStart, ReasonCapacityAvailable, ReasonScaledDown, ReasonNodeTainted, ReasonEvicted, ReasonPreempted,
	ReasonReclaimed, ReasonEvened, ReasonMoved, ReasonDeleted, ReasonTerminated, ReasonReplaced, ReasonWorkerLost,
	ReasonProgramFailed, ReasonHung, ReasonRetried, ReasonUnreached, ReasonParked,
}

// LossCause is how a member was lost, in one word.
type LossCause string

// The causes of losses.
const (
	// LossExit: its program has ended. LossFault: its program has raised an exception. LossHang: it began no step
	// that others have begun, or none for too long.
	LossExit  LossCause = "exit"
	LossFault LossCause = "fault"
	LossHang  LossCause = "hang"
	// LossPod: its pod has ended, or its node. LossSession: its session ended, and others say that they miss it.
	// LossSilence: it was silent. LossUnheard: it has not been heard since this leader leads. LossStuck: it did not
	// leave its world in time.
	LossPod     LossCause = "pod"
	LossSession LossCause = "session"
	LossSilence LossCause = "silence"
	LossUnheard LossCause = "unheard"
	LossStuck   LossCause = "stuck"
)

// LossCauses are all of them.
var LossCauses = []LossCause{LossExit, LossFault, LossHang, LossPod, LossSession, LossSilence, LossUnheard, LossStuck}

// causeOf says how a member was lost, from what is known of it in that moment; mem is nil for one that does not
// belong to the gang any more.
func causeOf(loss *Loss, mem *member) LossCause {
	switch {
	case mem == nil && loss.Program:
		return LossExit
	case mem == nil || mem.want.Lost != "" || mem.want.Ended:
		return LossPod
	case mem.failed() || !mem.endedAt.IsZero():
		return LossExit
	case loss.Program && mem.faulted():
		return LossFault
	case loss.Program:
		return LossHang
	case !mem.joined:
		return LossUnheard
	case mem.silent:
		return LossSilence
	case !mem.connected:
		return LossSession
	}
	return LossStuck
}
