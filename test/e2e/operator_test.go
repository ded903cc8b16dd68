package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/test/e2e/framework"
)

const (
	stepTime = 100 * time.Millisecond
	// longestPause between two steps is far above what a busy machine needs, and far below what a
	// program needs that is started anew.
	longestPause = 3 * time.Second
)

// The operator is everybody's, so nothing else may run meanwhile.
var _ = Describe("An operator that is killed while a world trains", Serial, func() {
	It("does not stop the training, and its successor adopts the world", short, func(ctx context.Context) {
		namespace := newNamespace(ctx)
		t := startTraining(ctx, namespace, 16)
		t.killOperator(ctx)
		t.completes(ctx)
	})

	// kills_test.go has those that meet a world that changes.
	It("does so again and again, at any moment", long, func(ctx context.Context) {
		namespace := newNamespace(ctx)
		const times = 20
		t := startTraining(ctx, namespace, 40*times)
		for i := range times {
			By(fmt.Sprintf("kill %d of %d", i+1, times))
			// The successor is given some time, or none.
			reaches(ctx, t.rankZero, t.lastStep(ctx)+random.IntN(30))
			t.killOperator(ctx)
		}
		t.job.suspend(ctx, true)
		Eventually(t.job.holding(ctx)).Should(BeZero())
	})
})

// random is seeded by ginkgo's own seed, which it prints.
var random = rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))

// training is a job whose world trains, and what it is like at the beginning.
type training struct {
	job         *job
	rankZero    *corev1.Pod
	term, round int64
	uids        map[types.UID]bool
}

func startTraining(ctx context.Context, namespace string, epochs int) *training {
	GinkgoHelper()
	t := &training{uids: map[types.UID]bool{}}
	t.job = submit(ctx, namespace, framework.NewJob("digits", fmt.Sprintf("--epochs=%d", epochs), "--step-time="+stepTime.String(), "--log-every=1"))
	t.job.trains(ctx)
	t.rankZero = t.job.rankZero(ctx)
	reaches(ctx, t.rankZero, 5)
	world := t.job.get(ctx).Status.World
	t.term, t.round = *world.Term, *world.Round
	for _, pod := range t.job.pods(ctx, 1) {
		t.uids[pod.UID] = true
	}
	return t
}

func (t *training) lastStep(ctx context.Context) int {
	done := steps(ctx, t.rankZero)
	return done[len(done)-1].number
}

// killOperator kills it and waits for the adoption: a higher term and the same round. Meanwhile the
// training must have gone on.
func (t *training) killOperator(ctx context.Context) {
	GinkgoHelper()
	before := t.lastStep(ctx)
	killed := time.Now()
	Expect(cluster.KillOperator(ctx)).To(Succeed())
	Eventually(func() int64 { return *t.job.get(ctx).Status.World.Term }, "2m").Should(BeNumerically(">", t.term))
	down := time.Since(killed)
	AddReportEntry("without an operator", down.Round(100*time.Millisecond).String())
	after := t.lastStep(ctx)
	Expect(after-before).To(BeNumerically(">=", int(down/stepTime)/2), "steps from %d to %d in the %v without an operator", before, after, down)
	world := t.job.get(ctx).Status.World
	t.term = *world.Term
	Expect(*world.Round).To(Equal(t.round))
	t.expectUndisturbed(ctx)
}

// completes waits for the end of the training, which the successor must have seen.
func (t *training) completes(ctx context.Context) {
	GinkgoHelper()
	t.job.completes(ctx, 2*time.Minute)
	t.expectUndisturbed(ctx)
	Expect(*t.job.get(ctx).Status.World.Round).To(Equal(t.round))
}

// expectUndisturbed checks that pods and programs are those of the beginning, and that no step took
// long.
func (t *training) expectUndisturbed(ctx context.Context) {
	GinkgoHelper()
	t.job.expectRestarts(ctx, 0, 0)
	Expect(t.job.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	pods := t.job.pods(ctx, 0)
	Expect(pods).To(HaveLen(len(t.uids)))
	for _, pod := range pods {
		Expect(t.uids).To(HaveKey(pod.UID))
		Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero())
	}
	starts := 0
	for _, printed := range lines(ctx, t.rankZero) {
		if strings.HasPrefix(printed.text, "round ") {
			starts++
		}
	}
	Expect(starts).To(Equal(1), "how often the program has entered a world")
	done := steps(ctx, t.rankZero)
	for i := 1; i < len(done); i++ {
		Expect(done[i].at.Sub(done[i-1].at)).To(BeNumerically("<", longestPause), "step %d", done[i].number)
	}
}
