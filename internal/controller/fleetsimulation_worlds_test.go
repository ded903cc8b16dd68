package controller

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simWorld is the world of one job as it is, whoever leads.
type simWorld struct {
	uid     types.UID
	attempt int32
	round   uint64
	// members are the uids by rank; one that was lost leaves its place empty.
	members []string
	out     map[string]bool
	// steps were done by the time at since; last is the last one.
	steps, last float64
	since       time.Time
	// warmAt is when its program makes the first step of the attempt at the earliest.
	warmAt    time.Time
	broken    bool
	finishing bool
	// stepTime is how long a step takes with so many workers; nil where as many make as many steps a second.
	stepTime func(workers int) float64
	// foreign programs do not speak to their agents: their world cannot change.
	foreign bool
}

// simLeader is what one operator knows of one job's world.
type simLeader struct {
	gang     rendezvous.Gang
	heard    map[string]time.Time
	released bool
	adopting bool
	// since is when the gang was first expected.
	since   time.Time
	phase   rendezvous.Phase
	why     string
	doneAt  time.Time
	window  time.Time
	changes []rendezvous.Change
	losses  []rendezvous.Loss
	fatal   string
	due     bool
}

// reports says whether programs tell how far they are. Where they do not, nothing at all is written at rest.
func (s *fleetSim) reports() bool { return s.paced || s.seed%8 == 1 }

// worldOf is the world of the attempt that is expected; nil while there is none.
func (s *fleetSim) worldOf(key rendezvous.JobKey, l *simLeader) *simWorld {
	w := s.worlds[simName(key)]
	if w == nil || string(w.uid) != l.gang.JobUID || w.attempt != l.gang.Attempt || w.round == 0 {
		return nil
	}
	return w
}

func (s *fleetSim) podWith(job types.NamespacedName, uid string) *corev1.Pod {
	for _, object := range s.server.objects[simPod] {
		if pod := object.(*corev1.Pod); string(pod.UID) == uid && pod.Namespace == job.Namespace {
			return pod
		}
	}
	return nil
}

// step is how far the world is; it stands still while nobody trains.
func (w *simWorld) step() float64 {
	if w.since.IsZero() {
		return w.steps
	}
	return min(w.last, w.steps+max(0, time.Since(w.since).Seconds())*w.pace())
}

// pace is how many steps it makes in a second.
func (w *simWorld) pace() float64 {
	if w.stepTime != nil {
		return 1 / w.stepTime(max(1, len(w.members)))
	}
	return float64(max(1, len(w.members)))
}

// stop has the world stand where it is.
func (w *simWorld) stop() { w.steps, w.since = w.step(), time.Time{} }

// touch has the rendezvous look at a job soon.
func (s *fleetSim) touch(job types.NamespacedName) {
	op := s.operator
	if op == nil || op.dead {
		return
	}
	key := rendezvous.JobKey(job)
	if l := op.leading[key]; l != nil && !l.due {
		l.due = true
		s.after(s.span(time.Millisecond, 20*time.Millisecond), func() {
			l.due = false
			if !op.dead && op.leading[key] == l {
				s.advance(op, key, l)
			}
		})
	}
}

// touchAt has it look at a time.
func (s *fleetSim) touchAt(job types.NamespacedName, at time.Time) {
	s.after(max(time.Until(at), time.Millisecond), func() { s.touch(job) })
}

// changed tells the operator that there is something to see.
func (op *simOperator) changed(key rendezvous.JobKey) { op.worlds <- key }

// advance takes the world of a job one step further.
func (s *fleetSim) advance(op *simOperator, key rendezvous.JobKey, l *simLeader) {
	if l.released {
		return
	}
	for _, m := range l.gang.Members {
		if s.kubelets.agents[types.UID(m.UID)] && l.heard[m.UID].IsZero() {
			l.heard[m.UID] = time.Now()
			op.changed(key)
		}
	}
	w := s.worldOf(key, l)
	switch {
	case w == nil:
		s.formFirst(op, key, l)
	case l.adopting:
		s.adopt(op, key, l, w)
	case l.fatal == "":
		s.follow(op, key, l, w)
	}
}

