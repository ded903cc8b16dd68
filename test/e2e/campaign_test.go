package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// Everything happens to the operator and to the whole cluster here, so nothing else may run meanwhile.
var _ = Describe("A campaign of losses", Serial, long, func() {
	It("never has two gangs of a job at once, never uses a name twice, blames no program, and every job completes", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		history, err := cluster.WatchPods(ctx, namespace, nil)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(history.Stop)
		var jobs []*job
		for i := range 3 {
			jobs = append(jobs, submit(ctx, namespace, framework.NewJob(fmt.Sprintf("digits-%d", i), "--epochs=200", "--step-time=25ms").
				Workers(2, 2).MaxRestarts(0)))
		}
		disturbances := []func(context.Context, *job){deletePod, evictPod, suspendAndResume, killOperator}
		for round := range 15 {
			j := jobs[random.IntN(len(jobs))]
			disturb := random.IntN(len(disturbances))
			By(fmt.Sprintf("round %d: %s, disturbance %d", round+1, j.name, disturb))
			disturbances[disturb](ctx, j)
			// Some come at once, some meet a world that trains again.
			if random.IntN(2) == 0 {
				Eventually(func() string {
					return j.condition(ctx, v1alpha1.ConditionTraining)() + j.condition(ctx, v1alpha1.ConditionComplete)()
				}, "3m").Should(Or(HavePrefix("True"), ContainSubstring("True Completed")))
			}
		}
		for _, j := range jobs {
			j.completes(ctx, 5*time.Minute)
			Expect(j.get(ctx).Status.Restarts.Program).To(Or(BeNil(), HaveValue(BeZero())))
		}
		changes, err := history.Changes()
		Expect(err).NotTo(HaveOccurred())
		expectOneGangAtATime(changes)
		expectNamesUsedOnce(changes)
	})
})

func deletePod(ctx context.Context, j *job) {
	if pods := j.pods(ctx, 0); len(pods) > 0 {
		forceDelete(ctx, pick(pods))
	}
}

func evictPod(ctx context.Context, j *job) {
	if pods := j.pods(ctx, 0); len(pods) > 0 {
		evict(ctx, pick(pods))
	}
}

func suspendAndResume(ctx context.Context, j *job) {
	j.suspend(ctx, true)
	if random.IntN(2) == 0 {
		Eventually(j.holding(ctx)).Should(BeZero())
	}
	j.suspend(ctx, false)
}

func killOperator(ctx context.Context, _ *job) {
	// The one before may not have started yet.
	Eventually(func() error { return cluster.KillOperator(ctx) }).Should(Succeed())
}

// expectOneGangAtATime checks that no pod of a job was bound while one of an earlier attempt had not
// ended.
func expectOneGangAtATime(changes []framework.Change) {
	GinkgoHelper()
	bound := map[string]map[string]string{}
	for _, change := range changes {
		pod := change.Pod
		name, attempt := pod.Labels[v1alpha1.LabelJob], pod.Labels[v1alpha1.LabelAttempt]
		if bound[name] == nil {
			bound[name] = map[string]string{}
		}
		if change.Gone || framework.Ended(pod) {
			delete(bound[name], pod.Name)
			continue
		}
		if pod.Spec.NodeName == "" {
			continue
		}
		bound[name][pod.Name] = attempt
		for other, of := range bound[name] {
			Expect(of).To(Equal(attempt), "%s is bound beside %s\n%s", pod.Name, other, framework.Describe(changes))
		}
	}
}
