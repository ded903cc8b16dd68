package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simulation is a cluster that keeps what plans do, and in which things go wrong in random order.
// The operator may be killed between any two of its writes.
type simulation struct {
	t     *rapid.T
	now   time.Time
	job   *v1alpha1.TrainingJob
	pods  map[string]*corev1.Pod
	group bool
	world rendezvous.Observation
	used  map[string]bool

	memory     Memory
	attemptHit map[int32]bool
}

func newSimulation(t *rapid.T) *simulation {
	return &simulation{
		t: t, now: start, pods: map[string]*corev1.Pod{}, used: map[string]bool{}, attemptHit: map[int32]bool{},
		job: jobWith(func(j *v1alpha1.TrainingJob) { j.Spec.Failure.MaxRestarts = ptr.To[int32](1000) }),
	}
}

func (s *simulation) state() *State {
	state := stateOf(s.job.DeepCopy())
	state.Now, state.GroupExists, state.World, state.Memory = s.now, s.group, s.world, s.memory
	for _, pod := range s.pods {
		state.Pods = append(state.Pods, pod.DeepCopy())
	}
	slices.SortFunc(state.Pods, func(a, b *corev1.Pod) int { return int(podOrdinal(a) - podOrdinal(b)) })
	return state
}

// reconcile does what the reconciler does, and dies after writes of them.
func (s *simulation) reconcile(writes int) {
	plan := planOf(s.t, s.state())
	alive := func() bool { writes--; return writes >= 0 }
	a := plan.Actions
	for _, pod := range a.Delete {
		if !alive() {
			return
		}
		s.delete(s.pods[pod.Name])
	}
	if a.DeleteGroup && alive() {
		s.group = false
	}
	if a.Forget && alive() {
		s.world = rendezvous.Observation{}
	}
	if a.Group != nil {
		if !alive() {
			return
		}
		if s.group {
			s.t.Fatalf("PodGroup %s is made beside an old one", a.Group.Key)
		}
		s.group = true
		for _, pod := range a.Create {
			if !alive() {
				return
			}
			s.create(pod)
		}
	}
	if a.Expect != nil && alive() {
		s.expect(a.Expect)
	}
	if alive() {
		s.job.Status = plan.Status
		if plan.Progress {
			s.memory.ReportedAt = s.now
		}
	}
}

func (s *simulation) create(pod *corev1.Pod) {
	if s.used[pod.Name] {
		s.t.Fatalf("pod name %s is used twice", pod.Name)
	}
	for _, other := range s.pods {
		if podAttempt(other) != podAttempt(pod) && !podEnded(other) {
			s.t.Fatalf("%s is created while %s of another attempt still holds room", pod.Name, other.Name)
		}
	}
	pod = pod.DeepCopy()
	pod.UID, pod.Status.Phase = "uid-"+pod.UID, corev1.PodPending
	pod.CreationTimestamp = metav1.NewTime(s.now)
	s.used[pod.Name] = true
	s.pods[pod.Name] = pod
}

func (s *simulation) delete(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	if pod.Spec.NodeName == "" || podEnded(pod) {
		delete(s.pods, pod.Name)
		return
	}
	pod.DeletionTimestamp = ptr.To(metav1.NewTime(s.now.Add(30 * time.Second)))
}

func (s *simulation) expect(gang *rendezvous.Gang) {
	if s.world.Known && s.world.Attempt == gang.Attempt {
		return
	}
	s.world = rendezvous.Observation{Known: true, Attempt: gang.Attempt, Round: s.world.Round + 1, Members: map[string]rendezvous.MemberObservation{}}
}

