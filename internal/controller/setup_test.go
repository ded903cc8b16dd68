package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// asked is a queue that notes what is added, and after how long.
type asked struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	after map[types.NamespacedName]time.Duration
}

func (a asked) Add(request reconcile.Request) { a.after[request.NamespacedName] = 0 }

func (a asked) AddAfter(request reconcile.Request, after time.Duration) {
	a.after[request.NamespacedName] = after
}

func TestWhenAJobThatHasChangedIsLookedAt(t *testing.T) {
	name := types.NamespacedName{Namespace: "team", Name: "digits"}
	before := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{
		Namespace: name.Namespace, Name: name.Name, Generation: 1, ResourceVersion: "1",
	}}
	for what, test := range map[string]struct {
		change func(*v1alpha1.TrainingJob)
		want   time.Duration
	}{
		"the record of a world": {func(job *v1alpha1.TrainingJob) {
			job.Status.World = &v1alpha1.WorldStatus{Round: ptr.To[int64](2)}
			job.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "concertina-rendezvous"}}
		}, worldSettles},
		"the spec": {func(job *v1alpha1.TrainingJob) { job.Generation = 2 }, 0},
		"the rest of the status": {func(job *v1alpha1.TrainingJob) {
			job.Status.Attempt = ptr.To[int32](1)
			job.Status.World = &v1alpha1.WorldStatus{Round: ptr.To[int64](2)}
		}, 0},
		"a deletion": {func(job *v1alpha1.TrainingJob) { job.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, 0},
		"nothing":    {func(*v1alpha1.TrainingJob) {}, 0},
	} {
		after := before.DeepCopy()
		after.ResourceVersion = "2"
		test.change(after)
		queue := asked{after: map[types.NamespacedName]time.Duration{}}
		jobHandler().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, queue)
		if diff := cmp.Diff(map[types.NamespacedName]time.Duration{name: test.want}, queue.after); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

// However many looks have failed while the API server was away, a job is looked at soon after it is back.
func TestALookThatFailedIsTriedAgainSoon(t *testing.T) {
	limiter, job := retries(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: "digits"}}
	if first := limiter.When(job); first != firstRetry {
		t.Errorf("the first one after %s, want %s", first, firstRetry)
	}
	for range 100 {
		limiter.When(job)
	}
	if last := limiter.When(job); last != lastRetry {
		t.Errorf("after a hundred %s, want %s", last, lastRetry)
	}
}
