package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/containers"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// events are the notes of the job's events for one reason.
func (j *job) events(ctx context.Context, reason string) func() []string {
	return func() []string {
		var list eventsv1.EventList
		Expect(cluster.List(ctx, &list, client.InNamespace(j.namespace))).To(Succeed())
		notes := []string{}
		for i := range list.Items {
			if event := &list.Items[i]; event.Regarding.Name == j.name && event.Reason == reason {
				notes = append(notes, event.Note)
			}
		}
		return notes
	}
}

var _ = Describe("A program at fault", short, func() {
	It("that fails on all ranks at once is given up, with what it said", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		flags := []string{"--fail-everywhere-at-step=5", "--step-time=50ms"}
		j := submit(ctx, namespace, framework.NewJob("digits", flags...).MaxRestarts(1))
		Eventually(j.condition(ctx, v1alpha1.ConditionFailed)).Should(And(
			HavePrefix("True ProgramFailed: the program failed and spec.failure.maxRestarts (1) is used up: "),
			// Who fails first may take the others out of their step before they fail too.
			ContainSubstring("worker digits-"), ContainSubstring("failing in step 5, as --fail-everywhere-at-step says")))
		j.expectRestarts(ctx, 1, 0)
		Eventually(j.holding(ctx)).Should(BeZero())
	})

	It("that keeps away from the gate has a change called off, and trains on", func(ctx context.Context) {
		// Longer than the change may wait, it looks at nothing.
		const busy, patience = 9 * time.Second, 4 * time.Second
		const until = 25 * stepsOfAnEpoch
		e := launchElastic(ctx, 2, 3, func(spec *v1alpha1.TrainingJobSpec) {
			spec.Checkpoint.Timeout = &metav1.Duration{Duration: patience}
		}, "--epochs=30", "--eval-every=25", "--eval-time="+busy.String(), "--poll=false")
		e.trains(ctx)
		before := e.world(ctx, 0, 3)
		e.done(until, 30*stepsOfAnEpoch)
		e.limit(ctx, 2)
		Eventually(e.condition(ctx, v1alpha1.ConditionTraining), busy).Should(HavePrefix("True Resizing: "))
		Eventually(e.condition(ctx, v1alpha1.ConditionTraining), busy).Should(HavePrefix("True WorldFormed"))
		e.begins(until + 1)
		Expect(e.get(ctx).Status.World.Round).To(HaveValue(Equal(before)), "the change waits for its next try")
		e.finishes(ctx, time.Minute)
		e.expectRestarts(ctx, 0, 0)
		Eventually(e.events(ctx, v1alpha1.EventResizeCalledOff)).Should(
			ContainElement(ContainSubstring("not all processes came to the barrier in time")))
	})

	It("whose state does not fit into memory grows by nobody, and trains on", func(ctx context.Context) {
		e := launchElastic(ctx, 2, 2, func(spec *v1alpha1.TrainingJobSpec) {
			spec.Checkpoint.Memory = "1Mi"
		}, "--epochs=35", "--ballast=2097152")
		e.trains(ctx)
		e.scale(ctx, 3)
		e.finishes(ctx, 2*time.Minute)
		e.expectRestarts(ctx, 0, 0)
		Expect(e.sizes(ctx)).To(BeEmpty())
		Eventually(e.events(ctx, v1alpha1.EventResizeCalledOff)).Should(ContainElement(And(
			ContainSubstring("no snapshot could be taken"), ContainSubstring("no space left on device"))))
	})

	It("whose state is larger than anybody knew begins anew with volumes that hold it", func(ctx context.Context) {
		const ballast = 192 << 20 // two are kept while a third is written
		e := launchElastic(ctx, 2, 2, func(spec *v1alpha1.TrainingJobSpec) {
			spec.Checkpoint.Memory = v1alpha1.MemoryAuto
		}, "--epochs=35", fmt.Sprintf("--ballast=%d", ballast))
		Eventually(e.events(ctx, v1alpha1.EventVolumesEnlarged)).Should(ContainElement(And(
			ContainSubstring("has 512Mi for its snapshots and needs"), ContainSubstring("begins anew with volumes of 624Mi"))))
		Eventually(e.condition(ctx, v1alpha1.ConditionSnapshotsFit)).Should(HavePrefix("True VolumesFit: "))
		e.completes(ctx, 2*time.Minute)
		e.expectRestarts(ctx, 0, 0)
		status := e.get(ctx).Status
		Expect(status.Attempt).To(HaveValue(BeEquivalentTo(2)))
		Expect(status.Checkpoint.Size.State).To(HaveValue(BeNumerically(">=", ballast)))
	})

	// Programs are reached as processes of this machine.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}
	It("that stands still in the middle of training is started anew, and the others go on", func(ctx context.Context) {
		const timeout = 10 * time.Second
		e := launchElastic(ctx, 2, 3, func(spec *v1alpha1.TrainingJobSpec) {
			spec.Failure.HangTimeout = &metav1.Duration{Duration: timeout}
		}, "--epochs=100") // a program that is started anew takes its time on a busy machine
		e.trains(ctx)
		before := e.world(ctx, 0, 3)
		// Who stands still before the first step of a world has the programs' patience with each other.
		e.begins(int(*e.get(ctx).Status.World.FromStep) + 2)
		members := e.membersOf(ctx, 3)
		stopped := e.victim(ctx)
		programs, err := containers.Children(stopped, "trainer")
		Expect(err).NotTo(HaveOccurred())
		Expect(programs).NotTo(BeEmpty(), "%s runs no program", stopped.Name)
		Expect(containers.Signal(programs, syscall.SIGSTOP)).To(Succeed())
		began := time.Now()
		Eventually(func() []string { return e.sizes(ctx) }).Should(ContainElement("3 to 2: Hung"))
		AddReportEntry("a hang is over after", time.Since(began).Round(100*time.Millisecond).String())
		Expect(time.Since(began)).To(BeNumerically(">=", timeout), "a step may take so long")
		e.world(ctx, before+1, 3)
		Eventually(func() []types.UID { return uids(e.members(ctx)) }).Should(ConsistOf(uids(members)), "in its pod")
		e.finishes(ctx, 4*time.Minute)
		e.expectRestarts(ctx, 1, 0)
		Expect(e.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	})
})