// formFirst makes the first world of an attempt once all of its gang is there.
func (s *fleetSim) formFirst(op *simOperator, key rendezvous.JobKey, l *simLeader) {
	var ready []string
	for _, m := range l.gang.Members {
		if s.kubelets.agents[types.UID(m.UID)] && m.Leaving == "" && m.Lost == "" {
			ready = append(ready, m.UID)
		}
	}
	if len(ready) == len(l.gang.Members) && len(ready) >= int(l.gang.Minimum) {
		s.form(op, key, l, ready, rendezvous.ReasonStart)
	}
}

// adopt finds out whether the world that another operator has made lives.
func (s *fleetSim) adopt(op *simOperator, key rendezvous.JobKey, l *simLeader, w *simWorld) {
	const patience = 12 * time.Second
	for _, uid := range w.members {
		if uid == "" || !l.heard[uid].IsZero() || time.Since(l.since) > patience {
			continue
		}
		m := l.member(uid)
		if m != nil && m.Lost == "" && s.podWith(simName(key), uid) != nil {
			s.touchAt(simName(key), l.since.Add(patience+time.Second))
			return
		}
	}
	l.adopting, l.phase = false, rendezvous.PhaseTraining
	if w.broken {
		l.phase = rendezvous.PhaseRecovering
	}
	op.changed(key)
	s.touch(simName(key))
}

func (l *simLeader) member(uid string) *rendezvous.Member {
	for i := range l.gang.Members {
		if l.gang.Members[i].UID == uid {
			return &l.gang.Members[i]
		}
	}
	return nil
}

// enter goes over to another phase.
func (s *fleetSim) enter(op *simOperator, key rendezvous.JobKey, l *simLeader, phase rendezvous.Phase, why string) {
	if l.phase != phase {
		l.phase, l.why = phase, why
		op.changed(key)
	}
}

// sides are who stays, who leaves, and who could come.
type simSides struct {
	stay, leave, fresh []string
	by                 time.Time
	reason             rendezvous.Reason
	starting           bool
}

// follow looks for losses, then for what is wished.
func (s *fleetSim) follow(op *simOperator, key rendezvous.JobKey, l *simLeader, w *simWorld) {
	s.findLosses(op, key, l, w)
	if l.fatal != "" || w.finishing {
		return
	}
	sides := s.sidesOf(key, l, w)
	size := l.next(len(sides.stay)+len(sides.fresh), len(w.members))
	switch {
	case w.broken && size < int(l.gang.Minimum):
		s.enter(op, key, l, rendezvous.PhaseRegrouping, "too few are left")
	case w.broken:
		s.enter(op, key, l, rendezvous.PhaseRecovering, "somebody was lost")
		s.when(op, key, l, 500*time.Millisecond, 4*time.Second, func() {
			s.form(op, key, l, slices.Concat(sides.stay, sides.fresh)[:size], rendezvous.ReasonWorkerLost)
		})
	case w.foreign:
	case len(sides.leave) > 0 && size < int(l.gang.Minimum):
		l.doneAt = time.Time{}
		s.enter(op, key, l, rendezvous.PhaseTraining, "")
		s.retreat(op, key, l, w, sides)
	case len(sides.leave) > 0:
		s.enter(op, key, l, rendezvous.PhaseResizing, "somebody leaves")
		slowest := 3 * time.Second
		if s.chaos && s.chance(0.1) {
			slowest = 40 * time.Second
		}
		if !sides.by.IsZero() {
			slowest = max(101*time.Millisecond, min(slowest, time.Until(sides.by.Add(-killMargin))))
		}
		s.when(op, key, l, 100*time.Millisecond, slowest, func() {
			s.form(op, key, l, slices.Concat(sides.stay, sides.fresh)[:size], sides.reason)
		})
	case size > len(w.members):
		s.admit(op, key, l, w, sides, size)
	default:
		l.doneAt = time.Time{}
		s.enter(op, key, l, rendezvous.PhaseTraining, "")
	}
}

// when does something some time from now, if it is still what is wished then.
func (s *fleetSim) when(op *simOperator, key rendezvous.JobKey, l *simLeader, least, most time.Duration, do func()) {
	switch {
	case l.doneAt.IsZero():
		l.doneAt = time.Now().Add(s.span(least, most))
		s.touchAt(simName(key), l.doneAt.Add(time.Millisecond))
	case !time.Now().Before(l.doneAt):
		l.doneAt = time.Time{}
		do()
	}
}

