package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

	It("shows workers that were too few for too long", func() {
		gang := func(second int, name string, phase corev1.PodPhase) framework.Change {
			return change(second, "a", name, "n", phase)
		}
		for _, row := range []struct {
			second int
			want   bool
		}{{40, false}, {80, true}} {
			Expect(fails(func(changes []framework.Change) { expectGangOrNothing(changes, 2) }, []framework.Change{
				gang(0, "0", corev1.PodPending), gang(3, "1", corev1.PodPending),
				gang(10, "1", corev1.PodFailed), gang(row.second, "2", corev1.PodPending),
			})).To(Equal(row.want), "the second one came after %d seconds", row.second)
		}
		Expect(fails(func(changes []framework.Change) { expectGangOrNothing(changes, 2) }, []framework.Change{
			gang(0, "0", corev1.PodPending), gang(6, "1", corev1.PodPending),
		})).To(BeTrue(), "at the start nobody waits")
	})

	It("shows a name that was used twice", func() {
		first, second := change(0, "a", "0", "n", corev1.PodRunning), change(9, "a", "0", "n", corev1.PodRunning)
		Expect(fails(expectNamesUsedOnce, []framework.Change{first, second})).To(BeFalse())
		second.Pod.UID = "another"
		Expect(fails(expectNamesUsedOnce, []framework.Change{first, second})).To(BeTrue())
	})

	It("spares the last holder of a snapshot", func() {
		member := func(name, node string) corev1.Pod {
			pod := change(0, "a", name, node, corev1.PodRunning).Pod
			pod.UID = types.UID(name)
			return *pod
		}
		names := func(pods ...corev1.Pod) []types.UID {
			ranks := map[string]int{member("y", "").Name: 0, member("x", "").Name: len(pods) - 1}
			return uids(expendable(pods, writers(pods, ranks)))
		}
		Expect(names(member("x", "n"), member("y", "n"))).To(ConsistOf(types.UID("x")))
		Expect(names(member("x", "n"), member("y", "m"))).To(ConsistOf(types.UID("x"), types.UID("y")))
		Expect(names(member("x", "n"))).To(BeEmpty())
	})
})
