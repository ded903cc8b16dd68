package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// The devices are the whole cluster's, so nothing else may run meanwhile.
var _ = Describe("Jobs that live together", Serial, func() {
	It("lend their surplus to one of higher priority, which gives it back, and lose no step", short, func(ctx context.Context) {
		all := devices(ctx)
		low := launchElastic(ctx, 2, all, oneDevice, "--epochs=120")
		low.trains(ctx)
		full := low.whole(ctx, all)

		high := submit(ctx, low.namespace, framework.NewJob("urgent", "--epochs=8", "--step-time=20ms").
			Workers(4, 4).GPUs(1).Priority(priorityClass(ctx, 1000)))
		reclaimed := low.world(ctx, full, all-4) // it grows again soon after the other one has trained
		high.hasTrained(ctx)
		resize := low.resize(ctx, reclaimed)
		Expect(resize.Reason).To(Equal("Reclaimed"))
		Expect(resize.Message).To(ContainSubstring(high.namespace + "/urgent"))
		Expect(resize.StepsLost).To(Or(BeNil(), HaveValue(BeZero())))
		high.completes(ctx, 2*time.Minute)
		high.expectRestarts(ctx, 0, 0)
		low.world(ctx, reclaimed, all)
		low.endsWell(ctx)
	})

	It("share what is left over, and do not trade it back and forth", short, func(ctx context.Context) { settles(ctx, 20*time.Second) })
	It("share what is left over for two minutes, and do not trade it back and forth", long, func(ctx context.Context) {
		settles(ctx, 2*time.Minute)
	})

	It("end for one of higher priority only where nothing less helps, and only those that say so", short, func(ctx context.Context) {
		all := devices(ctx)
		namespace := newNamespace(ctx)
		half := all / 2
		evict := func(spec *v1alpha1.TrainingJobSpec) { spec.Preemption.Policy = v1alpha1.PreemptionEvict }
		stays := submit(ctx, namespace, framework.NewJob("stays", framework.Endless...).Workers(half, half).GPUs(1))
		goes := submit(ctx, namespace, framework.NewJob("goes", framework.Endless...).Workers(half, half).GPUs(1).With(evict))
		stays.trains(ctx)
		goes.trains(ctx)

		urgent := submit(ctx, namespace, framework.NewJob("urgent", "--epochs=3").Workers(half, half).GPUs(1).Priority(priorityClass(ctx, 1000)))
		// It waits for no longer than the other one lives, which trains for a moment only.
		Eventually(func(g Gomega) {
			status := goes.get(ctx).Status
			g.Expect(meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionGangScheduled)).To(
				And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonQueued)))
			g.Expect(status.Queue.WaitsFor).NotTo(BeEmpty())
		}).Should(Succeed())
		urgent.hasTrained(ctx)
		urgent.completes(ctx, 2*time.Minute)
		goes.trains(ctx) // it has queued again
		for _, j := range []*job{stays, goes} {
			j.expectRestarts(ctx, 0, 0)
		}
		Expect(stays.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		Expect(goes.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(2)))
	})

	It("end exactly as many as a gang needs of those that say so, and none for one that would not start even so", short, func(ctx context.Context) {
		all := devices(ctx)
		part := (all - 2) / 4
		lender := launchElastic(ctx, part, all, oneDevice, "--epochs=100000")
		start := func(name string, priority int32) *job {
			return submit(ctx, lender.namespace, framework.NewJob(name, framework.Endless...).Workers(part, part).GPUs(1).
				Priority(priorityClass(ctx, priority)).
				With(func(spec *v1alpha1.TrainingJobSpec) { spec.Preemption.Policy = v1alpha1.PreemptionEvict }))
		}
		// Neither the oldest nor the youngest of those that may go is worth least.
		left, middle, right := start("left", 100), start("middle", 1), start("right", 50)
		most := all - 3*part
		everybody := map[*job]int32{lender.job: most, left: part, middle: part, right: part}
		before := map[*job][]types.UID{}
		rounds := map[*job]int64{}
		for j, workers := range everybody {
			rounds[j] = j.world(ctx, 0, workers)
			before[j] = uids(j.membersOf(ctx, int(workers)))
		}
		// harmed are those that do not train in the world that they had, with all of its workers.
		harmed := func() []string {
			names := []string{}
			for j := range everybody {
				status, training := j.get(ctx).Status, j.condition(ctx, v1alpha1.ConditionTraining)()
				if *status.Attempt != 1 || status.World == nil || *status.World.Round != rounds[j] ||
					!strings.HasPrefix(training, "True WorldFormed") || !slices.Equal(uids(j.members(ctx)), before[j]) {
					names = append(names, j.name)
				}
			}
			return names
		}
		class := priorityClass(ctx, 1000)

		// One place more than there is when all who may go have gone.
		tooMany := all - part + 1
		vain := submit(ctx, lender.namespace, framework.NewJob("vain", "--epochs=1").Workers(tooMany, tooMany).GPUs(1).Priority(class))
		Eventually(vain.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(
			And(HavePrefix("False Queued: "), ContainSubstring(", and what others have cannot be taken")))
		Consistently(harmed, "3s").Should(BeEmpty())
		Expect(cluster.Delete(ctx, vain.get(ctx))).To(Succeed())
		Eventually(vain.gone).WithContext(ctx).Should(BeTrue())

		// All that is lent, and what two of them have.
		need := most - part + 2*part
		urgent := submit(ctx, lender.namespace, framework.NewJob("urgent", framework.Endless...).Workers(need, need).GPUs(1).Priority(class))
		urgent.trains(ctx)
		reclaimed := lender.world(ctx, rounds[lender.job], part)
		Expect(lender.resize(ctx, reclaimed).Reason).To(Equal("Reclaimed"))
		for _, j := range []*job{middle, right} {
			Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(HavePrefix("False Queued: "))
		}
		Consistently(harmed, "3s").Should(ConsistOf(lender.name, middle.name, right.name))
		Expect(cluster.Delete(ctx, urgent.get(ctx))).To(Succeed())
		for _, j := range []*job{middle, right} {
			j.trains(ctx) // it has queued again
			Expect(j.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(2)))
			j.expectRestarts(ctx, 0, 0)
		}
		lender.world(ctx, reclaimed, most)
		Expect(harmed()).To(ConsistOf(lender.name, middle.name, right.name))
		left.expectRestarts(ctx, 0, 0)
		lender.expectUnharmed(ctx)
	})

	It("give surplus to one that has lost a worker and has no room for another, and lose no step", short, func(ctx context.Context) {
		devices(ctx)
		hurt := launchElastic(ctx, 2, 2, oneDevice, "--epochs=50")
		hurt.trains(ctx)
		first := hurt.whole(ctx, 2)
		most := devicesLeft(ctx)
		lender := launchElastic(ctx, 2, most, oneDevice, "--epochs=45")
		lender.trains(ctx)
		full := lender.whole(ctx, most)
		hurt.isHeardOf(ctx)

		// What the lost one had is free then, and closed.
		victim := hurt.victim(ctx)
		DeferCleanup(cluster.Cordon, victim.Spec.NodeName, false)
		Expect(cluster.Cordon(ctx, victim.Spec.NodeName, true)).To(Succeed())
		kept := slices.DeleteFunc(uids(hurt.members(ctx)), func(uid types.UID) bool { return uid == victim.UID })
		loseByForce(ctx, victim)

		resize := lender.resize(ctx, lender.world(ctx, full, most-1))
		Expect(resize.Reason).To(Equal("Reclaimed"))
		Expect(resize.Message).To(ContainSubstring(hurt.namespace + "/" + hurt.name))
		goesOn := hurt.resize(ctx, hurt.world(ctx, first, 2))
		// The API server may show its deletion before it is gone: then its world was about to let it go.
		Expect(goesOn.Reason).To(Or(Equal("WorkerLost"), Equal("Deleted")))
		members := hurt.membersOf(ctx, 2)
		Expect(uids(members)).To(ContainElements(kept), "who was left has waited")
		Expect(uids(members)).NotTo(ContainElement(victim.UID))
		hurt.completes(ctx, 3*time.Minute)
		hurt.expectRestarts(ctx, 0, 1)
		hurt.expectOneStepLost(ctx)
		hurt.expectEachSampleOnce(ctx)
		Expect(hurt.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		lender.endsWell(ctx)
		Expect(lender.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	})

	It("use the room that a gang waits for, and hand it over when it fits", short, func(ctx context.Context) {
		all := devices(ctx)
		low := launchElastic(ctx, 2, all, oneDevice, "--epochs=100000")
		holder := submit(ctx, low.namespace, framework.NewJob("holder", framework.Endless...).Workers(2, 2).GPUs(1))
		holder.trains(ctx)
		low.trains(ctx)
		most := all - 2
		full := low.whole(ctx, most)

		// All but the min of the first job and the other job's two.
		waits := submit(ctx, low.namespace, framework.NewJob("waits", "--epochs=3").Workers(most, most).GPUs(1))
		Eventually(waits.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(HavePrefix("False Queued: "))
		Consistently(func() int32 { return *low.get(ctx).Status.Workers.Target }, "3s").Should(Equal(most), "it cannot start yet, and the room would idle")
		Expect(cluster.Delete(ctx, holder.get(ctx))).To(Succeed())
		round := low.world(ctx, full, 2) // it grows again soon after the other one has trained
		waits.hasTrained(ctx)
		Expect(low.resize(ctx, round).StepsLost).To(Or(BeNil(), HaveValue(BeZero())))
		waits.completes(ctx, 2*time.Minute)
		low.world(ctx, round, all)
		low.expectUnharmed(ctx)
	})

	It("have workers move where a gang has room in sum and not on one node, in one pause, and lose no step", short, func(ctx context.Context) {
		roomIsBack(ctx)
		nodes, err := cluster.ReadyNodes(ctx)
		Expect(err).NotTo(HaveOccurred())
		// One node has two devices free, and each of the others one.
		fill(ctx, int64(len(nodes)+1))
		low := launchElastic(ctx, 2, 2, oneDevice, "--epochs=100000")
		low.trains(ctx)
		full := low.whole(ctx, 2)
		members := low.members(ctx)
		whole := members[0].Spec.NodeName
		Expect(low.on(ctx, whole)).To(HaveLen(2), "workers that fit on one node are on one")

		gang := submit(ctx, low.namespace, framework.NewJob("gang", "--epochs=3").Workers(1, 1).GPUs(2))
		gang.hasTrained(ctx)
		for _, pod := range gang.pods(ctx, 0) {
			Expect(pod.Spec.NodeName).To(Equal(whole))
		}
		moved := low.world(ctx, full, 2)
		Expect(low.resize(ctx, moved).Reason).To(Equal("Moved"))
		Expect(low.resize(ctx, moved).Message).To(ContainSubstring(gang.namespace + "/gang"))
		for _, pod := range low.membersOf(ctx, 2) {
			Expect(uids(members)).NotTo(ContainElement(pod.UID), "both are elsewhere")
		}
		worlds, err := low.worlds.Worlds()
		Expect(err).NotTo(HaveOccurred())
		for round, world := range worlds {
			if round > full {
				Expect(round).To(Equal(moved), "%+v came between", world)
			}
		}
		gang.completes(ctx, 2*time.Minute)
		low.expectUnharmed(ctx)
	})

	It("make room at once although steps take minutes", short, func(ctx context.Context) {
		low, _ := madeRoomInSlowSteps(ctx, 10*time.Minute)
		Expect(low.get(ctx).Status.World.Reason).To(Equal("Reclaimed"))
	})

	// What a change has cost is known once a step was made after it.
	It("say what it cost to make room while steps take a minute", long, func(ctx context.Context) {
		low, round := madeRoomInSlowSteps(ctx, time.Minute)
		var resize v1alpha1.Resize
		Eventually(func(g Gomega) {
			resizes := low.get(ctx).Status.Resizes
			i := slices.IndexFunc(resizes, func(r v1alpha1.Resize) bool { return *r.Round == round })
			g.Expect(i).To(BeNumerically(">=", 0), "round %d in %+v", round, resizes)
			resize = resizes[i]
		}, "3m").Should(Succeed())
		Expect(resize.Reason).To(Equal("Reclaimed"))
		Expect(resize.Message).To(HaveSuffix("not all processes came to the barrier in time"))
		Expect(resize.StepsLost).To(HaveValue(BeZero()), "the step that was cut short was not made, and the others have their state")
		Expect(resize.Pause).NotTo(BeNil())
		Expect(resize.Pause.Duration).To(And(BeNumerically(">=", barrierTimeout), BeNumerically("<", 3*barrierTimeout)), "nobody waits for the step")
		Eventually(low.events(ctx, v1alpha1.EventResized)).Should(ContainElement(And(
			HavePrefix(fmt.Sprintf("round %d: ", round)), ContainSubstring("(Reclaimed)"),
			HaveSuffix("training paused for "+resize.Pause.Duration.String()))))
		low.expectRestarts(ctx, 0, 0)
		Expect(low.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	})

	It("go on with the same workers when the operator dies while they make room", long, func(ctx context.Context) {
		all := devices(ctx)
		low := launchElastic(ctx, 2, all, oneDevice, "--epochs=100000")
		low.trains(ctx)
		for i := range 5 {
			round := low.whole(ctx, all)
			high := submit(ctx, low.namespace, framework.NewJob(fmt.Sprintf("urgent-%d", i), "--epochs=3").
				Workers(4, 4).GPUs(1).Priority(priorityClass(ctx, 1000)))
			var marked []string
			Eventually(func() int {
				marked = low.marked(ctx)
				return len(marked)
			}).WithPolling(10 * time.Millisecond).Should(Equal(4))
			Expect(cluster.KillOperator(ctx)).To(Succeed())
			low.world(ctx, round, all-4)
			// The next operator lets those go who left, if this one did not come to it.
			Eventually(func() (counts struct{ Stay, Leave int32 }) {
				for _, member := range low.members(ctx) {
					if slices.Contains(marked, member.Name) {
						counts.Leave++
					} else {
						counts.Stay++
					}
				}
				return counts
			}, "90s").Should(Equal(struct{ Stay, Leave int32 }{all - 4, 0}), "who was marked leaves, and nobody in its place")
			high.completes(ctx, 3*time.Minute)
		}
		low.expectUnharmed(ctx)
	})

	It("are not made to shrink and grow again and again by a stream of short ones", long, func(ctx context.Context) {
		all := devices(ctx)
		low := launchElastic(ctx, 2, all, oneDevice, "--epochs=100000")
		low.trains(ctx)
		low.whole(ctx, all)
		class := priorityClass(ctx, 1000)
		for i := range 10 {
			high := submit(ctx, low.namespace, framework.NewJob(fmt.Sprintf("short-%d", i), "--epochs=1").Workers(4, 4).GPUs(1).Priority(class))
			high.completes(ctx, 2*time.Minute)
		}
		grown := 0
		for _, resize := range low.get(ctx).Status.Resizes {
			if resize.Reason == "CapacityAvailable" {
				grown++
			}
		}
		Expect(grown).To(BeNumerically("<", 8), "it has grown back between most of them")
		low.expectUnharmed(ctx)
	})
})

// barrierTimeout is how long a job whose steps are slow is waited for in these tests.
const barrierTimeout = 5 * time.Second

// madeRoomInSlowSteps has a job whose steps have become slow make room for one of higher priority, at once. It returns
// the former, and the round of its first world without those who left.
func madeRoomInSlowSteps(ctx context.Context, slow time.Duration) (*elasticJob, int64) {
	GinkgoHelper()
	all := devices(ctx)
	low := launchElastic(ctx, 2, all, func(spec *v1alpha1.TrainingJobSpec) {
		oneDevice(spec)
		spec.Checkpoint.Timeout = &metav1.Duration{Duration: barrierTimeout}
	}, "--epochs=100000", "--slow-from=400", "--slow-time="+slow.String())
	low.trains(ctx)
	full := low.whole(ctx, all)
	Eventually(low.step, "60s").Should(BeNumerically(">=", 400))
	high := submit(ctx, low.namespace, framework.NewJob("urgent", "--epochs=3").
		Workers(4, 4).GPUs(1).Priority(priorityClass(ctx, 1000)))
	Eventually(high.condition(ctx, v1alpha1.ConditionTraining), "45s").Should(Or(HavePrefix("True WorldFormed"), HavePrefix("False Finished")))
	round := low.world(ctx, full, all-4)
	high.completes(ctx, 2*time.Minute)
	return low, round
}

// settles runs two elastic jobs of 2 to 4 in room for 6, and looks whether they come to rest.
func settles(ctx context.Context, rest time.Duration) {
	GinkgoHelper()
	roomIsBack(ctx)
	fill(ctx, 6)
	left := launchElastic(ctx, 2, 4, oneDevice, "--epochs=100000")
	right := launchElastic(ctx, 2, 4, oneDevice, "--epochs=100000")
	left.trains(ctx)
	right.trains(ctx)
	sizes := func() []int32 {
		return []int32{*left.get(ctx).Status.Workers.Target, *right.get(ctx).Status.Workers.Target}
	}
	// A target may be taken back before its pods are made: who trains later has its part of the room as well.
	var settled []int32
	Eventually(func(g Gomega) {
		settled = sizes()
		g.Expect(settled).To(Or(Equal([]int32{4, 2}), Equal([]int32{3, 3}), Equal([]int32{2, 4})))
		for i, j := range []*elasticJob{left, right} {
			g.Expect(j.get(ctx).Status.World.Workers).To(HaveValue(Equal(settled[i])))
		}
	}).Should(Succeed())
	Consistently(sizes, rest).Should(Equal(settled))
	left.expectUnharmed(ctx)
	right.expectUnharmed(ctx)
}

// fill has pods hold all devices but so many, which lie on as many nodes as there are, until the spec ends.
func fill(ctx context.Context, left int64) {
	GinkgoHelper()
	fillers, err := cluster.LeaveRoom(ctx, newNamespace(ctx), left)
	for _, filler := range fillers {
		DeferCleanup(func(ctx context.Context) error { return cluster.Delete(ctx, filler, client.GracePeriodSeconds(0)) })
	}
	Expect(err).NotTo(HaveOccurred())
}

// devices is how many devices nobody holds.
func devices(ctx context.Context) int32 {
	GinkgoHelper()
	roomIsBack(ctx)
	free, err := cluster.FreeDevices(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(free).To(BeNumerically(">=", 8))
	return int32(free)
}

// devicesLeft is how many devices nobody holds while jobs run.
func devicesLeft(ctx context.Context) int32 {
	GinkgoHelper()
	free, err := cluster.FreeDevices(ctx)
	Expect(err).NotTo(HaveOccurred())
	return int32(free)
}

// oneDevice has each worker ask for one.
func oneDevice(spec *v1alpha1.TrainingJobSpec) {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	resources := &spec.Workers.Template.Spec.Containers[0].Resources
	resources.Requests[framework.GPU] = one
	resources.Limits = corev1.ResourceList{framework.GPU: one}
}

// priorityClass makes a class with a value, until the spec ends.
func priorityClass(ctx context.Context, value int32) string {
	GinkgoHelper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}, Value: value}
	Expect(cluster.Create(ctx, class)).To(Succeed())
	DeferCleanup(func(ctx context.Context) error { return cluster.Delete(ctx, class) })
	return class.Name
}

// marked names the workers that are to leave for another job.
func (e *elasticJob) marked(ctx context.Context) []string {
	GinkgoHelper()
	var names []string
	for _, pod := range e.pods(ctx, 0) {
		if mark, marked := fleet.MarkOf(&pod); marked && mark.Reason == fleet.Reclaimed {
			names = append(names, pod.Name)
		}
	}
	return names
}

// expectUnharmed checks that a job that goes on has lost no step, and was never started over.
func (e *elasticJob) expectUnharmed(ctx context.Context) {
	GinkgoHelper()
	for _, resize := range e.get(ctx).Status.Resizes {
		Expect(resize.StepsLost).To(Or(BeNil(), HaveValue(BeZero())), "round %d: %s", *resize.Round, resize.Message)
	}
	e.expectRestarts(ctx, 0, 0)
	Expect(e.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
}

// endsWell waits until the job is complete, and checks that it has lost nothing.
func (e *elasticJob) endsWell(ctx context.Context) {
	GinkgoHelper()
	e.completes(ctx, 5*time.Minute)
	e.expectNothingLost(ctx)
}
