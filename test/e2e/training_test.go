package e2e

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

var _ = Describe("Training", short, func() {
	DescribeTable("with PyTorch reads at least 95% of unseen digits",
		func(ctx context.Context, example string, command []string, sdk bool) {
			namespace := newNamespace(ctx)
			builder, err := cluster.Example(example)
			Expect(err).NotTo(HaveOccurred())
			j := submit(ctx, namespace, builder.Command(command...))
			j.completes(ctx, 3*time.Minute)
			j.expectRestarts(ctx, 0, 0)
			// One rank of all tells of it.
			Expect(j.accuracies(ctx)).To(ConsistOf(BeNumerically(">=", 0.95)))
			if !sdk {
				return
			}
			progress := j.get(ctx).Status.Progress
			Expect(progress.Metrics).To(ContainElement(Satisfy(func(metric v1alpha1.Metric) bool {
				value, err := strconv.ParseFloat(metric.Value, 64)
				return err == nil && metric.Name == "accuracy" && value >= 0.95
			})))
			Expect(progress.TotalSteps).To(HaveValue(BeNumerically(">", 0)))
			Expect(*progress.Step).To(Equal(*progress.TotalSteps))
		},
		Entry("and the SDK", "pytorch-digits/job.yaml", []string{"python3", "/app/train.py"}, true),
		Entry("and two processes in each worker", "pytorch-digits/two-processes.yaml", []string{"python3", "/app/train.py"}, true),
		Entry("unmodified, under torchrun", "pytorch-digits/torchrun.yaml", []string{"torchrun", "/app/train_plain.py"}, false),
	)

	It("tells of its world, its workers and its ranks while it goes on", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", "--epochs=8", "--step-time=50ms", "--log-every=1").Workers(3, 3))
		j.trains(ctx)
		Expect(j.condition(ctx, v1alpha1.ConditionTraining)()).To(Equal("True WorldFormed: round 1: 3 workers train as 3 ranks"))
		Expect(j.condition(ctx, v1alpha1.ConditionGangScheduled)()).To(Equal("True Scheduled: all 3 workers have a node"))
		status := j.get(ctx).Status
		Expect(status.World.Term).To(HaveValue(BeEquivalentTo(1)))
		Expect(status.World.Workers).To(HaveValue(BeEquivalentTo(3)))
		Expect(status.World.MembersDigest).To(HaveLen(64))
		// The agents may be heard before the kubelets have said that their pods run.
		Eventually(func() string { return j.get(ctx).Status.Workers.Summary }).Should(Equal("3/3-3"))
		ranks := j.ranks(ctx)
		for _, pod := range j.pods(ctx, 1) {
			Expect(ranks).To(HaveKey(pod.Name))
		}
		Expect(slices.Collect(maps.Values(ranks))).To(ConsistOf(0, 1, 2))
		j.completes(ctx, time.Minute)
		Expect(j.accuracies(ctx)).To(ConsistOf(BeNumerically(">=", 0.9)))
		Expect(j.condition(ctx, v1alpha1.ConditionTraining)()).To(HavePrefix("False Finished"))
	})
})
