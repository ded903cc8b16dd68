package controller

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// ElasticMemory is what the operator keeps of an attempt whose world may change, and loses when it is started anew. What follows
// from that is said of each; nothing durable does.
type ElasticMemory struct {
	Attempt int32
	// Elastic is true once the attempt has had a world that can change. Lost, it is what the rendezvous hears from the
	// programs: until that, nobody is added and the gang counts as a whole.
	Elastic bool
	// Reserved are ordinals that are durable as used and not used yet, Refill whether for a batch. Lost, they are never used:
	// others are reserved.
	Reserved []int32
	Refill   bool
	// Growth is the pause after growth that failed. Lost, it is tried once more at once, on any node.
	Growth GrowthBackOff
	// Phase is what the rendezvous was last seen in the middle of, since PhaseSince. Lost, a condition says so a little later.
	Phase      rendezvous.Phase
	PhaseSince time.Time
	// Recovered is for how long the job has done something else than regroup, as far as was seen, since it has not trained: that
	// is no time in which others are waited for. Lost, it is counted from when this operator was there.
	Recovered time.Duration
	// What was told. Lost, it is told again, in an event and by nothing else: CalledOff of a change that was called off, Storage
	// of trouble with the storage, Restored of what the attempt has begun with, Differ of states that differ.
	CalledOff string
	Storage   string
	Restored  string
	Differ    string
	// Missed is of a state that was evaluated and is not kept.
	Missed string
	// MissingSince is since when snapshots are on fewer nodes than they should be, zero while they are not, and MissingTold
	// whether that was told. Lost, it is told once more, as late again.
	MissingSince time.Time
	MissingTold  bool
	// ParkingSince is when the state of a job whose workers are all to go began to be made durable; zero while it is not. Lost,
	// it may take as long again, under each operator.
	ParkingSince time.Time
	// Terminating says since when agents are known to have been told to end, by pod uid. Lost, such a worker is given more time
	// than its kubelet gives it: it is waited for in vain, and then lost.
	Terminating map[string]time.Time
	// Touches is how often the scheduler was asked to look at a group, which is Touched. Lost, it is asked a few times more.
	Touches int
	Touched string
	// MarkedSince says since when workers are known to leave for other jobs, by pod uid. The marks are durable; lost, those who
	// leave have as much time again.
	MarkedSince map[string]time.Time
	// Moves are the workers that were named to move and stay yet, by pod uid. Settled are those that came in the place of others which
	// have gone since, by pod uid, as long as they are in no world, and in whose place; empty where that is not known. Lost, one of those
	// that are spares is taken for one too many until as many train as may, or until all who come are ready and the planner names who leaves.
	Moves   map[string]bool
	Settled map[string]string
	// Told are the workers that the rendezvous was told are leaving, by pod uid. Lost, they are told of again before they are let
	// go, and a newcomer that went meanwhile counts as one that failed: growth pauses.
	Told map[string]bool
	// Unheard are the workers of which was told that the rendezvous does not hear them, by pod uid, Staying those of which was
	// told that they were lost and their pods stay, Restarted the last world of theirs of whose loss that was told. Lost, it is
	// told again.
	Unheard   map[string]bool
	Staying   map[string]bool
	Restarted map[string]uint64
	// Stragglers are the processes of which was told that they keep the others waiting, since they were named, by pod and their
	// number there. Lost, the status says it; where that has no such field, it is told again.
	Stragglers map[string]bool
}

// next is what to remember, before this plan adds to it. What was told stays, for plans that come to tell nothing.
func (m ElasticMemory) next(attempt int32) ElasticMemory {
	if m.Attempt != attempt {
		m = ElasticMemory{Attempt: attempt}
	}
	m.Reserved = slices.Clone(m.Reserved)
	m.Terminating, m.MarkedSince = map[string]time.Time{}, map[string]time.Time{}
	return m
}

// elastic says whether the job's world can change while it trains: all of its programs speak to their
// agents, or are started anew in every world.
func (s *State) elastic() bool {
	if !s.rendezvousKnows() || s.World.Round == 0 {
		return false
	}
	was := s.Memory.Elastic.Attempt == s.attempt() && s.Memory.Elastic.Elastic
	if s.Job.Spec.Strategy() == v1alpha1.ResizeRestart || s.World.Elastic || was {
		return true
	}
	switch s.World.Phase {
	case rendezvous.PhaseResizing, rendezvous.PhaseRecovering, rendezvous.PhaseRegrouping:
		return true
	default:
		return false
	}
}

