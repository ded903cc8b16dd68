package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// regroups is a job of min 2 of which one worker is left, and waits since now for another, with regroupTimeout at 2m.
func regroups(room int32) *State {
	job := trains(2)
	state := elasticState(job, crewOf(job)[:1]...)
	state.World.Phase = rendezvous.PhaseRegrouping
	meta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonRegrouping, LastTransitionTime: metav1.NewTime(now)})
	state.Memory.Elastic = ElasticMemory{Attempt: 1, Elastic: true}
	giveRoom(state, room)
	return state
}

// Survivors that wait for the operator, and it for the API server, are not to blame.
func TestRegroupTimeoutLeavesOutWhatTheAPIServerTakes(t *testing.T) {
	unanswered := func(s *State) { s.Memory.Own.Unanswered = true }
	answered := func(after time.Duration) func(*State) {
		return func(s *State) { s.Memory.Own.AnsweredAt = now.Add(after) }
	}
	triedAgain := func(after time.Duration) func(*State) {
		return func(s *State) {
			unanswered(s)
			s.Memory.Own.NotGrown, s.Memory.Elastic.Growth.Refused = 1, now.Add(after)
		}
	}
	for name, c := range map[string]struct {
		room   int32
		change func(*State)
		after  time.Duration
		over   bool
		again  time.Duration
	}{
		"the time is over":                                 {room: 1, after: 2 * time.Minute, over: true},
		"it was answered before":                           {room: 1, change: answered(-time.Hour), after: 2 * time.Minute, over: true},
		"nobody has answered yet":                          {room: 1, change: unanswered, after: 5 * time.Minute, again: time.Minute},
		"nobody has answered, and the planner thinks":      {room: 1, change: func(s *State) { unanswered(s); s.Grant.Known = false }, after: 5 * time.Minute, again: time.Minute},
		"nobody has answered, and there is no room either": {change: unanswered, after: 2 * time.Minute, over: true},
		"nobody has answered for three times as long":      {room: 1, change: unanswered, after: 6 * time.Minute, over: true},
		"the answer came late: it counts from then":        {change: answered(3 * time.Minute), after: 4 * time.Minute, again: time.Minute},
		"and is over":                                        {change: answered(3 * time.Minute), after: 5 * time.Minute, over: true},
		"the answer came very late":                          {change: answered(5 * time.Minute), after: 6 * time.Minute, over: true},
		"the operator came late":                             {change: func(s *State) { s.Memory.Since = now.Add(time.Minute) }, after: 2 * time.Minute, again: time.Minute},
		"the operator came late, and the time is over":       {change: func(s *State) { s.Memory.Since = now.Add(time.Minute) }, after: 3 * time.Minute, over: true},
		"what is to be made is refused for longer than that": {change: func(s *State) { s.Memory.Elastic.Growth.Refused = now.Add(time.Hour) }, after: 6 * time.Minute, over: true},
		"a verdict on what is to be made is an answer":       {room: 1, change: func(s *State) { s.Memory.Elastic.Growth.Refused = now.Add(time.Hour) }, after: 2 * time.Minute, over: true},
		"a making without an answer is tried again":          {room: 1, change: triedAgain(3 * time.Minute), after: 150 * time.Second, again: 30 * time.Second},
		"and is for three times as long":                     {room: 1, change: triedAgain(time.Hour), after: 6 * time.Minute, over: true},
	} {
		t.Run(name, func(t *testing.T) {
			state := regroups(c.room)
			if c.change != nil {
				c.change(state)
			}
			state.Now = now.Add(c.after)
			plan := NewPlan(state, settings)
			if over := value(plan.Status.Workers.Target) == 0; over != c.over {
				t.Errorf("that the attempt ends is %v: %+v", over, plan.Notes)
			}
			p := &planner{State: state}
			p.plan.Elastic = state.Memory.Elastic.next(1)
			if _, again := p.regroupFailure(p.crew(state.gang())); again != c.again {
				t.Errorf("it may be over after %s, not %s", again, c.again)
			}
		})
	}
}

// Who waits for the storage is enough: what it says is named.
func TestWhoRegroupsForTheStorageSaysSo(t *testing.T) {
	state := regroups(1)
	state.Job.Spec.Workers.Min = ptr.To[int32](1)
	state.World.Storage = "503 Slow Down"
	state.Now = now.Add(2 * time.Minute)
	p := &planner{State: state}
	p.plan.Elastic = state.Memory.Elastic.next(1)
	if f, _ := p.regroupFailure(p.crew(state.gang())); !strings.Contains(f.message, "hold no snapshot; nor does the storage give one: 503 Slow Down") {
		t.Errorf("it says %q", f.message)
	}
}

