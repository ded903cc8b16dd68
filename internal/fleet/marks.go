package fleet

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Mark is what the annotation of a worker says that is to leave for another job:
// "Reclaimed team/big 2030-01-01T12:00:00Z".
type Mark struct {
	// Reason is Reclaimed, Evened or Moved.
	Reason string
	// For is the job that its room is for, as namespace/name.
	For string
	// At is when it was marked, in whole seconds.
	At time.Time
}

func (m Mark) String() string {
	return fmt.Sprintf("%s %s %s", m.Reason, m.For, m.At.UTC().Format(time.RFC3339))
}

// MarkOf reads the mark of a pod; false for none. What cannot be read was not written by the operator, and is
// a mark to nobody: whoever is counted as leaving must also be let go.
func MarkOf(pod *corev1.Pod) (Mark, bool) {
	parts := strings.Fields(pod.Annotations[v1alpha1.AnnotationLeaving])
	if len(parts) != 3 || !LeavesForOthers(parts[0]) || strings.Count(parts[1], "/") != 1 {
		return Mark{}, false
	}
	at, err := time.Parse(time.RFC3339, parts[2])
	return Mark{Reason: parts[0], For: parts[1], At: at}, err == nil
}

// LeavesForOthers says whether a worker that leaves for this reason does so for another job.
func LeavesForOthers(reason string) bool {
	return reason == Reclaimed || reason == Evened || reason == Moved
}