// takingOver says whether a world of this attempt was made durable of which this leader does not know
// yet whether it lives. Until it does, nobody is judged.
func (s *State) takingOver() bool { return !s.rendezvousKnows() && s.hadWorld() }

// hadWorld says whether a world of this attempt was made durable.
func (s *State) hadWorld() bool {
	made := record.FromStatus(s.Job)
	return made.Round > 0 && made.Attempt == s.attempt() &&
		isTrue(s.Job.Status.Conditions, v1alpha1.ConditionGangScheduled)
}

// runElastic looks after an attempt whose world changes while it trains. Losses and changes are
// accounted for first, in the same write with the job's end if it is over; then it is decided how many
// workers it should have; and what was decided before is done.
func (p *planner) runElastic(pods []*corev1.Pod) {
	p.plan.Elastic.Elastic = true
	crew := p.crew(pods)
	p.workers = crew
	p.followPhase()
	finished := p.allFinished(crew)
	p.account(finished)
	if p.hasFailed() {
		return
	}
	p.avoidUnreached(crew)
	if finished {
		p.complete()
		return
	}
	f, again := p.attemptFailure(crew, pods)
	if f.cause != causeNone {
		p.handle(f)
		return
	}
	if again > 0 {
		p.lookAgain(again)
	}
	if p.evicted() {
		p.afterParking(p.evict)
		return
	}
	if f := p.outgrown(pods); f.cause != causeNone {
		p.handle(f)
		return
	}
	p.retarget(crew)
	if p.decided() {
		return
	}
	p.markLeavers(crew)
	p.askForRefills(crew)
	p.spawn(crew)
	p.dismiss(crew)
	p.expectCrew(crew, p.World.Round)
	p.tellLeaving(crew)
	p.tellUnheard(pods)
	p.tellStaying(crew)
	p.describeWorld(crew)
	p.describeSize(crew)
	p.describeVolumes(pods)
	p.refreshCheckpoint()
	p.refreshProgress()
}

// followPhase remembers since when the rendezvous is in its phase, and tells of a change that was
// called off. That may have begun since the last look.
func (p *planner) followPhase() {
	next := &p.plan.Elastic
	training := meta.FindStatusCondition(p.Job.Status.Conditions, v1alpha1.ConditionTraining)
	switch {
	case p.World.Phase == rendezvous.PhaseTraining || training == nil || training.Status != metav1.ConditionFalse:
		next.Recovered = 0
	case next.Phase == rendezvous.PhaseRecovering && next.Phase != p.World.Phase:
		next.Recovered += max(0, p.Now.Sub(latest(training.LastTransitionTime.Time, next.PhaseSince)))
	}
	if next.Phase != p.World.Phase || next.PhaseSince.IsZero() {
		next.Phase, next.PhaseSince = p.World.Phase, p.Now
	}
	if p.World.Phase != rendezvous.PhaseTraining || p.World.Why == next.CalledOff {
		return
	}
	next.CalledOff = p.World.Why
	if next.CalledOff != "" {
		p.note(corev1.EventTypeWarning, v1alpha1.EventResizeCalledOff, "%s", next.CalledOff)
	}
}

// tellUnheard tells once of each worker that the rendezvous does not hear, and that trains on.
func (p *planner) tellUnheard(pods []*corev1.Pod) {
	p.plan.Elastic.Unheard = map[string]bool{}
	for _, pod := range pods {
		seen, uid := p.member(pod), string(pod.UID)
		if !seen.CutOff || !p.rendezvousKnows() {
			continue
		}
		p.plan.Elastic.Unheard[uid] = true
		if p.Memory.Elastic.Unheard[uid] {
			continue
		}
		why := "steps are made"
		if seen.Witnesses != "" {
			why = seen.Witnesses + " can reach it"
		}
		p.noteOf(pod, corev1.EventTypeWarning, v1alpha1.EventWorkerUnheard,
			"the operator does not hear worker %s on node %s, and it trains on: %s; see the network between the two", pod.Name, pod.Spec.NodeName, why)
	}
}