// What a recovery has brought from the storage before it has no answer any more is no time in which somebody was waited for.
func TestALongRecoveryIsNoTimeToRegroup(t *testing.T) {
	state := regroups(1)
	state.Job.Spec.Workers.Min = ptr.To[int32](1)
	state.Job.Status.Conditions = nil
	for condition, status := range map[string]metav1.ConditionStatus{v1alpha1.ConditionGangScheduled: metav1.ConditionTrue, v1alpha1.ConditionTraining: metav1.ConditionFalse} {
		meta.SetStatusCondition(&state.Job.Status.Conditions, metav1.Condition{Type: condition, Status: status,
			Reason: v1alpha1.ReasonRecovering, LastTransitionTime: metav1.NewTime(now)})
	}
	state.World.Storage = "p01: no route to host"
	for _, c := range []struct {
		at    time.Duration
		phase rendezvous.Phase
		over  bool
	}{
		{0, rendezvous.PhaseRecovering, false},
		{30 * time.Second, rendezvous.PhaseRegrouping, false},
		{time.Minute, rendezvous.PhaseRecovering, false},
		{10 * time.Minute, rendezvous.PhaseRegrouping, false},
		{10*time.Minute + 3*time.Second, rendezvous.PhaseRegrouping, false},
		{10*time.Minute + 4*time.Second, rendezvous.PhaseRegrouping, false},
		{11*time.Minute + 29*time.Second, rendezvous.PhaseRegrouping, false},
		{11*time.Minute + 31*time.Second, rendezvous.PhaseRegrouping, true},
	} {
		state.Now, state.World.Phase = now.Add(c.at), c.phase
		plan := look(state)
		if over := value(plan.Status.Workers.Target) == 0; over != c.over {
			t.Fatalf("after %s: that the attempt ends is %v: %+v", c.at, over, plan.Notes)
		}
		state.Job.Status, state.Memory.Elastic = plan.Status, plan.Elastic
	}
}

// As soon as the API server answers again, a refill is made, and its pods have as long to come as any.
func TestARefillIsMadeOnceTheAPIServerAnswers(t *testing.T) {
	state := regroups(1)
	state.Memory.Own.Unanswered = true
	state.Now = now.Add(4 * time.Minute)
	look(state)
	plan := look(state)
	if got := names(plan.Actions.Refill); !slices.Equal(got, []string{"digits-1-2"}) {
		t.Fatalf("made are %v", got)
	}
	state.Memory.Own.answered(state.Now)
	state.Pods = append(state.Pods, podOf(state.Job, 1, 2, func(pod *corev1.Pod) { pod.Annotations[annotationRefill] = "2-1" }))
	state.Now = now.Add(5 * time.Minute)
	expectTarget(t, look(state), 2)
}

// troubled is an API server that does not do what it is asked.
type troubled struct {
	client.Client
	job *v1alpha1.TrainingJob
	err error
}

func (c *troubled) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	c.job.DeepCopyInto(into.(*v1alpha1.TrainingJob))
	return nil
}

func (c *troubled) List(context.Context, client.ObjectList, ...client.ListOption) error { return c.err }

func (c *troubled) Create(context.Context, client.Object, ...client.CreateOption) error { return c.err }

type lavishFleet struct{ fleet.Fleet }

func (lavishFleet) Grant(types.UID) fleet.Grant        { return fleet.Grant{} }
func (lavishFleet) Take(types.UID, []*corev1.Pod) bool { return true }
func (lavishFleet) Drop([]*corev1.Pod)                 {}
func (lavishFleet) Made([]*corev1.Pod)                 {}

// lets is a rendezvous that notes which jobs it lets go.
type lets struct {
	seen
	said *[]string
}

func (r lets) Release(_ rendezvous.JobKey, uid string) { *r.said = append(*r.said, "release "+uid) }
func (r lets) Forget(_ rendezvous.JobKey, uid string)  { *r.said = append(*r.said, "forget "+uid) }

type forgetfulFleet struct {
	lavishFleet
	said *[]string
}

func (f forgetfulFleet) Forget(uid types.UID) { *f.said = append(*f.said, "fleet "+string(uid)) }

