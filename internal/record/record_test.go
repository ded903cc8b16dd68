package record

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
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