// tellStaying tells once of each worker that was lost and whose pod stays, each time. One whose program is back before anybody has
// looked is known by its loss.
func (p *planner) tellStaying(crew []worker) {
	told := p.Memory.Elastic.Restarted
	p.plan.Elastic.Staying, p.plan.Elastic.Restarted = map[string]bool{}, map[string]uint64{}
	for i := range crew {
		w := &crew[i]
		uid := string(w.pod.UID)
		last := told[uid]
		if last > 0 {
			p.plan.Elastic.Restarted[uid] = last
		}
		if w.ended || w.lost != "" {
			continue
		}
		in := p.programFailedIn(uid)
		if w.seen.Stays {
			p.plan.Elastic.Staying[uid] = true
			if in <= last && !p.Memory.Elastic.Staying[uid] {
				in = max(p.World.Round, last+1)
			}
		}
		if in <= last {
			continue
		}
		p.plan.Elastic.Restarted[uid] = in
		p.noteOf(w.pod, corev1.EventTypeWarning, v1alpha1.EventWorkerRestarted,
			"its world has lost worker %s on node %s, whose pod stays and keeps its snapshots: its program is started anew there", w.pod.Name, w.pod.Spec.NodeName)
	}
}

// programFailedIn is the last world that lost a worker by its program; 0 for none.
func (p *planner) programFailedIn(uid string) (round uint64) {
	for i := range p.World.Losses {
		if loss := &p.World.Losses[i]; loss.UID == uid && loss.Program {
			round = max(round, loss.Round)
		}
	}
	return round
}

// allFinished says whether every worker of the world has ended with 0. Those in no world do not
// matter.
func (p *planner) allFinished(crew []worker) bool {
	var finished, members int32
	for i := range crew {
		w := &crew[i]
		if !w.inWorld() || w.lost != "" {
			continue
		}
		members++
		if w.ended {
			finished++
		}
	}
	made := record.FromStatus(p.Job)
	if made.Round == p.World.Round && made.Workers > finished && !p.World.Elastic {
		return false
	}
	return finished > 0 && finished == members
}

// finishedUnseen says the same of a world that ended while no leader was looking: by whom the record names.
func (s *State) finishedUnseen(pods []*corev1.Pod) bool {
	finished := map[int32]bool{}
	for _, pod := range pods {
		exit := trainerExit(pod, &s.Job.Spec.Workers)
		if exit != nil && exit.ExitCode == 0 && pod.DeletionTimestamp == nil {
			finished[podOrdinal(pod)] = true
		}
	}
	made := record.FromStatus(s.Job)
	members := made.Ordinals()
	return len(members) > 0 && !slices.ContainsFunc(members, func(ordinal int32) bool { return !finished[ordinal] })
}

// attemptFailure says why the attempt cannot go on. One that can may be over after a while; 0 for no such time.
func (p *planner) attemptFailure(crew []worker, pods []*corev1.Pod) (f failure, again time.Duration) {
	if p.World.Fatal != "" {
		return p.blame(failure{cause: causeInfrastructure, message: p.World.Fatal}), 0
	}
	if count(crew, (*worker).alive) == 0 {
		f := p.diagnose(pods)
		if f.cause == causeNone {
			f = failure{cause: causeInfrastructure, message: "no worker of the world is left"}
		}
		return f, 0
	}
	return p.regroupFailure(crew)
}

// dismiss lets go of those who have left, were lost, or are not needed. The last to fail of each cause
// stays for its logs.
func (p *planner) dismiss(crew []worker) {
	actions := &p.plan.Actions
	keep := keptForLogs(lostAndEnded(crew), higherOrdinal)
	tooFew := p.tooFew(crew)
	for i := range crew {
		w := &crew[i]
		switch {
		case w.pod.DeletionTimestamp != nil || slices.Contains(keep, w.pod):
		case w.ended:
			if p.overWith(w) {
				actions.Delete = append(actions.Delete, w.pod)
			}
		case w.lost != "":
			// Where too few are left, its room is for another, and nobody waits for its snapshots.
			wait := p.unjudged(w)
			switch {
			case p.overWith(w), tooFew && wait == 0:
				actions.Delete = append(actions.Delete, w.pod)
			case tooFew:
				p.lookAgain(wait)
			}
		case p.orphan(w, crew), w.leaving != "" && !w.bound():
			actions.Withdraw = append(actions.Withdraw, w.pod)
		case w.leaving != "" && p.letGo(w):
			actions.Delete = append(actions.Delete, w.pod)
		}
	}
}

