package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/containers"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// elasticJob is a job whose worlds change, with everything that its programs print and that happens
// to its pods.
type elasticJob struct {
	*job
	logs    *framework.LogRecorder
	worlds  *framework.WorldRecorder
	history *framework.PodHistory
	program program
}

// regroupTimeout is how long survivors that are too few wait for others in these tests.
const regroupTimeout = time.Minute

// startElastic starts a job that writes a ledger, and waits until it trains.
func startElastic(ctx context.Context, min, max int32, flags ...string) *elasticJob {
	GinkgoHelper()
	e := launchElastic(ctx, min, max, func(*v1alpha1.TrainingJobSpec) {}, flags...)
	e.trains(ctx)
	return e
}

// launchElastic submits a job that writes a ledger. change has the last word on its spec.
func launchElastic(ctx context.Context, min, max int32, change func(*v1alpha1.TrainingJobSpec), flags ...string) *elasticJob {
	GinkgoHelper()
	return launchProgram(ctx, newNamespace(ctx), goProgram(flags...), min, max, change)
}

// launchProgram submits a job of a program in a namespace that is there.
func launchProgram(ctx context.Context, namespace string, program program, min, max int32, change func(*v1alpha1.TrainingJobSpec)) *elasticJob {
	GinkgoHelper()
	workers := labels.Set{v1alpha1.LabelJob: "digits"}
	logs, err := cluster.RecordLogs(ctx, namespace, workers, "trainer")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(logs.Stop)
	worlds, err := cluster.RecordWorlds(ctx, types.NamespacedName{Namespace: namespace, Name: "digits"})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(worlds.Stop)
	history, err := cluster.WatchPods(ctx, namespace, workers)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(history.Stop)
	recordOperator(ctx, namespace)
	e := &elasticJob{logs: logs, worlds: worlds, history: history, program: program}
	builder := program.builder(ctx, namespace).Workers(min, max).MaxRestarts(1000)
	e.job = submit(ctx, namespace, builder.With(func(spec *v1alpha1.TrainingJobSpec) {
		spec.Failure.RegroupTimeout = &metav1.Duration{Duration: regroupTimeout}
		change(spec)
	}))
	return e
}

// recordOperator keeps what operators say of a namespace for the report of a spec that fails: with one that
// is killed its log goes.
func recordOperator(ctx context.Context, namespace string) {
	GinkgoHelper()
	logs, err := cluster.RecordLogs(ctx, framework.OperatorNamespace, nil, "operator")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		logs.Stop()
		if !CurrentSpecReport().Failed() {
			return
		}
		for pod, lines := range logs.Tail(2000) {
			for _, line := range lines {
				if strings.Contains(line, namespace) {
					GinkgoWriter.Println(pod, line)
				}
			}
		}
	})
}

// scale changes the ceiling as a user does.
func (e *elasticJob) scale(ctx context.Context, workers int) {
	GinkgoHelper()
	out, err := cluster.Kubectl(ctx, "--namespace", e.namespace, "scale", "trainingjob/"+e.name, fmt.Sprintf("--replicas=%d", workers))
	Expect(err).NotTo(HaveOccurred(), out)
}

