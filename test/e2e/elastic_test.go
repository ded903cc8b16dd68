package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/containers"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// elasticJob is a job whose worlds change, with everything that its programs print.
type elasticJob struct {
	*job
	logs   *framework.LogRecorder
	worlds *framework.WorldRecorder
	flags  []string
}

// startElastic starts a job that writes a ledger, and waits until it trains.
func startElastic(ctx context.Context, min, max int32, flags ...string) *elasticJob {
	GinkgoHelper()
	namespace := newNamespace(ctx)
	logs, err := cluster.RecordLogs(ctx, namespace, "trainer")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(logs.Stop)
	flags = append([]string{"--ledger", "--step-time=20ms", "--log-every=1"}, flags...)
	worlds, err := cluster.RecordWorlds(ctx, types.NamespacedName{Namespace: namespace, Name: "digits"})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(worlds.Stop)
	e := &elasticJob{logs: logs, worlds: worlds, flags: flags}
	e.job = submit(ctx, namespace, framework.NewJob("digits", flags...).Workers(min, max).MaxRestarts(20))
	e.trains(ctx)
	return e
}

// scale changes the ceiling as a user does.
func (e *elasticJob) scale(ctx context.Context, workers int) {
	GinkgoHelper()
	kubectl := filepath.Join(cluster.Cache, "bin", "kubectl")
	out, err := exec.CommandContext(ctx, kubectl, "--kubeconfig", cluster.Kubeconfig, "--namespace", e.namespace,
		"scale", "trainingjob/"+e.name, fmt.Sprintf("--replicas=%d", workers)).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}

// world waits for a world of so many workers that trains, with a round above one, and returns its round.
func (e *elasticJob) world(ctx context.Context, above int64, workers int32) int64 {
	GinkgoHelper()
	var round int64
	Eventually(func(g Gomega) {
		status := e.get(ctx).Status
		g.Expect(status.World).NotTo(BeNil())
		g.Expect(status.World.Round).To(HaveValue(BeNumerically(">", above)))
		g.Expect(status.World.Workers).To(HaveValue(Equal(workers)))
		g.Expect(e.condition(ctx, v1alpha1.ConditionTraining)()).To(HavePrefix("True WorldFormed"))
		round = *status.World.Round
	}).Should(Succeed())
	return round
}

// resize is the entry of a round in the job's history.
func (e *elasticJob) resize(ctx context.Context, round int64) v1alpha1.Resize {
	GinkgoHelper()
	var found v1alpha1.Resize
	Eventually(func(g Gomega) {
		resizes := e.get(ctx).Status.Resizes
		i := slices.IndexFunc(resizes, func(r v1alpha1.Resize) bool { return r.Round != nil && *r.Round == round })
		g.Expect(i).To(BeNumerically(">=", 0), "round %d in %+v", round, resizes)
		found = resizes[i]
	}).Should(Succeed())
	return found
}

// members are the pods of the current world.
func (e *elasticJob) members(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	var members []corev1.Pod
	for _, pod := range e.pods(ctx, 0) {
		if pod.Annotations[v1alpha1.AnnotationRank] != "" && pod.DeletionTimestamp == nil && !framework.Ended(&pod) {
			members = append(members, pod)
		}
	}
	return members
}

func uids(pods []corev1.Pod) []types.UID {
	var all []types.UID
	for _, pod := range pods {
		all = append(all, pod.UID)
	}
	return all
}

var _ = Describe("A world that changes", short, func() {
	It("grows and shrinks by kubectl scale, in place and without a lost step", func(ctx context.Context) {
		e := startElastic(ctx, 2, 2, "--epochs=60")
		first := uids(e.members(ctx))
		e.scale(ctx, 4)
		grown := e.world(ctx, 1, 4)
		Expect(e.resize(ctx, grown).Reason).To(Equal("CapacityAvailable"))
		Expect(uids(e.members(ctx))).To(ContainElements(first), "who was there stays")
		e.scale(ctx, 3)
		shrunk := e.world(ctx, grown, 3)
		Expect(e.resize(ctx, shrunk).Reason).To(Equal("ScaledDown"))
		e.completes(ctx, 3*time.Minute)
		for _, resize := range e.get(ctx).Status.Resizes {
			Expect(resize.StepsLost).To(Or(BeNil(), HaveValue(BeZero())), "round %d", *resize.Round)
		}
		e.expectRestarts(ctx, 0, 0)
		e.expectEachSampleOnce(ctx)
	})

	It("goes on without a program that was killed, and gets a worker in its place", func(ctx context.Context) {
		e := startElastic(ctx, 2, 3, "--epochs=90")
		before := e.world(ctx, 0, 3)
		killProgram(ctx, e)
		smaller := e.world(ctx, before, 2)
		e.world(ctx, smaller, 3)
		e.completes(ctx, 3*time.Minute)
		e.expectRestarts(ctx, 1, 0)
		e.expectEachSampleOnce(ctx)
	})

	It("goes on without a pod that was deleted by force, and blames no program", func(ctx context.Context) {
		e := startElastic(ctx, 2, 3, "--epochs=90")
		before := e.world(ctx, 0, 3)
		forceDelete(ctx, e)
		e.world(ctx, before, 3)
		e.completes(ctx, 3*time.Minute)
		e.expectRestarts(ctx, 0, 1)
		e.expectEachSampleOnce(ctx)
	})

	It("lets an evicted worker go without a lost step", func(ctx context.Context) {
		e := startElastic(ctx, 2, 3, "--epochs=90")
		before := e.world(ctx, 0, 3)
		evictPod(ctx, e.job)
		e.world(ctx, before, 3)
		e.completes(ctx, 3*time.Minute)
		for _, resize := range e.get(ctx).Status.Resizes {
			Expect(resize.StepsLost).To(Or(BeNil(), HaveValue(BeZero())), "round %d: %s", *resize.Round, resize.Message)
		}
		e.expectRestarts(ctx, 0, 0)
		e.expectEachSampleOnce(ctx)
	})

	It("waits with its state when too few are left, and goes on when others have come", func(ctx context.Context) {
		e := startElastic(ctx, 2, 2, "--epochs=60")
		before := e.world(ctx, 0, 2)
		forceDelete(ctx, e)
		e.world(ctx, before, 2)
		Expect(e.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		e.completes(ctx, 3*time.Minute)
		e.expectRestarts(ctx, 0, 1)
		e.expectEachSampleOnce(ctx)
	})
})

// killProgram ends the training program of one member as a crash does.
func killProgram(ctx context.Context, e *elasticJob) {
	GinkgoHelper()
	members := e.members(ctx)
	Expect(members).NotTo(BeEmpty())
	programs, err := containers.Children(&members[random.IntN(len(members))], "trainer")
	Expect(err).NotTo(HaveOccurred())
	Expect(containers.Signal(programs, syscall.SIGKILL)).To(Succeed())
}

// forceDelete takes the pod of one member out of the API, without grace.
func forceDelete(ctx context.Context, e *elasticJob) {
	GinkgoHelper()
	members := e.members(ctx)
	Expect(members).NotTo(BeEmpty())
	Expect(cluster.Delete(ctx, &members[random.IntN(len(members))], client.GracePeriodSeconds(0))).To(Succeed())
}
