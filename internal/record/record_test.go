package record

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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
		ParentFromStep: 8, Grandparent: 9,
		Members: "packed", Nodes: "packed too", Racks: "and these", Master: rendezvous.Endpoint{Address: "fd00::1", Port: 29400},
		StartedAt: time.Unix(1e9, 0).UTC(), Reason: rendezvous.ReasonWorkerLost, From: 7, Recoveries: "2:Hung:8:7:1", JobUID: "mine", Leader: "me",
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
