package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
)

// asksFirst is what is gathered of a job where the API server is asked first.
func asksFirst(job *v1alpha1.TrainingJob, grant fleet.Grant) *State {
	state := stateOf(job)
	state.AsksFirst, state.Grant = true, grant
	return state
}

// Before anybody leaves for a job, it is known what its pods will be; one that has room at once need not be asked about.
func TestAJobThatQueuesIsAskedAbout(t *testing.T) {
	waits := fleet.Grant{Known: true, Why: "waits for 2 places", Queue: fleet.Queue{Position: 1}}
	job := jobWith()
	if plan := look(asksFirst(job, fleet.Grant{})); plan.Actions.Ask != nil || plan.Facts.Asked != 0 {
		t.Errorf("asks about a job that may have room at once")
	}
	plan := look(asksFirst(job, waits))
	expectNothingDone(t, plan)
	if plan.Actions.Ask == nil || plan.Actions.Ask.Name != "digits-1-0" || plan.Facts.Held || plan.Facts.Asked != 0 || plan.Status.Queue.Since != nil {
		t.Fatalf("asks about %v; facts %+v, queue %+v", plan.Actions.Ask, plan.Facts, plan.Status.Queue)
	}
	state := asksFirst(job, waits)
	state.Memory.Answer = Answer{Generation: 1, Pod: &corev1.Pod{}}
	plan = look(state)
	if plan.Actions.Ask != nil || plan.Facts.Asked != 1 || plan.Facts.Sample != state.Memory.Answer.Pod || plan.Status.Queue.WaitsFor != waits.Why {
		t.Errorf("once it is answered it asks about %v; facts %+v, queue %+v", plan.Actions.Ask, plan.Facts, plan.Status.Queue)
	}
	job.Generation = 2
	state = asksFirst(job, waits)
	state.Memory.Answer = Answer{Generation: 1, Pod: &corev1.Pod{}}
	if plan = look(state); plan.Actions.Ask == nil || plan.Facts.Sample != nil {
		t.Errorf("asks nothing about another template")
	}
	plan = look(asksFirst(jobWith(), fleet.Grant{Known: true, Start: true, Places: []fleet.Place{{Node: "n1", Own: true}, {Node: "n1", Own: true}}}))
	expectTarget(t, plan, 2)
	if plan.Actions.Ask != nil {
		t.Errorf("asks about a job that starts")
	}
}

// A job that was refused takes no room, and has nobody leave, until the API server would take its pods.
func TestAJobThatWasRefusedIsAskedAbout(t *testing.T) {
	starts := fleet.Grant{Known: true, Start: true, Places: []fleet.Place{{Node: "n1", Own: true}, {Node: "n1", Own: true}}}
	state := asksFirst(jobWith(), starts)
	state.Memory.Refusal = &Refusal{Reason: v1alpha1.ReasonPodsForbidden, Message: "no ServiceAccount", Count: 2, Retry: now.Add(-time.Second)}
	state.Memory.Answer = Answer{Generation: 1, Refusals: 1}
	plan := look(state)
	expectTarget(t, plan, 0)
	if plan.Actions.Ask == nil || !plan.Facts.Held {
		t.Errorf("asks about %v, held %v", plan.Actions.Ask, plan.Facts.Held)
	}
	state.Memory.Answer.Refusals = 2
	expectTarget(t, look(state), 2)
	state = asksFirst(jobWith(), starts)
	state.Memory.Refusal = &Refusal{Reason: v1alpha1.ReasonQuotaExceeded, Message: "used up", Count: 2, Retry: now.Add(-time.Second)}
	expectTarget(t, look(state), 2)
}

// That a quota is short has others of the namespace leave, once it is read: nobody writes so of a job whose pods may be refused.
func TestAQuotaThatIsShortIsToldOnceTheJobWasAskedAbout(t *testing.T) {
	pods := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(n)}
	}
	state := asksFirst(jobWith(), fleet.Grant{})
	state.GroupExists = false
	state.Quotas = []corev1.ResourceQuota{{Spec: corev1.ResourceQuotaSpec{Hard: pods("4")}, Status: corev1.ResourceQuotaStatus{Hard: pods("4"), Used: pods("3")}}}
	told := func() bool {
		admitted := meta.FindStatusCondition(NewPlan(state, settings).Status.Conditions, v1alpha1.ConditionAdmitted)
		return admitted != nil && admitted.Reason == v1alpha1.ReasonQuotaExceeded
	}
	if told() {
		t.Error("it is told before anybody has asked")
	}
	if state.Memory.Answer = (Answer{Generation: 1}); !told() {
		t.Error("it is not told")
	}
}

// What does not answer has nobody leave either, and says so after a while.
func TestAnAnswerThatDoesNotComeIsWaitedFor(t *testing.T) {
	state := asksFirst(jobWith(), fleet.Grant{Known: true, Why: "waits for 2 places"})
	state.Memory.Answer = Answer{Faults: 1, Fault: "failed calling webhook", Again: now.Add(2 * time.Second)}
	if plan := look(state); plan.Actions.Ask != nil || plan.After != 2*time.Second || len(plan.Status.Conditions) > 1 {
		t.Errorf("asks about %v after %s: %v", plan.Actions.Ask, plan.After, plan.Status.Conditions)
	}
	state.Memory.Answer.Faults = toldAfter
	expectCondition(t, look(state), v1alpha1.ConditionGangScheduled, "False", v1alpha1.ReasonQueued, "nobody is asked to leave", "failed calling webhook")
	state.Now = now.Add(2 * time.Second)
	if plan := look(state); plan.Actions.Ask == nil {
		t.Error("does not ask again")
	}
}

// askedServer answers what a pod would be.
type askedServer struct {
	client.Client
	calls  int
	answer func(*corev1.Pod) error
}

