package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// elasticSimulation is a cluster with a few places for workers, a rendezvous that makes worlds of whom
// it is told, and an operator that may be killed between any two of its writes.
type elasticSimulation struct {
	t      *rapid.T
	now    time.Time
	job    *v1alpha1.TrainingJob
	pods   map[string]*corev1.Pod
	group  bool
	used   map[string]bool
	places int
	memory Memory

	gang   *rendezvous.Gang
	round  uint64
	of     int32    // the attempt of the world
	world  []string // uids by rank
	broken bool
	seen   rendezvous.Observation
	out    map[string]bool
	cut    map[string]bool // uids on nodes that nobody can reach

	harms, recoveries, deaths, uid int
}

func newElasticSimulation(t *rapid.T) *elasticSimulation {
	return &elasticSimulation{
		t: t, now: start, pods: map[string]*corev1.Pod{}, used: map[string]bool{}, out: map[string]bool{}, cut: map[string]bool{}, places: 5,
		job: jobWith(func(j *v1alpha1.TrainingJob) {
			j.Spec.Failure.MaxRestarts, j.Spec.Workers.Max = ptr.To[int32](10000), ptr.To[int32](5)
		}),
	}
}

func (s *elasticSimulation) holding() int {
	n := 0
	for _, pod := range s.pods {
		if bound(pod) && !podEnded(pod) {
			n++
		}
	}
	return n
}

func (s *elasticSimulation) state() *State {
	first := s.memory.Since.IsZero()
	if first {
		s.memory.Since = s.now
	}
	state := &State{Now: s.now, Job: s.job.DeepCopy(), GroupExists: s.group, World: s.observe(), Memory: s.memory}
	s.memory.Vanished = state.missing(s.memory.Vanished)
	state.Memory = s.memory
	state.Nodes.ByName = ready("n1")
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		state.Pods = append(state.Pods, s.pods[name].DeepCopy())
	}
	if first {
		s.memory.Vanished = state.unaccounted()
		state.Memory = s.memory
	}
	giveRoom(state, int32(max(0, s.places-s.holding())))
	return state
}

// observe is what the rendezvous says.
func (s *elasticSimulation) observe() rendezvous.Observation {
	if s.gang == nil {
		return rendezvous.Observation{}
	}
	seen := s.seen
	seen.Known, seen.Attempt, seen.Members = true, s.gang.Attempt, map[string]rendezvous.MemberObservation{}
	if s.of == s.gang.Attempt {
		seen.Round, seen.Elastic = s.round, true
	} else {
		seen.Phase = rendezvous.PhaseForming
	}
	for _, member := range s.gang.Members {
		pod := s.byUID(member.UID)
		there := pod != nil && bound(pod) && !podEnded(pod) && !s.cut[member.UID]
		rank := int32(slices.Index(s.world, member.UID))
		seen.Members[member.UID] = rendezvous.MemberObservation{
			Joined: there || rank >= 0, Connected: there, WorkerRank: rank, Standby: there && rank < 0, Out: s.out[member.UID], LastSeen: s.now}
	}
	return seen
}

func (s *elasticSimulation) byUID(uid string) *corev1.Pod {
	for _, pod := range s.pods {
		if string(pod.UID) == uid {
			return pod
		}
	}
	return nil
}

// agents lets the rendezvous do the next thing.
func (s *elasticSimulation) agents() {
	if s.gang == nil {
		return
	}
	var stay, come []string
	leave := 0
	known := map[string]rendezvous.Member{}
	for _, member := range s.gang.Members {
		known[member.UID] = member
		pod := s.byUID(member.UID)
		if s.of == s.gang.Attempt && slices.Contains(s.world, member.UID) {
			continue
		}
		if pod != nil && working(pod) && !s.cut[member.UID] && member.Leaving == "" && member.Lost == "" {
			come = append(come, member.UID)
		}
	}
	if s.of != s.gang.Attempt {
		if len(come) == len(s.gang.Members) && int32(len(come)) >= s.gang.Minimum {
			s.world, s.of, s.broken, s.seen, s.out = nil, s.gang.Attempt, false, rendezvous.Observation{}, map[string]bool{}
			s.form(come, rendezvous.ReasonStart)
		}
		return
	}
	for _, uid := range s.world {
		member, expected := known[uid]
		pod := s.byUID(uid)
		switch {
		case pod != nil && podEnded(pod) && trainerExit(pod, &s.job.Spec.Workers).ExitCode == 0:
			return // finishing
		case !expected || pod == nil || podEnded(pod) || member.Lost != "" || s.cut[uid]:
			s.lose(uid, pod)
		case member.Leaving != "":
			leave++
			if s.broken {
				continue
			}
		default:
			stay = append(stay, uid)
		}
	}
	s.reform(stay, come, leave)
}