// A job is deleted and made anew between two looks, and the one of the second is suspended: nobody expects anything of it. The
// first is let go all the same.
func TestAJobThatWasMadeAnewBetweenTwoLooksIsLetGo(t *testing.T) {
	said := []string{}
	cluster := &troubled{job: jobWith(scheduled), err: errors.New("nobody there")}
	r := &Reconciler{Client: cluster, Rendezvous: lets{said: &said}, Fleet: forgetfulFleet{said: &said}, Now: func() time.Time { return now }}
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster.job)}
	look := func() {
		if _, err := r.Reconcile(t.Context(), request); !errors.Is(err, cluster.err) {
			t.Fatal(err)
		}
	}
	cluster.job.UID = "first"
	look()
	look()
	if len(said) > 0 {
		t.Fatalf("a job that is there: %v", said)
	}
	suspended := true
	cluster.job.UID, cluster.job.Spec.Suspend = "second", &suspended
	look()
	look()
	if !slices.Equal(said, []string{"release first", "forget first", "fleet first"}) {
		t.Errorf("%q", said)
	}
}

func TestItIsKnownWhetherTheAPIServerAnswers(t *testing.T) {
	job := jobWith(scheduled)
	cluster := &troubled{job: job, err: errors.New("nobody there")}
	r := &Reconciler{Client: cluster, Rendezvous: seen{}, Fleet: lavishFleet{}, Events: events.NewFakeRecorder(9), Now: func() time.Time { return now }}
	expect := func(when string, unanswered bool, at time.Time) {
		t.Helper()
		own := r.memory.of(job.UID).Own
		if own.Unanswered != unanswered || !own.AnsweredAt.Equal(at) {
			t.Errorf("%s: unanswered is %v, and answered was at %s", when, own.Unanswered, own.AnsweredAt)
		}
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(job)}); err == nil {
		t.Fatal("a look succeeds while nobody answers")
	}
	expect("after a look that failed", true, time.Time{})
	state := regroups(1)
	grow := func() {
		r.grow(t.Context(), state, &Actions{Grow: []*corev1.Pod{newPod(job, settings, 1, 7)}})
	}
	grow()
	expect("after a pod that was not made", true, time.Time{})
	cluster.err = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "digits-1-7", errors.New("exceeded quota"))
	grow()
	expect("after a refusal", false, now)
	state.Now = now.Add(time.Hour)
	cluster.err = nil
	grow()
	expect("after a pod that was made, with no doubt before", false, now)
	cluster.err = apierrors.NewTimeoutError("slow", 1)
	grow()
	expect("after one whose making has no answer", true, now)
	cluster.err = nil
	grow()
	expect("after one that was made", false, now.Add(time.Hour))
}

// A look that goes through is an answer, to all but the making of a pod, which others may still prevent.
func TestALookThatGoesThroughIsAnAnswer(t *testing.T) {
	state := regroups(1)
	uid, said := state.Job.UID, &order{}
	r := &Reconciler{
		Client: orderClient{order: said}, Rendezvous: orderRendezvous{order: said}, Fleet: deafFleet{}, Events: events.NewFakeRecorder(9),
		CABundle: func() []byte { return []byte(settings.CABundle) }, Now: func() time.Time { return state.Now },
	}
	look := func(minutes time.Duration) OwnMemory {
		state.Now = now.Add(minutes * time.Minute)
		plan := Plan{Status: *state.Job.Status.DeepCopy()}
		plan.Status.State = state.Now.String()
		if err := r.carryOut(t.Context(), state, &plan); err != nil {
			t.Fatal(err)
		}
		return r.memory.of(uid).Own
	}
	_ = r.unanswered(uid, errors.New("nobody there"))
	if own := look(1); own.Unanswered || !own.AnsweredAt.Equal(now.Add(time.Minute)) {
		t.Errorf("unanswered is %v, and answered was at %s", own.Unanswered, own.AnsweredAt)
	}
	if own := look(2); !own.AnsweredAt.Equal(now.Add(time.Minute)) {
		t.Errorf("with no doubt before, it is answered at %s", own.AnsweredAt)
	}
	r.growthRefused(t.Context(), state, "pod digits-1-7", apierrors.NewTimeoutError("slow", 1))
	if own := look(3); !own.Unanswered {
		t.Error("nobody has answered to the making of a pod, and a status that was written counts for it")
	}
	r.growthRefused(t.Context(), state, "pod digits-1-7", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "digits-1-7", errors.New("exceeded quota")))
	_ = r.unanswered(uid, errors.New("nobody there"))
	if own := look(4); own.Unanswered {
		t.Error("a verdict on a pod, then a look that went through, and still nobody has answered")
	}
}