// snapshotsIn are the snapshots in the memory of a worker, by name.
func snapshotsIn(pod *corev1.Pod) []string {
	GinkgoHelper()
	processes, err := containers.Processes(pod, "trainer")
	Expect(err).NotTo(HaveOccurred())
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/concertina/memory/snapshots/*-*", processes[0].PID))
	Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, file := range files {
		if filepath.Ext(file) == "" {
			names = append(names, filepath.Base(file))
		}
	}
	return names
}

// victim is a member, at random, whose sudden loss leaves a snapshot to go on from.
func (e *elasticJob) victim(ctx context.Context) *corev1.Pod {
	GinkgoHelper()
	members := e.members(ctx)
	return pick(expendable(members, writers(members, e.ranks(ctx))))
}

// expectOneStepLost checks that no recovery has cost more than the step that the loss hit: the others went on with
// the state that they had.
func (e *elasticJob) expectOneStepLost(ctx context.Context) {
	GinkgoHelper()
	for _, resize := range e.get(ctx).Status.Resizes {
		Expect(resize.StepsLost).To(Or(BeNil(), HaveValue(BeNumerically("<=", 1))), "round %d: %s", *resize.Round, resize.Message)
	}
}

// expectNothingLost checks that no step was lost in any change, and no restart was counted.
func (e *elasticJob) expectNothingLost(ctx context.Context) {
	GinkgoHelper()
	for _, resize := range e.get(ctx).Status.Resizes {
		Expect(resize.StepsLost).To(Or(BeNil(), HaveValue(BeZero())), "round %d: %s", *resize.Round, resize.Message)
	}
	e.expectRestarts(ctx, 0, 0)
	e.expectEachSampleOnce(ctx)
}

// step is the furthest step that a program has told of.
func (e *elasticJob) step() int {
	furthest := 0
	for _, tail := range e.logs.Tail(3) {
		for _, line := range tail {
			var round, step int
			if n, _ := fmt.Sscanf(line, "ledger round=%d step=%d", &round, &step); n == 2 {
				furthest = max(furthest, step)
			}
		}
	}
	return furthest
}

// isHeardOf waits until agents know that the operator knows of steps: reports come every second, and a program that fails
// before any of them has its pod replaced.
func (e *elasticJob) isHeardOf(ctx context.Context) {
	GinkgoHelper()
	Eventually(e.step).WithContext(ctx).Should(BeNumerically(">", 150), "steps take 20 ms")
}

var _ = Describe("A world that changes", short, func() {
	It("grows and shrinks by kubectl scale, in place and without a lost step", func(ctx context.Context) {
		e := startElastic(ctx, 2, 2, "--epochs=45")
		first := uids(e.members(ctx))
		e.scale(ctx, 4)
		grown := e.world(ctx, 1, 4)
		Expect(e.resize(ctx, grown).Reason).To(Equal("CapacityAvailable"))
		Expect(uids(e.members(ctx))).To(ContainElements(first), "who was there stays")
		e.scale(ctx, 3)
		shrunk := e.world(ctx, grown, 3)
		Expect(e.resize(ctx, shrunk).Reason).To(Equal("ScaledDown"))
		e.completes(ctx, 3*time.Minute)
		e.expectNothingLost(ctx)
	})

	It("goes on without a program that was killed, which is started anew in its pod", func(ctx context.Context) {
		e := startElastic(ctx, 2, 3, "--epochs=60")
		before := e.world(ctx, 0, 3)
		members := uids(e.membersOf(ctx, 3))
		e.isHeardOf(ctx)
		killProgram(e.victim(ctx))
		e.world(ctx, before, 3)
		Expect(uids(e.membersOf(ctx, 3))).To(ConsistOf(members), "nobody has taken its place")
		// Events are written by themselves, and none waits for them.
		Eventually(e.events(ctx, v1alpha1.EventWorkerRestarted)).Should(HaveLen(1))
		e.completes(ctx, 3*time.Minute)
		e.expectOneStepLost(ctx)
		e.expectRestarts(ctx, 1, 0)
		e.expectEachSampleOnce(ctx)
	})

	It("waits for a program that was killed when too few are left, and its pod still has its snapshots", func(ctx context.Context) {
		e := startElastic(ctx, 2, 2, "--epochs=60")
		before := e.world(ctx, 0, 2)
		members := e.membersOf(ctx, 2)
		holders := writers(members, e.ranks(ctx))
		e.isHeardOf(ctx)
		killed := pick(slices.DeleteFunc(slices.Clone(members), func(pod corev1.Pod) bool { return !holders[pod.UID] }))
		var held []string
		Eventually(func() []string {
			held = snapshotsIn(killed)
			return held
		}, time.Minute).ShouldNot(BeEmpty())
		killProgram(killed)
		Eventually(func() int64 { return *e.get(ctx).Status.World.Round }, time.Minute, "20ms").Should(BeNumerically(">", before))
		// Of those held, or one that was taken since: the state of the world that is over is still there.
		Expect(snapshotsIn(killed)).To(ContainElement(HavePrefix(fmt.Sprintf("%d-", before))), "held before: %v", held)
		e.world(ctx, before, 2)
		Expect(uids(e.membersOf(ctx, 2))).To(ConsistOf(uids(members)))
		Expect(e.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		e.completes(ctx, 3*time.Minute)
		e.expectOneStepLost(ctx)
		e.expectRestarts(ctx, 1, 0)
		e.expectEachSampleOnce(ctx)
	})

	It("goes on without a pod that was deleted by force, and blames no program", func(ctx context.Context) {
		e := startElastic(ctx, 2, 3, "--epochs=60")
		before := e.world(ctx, 0, 3)
		loseByForce(ctx, e.victim(ctx))
		e.world(ctx, before, 3)
		e.completes(ctx, 3*time.Minute)
		e.expectOneStepLost(ctx)
		e.expectRestarts(ctx, 0, 1)
		e.expectEachSampleOnce(ctx)
	})

	It("blames no program for a pod that was deleted by force, whether it could leave or not", func(ctx context.Context) {
		e := startElastic(ctx, 2, 3, "--epochs=60")
		before := e.world(ctx, 0, 3)
		forceDelete(ctx, e.victim(ctx))
		e.world(ctx, before, 3)
		e.completes(ctx, 3*time.Minute)
		e.expectOneStepLost(ctx)
		e.expectEachSampleOnce(ctx)
		status := e.get(ctx).Status
		Expect(status.Restarts.Program).To(Or(BeNil(), HaveValue(BeZero())))
		if slices.Contains(e.sizes(ctx), "3 to 2: WorkerLost") {
			e.expectRestarts(ctx, 0, 1)
			return
		}
		Expect(e.sizes(ctx)).To(ContainElement("3 to 2: Deleted"))
		if ptr.Deref(status.Restarts.Infrastructure, 0) > 0 {
			// Its deletion was seen, and then that it was gone, before anybody had said that it left.
			e.expectRestarts(ctx, 0, 1)
			return
		}
		e.expectNothingLost(ctx)
	})

	It("lets an evicted worker go without a lost step", func(ctx context.Context) {
		e := startElastic(ctx, 2, 3, "--epochs=60")
		before := e.world(ctx, 0, 3)
		evict(ctx, pick(e.members(ctx)))
		e.world(ctx, before, 3)
		e.completes(ctx, 3*time.Minute)
		e.expectNothingLost(ctx)
	})

	It("waits with its state when too few are left, and goes on when others have come", func(ctx context.Context) {
		e := startElastic(ctx, 2, 2, "--epochs=45")
		before := e.world(ctx, 0, 2)
		loseByForce(ctx, e.victim(ctx))
		e.world(ctx, before, 2)
		Expect(e.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		e.completes(ctx, 3*time.Minute)
		e.expectRestarts(ctx, 0, 1)
		e.expectEachSampleOnce(ctx)
	})
})