func (s *elasticSimulation) lose(uid string, pod *corev1.Pod) {
	s.seen.Losses = append(s.seen.Losses, rendezvous.Loss{UID: uid, Round: s.round, At: s.now, Program: pod != nil && podEnded(pod), Message: "lost " + uid})
	s.broken, s.seen.Phase = true, rendezvous.PhaseRecovering
	s.world = slices.DeleteFunc(slices.Clone(s.world), func(member string) bool { return member == uid })
}

func (s *elasticSimulation) reform(stay, come []string, leave int) {
	size := min(int(s.gang.Target), len(stay)+len(come))
	if !s.broken && leave == 0 && size <= len(s.world) {
		return
	}
	if size < int(s.gang.Minimum) {
		if s.broken {
			s.seen.Phase = rendezvous.PhaseRegrouping
		}
		return
	}
	reason := rendezvous.ReasonCapacityAvailable
	switch {
	case s.broken:
		reason = rendezvous.ReasonWorkerLost
		s.recoveries++
	case leave > 0:
		reason = rendezvous.ReasonScaledDown
	}
	s.form(slices.Concat(stay, come)[:size], reason)
}

func (s *elasticSimulation) form(members []string, reason rendezvous.Reason) {
	from := int32(len(s.world))
	if s.job.Status.World != nil && reason != rendezvous.ReasonStart {
		from = value(s.job.Status.World.Workers)
	}
	for _, uid := range s.world {
		s.out[uid] = !slices.Contains(members, uid)
	}
	s.round++
	s.world, s.broken = members, false
	s.seen.Phase = rendezvous.PhaseTraining
	s.seen.Changes = append(s.seen.Changes, rendezvous.Change{Round: s.round, From: from, To: int32(len(members)), Reason: reason, At: s.now})
	s.job.Status.World = &v1alpha1.WorldStatus{Term: ptr.To[int64](1), Round: ptr.To(int64(s.round)), Attempt: ptr.To(s.of),
		Workers: ptr.To(int32(len(members))), From: ptr.To(from), Reason: string(reason), StartedAt: ptr.To(metav1.NewTime(s.now))}
	var pods []*corev1.Pod
	for _, uid := range members {
		pods = append(pods, s.byUID(uid))
	}
	named(s.job, pods)
}

// reconcile does what the reconciler does, and dies after so many writes.
func (s *elasticSimulation) reconcile(writes int) {
	plan := planOf(s.t, s.state())
	alive := func() bool { writes--; return writes >= 0 }
	a := plan.Actions
	for _, pod := range slices.Concat(a.Delete, a.Withdraw) {
		if !alive() {
			return
		}
		s.deleteByOperator(pod.Name, slices.Contains(a.Withdraw, pod))
	}
	if a.DeleteGroup && alive() {
		s.group = false
	}
	if a.Forget && alive() {
		s.gang = nil
	}
	if a.Group != nil && alive() {
		s.group = true
	}
	for _, pod := range slices.Concat(a.Create, a.Grow, a.Refill) {
		if !alive() {
			return
		}
		s.memory.Elastic.use(podOrdinal(pod))
		s.create(pod)
	}
	if a.Expect != nil && alive() {
		s.gang = a.Expect
	}
	if alive() {
		s.job.Status = plan.Status
		s.memory.remember(&plan)
	}
}

