package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simWatch is what the checks remember.
type simWatch struct {
	// version is that of the cluster when it was last looked at, and at when that was.
	version int
	at      time.Time
	// written counts writes by what was written.
	written map[string]int
	// fits says since when a queued gang has fitted what is free, partial since when a job has had some
	// workers and fewer than min.
	fits, partial map[types.UID]time.Time
	// unplaced says since when a gang that was decided on has had no nodes.
	unplaced map[types.UID]time.Time
	// marked are the pods that were ever told to leave for another job.
	marked map[string]bool
	// first is the first of the queue, empty for none.
	first types.UID
	// disturbed is when room last changed hands by what is not the operator's doing.
	disturbed time.Time
}

func newSimWatch() simWatch {
	return simWatch{written: map[string]int{}, fits: map[types.UID]time.Time{}, partial: map[types.UID]time.Time{},
		unplaced: map[types.UID]time.Time{}, marked: map[string]bool{}}
}

const (
	// standsStill is how long the first of the queue may wait although it fits what is free, and how long a
	// gang that was decided on may have no nodes. When all is well it is promptly: the planner looks again
	// once a minute whatever happens, and that must not be what helps.
	standsStill, promptly = 90 * time.Second, 15 * time.Second
	// overtaken is how long a gang may have fitted when one of lower priority is started.
	overtaken = 20 * time.Second
	// partialFor is how long a job may have workers, and fewer than min: it starts, or it regroups.
	partialFor = 6 * time.Minute
)

func (s *fleetSim) wrote(verb string, kind simKind, key client.ObjectKey) {
	s.writes++
	s.say("    %s %s %s", verb, kind, key)
	s.watch.written[fmt.Sprintf("%s %s %s", verb, kind, key)]++
}

// noticeRoom keeps in mind when others took or left room.
func (s *fleetSim) noticeRoom(before, after *corev1.Pod) {
	some := after
	if some == nil {
		some = before
	}
	if !ofOperator(some) {
		s.watch.disturbed = time.Now()
	}
}

func devicesOf(job *v1alpha1.TrainingJob) int64 {
	quantity := job.Spec.Workers.Template.Spec.Containers[0].Resources.Requests[simDevice]
	return quantity.Value()
}

// open is what is free on each node for the operator: what nobody holds, and nobody is pinned to.
func (s *fleetSim) open() map[string]int64 {
	free := map[string]int64{}
	for _, node := range s.server.nodes() {
		if simOpen(node) {
			free[node.Name] = simOffer(node)
		}
	}
	for _, pod := range s.server.pods() {
		if node := nodeOf(pod); !podEnded(pod) {
			free[node] -= simShare(pod)
		}
	}
	return free
}

// places is how many workers of a job fit.
func places(free map[string]int64, job *v1alpha1.TrainingJob) int32 {
	n := int32(0)
	for _, left := range free {
		n += int32(max(0, left/devicesOf(job)))
	}
	return n
}

// quotaLeft is how many workers of a job its namespace's quota allows, of so many that are held already.
func (s *fleetSim) quotaLeft(job *v1alpha1.TrainingJob, empty bool) int32 {
	left := int32(1 << 20)
	for _, quota := range simSorted[*corev1.ResourceQuota](s.server.objects[simQuota]) {
		if quota.Namespace != job.Namespace {
			continue
		}
		for _, hard := range quota.Spec.Hard {
			free := hard.Value()
			for _, pod := range s.server.pods() {
				if !empty && pod.Namespace == job.Namespace && !podEnded(pod) {
					free -= simShare(pod)
				}
			}
			left = min(left, int32(max(0, free/devicesOf(job))))
		}
	}
	return left
}

// fitsEmpty says whether a job could run if it were alone.
func (s *fleetSim) fitsEmpty(job *v1alpha1.TrainingJob) bool {
	free := map[string]int64{}
	for _, node := range s.server.nodes() {
		free[node.Name] = simOffer(node)
	}
	return min(places(free, job), s.quotaLeft(job, true)) >= value(job.Spec.Workers.Min)
}