// tooFew says whether survivors wait because they are fewer than min. When they are enough, and wait all
// the same, it is for somebody who was lost to come back with a snapshot.
func (p *planner) tooFew(crew []worker) bool {
	survivors := count(crew, func(w *worker) bool { return w.inWorld() && w.stays() && !w.seen.Stays })
	return p.World.Phase == rendezvous.PhaseRegrouping && survivors < p.minimum()
}

// letGo says whether a worker that is to leave is needed no more: the world goes on without it, or will
// never take it in.
func (p *planner) letGo(w *worker) bool {
	quiet := p.World.Phase == rendezvous.PhaseTraining || p.World.Phase == rendezvous.PhaseRegrouping
	told := p.Memory.Elastic.Told[string(w.pod.UID)]
	return w.seen.Out || quiet && told && w.newcomer()
}

// unjudged is how long it may take until it is certain whose fault the loss of a worker was; 0 when it is: its pod's
// status tells, and would be gone with the pod.
func (p *planner) unjudged(w *worker) time.Duration {
	if w.loss == nil {
		return 0
	}
	return p.judge(w.pod, w.loss).wait
}

// overWith says whether nothing has yet to be learned from a worker that has ended or was lost: its
// loss is counted, or it was in no world.
func (p *planner) overWith(w *worker) bool {
	if w.inWorld() {
		return false
	}
	if w.loss == nil || w.loss.Round == 0 {
		return true
	}
	return w.loss.Round < newestRound(p.Job.Status.Resizes)
}

// tellLeaving remembers whom the rendezvous knows to be leaving, and tells of each once.
func (p *planner) tellLeaving(crew []worker) {
	p.plan.Elastic.Told = map[string]bool{}
	for i := range crew {
		w := &crew[i]
		uid := string(w.pod.UID)
		told := p.Memory.Elastic.Told[uid]
		if w.ended || w.lost != "" {
			// It went because it was told to, whatever is seen of its end, and however long its pod is kept.
			if told {
				p.plan.Elastic.Told[uid] = true
			}
			continue
		}
		if w.leaving == "" || !w.bound() {
			continue
		}
		p.plan.Elastic.Told[uid] = true
		if told {
			continue
		}
		p.noteOf(w.pod, corev1.EventTypeNormal, v1alpha1.EventWorkerLeaving, "worker %s on node %s is to leave (%s): %s",
			w.pod.Name, w.pod.Spec.NodeName, w.leaving, w.why)
		if !w.inWorld() {
			p.lookAgain(time.Millisecond) // it can go as soon as the rendezvous knows
		}
	}
}

// describeWorld writes the conditions of an attempt that has its world. What goes on for a moment only
// is not written.
func (p *planner) describeWorld(crew []worker) {
	p.admit()
	if !isTrue(p.Job.Status.Conditions, v1alpha1.ConditionGangScheduled) {
		p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionTrue, v1alpha1.ReasonScheduled,
			"every worker of the gang had a node")
	}
	if p.World.Phase == rendezvous.PhaseTraining || p.World.Phase == "" {
		p.trains(p.worldSize(crew))
		return
	}
	if left := p.plan.Elastic.PhaseSince.Add(phaseLasts).Sub(p.Now); left > 0 {
		p.lookAgain(left)
		return
	}
	why := p.World.Why
	switch p.World.Phase {
	case rendezvous.PhaseResizing:
		p.set(v1alpha1.ConditionTraining, metav1.ConditionTrue, v1alpha1.ReasonResizing, why)
	case rendezvous.PhaseRegrouping:
		p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonRegrouping, why)
		p.lookAgain(value(p.Job.Spec.Failure.RegroupTimeout).Duration)
	default:
		p.set(v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonRecovering, why)
	}
}

// worldSize is the number of workers of the current world.
func (p *planner) worldSize(crew []worker) int32 {
	if made := record.FromStatus(p.Job); made.Round == p.World.Round && made.Workers > 0 {
		return made.Workers
	}
	return count(crew, (*worker).inWorld)
}