// The processors are everybody's, so nothing else may run meanwhile.
var _ = Describe("A machine with too much to do", Serial, func() {
	// The nodes are this machine.
	if framework.KindFromEnvironment() != framework.Local {
		return
	}
	It("is not taken for a fault", short, func(ctx context.Context) { saturate(ctx, 20*time.Second) })
	It("is not taken for a fault in ten minutes", long, func(ctx context.Context) { saturate(ctx, 10*time.Minute) })
})

// saturate keeps every processor busy while a job trains, and nothing may come of it.
func saturate(ctx context.Context, duration time.Duration) {
	GinkgoHelper()
	namespace := newNamespace(ctx)
	// A loss would end the job, or be counted.
	j := submit(ctx, namespace, framework.NewJob("digits", framework.Endless...).Workers(3, 3).MaxRestarts(0))
	j.trains(ctx)
	rankZero := j.rankZero(ctx)
	reaches(ctx, rankZero, 5)
	before := j.get(ctx).Status.World
	told := steps(ctx, rankZero)
	for range 2 * runtime.NumCPU() {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		Expect(loop.Start()).To(Succeed())
		DeferCleanup(func() {
			_ = loop.Process.Kill()
			_ = loop.Wait()
		})
	}
	begun := time.Now()
	Consistently(func(g Gomega) {
		status := j.get(ctx).Status
		g.Expect(status.World.Round).To(Equal(before.Round))
		g.Expect(status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		g.Expect(countedIn(&status)).To(Equal(restarts{}))
		g.Expect(j.condition(ctx, v1alpha1.ConditionTraining)()).To(HavePrefix("True WorldFormed"))
	}, duration, "1s").Should(Succeed())
	made := steps(ctx, rankZero)
	first, last := told[len(told)-1], made[len(made)-1]
	Expect(last.number).To(BeNumerically(">", first.number), "steps are made")
	Expect(last.at).To(BeTemporally("~", time.Now(), 10*time.Second), "to the end")
	AddReportEntry("steps a second on a busy machine",
		fmt.Sprintf("%.1f of at most 20", float64(last.number-first.number)/time.Since(begun).Seconds()))
}
