package controller

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// seen is a rendezvous that has seen one job.
type seen struct {
	rendezvous.Coordinator
	rendezvous.Observation
}

func (s seen) Observe(rendezvous.JobKey) rendezvous.Observation { return s.Observation }

// What was seen of a job that was deleted says nothing about the next one of its name.
func TestObservationBelongsToOneJob(t *testing.T) {
	r := &Reconciler{Rendezvous: seen{Observation: rendezvous.Observation{Known: true, JobUID: "first", Round: 7}}}
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Name: "digits", UID: "first"}}
	if round := r.observe(job).Round; round != 7 {
		t.Errorf("of the job round %d is seen, not 7", round)
	}
	job.UID = "second"
	if observed := r.observe(job); observed.Known || observed.Round != 0 {
		t.Errorf("of the next job of that name %+v is seen", observed)
	}
}

// podReader is an API server that has some pods, and counts who asks for all of them.
type podReader struct {
	client.Reader
	pods  []corev1.Pod
	lists int
}

func (r *podReader) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	r.lists++
	into.(*corev1.PodList).Items = r.pods
	return nil
}

// short is a look at an attempt whose cache shows some pods of three, of which a fourth was never made.
func short(t *testing.T, r *Reconciler, job *v1alpha1.TrainingJob, shown ...*corev1.Pod) *State {
	t.Helper()
	state := stateOf(job, shown...)
	state.Memory = r.memory.of(job.UID)
	if err := r.gatherGroup(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	return state
}

// A list of pods costs the API server a look at all of the namespace. What it says once, the cache tells from then on.
func TestPodsOfAnAttemptAreListedOnce(t *testing.T) {
	job := jobWith(scheduled, func(job *v1alpha1.TrainingJob) { job.Status.Workers.Target = ptr.To[int32](4) })
	pods := []*corev1.Pod{podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns), podOf(job, 1, 2, trainerRuns)}
	server := &podReader{}
	for _, pod := range pods {
		server.pods = append(server.pods, *pod)
	}
	r := &Reconciler{Gang: &asks{}, Live: server, Now: func() time.Time { return start.Add(time.Minute) }}
	if state := short(t, r, job, pods[:2]...); len(state.Pods) != 3 || server.lists != 1 {
		t.Fatalf("of the first look %d lists, which show %d pods", server.lists, len(state.Pods))
	}
	memory := r.memory.of(job.UID)
	if waits := memory.Own.unseen(pods[:2], start.Add(time.Minute)); len(waits) != 1 || !waits[pods[2].UID] {
		t.Errorf("it waits until the cache shows %v, want the pod that only the API server has shown", waits)
	}
	for range 3 {
		short(t, r, job, pods...)
	}
	short(t, r, job, pods[1:]...) // one that was shown and is no more is gone
	if server.lists != 1 {
		t.Errorf("%d lists for one attempt", server.lists)
	}
	for name, doubt := range map[string]func(m *Memory){
		"another leader made the attempt": func(m *Memory) { m.Own.Sure = 0 },
		"the cache has not shown a pod for long": func(m *Memory) {
			m.Own.made([]*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "hidden"}}}, start)
			m.Own.shown(pods, start.Add(cachePatience))
		},
		"nobody knows what became of a call": func(m *Memory) { m.Own.doubt() },
	} {
		t.Run(name, func(t *testing.T) {
			before := server.lists
			r.memory.update(job.UID, doubt)
			for range 2 {
				short(t, r, job, pods...)
			}
			if lists := server.lists - before; lists != 1 {
				t.Errorf("%d lists", lists)
			}
		})
	}
	job.Status.Attempt, job.Status.Workers.Target = ptr.To[int32](1), ptr.To[int32](0)
	short(t, r, job, pods...) // a new attempt starts
	job.Status.Attempt, job.Status.Workers.Target = ptr.To[int32](2), ptr.To[int32](2)
	short(t, r, job)
	short(t, r, job)
	if server.lists != 5 {
		t.Errorf("%d lists in all", server.lists)
	}
}