func (s *fleetSim) priorityOf(job *v1alpha1.TrainingJob) int32 {
	return simPriorities[job.Spec.Workers.Template.Spec.PriorityClassName]
}

// waits says whether a job is in the queue, and nothing of its own keeps it there.
func (s *fleetSim) waits(job *v1alpha1.TrainingJob) bool {
	status := &job.Status
	if (&State{Job: job}).finished() || value(job.Spec.Suspend) || value(status.Workers.Target) > 0 {
		return false
	}
	if s.gone(job.Namespace) || !s.classExists(job.Spec.Workers.Template.Spec.PriorityClassName) {
		return false
	}
	if status.RetryTime != nil && time.Now().Before(status.RetryTime.Time) {
		return false
	}
	admitted := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAdmitted)
	if admitted != nil && admitted.Status == metav1.ConditionFalse && admitted.Reason != v1alpha1.ReasonQuotaExceeded {
		return false
	}
	for _, pod := range s.server.pods() {
		if metav1.IsControlledBy(pod, job) && !podEnded(pod) {
			return false
		}
	}
	return true
}

// checkNow looks at the cluster as it is.
func (s *fleetSim) checkNow() {
	s.checkRoom()
	s.checkGangs()
	s.checkQueue()
	s.checkStarts()
}

// checkRoom: what the operator has placed never exceeds a node.
func (s *fleetSim) checkRoom() {
	held := map[string]int64{}
	for _, pod := range s.server.pods() {
		if ofOperator(pod) && !podEnded(pod) {
			held[pod.Spec.NodeName] += simShare(pod)
		}
	}
	for _, node := range s.server.nodes() {
		if held[node.Name] > simOffer(node) {
			s.fail("node %s offers %d, and workers hold %d", node.Name, simOffer(node), held[node.Name])
		}
	}
}

// checkGangs: no job has some workers and fewer than min for long.
func (s *fleetSim) checkGangs() {
	for _, job := range s.server.jobs() {
		bound, done := int32(0), false
		for _, pod := range s.server.pods() {
			if metav1.IsControlledBy(pod, job) && pod.Spec.NodeName != "" && podAttempt(pod) == value(job.Status.Attempt) {
				done = done || pod.Status.Phase == corev1.PodSucceeded
				if !podEnded(pod) && pod.DeletionTimestamp == nil {
					bound++
				}
			}
		}
		if done || bound == 0 || bound >= value(job.Spec.Workers.Min) || s.operator.dead {
			delete(s.watch.partial, job.UID)
			continue
		}
		if since, there := s.watch.partial[job.UID]; !there {
			s.watch.partial[job.UID] = time.Now()
		} else if time.Since(since) > partialFor {
			s.fail("%s/%s has had %d workers for %s, its min is %d", job.Namespace, job.Name, bound, time.Since(since), value(job.Spec.Workers.Min))
		}
	}
}

