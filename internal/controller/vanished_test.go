package controller

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
				if !plan.Facts.Held {
					t.Error("room is kept for it meanwhile, and those behind it wait")
				}
			}
		})
	}
}

// The failure that a job has to wait for is a reason as long as it waits for that. After it the reader has to know what is
// missing, since only they may be able to see to it.
func TestAfterABackOffTheReasonIsTheOldWorld(t *testing.T) {
	for name, c := range map[string]struct {
		left   time.Duration
		reason string
	}{
		"it has yet to wait": {time.Second, v1alpha1.ReasonBackOff},
		"it has waited":      {0, v1alpha1.ReasonStopping},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(2)
			state := elasticState(job, crewOf(job)...)
			vanish(state, 2)
			state.Nodes, state.World, state.GroupExists = Nodes{ByName: map[string]*corev1.Node{"n0": {}}}, rendezvous.Observation{}, false
			job.Status.Workers.Target = ptr.To[int32](0)
			job.Status.RetryTime = ptr.To(metav1.NewTime(state.Now.Add(c.left)))
			meta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionTraining, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonBackOff, Message: "attempt 1 ended",
			})
			giveRoom(state, 4)
			expectCondition(t, NewPlan(state, settings), v1alpha1.ConditionTraining, metav1.ConditionFalse, c.reason)
		})
	}
}

// unseen takes the pods out of the API while no operator leads, and has a new one look.
func unseen(state *State, gone func(*corev1.Pod) bool) {
	state.Pods = slices.DeleteFunc(slices.Clone(state.Pods), gone)
	state.Memory = Memory{Since: state.Now, Vanished: state.unaccounted()}
}

// named has the record of a job's world name these pods.
func named(job *v1alpha1.TrainingJob, pods []*corev1.Pod) {
	made := rendezvous.Record{}
	members := make([]rendezvous.NamedMember, len(pods))
	for rank, pod := range pods {
		members[rank] = rendezvous.NamedMember{Ordinal: podOrdinal(pod), Node: pod.Spec.NodeName}
	}
	made.Name(members)
	job.Status.World.Members, job.Status.World.Nodes = made.Members, made.Nodes
	job.Status.World.Workers = ptr.To(int32(len(pods)))
}

// Somebody deletes the workers of a world by force while no operator leads. The next one finds their names and nodes in
// the record.
func TestWorkersThatVanishUnseenAreMissed(t *testing.T) {
	cutOff := map[string]*corev1.Node{"n0": {}, "n1": {}}
	for name, c := range map[string]struct {
		nodes  Nodes
		after  time.Duration
		change func(*State)
		begins bool
	}{
		"their nodes are cut off":   {nodes: Nodes{ByName: cutOff}, after: time.Hour},
		"at once":                   {nodes: Nodes{ByName: ready("n0", "n1")}},
		"their nodes were ready":    {nodes: Nodes{ByName: ready("n0", "n1")}, after: time.Hour, begins: true},
		"one of the nodes is gone":  {nodes: Nodes{ByName: cutOff, Gone: map[string]bool{"n1": true}}, begins: true},
		"the attempt was over":      {nodes: Nodes{ByName: cutOff}, change: func(s *State) { s.Job.Status.EndedAttempt = ptr.To[int32](1) }, begins: true},
		"an earlier one was over":   {nodes: Nodes{ByName: cutOff}, change: func(s *State) { s.Job.Status.EndedAttempt = ptr.To[int32](0) }},
		"the record names no nodes": {nodes: Nodes{ByName: cutOff}, change: func(s *State) { s.Job.Status.World.Nodes = "" }, begins: true},
		"it is that of an earlier attempt": {nodes: Nodes{ByName: cutOff},
			change: func(s *State) { s.Job.Status.World.Attempt = ptr.To[int32](0) }, begins: true},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(4)
			state := elasticState(job, crewOf(job)...)
			named(job, state.Pods)
			job.Status.Workers.Target = ptr.To[int32](0)
			if c.change != nil {
				c.change(state)
			}
			state.World, state.GroupExists = rendezvous.Observation{}, false
			unseen(state, func(*corev1.Pod) bool { return true })
			state.Nodes, state.Now = c.nodes, state.Now.Add(c.after)
			giveRoom(state, 8)
			plan := NewPlan(state, settings)
			if begins := value(plan.Status.Attempt) == 2; begins != c.begins {
				t.Fatalf("the next attempt begins: %v; %+v", begins, plan.Status.Conditions)
			}
			if !c.begins {
				expectCondition(t, plan, v1alpha1.ConditionTraining, metav1.ConditionFalse, v1alpha1.ReasonStopping,
					"digits-1-0 on node n0 (gone when this operator first looked)", "node.kubernetes.io/out-of-service")
			}
		})
	}
}

