package fleet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

func TestAMarkIsReadAsItWasWritten(t *testing.T) {
	for _, reason := range []string{Reclaimed, Evened, Moved} {
		want := Mark{Reason: reason, For: "team/big", At: start.Truncate(time.Second)}
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{v1alpha1.AnnotationLeaving: want.String()}
		if got, found := MarkOf(pod); !found || got.Reason != want.Reason || got.For != want.For || !got.At.Equal(want.At) {
			t.Errorf("%s is read as %+v, %t", want, got, found)
		}
	}
}

// A worker that the planner counts as leaving and that nobody lets go would hold its room for ever.
func TestAMarkThatNobodyUnderstandsHasNobodyLeave(t *testing.T) {
	for _, text := range []string{
		"Reclaimed", "Reclaimed team/big", "Reclaimed team/big yesterday", "Reclaimed big 2030-01-01T12:00:00Z",
		"Bored team/big 2030-01-01T12:00:00Z", "",
	} {
		job := jobOf("j", trains)
		pod := workerOf(job, 5, growthRole, func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.AnnotationLeaving: text}
		})
		if m, found := MarkOf(pod); found {
			t.Errorf("%q is read as %+v", text, m)
		}
		cluster := New(optionsOf())
		cluster.SetJob(job)
		cluster.SetPod(pod)
		if seen := seenJob(t, cluster); len(seen.Workers) != 1 || seen.Workers[0].Marked {
			t.Errorf("%q: the planner sees %+v", text, seen.Workers)
		}
	}
}
