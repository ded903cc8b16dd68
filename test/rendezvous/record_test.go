package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func round(term, number uint64) rendezvous.Record {
	return rendezvous.Record{
		Term: term, Round: number, Attempt: 1, Workers: 3, Processes: 6, FromStep: 17, Parent: 0,
		MembersDigest: strings.Repeat("ab", 32), StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

// Whoever led a job that was deleted writes nothing into the next job of its name.
func TestRecordOfAnotherJob(t *testing.T) {
	t.Parallel()
	key := newJob(t, newNamespace(t))
	job := &v1alpha1.TrainingJob{}
	name := client.ObjectKey{Namespace: key.Namespace, Name: key.Name}
	if err := cluster.Get(t.Context(), name, job); err != nil {
		t.Fatal(err)
	}
	first := rendezvous.Record{Term: 1, JobUID: string(job.UID)}
	if _, err := recorder().Record(t.Context(), key, rendezvous.Record{}, first); err != nil {
		t.Fatalf("the first term: %v", err)
	}
	if found := durable(t.Context(), t, key); !found.Equal(first) {
		t.Errorf("the first term reads %+v", found)
	}
	other := round(2, 1)
	other.JobUID = "another"
	if _, err := recorder().Record(t.Context(), key, first, other); !errors.Is(err, rendezvous.ErrJobGone) {
		t.Errorf("a write for another job of that name: %v", err)
	}
	if found := durable(t.Context(), t, key); !found.Equal(first) {
		t.Errorf("it was written all the same: %+v", found)
	}
}

func TestRecordComparesAndSwaps(t *testing.T) {
	t.Parallel()
	key := newJob(t, newNamespace(t))
	term := rendezvous.Record{Term: 1}
	if _, err := recorder().Record(t.Context(), key, rendezvous.Record{}, term); err != nil {
		t.Fatalf("the first term: %v", err)
	}
	if found := durable(t.Context(), t, key); !found.Equal(term) {
		t.Errorf("the first term reads %+v", found)
	}
	world := round(1, 1)
	written, err := recorder().Record(t.Context(), key, term, world)
	if err != nil || !written.Equal(world) {
		t.Fatalf("round 1: %+v, %v", written, err)
	}
	if found := durable(t.Context(), t, key); !found.Equal(world) {
		t.Errorf("round 1 reads %+v", found)
	}
	found, err := recorder().Record(t.Context(), key, term, round(1, 2))
	if !errors.Is(err, rendezvous.ErrDeposed) || !found.Equal(world) {
		t.Errorf("a write over another record than expected: %+v, %v", found, err)
	}
	if found := durable(t.Context(), t, key); found.Round != 1 {
		t.Errorf("it was written all the same: %+v", found)
	}
	// The API server itself refuses to let a round go back.
	if _, err := recorder().Record(t.Context(), key, world, round(1, 0)); err == nil || errors.Is(err, rendezvous.ErrDeposed) ||
		!strings.Contains(err.Error(), "status.world.round never decreases") {
		t.Errorf("round 0 after round 1: %v", err)
	}
}

// Two leaders that take the job over at once ask for the same record. Only one may think it is its
// own.
func TestOneOfManyWritersWins(t *testing.T) {
	t.Parallel()
	key := newJob(t, newNamespace(t))
	won := make([]bool, 12)
	var all sync.WaitGroup
	for i := range won {
		all.Go(func() {
			_, err := recorder().Record(t.Context(), key, rendezvous.Record{}, rendezvous.Record{Term: 1})
			won[i] = err == nil
			if err != nil && !errors.Is(err, rendezvous.ErrDeposed) {
				t.Errorf("writer %d: %v", i, err)
			}
		})
	}
	all.Wait()
	winners := 0
	for _, one := range won {
		if one {
			winners++
		}
	}
	if winners != 1 {
		t.Errorf("%d writers believe that they hold term 1", winners)
	}
}

// The controller writes the rest of the status all the time; neither stands in the other's way.
func TestRecordBesideTheControllersWrites(t *testing.T) {
	t.Parallel()
	key := newJob(t, newNamespace(t))
	ctx, cancel := context.WithCancel(t.Context())
	var controller sync.WaitGroup
	writes := 0
	controller.Go(func() {
		job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		for ; ctx.Err() == nil; writes++ {
			patch := fmt.Sprintf(`{"status":{"nextOrdinal":%d}}`, writes+1)
			if err := cluster.Status().Patch(ctx, job, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil && ctx.Err() == nil {
				t.Errorf("the controller's write: %v", err)
				return
			}
		}
	})
	prev := rendezvous.Record{}
	for number := range uint64(40) {
		next, err := recorder().Record(t.Context(), key, prev, round(1, number+1))
		if err != nil {
			t.Errorf("round %d: %v", number+1, err)
			break
		}
		prev = next
	}
	cancel()
	controller.Wait()
	job := &v1alpha1.TrainingJob{}
	if err := cluster.Get(t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, job); err != nil {
		t.Fatal(err)
	}
	// The last of the controller's writes may have been cut off.
	if *job.Status.World.Round != 40 || ptr.Deref(job.Status.NextOrdinal, 0) < int32(writes)-1 {
		t.Errorf("round %d, ordinal %d after %d writes of the controller",
			*job.Status.World.Round, ptr.Deref(job.Status.NextOrdinal, 0), writes)
	}
	if writes < 5 {
		t.Errorf("the controller wrote only %d times: nothing was tested", writes)
	}
	owners := 0
	for _, entry := range job.ManagedFields {
		if strings.Contains(string(entry.FieldsV1.GetRawBytes()), `"f:world"`) {
			owners++
			if entry.Manager != record.FieldManager || entry.Subresource != "status" {
				t.Errorf("status.world has the writer %s", entry.Manager)
			}
		}
	}
	if owners != 1 {
		t.Errorf("status.world has %d writers", owners)
	}
}

func TestRecordOfAJobThatIsGone(t *testing.T) {
	t.Parallel()
	key := newJob(t, newNamespace(t))
	if _, err := recorder().Record(t.Context(), key, rendezvous.Record{}, round(1, 1)); err != nil {
		t.Fatal(err)
	}
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	finalizer := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["test.concertina.dev/hold"]}}`))
	if err := cluster.Patch(t.Context(), job, finalizer); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Delete(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if _, err := recorder().Record(t.Context(), key, round(1, 1), round(1, 2)); !errors.Is(err, rendezvous.ErrJobGone) {
		t.Errorf("a job that is being deleted: %v", err)
	}
	release := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := cluster.Patch(t.Context(), job, release); err != nil {
		t.Fatal(err)
	}
	if _, err := recorder().Record(t.Context(), key, round(1, 1), round(1, 2)); !errors.Is(err, rendezvous.ErrJobGone) {
		t.Errorf("a job that was deleted: %v", err)
	}
	newJob(t, key.Namespace)
	found, err := recorder().Record(t.Context(), key, round(1, 1), round(1, 2))
	if !errors.Is(err, rendezvous.ErrDeposed) || !found.Equal(rendezvous.Record{}) {
		t.Errorf("a new job of the same name: %+v, %v", found, err)
	}
}