// pick returns a pod that fits, drawn at random; nil for none.
func (s *simulation) pick(fits func(*corev1.Pod) bool) *corev1.Pod {
	var names []string
	for name, pod := range s.pods {
		if fits(pod) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return s.pods[rapid.SampledFrom(names).Draw(s.t, "pod")]
}

func bound(pod *corev1.Pod) bool   { return pod.Spec.NodeName != "" }
func ending(pod *corev1.Pod) bool  { return pod.DeletionTimestamp != nil }
func working(pod *corev1.Pod) bool { return bound(pod) && !ending(pod) && !podEnded(pod) }

// hit remembers that something was done to the current attempt. What is done to a gang that was
// given up already does not count.
func (s *simulation) hit(pod *corev1.Pod) {
	if value(s.job.Status.Workers.Target) > 0 && podAttempt(pod) == value(s.job.Status.Attempt) {
		s.attemptHit[podAttempt(pod)] = true
	}
}

func (s *simulation) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"reconcile":       func(*rapid.T) { s.reconcile(1000) },
		"reconcile again": func(*rapid.T) { s.reconcile(1000) },
		"operator dies": func(t *rapid.T) {
			s.reconcile(rapid.IntRange(0, 5).Draw(t, "writes"))
			s.memory, s.world = Memory{}, rendezvous.Observation{Round: s.world.Round}
		},
		"scheduler places the gang": func(*rapid.T) {
			var waiting []*corev1.Pod
			for _, pod := range s.pods {
				if !bound(pod) {
					waiting = append(waiting, pod)
				}
			}
			if len(waiting) == 2 && s.group {
				for _, pod := range waiting {
					trainerRuns(pod)
				}
			}
		},
		"kubelet ends a deleted pod": func(*rapid.T) {
			if pod := s.pick(ending); pod != nil {
				delete(s.pods, pod.Name)
			}
		},
		"program fails": func(*rapid.T) {
			if pod := s.pick(working); pod != nil {
				s.hit(pod)
				exited(1, s.now, "ValueError")(pod)
			}
		},
		"pod is deleted": func(*rapid.T) {
			if pod := s.pick(working); pod != nil {
				s.hit(pod)
				s.delete(pod)
			}
		},
		"time passes": func(*rapid.T) { s.now = s.now.Add(3 * time.Second) },
		"suspended":   func(*rapid.T) { s.job.Spec.Suspend = ptr.To(true) },
		"resumed":     func(*rapid.T) { s.job.Spec.Suspend = ptr.To(false) },
	}
}

// check holds after every move.
func (s *simulation) check(*rapid.T) {
	var live int
	for _, pod := range s.pods {
		if !podEnded(pod) {
			live++
		}
	}
	if live > 2 {
		s.t.Fatalf("%d pods hold room, the gang has 2", live)
	}
	status := s.job.Status
	faults := len(s.attemptHit)
	if restarts := int(value(status.Restarts.Program) + value(status.Restarts.Infrastructure)); restarts > faults {
		s.t.Fatalf("%d restarts were counted, %d attempts were hit (%v)", restarts, faults, s.attemptHit)
	}
}

// settle lets everything go well until the job is complete.
func (s *simulation) settle() {
	s.job.Spec.Suspend = ptr.To(false)
	moves := s.actions()
	for range 200 {
		for range 4 {
			s.reconcile(1000)
		}
		moves["scheduler places the gang"](s.t)
		for _, pod := range s.pods {
			if ending(pod) {
				delete(s.pods, pod.Name)
			} else if working(pod) && podAttempt(pod) == value(s.job.Status.Attempt) && value(s.job.Status.Workers.Target) > 0 {
				exited(0, s.now, "")(pod)
			}
		}
		if isTrue(s.job.Status.Conditions, v1alpha1.ConditionComplete) {
			return
		}
		s.now = s.now.Add(time.Minute)
	}
	s.t.Fatalf("the job does not come to its end: %s", describe(s.job))
}

func describe(job *v1alpha1.TrainingJob) string {
	text := fmt.Sprintf("attempt %d, target %d", value(job.Status.Attempt), value(job.Status.Workers.Target))
	for _, c := range job.Status.Conditions {
		text += fmt.Sprintf("\n%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return text
}

// TestWhateverHappensTheJobCompletes: promises 1 (never more than one gang, never a part of one
// beside another), 7 (room is taken until a pod has ended) and 9 (no restart is counted that was
// not a loss), under random faults and crashes of the operator between any two writes.
func TestWhateverHappensTheJobCompletes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSimulation(t)
		moves := s.actions()
		moves[""] = s.check
		t.Repeat(moves)
		s.settle()
	})
}
