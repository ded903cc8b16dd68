package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Mark is what the condition of a worker says that is to leave for another job. The zero Mark is none.
type Mark struct {
	// Reason is Reclaimed, Evened or Moved.
	Reason string
	// For is the job that its room is for, as namespace/name.
	For string
	// At is when it was marked, in whole seconds.
	At time.Time
}

// String is empty for no mark.
func (m Mark) String() string {
	if m == (Mark{}) {
		return ""
	}
	return fmt.Sprintf("%s %s %s", m.Reason, m.For, m.At.UTC().Format(time.RFC3339))
}

// Condition is what a marked pod says.
func (m Mark) Condition() corev1.PodCondition {
	return corev1.PodCondition{
		Type: v1alpha1.PodLeaving, Status: corev1.ConditionTrue, Reason: m.Reason, Message: m.For, LastTransitionTime: metav1.NewTime(m.At),
	}
}

// Put has a pod carry the mark, or none.
func (m Mark) Put(pod *corev1.Pod) {
	pod.Status.Conditions = slices.DeleteFunc(slices.Clone(pod.Status.Conditions), isMark)
	if m != (Mark{}) {
		pod.Status.Conditions = append(pod.Status.Conditions, m.Condition())
	}
}

func isMark(c corev1.PodCondition) bool { return c.Type == v1alpha1.PodLeaving }

// MarkOf reads the mark of a pod; false for none. What cannot be read was not written by the operator, and is
// a mark to nobody: whoever is counted as leaving must also be let go.
func MarkOf(pod *corev1.Pod) (Mark, bool) {
	i := slices.IndexFunc(pod.Status.Conditions, isMark)
	if i < 0 {
		return Mark{}, false
	}
	c := &pod.Status.Conditions[i]
	if c.Status != corev1.ConditionTrue || !LeavesForOthers(c.Reason) || strings.Count(c.Message, "/") != 1 {
		return Mark{}, false
	}
	return Mark{Reason: c.Reason, For: c.Message, At: c.LastTransitionTime.Time}, true
}

// LeavesForOthers says whether a worker that leaves for this reason does so for another job.
func LeavesForOthers(reason string) bool {
	return reason == Reclaimed || reason == Evened || reason == Moved
}