// Of those that a record names only who has no pod is missed, and the rendezvous is told of it.
func TestWhoHasAPodIsNotMissed(t *testing.T) {
	job := trains(3)
	pods := crewOf(job)
	exited(1, now, "")(pods[0])
	state := elasticState(job, pods...)
	named(job, pods)
	unseen(state, func(pod *corev1.Pod) bool { return podOrdinal(pod) == 2 })
	told := look(state).Actions.Expect.Members
	i := slices.IndexFunc(told, func(m rendezvous.Member) bool { return m.Gone })
	if len(told) != 3 || i < 0 || told[i].Ordinal != 2 || told[i].Node != "n1" || told[i].Ended || told[i].Lost == "" {
		t.Errorf("the rendezvous is told %+v", told)
	}
}

// What the last state of a pod tells counts more than that the record names it.
func TestALateWordOfAPodIsHeard(t *testing.T) {
	for name, missed := range map[string]bool{"it ran": true, "it had ended": false} {
		t.Run(name, func(t *testing.T) {
			job := trains(2)
			pods := crewOf(job)
			named(job, pods)
			if !missed {
				exited(143, now, "")(pods[1])
			}
			r := &Reconciler{Now: func() time.Time { return now }}
			state := &State{Now: now, Job: job, Pods: pods[:1]}
			r.memory.update(job.UID, func(m *Memory) { m.Vanished = state.unaccounted() })
			if vanished := r.memory.of(job.UID).Vanished; len(vanished) != 1 || vanished[0].Name != pods[1].Name {
				t.Fatalf("%+v is missed", vanished)
			}
			r.podGone(pods[1])
			vanished := r.memory.of(job.UID).Vanished
			if (len(vanished) == 1) != missed || missed && vanished[0].UID != pods[1].UID {
				t.Errorf("%+v is missed", vanished)
			}
		})
	}
}

// That an attempt is over is durable before anybody could forget how it ended.
func TestAnAttemptThatIsOverIsWrittenDown(t *testing.T) {
	for name, c := range map[string]struct {
		suspended, proven bool
		after             time.Duration
	}{
		"it is to start anew":                         {proven: true},
		"it is suspended":                             {suspended: true, proven: true},
		"suspended, and nobody knows what has become": {suspended: true},
		"to start anew, and nobody knows":             {},
	} {
		t.Run(name, func(t *testing.T) {
			job := trains(2, func(job *v1alpha1.TrainingJob) { job.Spec.Suspend = ptr.To(c.suspended) })
			state := elasticState(job, crewOf(job)...)
			job.Status.Workers.Target = ptr.To[int32](0)
			state.World, state.GroupExists = rendezvous.Observation{}, false
			vanish(state, 2)
			state.Nodes = Nodes{ByName: map[string]*corev1.Node{"n0": {}}}
			if c.proven {
				state.Nodes = Nodes{Gone: map[string]bool{"n0": true}}
			}
			state.Grant.Start = false
			plan := NewPlan(state, settings)
			if over := value(plan.Status.EndedAttempt) == 1; over != c.proven {
				t.Errorf("the attempt is over: %v; %+v", over, plan.Status.Conditions)
			}
			if suspended := isTrue(plan.Status.Conditions, v1alpha1.ConditionSuspended); suspended != (c.suspended && c.proven) {
				t.Errorf("the job is suspended: %v", suspended)
			}
			if !c.proven && plan.After == 0 {
				t.Error("nobody looks again")
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
