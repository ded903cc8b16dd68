package record

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func TestRecordBelongsToOneJob(t *testing.T) {
	for name, test := range map[string]struct {
		jobUID string
		round  uint64
	}{
		"its own":                  {"mine", 3},
		"of an older version":      {"", 3},
		"of another job, restored": {"another", 0},
	} {
		t.Run(name, func(t *testing.T) {
			job := &v1alpha1.TrainingJob{
				ObjectMeta: metav1.ObjectMeta{UID: "mine"},
				Status: v1alpha1.TrainingJobStatus{World: &v1alpha1.WorldStatus{
					Term: ptr.To[int64](2), Round: ptr.To[int64](3), JobUID: test.jobUID,
				}},
			}
			if found := FromStatus(job); found.Round != test.round {
				t.Errorf("round %d is read of it, not %d", found.Round, test.round)
			}
		})
	}
}

// What is written of a record is what is read of it.
func TestARecordComesBackAsItWasWritten(t *testing.T) {
	written := rendezvous.Record{
		Term: 2, Round: 3, Parent: 1, Attempt: 4, Workers: 5, Processes: 10, FromStep: 6, MembersDigest: "digest", ParentDigest: "another",
		Members: "packed", Nodes: "packed too", Racks: "and these", Master: rendezvous.Endpoint{Address: "fd00::1", Port: 29400},
		StartedAt: time.Unix(1e9, 0).UTC(), Reason: rendezvous.ReasonWorkerLost, From: 7, JobUID: "mine", Leader: "me",
	}
	text, err := json.Marshal(toStatus(written))
	if err != nil {
		t.Fatal(err)
	}
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{UID: "mine"}, Status: v1alpha1.TrainingJobStatus{World: &v1alpha1.WorldStatus{}}}
	if err := json.Unmarshal(text, job.Status.World); err != nil {
		t.Fatal(err)
	}
	if found := FromStatus(job); !found.Equal(written) {
		t.Errorf("%+v is read, %+v was written", found, written)
	}
}

// door is a reader that tells who has come and lets nobody in before it is opened.
type door struct {
	client.Reader
	came chan string
	open chan struct{}
}

var errShut = errors.New("shut")

func (d door) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	d.came <- key.Name
	<-d.open
	return errShut
}

// Of thousands of jobs that a new leader takes over a few are written at a time, and a world that is to be made waits for
// none of them.
func TestFewJobsAreTakenOverAtATime(t *testing.T) {
	d := door{came: make(chan string, 10), open: make(chan struct{})}
	status := Status{Live: d, Takeovers: semaphore.NewWeighted(2)}
	var calls, waiting sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	call := func(ctx context.Context, group *sync.WaitGroup, name string, next rendezvous.Record, want error) {
		group.Go(func() {
			_, err := status.Record(ctx, rendezvous.JobKey{Namespace: "a", Name: name}, rendezvous.Record{Term: 1, Round: 4}, next)
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		})
	}
	for range 2 {
		call(t.Context(), &calls, "first", rendezvous.Record{Term: 2, Round: 4}, errShut)
	}
	for range 2 {
		if name := <-d.came; name != "first" {
			t.Fatalf("%s came", name)
		}
	}
	for range 3 {
		call(ctx, &waiting, "second", rendezvous.Record{Term: 2, Round: 4}, context.Canceled)
	}
	call(t.Context(), &calls, "world", rendezvous.Record{Term: 2, Round: 5}, errShut)
	if name := <-d.came; name != "world" {
		t.Errorf("%s came before the world that is to be made", name)
	}
	cancel() // who waits for its turn stops waiting when it is told to
	waiting.Wait()
	close(d.open)
	calls.Wait()
}
