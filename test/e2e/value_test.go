package e2e

import (
	"context"
	"fmt"
	"maps"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// programs are three that scale differently. A step of 64 samples takes --step-time, and --sample-time for each sample of a rank:
// ranks sleep for that, as if each had a device of its own. They take about four minutes: which sizes are best is found out in the
// first one of them, with sizes that are not.
var programs = map[string][]string{
	"linear":  {"--step-time=5ms", "--sample-time=20ms", "--epochs=50"},
	"between": {"--step-time=200ms", "--sample-time=5ms", "--epochs=20"},
	"flat":    {"--step-time=400ms", "--epochs=25"},
}

// stepTimes are those of the programs with so many workers, in seconds, without what agreeing costs.
var stepTimes = map[string]func(workers int32) float64{
	"linear":  func(n int32) float64 { return 0.005 + 64*0.02/float64(n) },
	"between": func(n int32) float64 { return 0.2 + 64*0.005/float64(n) },
	"flat":    func(int32) float64 { return 0.4 },
}

// The settings are the operator's, and the devices the whole cluster's: nothing else may run meanwhile.
var _ = Describe("Jobs that share by what they make of devices", Serial, func() {
	AfterEach(func(ctx context.Context) { Expect(cluster.InstallOperator(ctx)).To(Succeed()) })

	It("settle at the sizes that are best, and are done earlier than with equal shares, each time", long, func(ctx context.Context) {
		for round := range 5 {
			By(fmt.Sprintf("round %d", round+1))
			shareBy(ctx, "ByValue")
			all := devices(ctx)
			jobs := submitAll(ctx, programs)
			settlesByValue(ctx, jobs, all)
			byValue := jobs.average(ctx)
			shareBy(ctx, "Even")
			equal := submitAll(ctx, programs).average(ctx)
			AddReportEntry(fmt.Sprintf("round %d", round+1), fmt.Sprintf("average completion %s by value, %s with equal shares", byValue, equal))
			Expect(byValue).To(BeNumerically("<", equal))
		}
	})

	It("do not trade workers back and forth beside a busy neighbour", long, func(ctx context.Context) {
		shareBy(ctx, "ByValue")
		endless := map[string][]string{}
		for name, flags := range programs {
			endless[name] = append(flags[:len(flags)-1:len(flags)-1], "--epochs=100000")
		}
		all := devices(ctx)
		jobs := submitAll(ctx, endless)
		settlesByValue(ctx, jobs, all)
		before := jobs.rounds(ctx)
		for range 3 {
			busy := burner(ctx, jobs["flat"].namespace)
			Consistently(func() int64 { return jobs.rounds(ctx) - before }, "20s", "1s").Should(BeNumerically("<=", 3), "changes of worlds")
			Expect(cluster.Delete(ctx, busy, client.GracePeriodSeconds(0))).To(Succeed())
			Consistently(func() int64 { return jobs.rounds(ctx) - before }, "20s", "1s").Should(BeNumerically("<=", 3), "changes of worlds")
		}
		for _, j := range jobs {
			j.expectRestarts(ctx, 0, 0)
		}
	})

	It("widen one with a deadline that it would miss, and it meets it", long, func(ctx context.Context) {
		const backfill = 15 * time.Second
		shareBy(ctx, "ByValue", "fleet.backfill="+backfill.String())
		all := devices(ctx)
		flags := []string{"--step-time=5ms", "--sample-time=20ms", "--log-every=1"}
		namespace := newNamespace(ctx)
		other := submit(ctx, namespace, framework.NewJob("other", append(flags, "--epochs=15")...).Workers(1, all).GPUs(1))
		// 30 epochs of 23 steps: 150 s with half of the devices, 95 s with ten, and a minute to get there.
		due := submit(ctx, namespace, framework.NewJob("due", append(flags, "--epochs=30")...).Workers(1, all).GPUs(1).With(func(spec *v1alpha1.TrainingJobSpec) {
			deadline := metav1.NewTime(time.Now().Add(150 * time.Second))
			spec.Deadline = &deadline
		}))
		Eventually(func() int32 { return due.target(ctx) }).Should(BeNumerically(">", all/2))
		var since time.Time
		var longest time.Duration
		Eventually(func(g Gomega) {
			switch {
			case other.target(ctx) >= all/4:
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
			default:
				longest = max(longest, time.Since(since))
			}
			g.Expect(due.get(ctx).Status.CompletionTime).NotTo(BeNil())
		}, "3m").WithPolling(time.Second).Should(Succeed())
		Expect(longest).To(BeNumerically("<", backfill+30*time.Second), "half of its share is kept after fleet.backfill")
		due.completes(ctx, time.Minute)
		status := due.get(ctx)
		Expect(status.Status.CompletionTime.Time).To(BeTemporally("<=", status.Spec.Deadline.Time))
		other.completes(ctx, 4*time.Minute)
		for _, j := range []*job{due, other} {
			j.expectRestarts(ctx, 0, 0)
		}
	})
})

// shareBy has the operator share surplus in this way, with other values of the chart.
func shareBy(ctx context.Context, sharing string, values ...string) {
	GinkgoHelper()
	Expect(cluster.InstallOperator(ctx, append([]string{"fleet.sharing=" + sharing}, values...)...)).To(Succeed())
}

// target is how many workers the job is to have, 0 before that is known.
func (j *job) target(ctx context.Context) int32 {
	GinkgoHelper()
	return ptr.Deref(j.get(ctx).Status.Workers.Target, 0)
}

// crowd are jobs by name that were submitted together.
type crowd map[string]*job

// submitAll submits a job for each program, all with as many workers as there are devices at most.
func submitAll(ctx context.Context, programs map[string][]string) crowd {
	GinkgoHelper()
	all := devices(ctx)
	namespace := newNamespace(ctx)
	jobs := crowd{}
	for name, flags := range programs {
		jobs[name] = submit(ctx, namespace, framework.NewJob(name, flags...).Workers(1, all).GPUs(1))
	}
	return jobs
}

// hesitation is what a change has to be worth to the planner, as a part of the time that is left.
const hesitation = 0.1

// settlesByValue expects that within two minutes sizes are those that are best, and stay for ten seconds: all devices are used, the
// one that makes nothing of more workers has one, and to move one from any job to any other one would be worth no change. Where two
// sizes are as good, a job may go from one to the other before that.
func settlesByValue(ctx context.Context, jobs crowd, all int32) {
	GinkgoHelper()
	held, since := map[string]int32{}, time.Now()
	sizes := func(g Gomega) {
		have, sum := map[string]int32{}, int32(0)
		for name, j := range jobs {
			have[name] = j.target(ctx)
			sum += have[name]
		}
		if !maps.Equal(have, held) {
			held, since = have, time.Now()
		}
		g.Expect(sum).To(Equal(all), "workers of %v", have)
		g.Expect(have["flat"]).To(BeEquivalentTo(1), "flat of %v", have)
		for from, slower := range stepTimes {
			for to, faster := range stepTimes {
				if from == to || have[from] <= 1 {
					continue
				}
				gain := faster(have[to])/faster(have[to]+1) - 1
				loss := 1 - slower(have[from])/slower(have[from]-1)
				g.Expect(gain-loss).To(BeNumerically("<=", hesitation), "one worker more for %s and one less for %s, of %v", to, from, have)
			}
		}
		g.Expect(time.Since(since)).To(BeNumerically(">=", 10*time.Second), "for how long they have had %v", have)
	}
	Eventually(sizes, 2*time.Minute+10*time.Second, "500ms").Should(Succeed())
}

// average is how long the jobs take from their submission on.
func (c crowd) average(ctx context.Context) time.Duration {
	GinkgoHelper()
	var sum time.Duration
	for _, j := range c {
		j.completes(ctx, 10*time.Minute)
		object := j.get(ctx)
		sum += object.Status.CompletionTime.Sub(object.CreationTimestamp.Time)
	}
	return sum / time.Duration(len(c))
}

// rounds are the worlds that the jobs have had.
func (c crowd) rounds(ctx context.Context) (sum int64) {
	GinkgoHelper()
	for _, j := range c {
		sum += *j.get(ctx).Status.World.Round
	}
	return sum
}

// burner is a pod that uses a processor for itself.
func burner(ctx context.Context, namespace string) client.Object {
	GinkgoHelper()
	job := framework.NewJob("busy", "--epochs=1000000", "--log-every=1000000").In(namespace)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "busy-"}, Spec: job.Spec.Workers.Template.Spec}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	Expect(cluster.Create(ctx, pod)).To(Succeed())
	Eventually(func() corev1.PodPhase {
		Expect(cluster.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		return pod.Status.Phase
	}).Should(Equal(corev1.PodRunning))
	return pod
}
