package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// The API server is everybody's, so nothing else may run meanwhile.
var _ = Describe("A cluster whose API server stands still", Serial, func() {
	// Only hack/cluster can have it stand still.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}

	const (
		outage = 2 * time.Minute
		// hold is how long a world may stand at a barrier that nobody leads, and what a step takes then.
		hold = 35 * time.Second
	)

	It("for two minutes, when a world stands at a barrier, lets it train on after the hold, and nothing is lost", long, func(ctx context.Context) {
		// The newcomer's program joins so late that the next world can be prepared, and not be written.
		e := startElastic(ctx, 2, 2, "--epochs=100", "--step-time=100ms", "--start-time=6s")
		before := e.world(ctx, 0, 2)
		zero := e.rankZero(ctx)
		e.limit(ctx, 3)
		Eventually(func() int {
			running := 0
			for _, pod := range e.pods(ctx, 0) {
				if pod.Status.Phase == corev1.PodRunning {
					running++
				}
			}
			return running
		}, "60s", "100ms").Should(Equal(3))
		from := time.Now()
		freeze(ctx, "kube-apiserver", outage)
		until := time.Now()

		e.world(ctx, before, 3)
		longest := longestBetween(steps(ctx, zero), from, until)
		AddReportEntry("longest time without a step", longest.Round(100*time.Millisecond).String())
		Expect(longest).To(And(BeNumerically(">", time.Second), BeNumerically("<", hold)), "it stood at the barrier, and no longer than a hold")
		e.completes(ctx, 3*time.Minute)
		e.expectNothingLost(ctx)
	})
})

// freeze has a component stand still for so long.
func freeze(ctx context.Context, component string, outage time.Duration) {
	GinkgoHelper()
	thaw := func(ctx context.Context) { Expect(cluster.HackCluster(ctx, "thaw", component)).To(Succeed()) }
	DeferCleanup(thaw)
	Expect(cluster.HackCluster(ctx, "freeze", component)).To(Succeed())
	// The time is the disturbance: there is nobody who could be asked for anything meanwhile.
	select {
	case <-time.After(outage):
	case <-ctx.Done():
	}
	thaw(ctx)
}

// longestBetween is the longest time without a step that began between two moments.
func longestBetween(done []step, from, until time.Time) time.Duration {
	var longest time.Duration
	for i := 1; i < len(done); i++ {
		if last := done[i-1].at; last.After(from) && last.Before(until) {
			longest = max(longest, done[i].at.Sub(last))
		}
	}
	return longest
}
