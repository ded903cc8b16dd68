package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/containers"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// begins waits until a step has begun.
func (e *elasticJob) begins(step int) {
	GinkgoHelper()
	Eventually(e.step, "90s", "20ms").Should(BeNumerically(">=", step))
}

// limit changes the ceiling at once: kubectl takes its time to start.
func (e *elasticJob) limit(ctx context.Context, workers int32) {
	GinkgoHelper()
	e.update(ctx, func(spec *v1alpha1.TrainingJobSpec) { spec.Workers.Max = ptr.To(workers) })
}

// finishes waits until the job is complete and nobody of it runs or is about to go, and checks what it
// trained.
func (e *elasticJob) finishes(ctx context.Context, timeout time.Duration) {
	GinkgoHelper()
	e.completes(ctx, timeout)
	Eventually(func(g Gomega) {
		for _, pod := range e.pods(ctx, 0) {
			g.Expect(framework.Ended(&pod)).To(BeTrue(), "%s still runs", pod.Name)
			g.Expect(pod.DeletionTimestamp).To(BeNil(), "%s is about to go", pod.Name)
		}
	}).Should(Succeed())
	e.expectEachSampleOnce(ctx)
}

// sizes are the changes of the world that the job's status tells of, oldest first.
func (e *elasticJob) sizes(ctx context.Context) []string {
	GinkgoHelper()
	var all []string
	for _, resize := range e.get(ctx).Status.Resizes {
		all = append(all, fmt.Sprintf("%d to %d: %s", ptr.Deref(resize.From, 0), ptr.Deref(resize.To, 0), resize.Reason))
	}
	return all
}

// done waits until a step is done, of so many.
func (e *elasticJob) done(step, of int) {
	GinkgoHelper()
	Eventually(e.says, "90s", "50ms").WithArguments(fmt.Sprintf("step %d/%d ", step, of)).Should(BeNumerically(">", 0))
}

// says counts the lines that the programs of the job have printed and that begin like this.
func (e *elasticJob) says(line string) int {
	GinkgoHelper()
	recorded, err := e.logs.Lines()
	Expect(err).NotTo(HaveOccurred())
	n := 0
	for _, text := range recorded {
		for _, printed := range text {
			if strings.HasPrefix(printed, line) {
				n++
			}
		}
	}
	return n
}

// places waits until so many workers have a node.
func (e *elasticJob) places(ctx context.Context, workers int) {
	GinkgoHelper()
	Eventually(func() int {
		placed := 0
		for _, pod := range e.pods(ctx, 0) {
			if pod.Spec.NodeName != "" {
				placed++
			}
		}
		return placed
	}, "90s", "20ms").Should(Equal(workers))
}

// startingProgram is a worker whose program has just been started.
func (e *elasticJob) startingProgram(ctx context.Context) *corev1.Pod {
	GinkgoHelper()
	var found *corev1.Pod
	Eventually(func() *corev1.Pod {
		for _, pod := range e.pods(ctx, 0) {
			if programs, err := containers.Children(&pod, "trainer"); err == nil && len(programs) > 0 {
				found = &pod
			}
		}
		return found
	}, "90s", "20ms").ShouldNot(BeNil())
	return found
}

// unchanged leaves the spec of a job as it is.
func unchanged(*v1alpha1.TrainingJobSpec) {}