// checkQueue: the first of the queue does not stand still although it fits what is free.
func (s *fleetSim) checkQueue() {
	var queue []*v1alpha1.TrainingJob
	for _, job := range s.server.jobs() {
		if s.waits(job) || s.lostItsRoom(job) {
			queue = append(queue, job)
		} else {
			delete(s.watch.fits, job.UID)
		}
	}
	slices.SortFunc(queue, func(a, b *v1alpha1.TrainingJob) int {
		return cmp.Or(cmp.Compare(s.priorityOf(b), s.priorityOf(a)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	free, behind := s.open(), s.behindReservations()
	ahead := false
	s.watch.first = ""
	for _, job := range queue {
		if s.lostItsRoom(job) {
			ahead = true // it stands in the queue again, and how long is watched by checkStarts
			continue
		}
		if !ahead {
			s.watch.first = job.UID
		}
		if min(places(free, job), s.quotaLeft(job, false)) < value(job.Spec.Workers.Min) || s.strangersWait(s.priorityOf(job)) || s.operator.dead || s.training.isSilent() ||
			behind[job.Namespace+"/"+job.Name] {
			delete(s.watch.fits, job.UID)
			ahead = ahead || s.fitsEmpty(job)
			continue
		}
		since, there := s.watch.fits[job.UID]
		if !there {
			s.watch.fits[job.UID] = time.Now()
		} else if !ahead && time.Since(since) > s.patience()+s.proving(job) {
			s.fail("%s/%s is the first of the queue, and stands still for %s although it fits what is free: %v",
				job.Namespace, job.Name, time.Since(since), free)
		}
		ahead = true
	}
}

// lostItsRoom says whether a gang that was decided on has no pod: somebody else was faster.
func (s *fleetSim) lostItsRoom(job *v1alpha1.TrainingJob) bool {
	if (&State{Job: job}).finished() || value(job.Spec.Suspend) || value(job.Status.Workers.Target) == 0 {
		return false
	}
	return !slices.ContainsFunc(s.server.pods(), func(pod *corev1.Pod) bool { return metav1.IsControlledBy(pod, job) && !podEnded(pod) })
}

// patience is how long what should happen may take.
func (s *fleetSim) patience() time.Duration {
	if s.chaos || time.Since(s.calmSince) < time.Minute {
		return standsStill
	}
	return promptly
}

// proving is how much longer a job may wait that says that nobody of its old world is known to have ended: a node that is
// back under its name proves it once its kubelet has been in touch for a while.
func (s *fleetSim) proving(job *v1alpha1.TrainingJob) time.Duration {
	training := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionTraining)
	if training == nil || training.Reason != v1alpha1.ReasonStopping || !strings.Contains(training.Message, "is known to have ended") {
		return 0
	}
	return kubeletPatience + grace(&corev1.Pod{Spec: job.Spec.Workers.Template.Spec})
}

// checkStarts: when all is well, a gang that was decided on has its nodes promptly.
func (s *fleetSim) checkStarts() {
	for _, job := range s.server.jobs() {
		placed := value(job.Status.Workers.Target) == 0 || isTrue(job.Status.Conditions, v1alpha1.ConditionGangScheduled)
		if placed || s.chaos || time.Since(s.calmSince) < time.Minute {
			delete(s.watch.unplaced, job.UID)
		} else if since, there := s.watch.unplaced[job.UID]; !there {
			s.watch.unplaced[job.UID] = time.Now()
		} else if time.Since(since) > promptly {
			s.fail("the gang of %s/%s has no nodes for %s", job.Namespace, job.Name, time.Since(since))
		}
	}
}

// behindReservations are the jobs that may not use what is free because it is kept for others (rule 6).
func (s *fleetSim) behindReservations() map[string]bool {
	behind := map[string]bool{}
	seen, plan := s.operator.fleet.Last()
	for id := range plan.Decisions {
		if plan.Decisions[id].Why.Reason == "BehindReservation" {
			behind[seen.Jobs[id].Name] = true
		}
	}
	return behind
}

// strangersWait says whether pods of others wait for room that are as important.
func (s *fleetSim) strangersWait(priority int32) bool {
	return slices.ContainsFunc(s.server.pods(), func(pod *corev1.Pod) bool {
		return !ofOperator(pod) && pod.Spec.NodeName == "" && value(pod.Spec.Priority) >= priority
	})
}

// checkStatus looks at a status before it is stored: a gang that is started does not overtake the first of the
// queue, if that could have been started instead. Those behind it may wait for what is promised to it.
func (s *fleetSim) checkStatus(before, after *v1alpha1.TrainingJob) {
	target := value(after.Status.Workers.Target)
	if target != 0 && target < value(after.Spec.Workers.Min) {
		s.fail("%s/%s is to have %d workers, its min is %d", after.Namespace, after.Name, target, value(after.Spec.Workers.Min))
	}
	if target == 0 || value(before.Status.Workers.Target) != 0 {
		return
	}
	s.counts["starts"]++
	for _, job := range s.server.jobs() {
		since, fits := s.watch.fits[job.UID]
		if fits && job.UID == s.watch.first && s.priorityOf(job) > s.priorityOf(after) && time.Since(since) > overtaken+s.proving(job) {
			s.fail("%s/%s is started before %s/%s, which is more important and has fitted for %s", after.Namespace, after.Name,
				job.Namespace, job.Name, time.Since(since))
		}
	}
}

// checkCreation looks at a pod before it is made: its place was free, and its job needs it.
func (s *fleetSim) checkCreation(pod *corev1.Pod) {
	job := s.server.job(jobOf(pod))
	if job == nil {
		return
	}
	s.counts["pods"]++
	alive := int32(0)
	held := simShare(pod)
	for _, other := range s.server.pods() {
		if podEnded(other) {
			continue
		}
		if ofOperator(other) && nodeOf(other) == nodeOf(pod) {
			held += simShare(other)
		}
		_, marked := fleet.MarkOf(other)
		there := other.Spec.NodeName == "" || s.kubelets.agents[other.UID] && !s.kubelets.released[other.UID] && !s.drained(other.Spec.NodeName)
		if metav1.IsControlledBy(other, job) && podAttempt(other) == podAttempt(pod) && other.DeletionTimestamp == nil && !marked && there {
			alive++
		}
	}
	node, _ := s.server.objects[simNode][types.NamespacedName{Name: nodeOf(pod)}].(*corev1.Node)
	if node != nil && held > simOffer(node) && time.Since(s.timedOut) > 20*time.Second {
		s.fail("%s is made for node %s, where workers hold %d of %d with it", pod.Name, node.Name, held, simOffer(node))
	}
	if s.training != nil {
		return // there a worker that was lost may run on, cut off
	}
	if alive >= value(job.Spec.Workers.Max)+value(job.Spec.Workers.Spares) && pod.Annotations[annotationMoves] == "" && !s.scaled[job.UID] {
		s.fail("%s is made although %d are there, of at most %d and %d spares", pod.Name, alive, value(job.Spec.Workers.Max), value(job.Spec.Workers.Spares))
	}
}

// drained says whether all workers are asked to leave a node: their replacements come first.
func (s *fleetSim) drained(name string) bool {
	node, ok := s.server.objects[simNode][types.NamespacedName{Name: name}].(*corev1.Node)
	return !ok || slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key != simPool })
}

// checkMark looks at a mark before it is set or lifted.
func (s *fleetSim) checkMark(key types.NamespacedName, mark fleet.Mark) {
	pod := s.server.pod(key)
	if pod == nil {
		return
	}
	if mark == (fleet.Mark{}) {
		s.counts["lifted"]++
		s.say("the mark of %s is lifted", key)
		return
	}
	s.counts["marked"]++
	s.watch.marked[key.Name] = true
	s.say("%s is marked: %s", key, mark)
	namespace, name, _ := strings.Cut(mark.For, "/")
	job := s.server.job(types.NamespacedName{Namespace: namespace, Name: name})
	if job == nil {
		return
	}
	if s.chaos && job.Spec.Workers.Template.Spec.ServiceAccountName == simAccount {
		s.fail("%s is marked for %s, whose pods the API server refuses", key, mark.For)
	}
	if since, fits := s.watch.fits[job.UID]; fits && s.watch.first == job.UID && time.Since(since) > overtaken {
		s.fail("%s is marked for %s, which has fitted what is free for %s", key, mark.For, time.Since(since))
	}
}

// unfinished names the jobs that have not ended; empty for none.
func (s *fleetSim) unfinished() string {
	var names []string
	for _, job := range s.server.jobs() {
		if !(&State{Job: job}).finished() {
			names = append(names, fmt.Sprintf("%s/%s (%s)", job.Namespace, job.Name, job.Status.State))
		}
	}
	return strings.Join(names, ", ")
}

// checkGrown: at rest nothing is free that a job may grow into, and none has more that train than it may have.
func (s *fleetSim) checkGrown() {
	free := s.open()
	for _, job := range s.server.jobs() {
		spec := &job.Spec
		target := value(job.Status.Workers.Target)
		if target == 0 || spec.Growth.Policy == v1alpha1.GrowthOff || spec.Preemption.Policy == v1alpha1.PreemptionNever || s.foreign[job.UID] {
			continue
		}
		w := s.worlds[client.ObjectKeyFromObject(job)]
		if w != nil && w.attempt == value(job.Status.Attempt) && value(spec.Workers.Spares) > 0 && len(w.members) > int(value(spec.Workers.Max)) {
			s.fail("%s/%s has a world of %d workers, of at most %d", job.Namespace, job.Name, len(w.members), value(spec.Workers.Max))
		}
		next := target + 1
		if counts, _ := spec.Workers.Counts(); len(counts) > 0 {
			i := slices.IndexFunc(counts, func(size int32) bool { return size > target })
			if i < 0 {
				continue
			}
			next = counts[i]
		}
		if next <= spec.Workers.Ceiling() && min(places(free, job), s.quotaLeft(job, false)) >= next-target {
			s.fail("%s/%s stays at %d workers, of at most %d, and there is room for %d", job.Namespace, job.Name, target,
				spec.Workers.Ceiling(), places(free, job))
		}
	}
}

// describe is the cluster in words.
func (s *fleetSim) describe() string {
	var text strings.Builder
	fmt.Fprintf(&text, "operator %d, dead: %v; free: %v\n", s.operator.number, s.operator.dead, s.open())
	for _, job := range s.server.jobs() {
		if (&State{Job: job}).finished() {
			continue
		}
		fmt.Fprintf(&text, "  %s/%s %s min %d max %d %v of %d, target %d attempt %d, %s; %s\n", job.Namespace, job.Name,
			job.Spec.Workers.Template.Spec.PriorityClassName, value(job.Spec.Workers.Min), value(job.Spec.Workers.Max), job.Spec.Workers.Sizes, devicesOf(job),
			value(job.Status.Workers.Target), value(job.Status.Attempt), job.Status.State, job.Status.Queue.WaitsFor)
		if l := s.operator.leading[rendezvous.JobKey(client.ObjectKeyFromObject(job))]; l != nil {
			fmt.Fprintf(&text, "    world %+v phase %s adopting %v released %v gang %+v\n", s.worlds[client.ObjectKeyFromObject(job)], l.phase, l.adopting, l.released, l.gang.Members)
		}
		for _, c := range job.Status.Conditions {
			fmt.Fprintf(&text, "    %s %s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
		grant := s.operator.fleet.Grant(job.UID)
		fmt.Fprintf(&text, "    grant %+v\n", grant)
		fmt.Fprintf(&text, "    vanished %+v\n", s.operator.reconciler.memory.of(job.UID).Vanished)
		fmt.Fprintf(&text, "    avoids %+v\n", job.Status.AvoidedNodes)
		for _, pod := range s.server.pods() {
			if metav1.IsControlledBy(pod, job) {
				fmt.Fprintf(&text, "    %s %s on %q (%s) deleted %v agent %v %s\n", pod.Name, pod.Status.Phase, pod.Spec.NodeName, pinned(pod),
					pod.DeletionTimestamp != nil, s.kubelets.agents[pod.UID], markText(pod))
			}
		}
	}
	return text.String()
}

func markText(pod *corev1.Pod) string {
	mark, _ := fleet.MarkOf(pod)
	return mark.String()
}