// retreat gives a world up whose members leave until too few are left, when they cannot wait.
func (s *fleetSim) retreat(op *simOperator, key rendezvous.JobKey, l *simLeader, w *simWorld, sides simSides) {
	if sides.by.IsZero() {
		return
	}
	if at := sides.by.Add(-killMargin); time.Now().Before(at) {
		s.touchAt(simName(key), at)
		return
	}
	w.broken = true
	w.stop()
	s.enter(op, key, l, rendezvous.PhaseRegrouping, "too few would be left")
}

// admit lets newcomers in, once the others that are about to be ready have had their time.
func (s *fleetSim) admit(op *simOperator, key rendezvous.JobKey, l *simLeader, w *simWorld, sides simSides, size int) {
	if l.window.IsZero() {
		l.window = time.Now()
	}
	if sides.starting && size < int(l.gang.Target) && time.Since(l.window) < l.gang.GrowthWindow {
		s.touchAt(simName(key), l.window.Add(l.gang.GrowthWindow+time.Millisecond))
		return
	}
	s.enter(op, key, l, rendezvous.PhaseResizing, "newcomers")
	s.when(op, key, l, 100*time.Millisecond, 3*time.Second, func() {
		s.form(op, key, l, slices.Concat(sides.stay, sides.fresh)[:size], rendezvous.ReasonCapacityAvailable)
	})
}

// next is the size of the world after one of so many when so many could be in it: it grows by who is there beside the spares.
func (l *simLeader) next(n, world int) int {
	grown := max(n-int(l.gang.Spares), int(l.gang.Minimum))
	if i := slices.IndexFunc(l.gang.Sizes, func(size int32) bool { return int(size) >= grown }); i >= 0 {
		grown = int(l.gang.Sizes[i])
	}
	return l.legal(min(n, max(grown, world)))
}

func (l *simLeader) legal(n int) int {
	n = min(n, int(l.gang.Target))
	if len(l.gang.Sizes) == 0 {
		return n
	}
	best := 0
	for _, size := range l.gang.Sizes {
		if int(size) <= n {
			best = int(size)
		}
	}
	return best
}

// findLosses takes note of members that make no step any more.
func (s *fleetSim) findLosses(op *simOperator, key rendezvous.JobKey, l *simLeader, w *simWorld) {
	for rank, uid := range w.members {
		if uid == "" {
			continue
		}
		pod, m := s.podWith(simName(key), uid), l.member(uid)
		loss := rendezvous.Loss{UID: uid, Round: w.round, Rank: int32(rank), At: time.Now()}
		var exit *corev1.ContainerStateTerminated
		if pod != nil {
			loss.Name = pod.Name
			if job := s.server.job(simName(key)); job != nil {
				exit = trainerExit(pod, &job.Spec.Workers)
			}
		}
		switch {
		case exit != nil && exit.ExitCode == 0:
			w.finishing = true
			continue
		case w.finishing:
			continue
		case exit != nil:
			loss.Program, loss.Message = pod.DeletionTimestamp == nil, "its program has failed"
		case pod == nil, podEnded(pod), m == nil:
			loss.Message = "its pod has ended"
		case m.Lost != "":
			loss.Message = m.Lost
		case !s.kubelets.agents[pod.UID] && s.server.objects[simNode][types.NamespacedName{Name: pod.Spec.NodeName}] == nil:
			loss.Message = "it is silent"
		default:
			continue
		}
		w.members[rank] = ""
		w.stop()
		w.broken = true
		l.losses = append(l.losses, loss)
		l.doneAt = time.Time{}
		l.phase = rendezvous.PhaseRecovering
		if w.foreign {
			l.fatal = loss.Message
		}
		op.changed(key)
	}
}

// sidesOf says who stays, who leaves and who could come.
func (s *fleetSim) sidesOf(key rendezvous.JobKey, l *simLeader, w *simWorld) simSides {
	var sides simSides
	for _, m := range l.gang.Members {
		connected := s.kubelets.agents[types.UID(m.UID)] && !s.kubelets.released[types.UID(m.UID)]
		switch in := slices.Contains(w.members, m.UID); {
		case in && m.Leaving != "":
			sides.leave = append(sides.leave, m.UID)
			if sides.reason == "" {
				sides.reason = m.Leaving
			}
			if !m.LeaveBy.IsZero() && (sides.by.IsZero() || m.LeaveBy.Before(sides.by)) {
				sides.by = m.LeaveBy
			}
		case m.Leaving != "" || m.Lost != "":
		case in:
			sides.stay = append(sides.stay, m.UID)
		case connected:
			sides.fresh = append(sides.fresh, m.UID)
		default:
			sides.starting = sides.starting || m.Starting
		}
	}
	if len(sides.fresh) == 0 {
		l.window = time.Time{}
	}
	return sides
}

