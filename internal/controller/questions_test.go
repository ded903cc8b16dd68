package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
)

// silentServer does not answer before it is given up.
type silentServer struct {
	client.Client
	asked int
}

func (s *silentServer) Create(ctx context.Context, _ client.Object, _ ...client.CreateOption) error {
	s.asked++
	<-ctx.Done()
	return ctx.Err()
}

// A webhook that does not answer holds up neither all that look at jobs, nor one of them for ever.
func TestQuestionsWithoutAnswersHoldUpFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &silentServer{}
		r := &Reconciler{Client: server, Gang: gang.Coscheduling{}, Now: time.Now}
		began, done := time.Now(), make(chan time.Duration)
		ask := func(namespace, name string) {
			job := jobWith(func(j *v1alpha1.TrainingJob) { j.Namespace, j.Name, j.UID = namespace, name, types.UID(namespace+name) })
			state := asksFirst(job, fleet.Grant{})
			state.Now = time.Now()
			r.ask(t.Context(), state, newPod(job, settings, 1, 0))
			answer := r.memory.of(job.UID).Answer
			if state.Memory = r.memory.of(job.UID); state.answered() || !answer.Again.After(time.Now()) {
				t.Errorf("%s in %s: %+v", name, namespace, answer)
			}
			done <- time.Since(began)
		}
		go ask("a", "one")
		synctest.Wait()
		go ask("a", "two") // another of its namespace
		if took := <-done; took != 0 {
			t.Errorf("the second of a namespace waited for %s", took)
		}
		go ask("b", "one")
		synctest.Wait()
		go ask("c", "one") // that is one too many
		if took := <-done; took != 0 {
			t.Errorf("the third waited for %s", took)
		}
		for range 2 {
			if took := <-done; took != firstAsked {
				t.Errorf("a question was given %s", took)
			}
		}
		if server.asked != 2 {
			t.Errorf("%d were asked", server.asked)
		}
		go ask("c", "one")
		if <-done; server.asked != 3 {
			t.Error("once the others are done nobody asks")
		}
	})
}

// Where it is others' turn, the job comes again without a fault being told.
func TestAJobAsksWhenItIsItsTurn(t *testing.T) {
	state := asksFirst(jobWith(), fleet.Grant{Known: true, Why: "waits for 2 places"})
	state.Memory.Answer = Answer{Again: now.Add(firstAsk)}
	if plan := look(state); plan.Actions.Ask != nil || plan.After != firstAsk {
		t.Errorf("asks about %v after %s", plan.Actions.Ask, plan.After)
	}
	state.Now = now.Add(firstAsk)
	if plan := look(state); plan.Actions.Ask == nil {
		t.Error("does not ask")
	}
}

// What holds no more is not kept, and neither are whole pods as keys.
func TestAnswersAreKeptForAMoment(t *testing.T) {
	kept := answers{}
	for i := range 10 {
		kept.keep(fmt.Sprint(i), answered{pod: &corev1.Pod{}, at: now.Add(time.Duration(i) * time.Second)})
	}
	kept.keep("later", answered{pod: &corev1.Pod{}, at: now.Add(answerLasts + 5*time.Second)})
	if len(kept.pods) != 5 || kept.of("later", now.Add(answerLasts+6*time.Second)).pod == nil {
		t.Errorf("%d answers are kept", len(kept.pods))
	}
	job := jobWith()
	if key := answerKey(newPod(job, settings, 1, 0)); len(key) > 64 || key != answerKey(newPod(job, settings, 2, 0)) {
		t.Errorf("the key of an answer has %d bytes, and is another one for the next attempt", len(key))
	}
}

// What was answered of a job holds on when it is edited, as long as its pods are the same.
func TestAnAnswerHoldsForTheSamePods(t *testing.T) {
	server := &askedServer{answer: func(*corev1.Pod) error { return nil }}
	r := &Reconciler{Client: server, Gang: gang.Coscheduling{}, Now: func() time.Time { return now }, CABundle: func() []byte { return []byte(settings.CABundle) }, Pods: settings}
	job := jobWith()
	state := asksFirst(job, fleet.Grant{})
	r.ask(t.Context(), state, newPod(job, settings, 3, 7))
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.TrainingJob)
		holds  bool
	}{
		{"max", func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Max = ptr.To[int32](9) }, true},
		{"min", func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Min = ptr.To[int32](3) }, true},
		{"another image", func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Template.Spec.Containers[0].Image = "other" }, false},
		{"a timeout that the pods are told", func(j *v1alpha1.TrainingJob) { j.Spec.Checkpoint.Timeout.Duration += time.Minute }, false},
		{"no containers", func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Template.Spec.Containers = nil }, false},
	} {
		edited := asksFirst(job.DeepCopy(), fleet.Grant{})
		c.change(edited.Job)
		edited.Job.Generation++
		edited.Memory.Answer = r.holdsOn(edited.Job, r.memory.of(job.UID).Answer)
		if edited.answered() != c.holds {
			t.Errorf("%s: holds %v, want %v", c.name, edited.answered(), c.holds)
		}
	}
}

// A webhook that is dead is asked for one of many jobs that have such pods, with pauses that become longer; each of them says so.
func TestAFaultIsSharedByJobsOfTheSamePods(t *testing.T) {
	clock, dead := now, true
	server := &askedServer{answer: func(*corev1.Pod) error {
		if dead {
			return errors.New("failed calling webhook")
		}
		return nil
	}}
	r := &Reconciler{Client: server, Gang: gang.Coscheduling{}, Now: func() time.Time { return clock }}
	ask := func(i int) Answer {
		job := jobWith(func(j *v1alpha1.TrainingJob) { j.Name, j.UID = fmt.Sprint("job", i), types.UID(fmt.Sprint(i)) })
		state := asksFirst(job, fleet.Grant{})
		state.Now, state.Memory = clock, r.memory.of(job.UID)
		if state.Memory.Answer.Again.After(clock) {
			return state.Memory.Answer
		}
		r.ask(t.Context(), state, newPod(job, settings, 1, 0))
		return r.memory.of(job.UID).Answer
	}
	for range 60 {
		for i := range 50 {
			if answer := ask(i); answer.Faults == 0 || answer.Fault == "" || !answer.Again.After(clock) {
				t.Fatalf("job %d after %d questions: %+v", i, server.calls, answer)
			}
		}
		clock = clock.Add(time.Second)
	}
	if server.calls > 6 { // after 0, 1, 3, 7, 15 and 31 s
		t.Errorf("50 jobs asked %d times in a minute", server.calls)
	}
	dead, clock = false, clock.Add(lastAsk)
	for i := range 50 {
		if answer := ask(i); answer.Faults > 0 || answer.Pod == nil {
			t.Fatalf("job %d once there is an answer: %+v", i, answer)
		}
	}
	if server.calls > 7 {
		t.Errorf("one answer was asked for %d times", server.calls-6)
	}
}
