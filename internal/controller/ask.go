package controller

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// What admission does to a pod (defaults of its namespace, the overhead of its runtime, sidecars, tolerations), and whether it takes it
// at all, only the API server knows. It is asked (dryRun=All) before others leave for a job, once for each template and size of its
// state. A job that has room at once is not asked about: its pods will tell. That a quota is used up is no verdict on a pod: the planner
// sees to that.

const (
	// firstAsk to lastAsk are the pauses after answers that did not come.
	firstAsk = time.Second
	lastAsk  = 30 * time.Second
	// A question is given firstAsked, twice that after each that had no answer, up to lastAsked, which is as long as a webhook may take.
	firstAsked = 4 * time.Second
	lastAsked  = 30 * time.Second
	// toldAfter is after how many of them in a row a condition says so.
	toldAfter = 3
	// answerLasts is how long what was answered of one job is taken for the answer of another that has a pod like its, and
	// mostAnswers how many are kept.
	answerLasts = time.Minute
	mostAnswers = 4096
)

// Answer is what the API server has said of a worker that it was not to make, or that it has not said.
type Answer struct {
	// Generation and Size are of the job and its state then, Key tells its pods from others, Refusals is how often in a row it was
	// refused before. It holds for a later generation that has the same pods.
	Generation int64
	Size       v1alpha1.StateSize
	Key        string
	Refusals   int
	// Pod is what it would make; nil where it does not say, or where a quota is used up.
	Pod *corev1.Pod
	// Faults counts the times in a row that there was none, of which Fault is the last. Again is when to ask again, also where it is
	// others' turn to ask.
	Faults int
	Fault  string
	Again  time.Time
}

// answered says whether nothing has to be asked.
func (s *State) answered() bool {
	answer := &s.Memory.Answer
	return !s.AsksFirst || answer.Generation == s.Job.Generation && answer.Refusals >= s.refusals() &&
		equality.Semantic.DeepEqual(answer.Size, s.Job.Status.Checkpoint.Size)
}

// holdsOn is what was answered of the job, also if it was edited since and its pods are the same.
func (r *Reconciler) holdsOn(job *v1alpha1.TrainingJob, answer Answer) Answer {
	if answer.Key == "" || answer.Generation == job.Generation || templateFault(&job.Spec) != "" {
		return answer
	}
	pod := newPod(job, r.settings(), 0, 0)
	r.Gang.Decorate(pod, gang.Group{SchedulerName: job.Spec.Gang.SchedulerName})
	if answerKey(pod) == answer.Key {
		answer.Generation = job.Generation
	}
	return answer
}

// refusals is how often in a row the job was refused, by others than a quota: that is no verdict on its pods.
func (s *State) refusals() int {
	if refusal := s.Memory.Refusal; refusal != nil && refusal.Reason != v1alpha1.ReasonQuotaExceeded {
		return refusal.Count
	}
	return 0
}

// ask has the API server asked what it would make of the next worker.
func (p *planner) ask() {
	answer := &p.Memory.Answer
	if left := answer.Again.Sub(p.Now); left > 0 {
		p.lookAgain(left)
		if answer.Faults >= toldAfter {
			why := "whether the API server takes the pods of this job is not known, so nobody is asked to leave for it: " + answer.Fault
			p.set(v1alpha1.ConditionGangScheduled, metav1.ConditionFalse, v1alpha1.ReasonQueued, why)
			p.keepBackOff(v1alpha1.ReasonQueued, "the gang has no room yet")
		}
		return
	}
	attempt, ordinal := p.attempt()+1, value(p.plan.Status.NextOrdinal)
	p.plan.Actions.Ask = newPod(p.Job, p.settings, attempt, ordinal)
}

// answered asks what a plan has asked for, and plans anew with the answer.
func (r *Reconciler) answered(ctx context.Context, state *State, plan *Plan) {
	r.ask(ctx, state, plan.Actions.Ask)
	state.Memory = r.memory.of(state.Job.UID)
	state.Grant.Known = false // it is of before the answer
	*plan = NewPlan(state, r.settings())
	if plan.After == 0 || plan.After > firstAgain {
		plan.After = firstAgain // where the answer changes nothing, nothing else has the job looked at
	}
}