// form makes a world, durable at once.
func (s *fleetSim) form(op *simOperator, key rendezvous.JobKey, l *simLeader, members []string, reason rendezvous.Reason) {
	job := s.server.job(simName(key))
	if job == nil || string(job.UID) != l.gang.JobUID {
		return
	}
	if len(members) > int(value(job.Spec.Workers.Max)) && reason == rendezvous.ReasonCapacityAvailable && !s.scaled[job.UID] {
		s.fail("%s has a world of %d workers, its max is %d", key, len(members), value(job.Spec.Workers.Max))
	}
	w := s.worlds[simName(key)]
	if w == nil || w.uid != job.UID {
		w = &simWorld{uid: job.UID, last: s.lengths[job.UID], foreign: s.foreign[job.UID], stepTime: s.stepTimes[job.UID]}
		s.worlds[simName(key)] = w
	}
	before := int32(0)
	if w.attempt == l.gang.Attempt {
		before = record.FromStatus(job).Workers
		for _, uid := range w.members {
			if uid != "" && !slices.Contains(members, uid) {
				w.out[uid] = true
			}
		}
	} else {
		w.out = map[string]bool{}
	}
	w.stop()
	w.attempt, w.round, w.members, w.broken, w.finishing = l.gang.Attempt, w.round+1, members, false, false
	w.since = time.Now()
	if before == 0 && s.warmUp > 0 {
		w.warmAt = w.since.Add(time.Duration(s.dice.Float64() * float64(s.warmUp)))
	}
	if w.warmAt.After(w.since) {
		w.since = w.warmAt
	}
	next := job.DeepCopy()
	next.Status.World = &v1alpha1.WorldStatus{Term: ptr.To[int64](1), Round: ptr.To(int64(w.round)), Attempt: ptr.To(w.attempt),
		Workers: ptr.To(int32(len(members))), Processes: ptr.To(int32(len(members))), From: ptr.To(before), Reason: string(reason),
		StartedAt: ptr.To(metav1.NewTime(time.Now().Truncate(time.Second)))}
	var pods []*corev1.Pod
	for _, uid := range members {
		pods = append(pods, s.podWith(simName(key), uid))
	}
	named(next, pods)
	s.server.put(next)
	l.changes = append(l.changes, rendezvous.Change{Round: w.round, From: before, To: int32(len(members)), Reason: reason, At: time.Now(),
		Pause: s.span(100*time.Millisecond, s.pause)})
	l.phase, l.why, l.doneAt, l.window = rendezvous.PhaseTraining, "", time.Time{}, time.Time{}
	s.counts["worlds"]++
	op.changed(key)
	for _, uid := range slices.Sorted(maps.Keys(w.out)) {
		if pod := s.podWith(simName(key), uid); pod != nil {
			if m := l.member(uid); m != nil && m.Leaving != "" {
				s.kubelets.letGo(pod)
			}
		}
	}
	s.finishLater(simName(key), w)
	s.touch(simName(key))
}

// finishLater ends the programs of a world once they have made their last step.
func (s *fleetSim) finishLater(job types.NamespacedName, w *simWorld) {
	round := w.round
	left := time.Duration((w.last - w.step()) / w.pace() * float64(time.Second))
	s.after(max(left, 0)+time.Second, func() {
		if s.worlds[job] != w || w.round != round || w.broken {
			return
		}
		if w.step() < w.last {
			s.finishLater(job, w) // it has got more to do since
			return
		}
		for _, uid := range w.members {
			if pod := s.podWith(job, uid); pod != nil {
				s.after(s.span(time.Millisecond, 2*time.Second), func() { s.finishOne(job, w, round, pod) })
			}
		}
	})
}

func (s *fleetSim) finishOne(job types.NamespacedName, w *simWorld, round uint64, pod *corev1.Pod) {
	if s.worlds[job] == w && w.round == round && !w.broken {
		w.finishing = true
		s.kubelets.exit(pod, 0)
	}
}
