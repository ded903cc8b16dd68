package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// stoppingJob is a job whose program is started anew in each world, and is told before when to save.
type stoppingJob struct {
	*elasticJob
	total int
}

// everySteps is how often that program saves by itself.
const everySteps = 10

// startStopping submits the example, and waits until it trains.
func startStopping(ctx context.Context, workers int32) *stoppingJob {
	GinkgoHelper()
	namespace := newNamespace(ctx)
	builder, err := cluster.Example("pytorch-digits/stopping.yaml")
	Expect(err).NotTo(HaveOccurred())
	logs, err := cluster.RecordLogs(ctx, namespace, labels.Set{v1alpha1.LabelJob: "digits-stopping"}, "trainer")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(logs.Stop)
	recordOperator(ctx, namespace)
	const epochs, perEpoch = 40, 15
	builder = builder.Workers(2, workers).MaxRestarts(10).Command("torchrun", "/app/train_stopping.py",
		"--checkpoint", "/checkpoint/digits.pt", fmt.Sprintf("--checkpoint-every=%d", everySteps),
		"--step-seconds=0.05", fmt.Sprintf("--epochs=%d", epochs), "--log-every=1")
	s := &stoppingJob{&elasticJob{job: submit(ctx, namespace, builder), logs: logs}, epochs * perEpoch}
	s.trains(ctx)
	return s
}

// made counts how often each step was made, by what rank 0 has printed.
func (s *stoppingJob) made() map[int]int {
	GinkgoHelper()
	counts := map[int]int{}
	all, err := s.logs.Lines()
	Expect(err).NotTo(HaveOccurred())
	for _, text := range all {
		for _, line := range text {
			var step, total int
			if n, _ := fmt.Sscanf(line, "step %d/%d loss", &step, &total); n == 2 {
				counts[step]++
			}
		}
	}
	return counts
}

// reaches waits until a step was made.
func (s *stoppingJob) reaches(step int) {
	GinkgoHelper()
	Eventually(func() int { return len(s.made()) }, 2*time.Minute).Should(BeNumerically(">=", step))
}

// expectMade checks that every step was made, and that at most so many were made again.
func (s *stoppingJob) expectMade(again int) {
	GinkgoHelper()
	// The last lines of a log take a moment to come. Who has told of the last step has told of all before it.
	Eventually(s.made, "20s").Should(HaveKey(s.total))
	repeated := 0
	for step, counts := 1, s.made(); step <= s.total; step++ {
		Expect(counts[step]).To(BeNumerically(">=", 1), "step %d of %d", step, s.total)
		repeated += counts[step] - 1
	}
	Expect(repeated).To(BeNumerically("<=", again))
}

var _ = Describe("A program that is told when to save", func() {
	It("is started anew in worlds that grow and shrink, and no step is lost or made twice", short, func(ctx context.Context) {
		s := startStopping(ctx, 2)
		s.reaches(5)
		s.scale(ctx, 3)
		grown := s.world(ctx, 1, 3)
		Expect(s.get(ctx).Status.World.FromStep).To(HaveValue(BeNumerically(">=", 5)))
		Expect(s.resize(ctx, grown).Reason).To(Equal("CapacityAvailable"))
		s.scale(ctx, 2)
		shrunk := s.world(ctx, grown, 2)
		Expect(s.resize(ctx, shrunk).Reason).To(Equal("ScaledDown"))
		s.completes(ctx, 3*time.Minute)
		for _, resize := range s.get(ctx).Status.Resizes {
			Expect(resize.StepsLost).To(Or(BeNil(), HaveValue(BeZero())), "round %d: %s", *resize.Round, resize.Message)
		}
		s.expectRestarts(ctx, 0, 0)
		s.expectMade(0)
	})

	It("goes on from its newest checkpoint when one of its workers was killed", long, func(ctx context.Context) {
		s := startStopping(ctx, 3)
		before := s.world(ctx, 0, 3)
		s.reaches(3 * everySteps)
		killProgram(pick(s.members(ctx)))
		s.world(ctx, before, 3)
		s.completes(ctx, 3*time.Minute)
		s.expectRestarts(ctx, 1, 0)
		s.expectMade(everySteps)
	})
})
