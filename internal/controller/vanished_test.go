package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// ready makes nodes that the cluster is in touch with.
func ready(names ...string) map[string]*corev1.Node {
	nodes := map[string]*corev1.Node{}
	for _, name := range names {
		nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	}
	return nodes
}

// vanish takes the last pods of a world out of the API, as if deleted by force.
func vanish(state *State, n int) {
	for _, pod := range state.Pods[len(state.Pods)-n:] {
		if v, ok := vanishedPod(pod, state.Now); ok {
			state.Memory.Vanished = append(state.Memory.Vanished, v)
		}
	}
	state.Pods = state.Pods[:len(state.Pods)-n]
	state.Memory.Vanished = state.missing(state.Memory.Vanished)
}

// What the rendezvous is told of a member whose pod was deleted by force: that it is gone, and that it has
// ended only when its node proves it.
func TestMembersThatVanishAreNamed(t *testing.T) {
	tainted := ready("n0", "n1")
	tainted["n1"].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	cutOff := ready("n0", "n1")
	cutOff["n1"].Status.Conditions[0].Status = corev1.ConditionUnknown
	unreachable := ready("n0", "n1")
	unreachable["n1"].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
	for name, c := range map[string]struct {
		nodes Nodes
		after time.Duration
		ended bool
	}{
		"at once":                             {nodes: Nodes{ByName: ready("n0", "n1")}},
		"its node is cut off":                 {nodes: Nodes{ByName: cutOff}, after: time.Hour},
		"its node is unreachable":             {nodes: Nodes{ByName: unreachable}, after: time.Hour},
		"its node is tainted":                 {nodes: Nodes{ByName: tainted}, ended: true},
		"its node is deleted":                 {nodes: Nodes{ByName: ready("n0"), Gone: map[string]bool{"n1": true}}, ended: true},
		"its node is not known":               {nodes: Nodes{ByName: ready("n0")}, after: time.Hour},
		"its node was ready all the time":     {nodes: Nodes{ByName: ready("n0", "n1")}, after: 10 * time.Minute, ended: true},
		"its kubelet may have yet to hear it": {nodes: Nodes{ByName: ready("n0", "n1")}, after: 70 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(3)
			state := elasticState(job, crewOf(job)...)
			vanish(state, 1)
			state.Nodes, state.Now = c.nodes, state.Now.Add(c.after)
			plan := look(state)
			told := plan.Actions.Expect.Members
			i := slices.IndexFunc(told, func(m rendezvous.Member) bool { return m.UID == "uid-digits-1-2" })
			if len(told) != 3 || i < 0 || !told[i].Gone || told[i].Lost == "" || told[i].Ended != c.ended {
				t.Errorf("the rendezvous is told %+v; known to have ended: want %v", told, c.ended)
			}
			if !c.ended && (plan.After == 0 || plan.After > overdueAfter) {
				t.Errorf("it is looked at again after %s: nobody else tells of the node", plan.After)
			}
		})
	}
}

func TestNobodyIsMissedWhoCannotTrain(t *testing.T) {
	for name, change := range map[string]func(*State){
		"its agent has said that it has ended": func(s *State) {
			s.World.Members["uid-digits-1-2"] = rendezvous.MemberObservation{Joined: true, WorkerRank: 2, Exited: true}
		},
		"the world goes on without it": func(s *State) {
			s.World.Members["uid-digits-1-2"] = rendezvous.MemberObservation{Joined: true, WorkerRank: -1}
		},
		"the next world is there":   func(s *State) { s.World.Round++ },
		"another attempt has begun": func(s *State) { s.Job.Status.Attempt = ptr.To[int32](2) },
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(3)
			state := elasticState(job, crewOf(job)...)
			if vanish(state, 1); len(state.Memory.Vanished) != 1 {
				t.Fatal("nobody is missed")
			}
			change(state)
			if left := state.missing(state.Memory.Vanished); len(left) > 0 {
				t.Errorf("%+v is missed", left)
			}
		})
	}
}

