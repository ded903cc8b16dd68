package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// What the other tests conclude from is itself tested, on histories that were made up.
var _ = Describe("A history of pods", short, func() {
	start := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	change := func(second int, job, name, node string, phase corev1.PodPhase) framework.Change {
		return framework.Change{At: start.Add(time.Duration(second) * time.Second), Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: job + name, Labels: map[string]string{v1alpha1.LabelJob: job, v1alpha1.LabelAttempt: "1"}},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Phase: phase},
		}}
	}
	fails := func(check func([]framework.Change), changes []framework.Change) bool {
		return len(InterceptGomegaFailures(func() { check(changes) })) > 0
	}
	whole := func(job string, from int) []framework.Change {
		var changes []framework.Change
		for _, name := range []string{"0", "1", "2", "3"} {
			changes = append(changes, change(from, job, name, "n", corev1.PodPending))
		}
		for _, name := range []string{"0", "1", "2", "3"} {
			changes = append(changes, change(from+20, job, name, "n", corev1.PodSucceeded))
		}
		return changes
	}

	It("shows a gang that was bound in part for too long, all the same if its size changed meanwhile", func() {
		Expect(fails(expectNoPartialGang, whole("a", 0))).To(BeFalse())
		Expect(fails(expectNoPartialGang, []framework.Change{
			change(0, "a", "0", "n", corev1.PodPending),
			change(4, "a", "1", "n", corev1.PodPending),
			change(6, "a", "2", "n", corev1.PodPending),
			change(7, "a", "3", "n", corev1.PodPending),
		})).To(BeTrue())
		Expect(fails(expectNoPartialGang, []framework.Change{
			change(0, "a", "0", "n", corev1.PodPending),
			change(9, "a", "1", "", corev1.PodPending),
		})).To(BeTrue())
	})

	It("shows a pod of the second job that was bound too early", func() {
		Expect(fails(expectOneAfterTheOther, append(whole("a", 0), whole("b", 20)...))).To(BeFalse())
		early := append(whole("a", 0)[:7], whole("b", 20)...)
		Expect(fails(expectOneAfterTheOther, early)).To(BeTrue())
		Expect(fails(expectOneAfterTheOther, whole("a", 0))).To(BeTrue(), "the second job never ran")
	})
})
