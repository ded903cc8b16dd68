package e2e

import (
	"context"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

var _ = Describe("A job with a spare", func() {
	It("keeps its size when a worker is lost, and has another spare then", long, func(ctx context.Context) {
		e := launchElastic(ctx, 2, 2, func(spec *v1alpha1.TrainingJobSpec) { spec.Workers.Spares = ptr.To[int32](1) }, framework.Endless...)
		e.trains(ctx)
		spareReady := func(g Gomega) {
			workers := e.get(ctx).Status.Workers
			g.Expect(workers.Target).To(HaveValue(BeEquivalentTo(3)))
			g.Expect(workers.Spares).To(HaveValue(BeEquivalentTo(1)))
		}
		Eventually(spareReady, time.Minute).Should(Succeed())
		members := e.members(ctx)
		Expect(members).To(HaveLen(2), "the spare is in no world")
		spares := slices.DeleteFunc(e.pods(ctx, 1), func(pod corev1.Pod) bool { return slices.Contains(uids(members), pod.UID) })
		Expect(spares).To(HaveLen(1))
		reaches(ctx, e.rankZero(ctx), 20)
		before := *e.get(ctx).Status.World.Round

		loseByForce(ctx, &members[1])
		Eventually(func(g Gomega) { g.Expect(e.get(ctx).Status.World.Round).To(HaveValue(BeNumerically(">", before))) }, time.Minute).Should(Succeed())
		world := e.get(ctx).Status.World
		Expect(world.Round).To(HaveValue(Equal(before+1)), "one world follows on the loss")
		Expect(world.Workers).To(HaveValue(BeEquivalentTo(2)))
		e.world(ctx, before, 2)
		Expect(uids(e.members(ctx))).To(ConsistOf(members[0].UID, spares[0].UID))
		Eventually(spareReady, 2*time.Minute).Should(Succeed())
		e.expectRestarts(ctx, 0, 1)
		Expect(e.get(ctx).Status.World.Round).To(HaveValue(Equal(before+1)), "nothing is changed for the next spare")
	})
})