var _ = Describe("A world that changes at an awkward moment", short, func() {
	// Programs are reached as processes of this machine.
	local := framework.KindFromEnvironment() == framework.Local

	It("does so in the middle of an evaluation, which begins anew", func(ctx context.Context) {
		e := startElastic(ctx, 1, 3, "--epochs=30", "--eval-every=15", "--eval-time=5s")
		before := e.world(ctx, 0, 3)
		const evaluated = 15 * stepsOfAnEpoch
		e.done(evaluated, 2*evaluated)
		e.limit(ctx, 2)
		smaller := e.world(ctx, before, 2)
		Expect(e.get(ctx).Status.World.FromStep).To(HaveValue(BeEquivalentTo(evaluated)))
		Expect(e.resize(ctx, smaller).StepsLost).To(HaveValue(BeZero()))
		lost := 0
		if local {
			e.done(2*evaluated, 2*evaluated)
			killProgram(e.victim(ctx))
			// Another may be there in time for the next world.
			Eventually(func() int64 { return *e.get(ctx).Status.World.Round }).Should(BeNumerically(">", smaller))
			lost = 1
		}
		e.finishes(ctx, time.Minute)
		e.expectRestarts(ctx, lost, 0)
		// Had the change waited for the end of the evaluation, the world before would have told of it too.
		Expect(e.says("epoch 15: test accuracy")).To(Equal(1))
		Expect(e.accuracies(ctx)).To(HaveLen(1))
	})

	It("grows in the last steps, and a worker that comes too late keeps nobody from the end", func(ctx context.Context) {
		e := startElastic(ctx, 2, 2, "--samples=128", "--epochs=4", "--step-time=1s")
		e.begins(7)
		e.limit(ctx, 3)
		e.finishes(ctx, 30*time.Second)
		e.expectRestarts(ctx, 0, 0)
		Expect(e.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	})

	It("shrinks in the last step of an epoch, and in the last of all it is complete", func(ctx context.Context) {
		// Long enough for growth that has to be tried twice; and who comes late keeps nobody from growing now.
		const epochs = 26
		e := launchElastic(ctx, 1, 3, func(spec *v1alpha1.TrainingJobSpec) {
			spec.Growth.Stabilization = &metav1.Duration{Duration: 3 * time.Second}
		}, "--samples=128", fmt.Sprintf("--epochs=%d", epochs), "--step-time=1s")
		e.trains(ctx)
		before := e.world(ctx, 0, 3)
		// The next step that is the second of its epoch.
		last := e.step()/2*2 + 2
		Expect(last).To(BeNumerically("<", 2*epochs), "the world has grown too late for this")
		e.begins(last)
		e.limit(ctx, 2)
		smaller := e.world(ctx, before, 2)
		Expect(e.resize(ctx, smaller).StepsLost).To(HaveValue(BeZero()))
		e.begins(2 * epochs)
		e.limit(ctx, 1)
		e.finishes(ctx, 30*time.Second)
		e.expectRestarts(ctx, 0, 0)
		Expect(e.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	})

	if !local {
		return
	}
	It("loses a worker in the last evaluation, with none to spare, and keeps its state", func(ctx context.Context) {
		const epochs = 10
		e := startElastic(ctx, 2, 2, fmt.Sprintf("--epochs=%d", epochs), "--eval-time=4s")
		before := e.world(ctx, 0, 2)
		e.done(epochs*stepsOfAnEpoch, epochs*stepsOfAnEpoch)
		killProgram(e.victim(ctx))
		e.finishes(ctx, 2*regroupTimeout)
		Expect(e.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)), "what the other held is enough")
		Expect(e.get(ctx).Status.World.Round).To(HaveValue(BeNumerically(">", before)))
		e.expectRestarts(ctx, 1, 0)
	})

	It("starts although it is to grow, and a program or a pod is lost before the first step", func(ctx context.Context) {
		killed := launchElastic(ctx, 2, 2, unchanged, "--epochs=30", "--start-time=3s")
		deleted := launchElastic(ctx, 2, 2, unchanged, "--epochs=20")
		Eventually(deleted.condition(ctx, v1alpha1.ConditionGangScheduled), "90s", "20ms").Should(HavePrefix("True"))
		forceDelete(ctx, pick(deleted.pods(ctx, 1)))
		killed.places(ctx, 2)
		killed.limit(ctx, 3)
		killProgram(killed.startingProgram(ctx))
		deleted.finishes(ctx, 2*time.Minute)
		deleted.expectRestarts(ctx, 0, 1)
		killed.finishes(ctx, 2*time.Minute)
		killed.expectRestarts(ctx, 1, 0)
	})
})

var _ = Describe("A world of any size", short, func() {
	It("uses each sample once: batches that do not divide, fewer samples than workers", func(ctx context.Context) {
		jobs := []*elasticJob{
			launchElastic(ctx, 3, 3, unchanged, "--epochs=3"),
			launchElastic(ctx, 5, 5, unchanged, "--epochs=3"),
			launchElastic(ctx, 3, 3, unchanged, "--samples=101", "--batch=10", "--epochs=5"),
			launchElastic(ctx, 4, 4, unchanged, "--samples=3", "--batch=8", "--epochs=20"),
		}
		for _, e := range jobs {
			e.finishes(ctx, time.Minute)
			e.expectRestarts(ctx, 0, 0)
		}
	})

	It("grows from 4 to 6 and shrinks to 4 again, in one round each", func(ctx context.Context) {
		e := startElastic(ctx, 4, 4, "--epochs=50")
		before := e.world(ctx, 0, 4)
		e.scale(ctx, 6)
		grown := e.world(ctx, before, 6)
		e.scale(ctx, 4)
		e.world(ctx, grown, 4)
		e.finishes(ctx, 2*time.Minute)
		e.expectRestarts(ctx, 0, 0)
		Expect(e.sizes(ctx)).To(Equal([]string{"4 to 6: CapacityAvailable", "6 to 4: ScaledDown"}))
	})

	It("grows to 5 when of two more workers one never arrives, and is complete without it", func(ctx context.Context) {
		// Names are used once, and in order: this is the last of the six.
		const absent = "digits-1-5"
		window := 3 * time.Second
		e := launchElastic(ctx, 4, 4, func(spec *v1alpha1.TrainingJobSpec) {
			spec.Growth.Stabilization = &metav1.Duration{Duration: window}
		}, "--epochs=50", "--absent="+absent)
		e.trains(ctx)
		before := e.world(ctx, 0, 4)
		e.scale(ctx, 6)
		e.world(ctx, before, 5)
		waiting := e.pods(ctx, 1)
		Expect(waiting).To(HaveLen(6))
		Expect(waiting[5].Name).To(Equal(absent))
		Expect(waiting[5].Spec.NodeName).NotTo(BeEmpty())
		Expect(e.ranks(ctx)).NotTo(HaveKey(absent))
		e.finishes(ctx, 2*time.Minute)
		e.expectRestarts(ctx, 0, 0)
		Expect(e.sizes(ctx)).To(Equal([]string{"4 to 5: CapacityAvailable"}))
	})
})