// A new attempt does not begin beside a world that may train on.
func TestNoNewGangBesideOneThatVanished(t *testing.T) {
	for name, c := range map[string]struct {
		nodes  Nodes
		ended  bool // one of the two
		begins bool
	}{
		"nobody answers":              {nodes: Nodes{ByName: map[string]*corev1.Node{"n0": {}}}},
		"the node is deleted":         {nodes: Nodes{Gone: map[string]bool{"n0": true}}, begins: true},
		"one of them has ended":       {nodes: Nodes{ByName: map[string]*corev1.Node{"n0": {}}}, ended: true, begins: true},
		"the node is there, and well": {nodes: Nodes{ByName: ready("n0")}, begins: true},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(2)
			state := elasticState(job, crewOf(job)...)
			if c.ended {
				exited(1, now, "")(state.Pods[1])
			}
			vanish(state, 2)
			state.Nodes, state.World, state.GroupExists = c.nodes, rendezvous.Observation{}, false
			state.Now = state.Now.Add(time.Hour)
			job.Status.Workers.Target = ptr.To[int32](0)
			giveRoom(state, 4)
			plan := NewPlan(state, settings)
			if begins := value(plan.Status.Attempt) == 2; begins != c.begins {
				t.Fatalf("the next attempt begins: %v; %+v", begins, plan.Status.Conditions)
			}
			if !c.begins {
				expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStopping,
					"digits-1-0 on node n0 (deleted by force)", "node.kubernetes.io/out-of-service")
			}
		})
	}
}

// The last state of a pod tells whether its kubelet has ended it.
func TestWhatIsKeptOfPodsThatAreGone(t *testing.T) {
	job := trains(3)
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		missed bool
	}{
		"it ran":                           {pod: podOf(job, 1, 0, trainerRuns), missed: true},
		"it was to end":                    {pod: podOf(job, 1, 0, trainerRuns, deletedAt(now)), missed: true},
		"it had ended":                     {pod: podOf(job, 1, 0, exited(143, now, ""), deletedAt(now))},
		"it never had a node":              {pod: podOf(job, 1, 0)},
		"it is of a job that nobody knows": {pod: podOf(jobWith(func(j *v1alpha1.TrainingJob) { j.UID = "other" }), 1, 0, trainerRuns)},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Now: func() time.Time { return now }}
			r.memory.update(job.UID, func(m *Memory) { m.Since = now })
			r.podGone(c.pod)
			if missed := len(r.memory.of(job.UID).Vanished) == 1; missed != c.missed {
				t.Errorf("it is missed: %v", missed)
			}
			if len(r.memory.jobs) != 1 {
				t.Errorf("%d jobs are remembered", len(r.memory.jobs))
			}
		})
	}
}

// A world of two was to grow, and the record of the larger one is there; nobody has seen a step of that. The two are on a
// dead node and may train on in their own. That the newcomers have ended says nothing of them.
func TestTheEndOfNewcomersIsNotThatOfTheWorldBefore(t *testing.T) {
	for name, begun := range map[string]bool{"nobody has seen a step": false, "it has made steps": true} {
		t.Run(name, func(t *testing.T) {
			job := trains(4)
			job.Status.World.Workers = ptr.To[int32](4)
			job.Status.World.Parent, job.Status.World.From = ptr.To[int64](2), ptr.To[int32](2)
			if begun {
				job.Status.Resizes = []v1alpha1.Resize{{Round: job.Status.World.Round, Pause: &metav1.Duration{Duration: time.Second}}}
			}
			pods := crewOf(job)
			for _, pod := range pods[:2] {
				pod.Spec.NodeName = "dead"
				deletedAt(now.Add(-time.Hour))(pod)
			}
			for _, pod := range pods[2:] {
				exited(143, now, "")(pod)
			}
			state := elasticState(job, pods...)
			state.Nodes = Nodes{ByName: map[string]*corev1.Node{"dead": {}}}
			state.World, state.GroupExists = rendezvous.Observation{}, false
			job.Status.Workers.Target = ptr.To[int32](0)
			giveRoom(state, 8)
			plan := NewPlan(state, settings)
			if starts := value(plan.Status.Attempt) == 2; starts != begun {
				t.Errorf("a new attempt begins: %v (%s)", starts, condition(t, plan, "Training").Message)
			}
		})
	}
}
