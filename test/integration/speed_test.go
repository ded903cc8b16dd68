package integration

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

var _ = Describe("The speed of a job", func() {
	It("is measured with its progress, and by the next operator too; a total that grows is doubted", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		clock := stoppedClock()
		op := startOperator(ctx, namespace, settings{clock: clock})
		j := createJob(ctx, namespace)
		j.train(ctx, op, 1, 1)
		made := func(step, total uint64) v1alpha1.SpeedStatus {
			GinkgoHelper()
			// At no moment it is later, and the steps are not made yet: a look would take the job for one that stands still.
			Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) {
				clock.advance(10 * time.Second)
				seen.Progress = rendezvous.Progress{Step: step, TotalSteps: total, StepTime: 500 * time.Millisecond}
			})).To(Succeed())
			Eventually(func() *int64 { return j.get(ctx).Status.Progress.Step }).Should(HaveValue(BeEquivalentTo(step)))
			op.look(j) // the one that has written it is over
			return j.get(ctx).Status.Speed
		}
		Expect(made(1, 1000).Sizes).To(BeEmpty())
		before := op.count("write status")
		speed := made(21, 1000)
		Expect(op.count("write status")).To(Equal(before+1), "the speed has a write of its own")
		Expect(speed.Sizes).To(HaveLen(1))
		Expect(speed.Sizes[0].Workers).To(HaveValue(BeEquivalentTo(2)))
		Expect(speed.Sizes[0].Nodes).To(HaveValue(BeEquivalentTo(1)))
		Expect(speed.Sizes[0].StepsPerSecond).To(Equal("2"))
		Expect(speed.Sizes[0].Steps).To(HaveValue(BeEquivalentTo(20)))
		Expect(speed.FirstTotalSteps).To(HaveValue(BeEquivalentTo(1000)))
		op.stop()

		op = startOperator(ctx, namespace, settings{clock: clock})
		Eventually(op.all).Should(ContainElement(HavePrefix("expect attempt 1: digits-1-0@")))
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) { seen.Adopting = true })).To(Succeed())
		Expect(op.worlds.report(j.key(), func(seen *rendezvous.Observation) { seen.Adopting = false })).To(Succeed())
		Expect(op.worlds.form(j.key(), 1)).To(Succeed())
		Expect(made(41, 1000).Sizes[0].Steps).To(HaveValue(BeEquivalentTo(20)), "steps that it has not seen")
		Expect(made(61, 1000).Sizes[0].Steps).To(HaveValue(BeEquivalentTo(40)))

		Expect(made(81, 3000).Doubt).To(ContainSubstring("has 1000 steps, and after 81 of them that it has 3000"))
		Eventually(op.all).Should(ContainElement(HavePrefix("event Warning TotalDoubted")))
		Expect(made(101, 1000).Doubt).To(ContainSubstring("3000"))
	})
})