func (s *askedServer) Create(_ context.Context, object client.Object, opts ...client.CreateOption) error {
	s.calls++
	var options client.CreateOptions
	if options.ApplyOptions(opts); len(options.DryRun) != 1 {
		return errors.New("it is made")
	}
	return s.answer(object.(*corev1.Pod))
}

func TestWhatIsMadeOfAnAnswer(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	overhead := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	for _, c := range []struct {
		name    string
		answer  func(*corev1.Pod) error
		asked   bool
		sample  bool
		refused string
		faults  int
	}{
		{name: "it would be made otherwise", answer: func(pod *corev1.Pod) error { pod.Spec.Overhead = overhead; return nil }, asked: true, sample: true},
		{name: "no ServiceAccount", answer: func(*corev1.Pod) error { return apierrors.NewForbidden(pods, "p", errors.New("no such account")) }, refused: v1alpha1.ReasonPodsForbidden},
		{name: "invalid", answer: func(*corev1.Pod) error { return apierrors.NewBadRequest("limits") }, refused: v1alpha1.ReasonInvalidTemplate},
		{name: "a quota is used up", answer: func(*corev1.Pod) error { return apierrors.NewForbidden(pods, "p", errors.New("exceeded quota: q")) }, asked: true},
		{name: "a webhook has side effects", answer: func(*corev1.Pod) error {
			return apierrors.NewBadRequest(`admission webhook "w" does not support dry run`)
		}, asked: true},
		{name: "a webhook is down", answer: func(*corev1.Pod) error { return apierrors.NewInternalError(errors.New("failed calling webhook")) }, faults: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := &askedServer{answer: c.answer}
			r := &Reconciler{Client: server, Gang: gang.Coscheduling{}, Now: func() time.Time { return now }}
			ask := func(job *v1alpha1.TrainingJob) Memory {
				state := asksFirst(job, fleet.Grant{})
				r.ask(t.Context(), state, newPod(job, settings, 1, 0))
				return r.memory.of(job.UID)
			}
			memory := ask(jobWith())
			state := asksFirst(jobWith(), fleet.Grant{})
			state.Memory = memory
			if got := state.answered(); got != c.asked {
				t.Errorf("answered: %v, want %v", got, c.asked)
			}
			if sample := memory.Answer.Pod; (sample != nil) != c.sample || sample != nil && sample.Spec.Overhead.Cpu().Value() != 1 {
				t.Errorf("sample %+v", sample)
			}
			if refusal := memory.Refusal; (refusal != nil) != (c.refused != "") || refusal != nil && (refusal.Reason != c.refused || refusal.Attempt != 0) {
				t.Errorf("refused %+v, want %q", refusal, c.refused)
			}
			if memory.Answer.Faults != c.faults || c.faults > 0 && !memory.Answer.Again.After(state.Now) {
				t.Errorf("answer %+v", memory.Answer)
			}
			// Of jobs that differ in nothing else one is asked about; each is refused itself.
			like := ask(jobWith(func(j *v1alpha1.TrainingJob) { j.Name, j.UID = "other", "other-uid" }))
			if asked := server.calls; (asked == 1) != (c.sample || c.faults > 0) || (like.Answer.Pod != nil) != c.sample {
				t.Errorf("%d questions for two jobs, %+v", asked, like.Answer)
			}
			ask(jobWith(func(j *v1alpha1.TrainingJob) {
				j.Name, j.UID, j.Spec.Workers.Template.Spec.NodeSelector = "more", "more-uid", map[string]string{"a": "b"}
			}))
			if asked := server.calls; c.sample && asked != 2 {
				t.Errorf("%d questions for two templates", asked)
			}
		})
	}
}

// A gang that the API server refuses although it said that it would not is one that had its room in vain; one short of quota is not.
func TestARefusedGangStartsInVain(t *testing.T) {
	for reason, want := range map[string]int32{v1alpha1.ReasonPodsForbidden: 3, v1alpha1.ReasonQuotaExceeded: 2} {
		job := jobWith(running, func(j *v1alpha1.TrainingJob) { j.Status.Retries = ptr.To[int32](2) })
		state := stateOf(job)
		state.Memory.Refusal = &Refusal{Reason: reason, Message: "no", Attempt: 1, Count: 1, Retry: now.Add(time.Minute)}
		plan := look(state)
		expectTarget(t, plan, 0)
		if got := value(plan.Status.Retries); got != want {
			t.Errorf("%s: %d retries, want %d", reason, got, want)
		}
	}
}

// What a job waits for is written once the answer is there, also where it changes nothing for the planner, who has nobody looked at then.
func TestAJobIsLookedAtOnceItIsAnswered(t *testing.T) {
	said := &order{}
	state := asksFirst(jobWith(), fleet.Grant{Known: true, Why: "waits for 2 places"})
	state.Memory.Since = now.Add(-time.Hour)
	plan := NewPlan(state, settings)
	r := &Reconciler{
		Client:     &askedServer{Client: orderClient{order: said}, answer: func(*corev1.Pod) error { return nil }},
		Rendezvous: orderRendezvous{order: said}, Fleet: generousFleet{}, Gang: gang.Coscheduling{}, Events: events.NewFakeRecorder(9),
		CABundle: func() []byte { return []byte(settings.CABundle) }, Now: func() time.Time { return state.Now },
	}
	if err := r.carryOut(t.Context(), state, &plan); err != nil {
		t.Fatal(err)
	}
	if plan.Actions.Ask != nil || plan.Facts.Asked != 1 || plan.After <= 0 || plan.After > time.Second {
		t.Errorf("asks about %v, facts %+v, looks again after %s", plan.Actions.Ask, plan.Facts, plan.After)
	}
}