// ask asks the API server, unless others have just done so for such a pod, and remembers what it says.
func (r *Reconciler) ask(ctx context.Context, state *State, pod *corev1.Pod) {
	r.Gang.Decorate(pod, gang.Group{Key: state.groupKey(), SchedulerName: state.Job.Spec.Gang.SchedulerName})
	name, key, now := pod.Name, answerKey(pod), r.Now()
	answer := Answer{Generation: state.Job.Generation, Size: *state.Job.Status.Checkpoint.Size.DeepCopy(), Key: key, Refusals: state.refusals()}
	known := r.answers.of(key, now)
	if answer.Pod = known.pod; answer.Pod != nil && answer.Refusals == 0 {
		r.memory.update(state.Job.UID, func(m *Memory) { m.Answer = answer })
		return
	}
	faults := max(state.Memory.Answer.Faults, known.fault.Faults)
	switch {
	case now.Before(known.fault.Again):
		r.memory.update(state.Job.UID, func(m *Memory) { m.Answer = known.fault })
		return
	case !r.answers.begin(pod.Namespace, r.questions()):
		r.memory.update(state.Job.UID, func(m *Memory) { m.Answer.Again = now.Add(pauseAfter(faults)) })
		return
	}
	err := r.question(ctx, pod, min(firstAsked<<min(faults, 16), lastAsked))
	if err == nil {
		answer.Pod = slimAnswer(pod)
	}
	verdict := (*errRefused)(nil)
	r.memory.update(state.Job.UID, func(m *Memory) {
		switch {
		case err == nil:
		case apierrors.IsAlreadyExists(err) || asksInVain(err):
			answer.Pod = nil // its pods will tell
		case errors.As(refusal("pod "+name, err), &verdict):
			if verdict.reason == v1alpha1.ReasonQuotaExceeded {
				answer.Pod = nil
				break // that is for the planner: others of the namespace may leave
			}
			m.refused(state.Now, state.Job.UID, 0, verdict.reason, verdict.message)
			answer = Answer{}
		default:
			answer = Answer{Faults: faults + 1, Fault: err.Error(), Again: r.Now().Add(pauseAfter(faults))}
		}
		m.Answer = answer
	})
	switch {
	case answer.Faults > 0:
		r.answers.keep(key, answered{fault: answer, at: r.Now()})
	case err == nil:
		r.answers.keep(key, answered{pod: answer.Pod, at: state.Now})
	}
}

// pauseAfter is how long nobody asks after so many answers that did not come.
func pauseAfter(faults int) time.Duration { return min(firstAsk<<min(faults, 16), lastAsk) }

// question has the API server say what it would make of a pod, within a time: a webhook that is silent is not to hold up other jobs.
// With that the turn of its namespace is over.
func (r *Reconciler) question(ctx context.Context, pod *corev1.Pod, given time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, given)
	defer cancel()
	defer r.answers.end(pod.Namespace)
	return r.Client.Create(ctx, pod, client.DryRunAll)
}

// questions is how many may be asked at a time: jobs that train are looked at beside those that queue.
func (r *Reconciler) questions() int { return max(1, r.concurrent()/4) }

// asksInVain says whether there is a webhook that cannot be asked: it would do more than answer.
func asksInVain(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run")
}

// slimAnswer keeps of a pod what says where it fits.
func slimAnswer(pod *corev1.Pod) *corev1.Pod {
	slim, err := fleet.SlimPod(pod)
	if err != nil {
		return nil
	}
	one, _ := slim.(*corev1.Pod)
	return one
}

// answers are what the API server has said lately of pods that are alike but for the job that they belong to: of a thousand jobs that are
// made at once most are.
type answers struct {
	mu   sync.Mutex
	pods map[string]answered
	// swept is when those that hold no more were dropped last.
	swept time.Time
	// asked are the namespaces of which a question is open.
	asked map[string]bool
}

// begin says whether a question may be asked now, one of a namespace at a time and so many in all: a webhook that does not answer for
// one namespace leaves others their turn. Who may not ask looks again; who may says when it is done (end).
func (a *answers) begin(namespace string, most int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked[namespace] || len(a.asked) >= most {
		return false
	}
	if a.asked == nil {
		a.asked = map[string]bool{}
	}
	a.asked[namespace] = true
	return true
}

func (a *answers) end(namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asked, namespace)
}

// answered is the pod that would be made, or that the last question had no answer: a webhook that is dead is not asked for each job. What
// was refused each job is told itself.
type answered struct {
	pod   *corev1.Pod
	fault Answer
	at    time.Time
}

// of is what became lately of a question about such a pod.
func (a *answers) of(key string, now time.Time) answered {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.pods[key]
	if age := now.Sub(one.at); age < 0 || age >= answerLasts {
		return answered{}
	}
	return one
}

func (a *answers) keep(key string, one answered) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := one.at
	if now.Sub(a.swept) >= answerLasts || now.Before(a.swept) {
		maps.DeleteFunc(a.pods, func(_ string, one answered) bool { return now.Sub(one.at) >= answerLasts || now.Before(one.at) })
		a.swept = now
	}
	if a.pods == nil || len(a.pods) >= mostAnswers {
		a.pods = map[string]answered{}
	}
	a.pods[key] = one
}

// answerKey is the same for pods of a namespace that differ in their job alone.
func answerKey(pod *corev1.Pod) string {
	like := pod.DeepCopy()
	like.Name, like.OwnerReferences = "", nil
	for _, label := range []string{v1alpha1.LabelJob, v1alpha1.LabelAttempt, schedv1alpha1.PodGroupLabel} {
		delete(like.Labels, label)
	}
	for _, containers := range [][]corev1.Container{like.Spec.InitContainers, like.Spec.Containers} {
		for i := range containers {
			for j := range containers[i].Env {
				switch env := &containers[i].Env[j]; env.Name {
				case uploader.EnvJob, uploader.EnvJobUID, uploader.EnvAttempt: // the agent's have the same names
					env.Value = ""
				}
			}
		}
	}
	text, err := json.Marshal(like)
	if err != nil {
		return fmt.Sprintf("%s/%s", pod.Namespace, pod.Name)
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}