func (s *elasticSimulation) create(pod *corev1.Pod) {
	if s.used[pod.Name] {
		s.t.Fatalf("pod name %s is used twice", pod.Name)
	}
	for _, other := range s.pods {
		overdue := ending(other) && s.now.Sub(other.DeletionTimestamp.Time) > overdueAfter // its node is dead
		if podAttempt(other) != podAttempt(pod) && !podEnded(other) && !overdue {
			s.t.Fatalf("%s is created while %s of another attempt still holds room", pod.Name, other.Name)
		}
	}
	pod = pod.DeepCopy()
	s.uid++
	pod.UID, pod.Status.Phase = types.UID(fmt.Sprintf("uid-%d", s.uid)), corev1.PodPending
	pod.CreationTimestamp = metav1.NewTime(s.now)
	s.used[pod.Name] = true
	s.pods[pod.Name] = pod
}

// deleteByOperator checks that nobody is taken out of a world that counts on it.
func (s *elasticSimulation) deleteByOperator(name string, withdraw bool) {
	pod := s.pods[name]
	if pod == nil || withdraw && bound(pod) {
		return
	}
	if value(s.job.Status.Workers.Target) > 0 && working(pod) && podAttempt(pod) == s.of && slices.Contains(s.world, string(pod.UID)) {
		s.t.Fatalf("%s is deleted while the world of round %d counts on it", name, s.round)
	}
	s.terminate(pod)
}

func (s *elasticSimulation) terminate(pod *corev1.Pod) {
	if !bound(pod) || podEnded(pod) {
		delete(s.pods, pod.Name)
		return
	}
	if pod.DeletionTimestamp == nil {
		pod.DeletionTimestamp = ptr.To(metav1.NewTime(s.now.Add(30 * time.Second)))
	}
}

func (s *elasticSimulation) pick(fits func(*corev1.Pod) bool) *corev1.Pod {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		if fits(s.pods[name]) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return s.pods[rapid.SampledFrom(names).Draw(s.t, "pod")]
}

// schedule gives pods nodes: batches together, others one by one.
func (s *elasticSimulation) schedule() {
	batches := map[string][]*corev1.Pod{}
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		pod := s.pods[name]
		if bound(pod) {
			continue
		}
		batch := pod.Annotations[annotationRefill]
		if isGrowth(pod) {
			batch = pod.Name
		}
		batches[batch] = append(batches[batch], pod)
	}
	for _, batch := range slices.Sorted(maps.Keys(batches)) {
		var size int
		if _, err := fmt.Sscanf(batch, "%d-%d", new(int), &size); err != nil {
			size = 1
		}
		if batch == "" {
			size = int(value(s.job.Spec.Workers.Min))
		}
		pods := batches[batch]
		if len(pods) < size || s.holding()+len(pods) > s.places {
			continue
		}
		for _, pod := range pods {
			trainerRuns(pod)
			pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(s.now)
		}
	}
}

func (s *elasticSimulation) harm(pod *corev1.Pod) {
	if value(s.job.Status.Workers.Target) > 0 && podAttempt(pod) == value(s.job.Status.Attempt) {
		s.harms++
	}
}

func (s *elasticSimulation) actions() map[string]func(*rapid.T) {
	look := func(*rapid.T) { s.reconcile(1000) }
	return map[string]func(*rapid.T){
		"reconcile": look, "reconcile again": look, "reconcile once more": look,
		"operator dies": func(t *rapid.T) {
			s.reconcile(rapid.IntRange(0, 6).Draw(t, "writes"))
			s.deaths++
			s.memory, s.gang = Memory{}, nil
			s.seen.Changes, s.seen.Losses = nil, nil
			s.now = s.now.Add(time.Second)
		},
		"schedule":     func(*rapid.T) { s.schedule() },
		"agents":       func(*rapid.T) { s.agents() },
		"agents again": func(*rapid.T) { s.agents() },
		"kubelet ends a deleted pod": func(*rapid.T) {
			if pod := s.pick(func(pod *corev1.Pod) bool { return ending(pod) && !s.cut[string(pod.UID)] }); pod != nil {
				s.harm(pod)
				delete(s.pods, pod.Name)
			}
		},
		"node is cut off": func(*rapid.T) {
			if pod := s.pick(working); pod != nil {
				s.harm(pod)
				s.cut[string(pod.UID)] = true
			}
		},
		"nodes come back": func(*rapid.T) { clear(s.cut) },
		"program fails": func(*rapid.T) {
			if pod := s.pick(working); pod != nil {
				s.harm(pod)
				exited(1, s.now, "ValueError")(pod)
			}
		},
		"pod is deleted": func(*rapid.T) {
			if pod := s.pick(working); pod != nil {
				s.harm(pod)
				s.terminate(pod)
			}
		},
		"pod is deleted by force": func(*rapid.T) {
			if pod := s.pick(bound); pod != nil {
				s.harm(pod)
				if v, ok := vanishedPod(pod, s.now); ok {
					s.memory.Vanished = append(s.memory.Vanished, v)
				}
				delete(s.pods, pod.Name)
			}
		},
		"scale":       func(t *rapid.T) { s.job.Spec.Workers.Max = ptr.To(rapid.Int32Range(2, 5).Draw(t, "max")) },
		"places":      func(t *rapid.T) { s.places = rapid.IntRange(2, 6).Draw(t, "places") },
		"time passes": func(*rapid.T) { s.now = s.now.Add(3 * time.Second) },
		"a while":     func(*rapid.T) { s.now = s.now.Add(40 * time.Second) },
	}
}

