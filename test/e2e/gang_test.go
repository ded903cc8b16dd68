package e2e

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// partial is how long a gang may be bound in part.
const partial = 5 * time.Second

// The room is the whole cluster's, so nothing else may run meanwhile.
var _ = Describe("All or nothing: two jobs of four, and room for four", Serial, func() {
	It("one after the other, twice", short, func(ctx context.Context) { repeat(ctx, 2) })
	It("one after the other, twenty times", long, func(ctx context.Context) { repeat(ctx, 20) })
})

func repeat(ctx context.Context, times int) {
	GinkgoHelper()
	roomIsBack(ctx)
	namespace := newNamespace(ctx)
	fillers, err := cluster.LeaveRoom(ctx, namespace, 4)
	Expect(err).NotTo(HaveOccurred())
	for _, filler := range fillers {
		Eventually(func() corev1.PodPhase {
			Expect(cluster.Get(ctx, client.ObjectKeyFromObject(filler), filler)).To(Succeed())
			return filler.Status.Phase
		}).Should(Equal(corev1.PodRunning))
	}
	for i := range times {
		By(fmt.Sprintf("repetition %d of %d", i+1, times))
		history, err := cluster.WatchPods(ctx, namespace, nil)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(history.Stop)
		together(ctx, namespace, history)
		history.Stop()
	}
}

// together runs two jobs of four that were submitted at one moment, and looks at what happened.
func together(ctx context.Context, namespace string, history *framework.PodHistory) {
	GinkgoHelper()
	jobs := []*job{{namespace, "left"}, {namespace, "right"}}
	var submitted sync.WaitGroup
	for _, j := range jobs {
		submitted.Go(func() {
			defer GinkgoRecover()
			submit(ctx, namespace, framework.NewJob(j.name, "--epochs=3", "--step-time=50ms").Workers(4, 4).GPUs(1))
		})
	}
	submitted.Wait()
	for _, j := range jobs {
		j.completes(ctx, 2*time.Minute)
		j.expectRestarts(ctx, 0, 0)
	}
	changes, err := history.Changes()
	Expect(err).NotTo(HaveOccurred())
	expectOneGangEach(changes)
	expectNoPartialGang(changes)
	expectOneAfterTheOther(changes)
	for _, j := range jobs {
		Expect(cluster.Delete(ctx, j.get(ctx))).To(Succeed())
	}
	Eventually(leftIn).WithContext(ctx).WithArguments(namespace).Should(BeEmpty())
}

// expectOneGangEach checks that no gang was given up. What counts are those that had pods: the operator may see the later one of two jobs
// first, and let it start in vain, before anything is made for it.
func expectOneGangEach(changes []framework.Change) {
	GinkgoHelper()
	attempts := map[string]map[string]bool{}
	for _, change := range changes {
		if name := change.Pod.Labels[v1alpha1.LabelJob]; name != "" {
			if attempts[name] == nil {
				attempts[name] = map[string]bool{}
			}
			attempts[name][change.Pod.Labels[v1alpha1.LabelAttempt]] = true
		}
	}
	for name, of := range attempts {
		Expect(of).To(HaveLen(1), "attempts of %s\n%s", name, framework.Describe(changes))
	}
}

// expectNoPartialGang checks that never 1 to 3 pods of a gang were bound for longer than partial.
func expectNoPartialGang(changes []framework.Change) {
	GinkgoHelper()
	held := map[string]time.Duration{}
	for _, occupation := range framework.Occupations(changes) {
		if occupation.Bound < 1 || occupation.Bound > 3 {
			held[occupation.Gang] = 0
			continue
		}
		held[occupation.Gang] += occupation.For
		Expect(held[occupation.Gang]).To(BeNumerically("<=", partial), "%v\n%s", occupation, framework.Describe(changes))
	}
}

// expectOneAfterTheOther checks that no pod of the second job was bound before the pods of the first
// one had ended.
func expectOneAfterTheOther(changes []framework.Change) {
	GinkgoHelper()
	first := ""
	ended, bound := map[string]bool{}, map[string]map[string]bool{}
	for _, change := range changes {
		name := change.Pod.Labels[v1alpha1.LabelJob]
		if name == "" {
			continue
		}
		if change.Gone || framework.Ended(change.Pod) {
			ended[change.Pod.Name] = true
		}
		if change.Pod.Spec.NodeName == "" {
			continue
		}
		if first == "" {
			first = name
		}
		if bound[name] == nil {
			bound[name] = map[string]bool{}
		}
		bound[name][change.Pod.Name] = true
		if name == first {
			continue
		}
		Expect(bound[first]).To(HaveLen(4), framework.Describe(changes))
		for pod := range bound[first] {
			Expect(ended).To(HaveKey(pod), "%s was bound while %s had not ended\n%s", change.Pod.Name, pod, framework.Describe(changes))
		}
	}
	Expect(bound).To(HaveLen(2), "both jobs had pods\n%s", framework.Describe(changes))
}
