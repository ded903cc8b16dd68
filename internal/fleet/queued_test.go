package fleet

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// A job that queues again has not waited since it was submitted, also while nobody has written since when it does.
func TestSinceWhenAJobQueues(t *testing.T) {
	at := func(minutes int) *metav1.Time {
		return ptr.To(metav1.NewTime(start.Add(time.Duration(minutes) * time.Minute)))
	}
	suspended := func(status metav1.ConditionStatus, minutes int) jobChange {
		return func(job *v1alpha1.TrainingJob) {
			job.Status.Conditions = append(job.Status.Conditions,
				metav1.Condition{Type: v1alpha1.ConditionSuspended, Status: status, LastTransitionTime: *at(minutes)})
		}
	}
	for _, c := range []struct {
		name string
		job  *v1alpha1.TrainingJob
		want int
	}{
		{"new", jobOf("j"), 0},
		{"it is written", jobOf("j", suspended(metav1.ConditionFalse, -20), func(j *v1alpha1.TrainingJob) { j.Status.Queue.Since, j.Status.RetryTime = at(-5), at(-2) }), -5},
		{"the last attempt was lost", jobOf("j", func(j *v1alpha1.TrainingJob) { j.Status.RetryTime = at(-2) }), -2},
		{"resumed", jobOf("j", suspended(metav1.ConditionFalse, -1)), -1},
		{"never suspended", jobOf("j", suspended(metav1.ConditionFalse, -61)), -60},
		{"about to be resumed", jobOf("j", suspended(metav1.ConditionTrue, -1)), -60},
	} {
		if c.name != "new" {
			c.job.CreationTimestamp = *at(-60)
		}
		cluster := FromObjects(Objects{Jobs: []*v1alpha1.TrainingJob{c.job}}, optionsOf())
		if got := seenJob(t, cluster).Queued; !got.Equal(at(c.want).Time) {
			t.Errorf("%s: since %s, want %s", c.name, got, at(c.want).Time)
		}
	}
}