// check holds after every move.
func (s *elasticSimulation) check(*rapid.T) {
	status := s.job.Status
	if restarts := int(value(status.Restarts.Program) + value(status.Restarts.Infrastructure)); restarts > s.harms {
		s.t.Fatalf("%d restarts were counted, %d workers were harmed", restarts, s.harms)
	}
	if restarts := int(value(status.Restarts.Program) + value(status.Restarts.Infrastructure)); restarts > s.recoveries+int(value(status.Attempt)) {
		s.t.Fatalf("%d restarts were counted, of %d recoveries in %d attempts", restarts, s.recoveries, value(status.Attempt))
	}
	rounds := map[int64]bool{}
	for _, resize := range status.Resizes {
		if rounds[value(resize.Round)] {
			s.t.Fatalf("round %d is told twice", value(resize.Round))
		}
		rounds[value(resize.Round)] = true
	}
	if target := value(status.Workers.Target); target != 0 && target < 2 {
		s.t.Fatalf("the job is to have %d workers, min is 2", target)
	}
}

// settle lets everything go well until the job is complete and no worker is left.
func (s *elasticSimulation) settle() {
	s.places = 6
	clear(s.cut)
	for range 300 {
		for range 5 {
			s.reconcile(1000)
		}
		s.schedule()
		s.agents()
		for _, pod := range s.pods {
			if ending(pod) {
				delete(s.pods, pod.Name)
			}
		}
		if isTrue(s.job.Status.Conditions, v1alpha1.ConditionComplete) && s.holding() == 0 {
			s.checkCounters()
			return
		}
		quiet := s.gang != nil && s.seen.Phase == rendezvous.PhaseTraining && s.of == s.gang.Attempt && value(s.job.Status.Workers.Target) > 0
		if quiet && len(s.world) == int(value(s.job.Status.Workers.Target)) {
			for _, uid := range s.world {
				if pod := s.byUID(uid); pod != nil && working(pod) {
					exited(0, s.now, "")(pod)
				}
			}
		}
		s.now = s.now.Add(15 * time.Second)
	}
	s.t.Fatalf("the job does not come to its end: %s\n%+v\n%v", describe(s.job), s.observe(), slices.Sorted(maps.Keys(s.pods)))
}

// checkCounters holds at the end: while one attempt lived under one operator, every recovery was
// counted, and once.
func (s *elasticSimulation) checkCounters() {
	status := s.job.Status
	restarts := int(value(status.Restarts.Program) + value(status.Restarts.Infrastructure))
	if s.deaths == 0 && value(status.Attempt) == 1 && restarts != s.recoveries {
		s.t.Fatalf("%d restarts were counted, of %d recoveries", restarts, s.recoveries)
	}
}

// TestWhateverHappensAnElasticJobCompletes: promises 1, 5 and 7, names that are used once, no worker
// taken from a world that counts on it, and nothing left at the end, under random faults, scaling,
// and crashes of the operator between any two writes.
func TestWhateverHappensAnElasticJobCompletes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newElasticSimulation(t)
		for range 3 { // most of what is interesting happens to a world
			s.reconcile(1000)
			s.schedule()
			s.agents()
		}
		moves := s.actions()
		moves[""] = s.check
		t.Repeat(moves)
		s.settle()
	})
}
