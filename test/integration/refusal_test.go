package integration

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// lastRefusal is the longest pause after a refused batch.
const lastRefusal = 5 * time.Minute

// admissionCache is longer than the API server's admission goes by limits that are gone.
const admissionCache = 45 * time.Second

const podGroups = "podgroups.scheduling.x-k8s.io"

// createQuota makes a quota, with the status that the quota controller would write.
func createQuota(ctx context.Context, namespace string, hard corev1.ResourceList, scopes ...corev1.ScopedResourceSelectorRequirement) *corev1.ResourceQuota {
	GinkgoHelper()
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "team"},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard},
	}
	if len(scopes) > 0 {
		quota.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: scopes}
	}
	Expect(cluster.Create(ctx, quota)).To(Succeed())
	Expect(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := cluster.Get(ctx, client.ObjectKeyFromObject(quota), quota); err != nil {
			return err
		}
		quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{}}
		for name := range hard {
			quota.Status.Used[name] = resource.MustParse("0")
		}
		return cluster.Status().Update(ctx, quota)
	})).To(Succeed())
	return quota
}

// withoutClass is a scope of which nobody can say before admission whether a pod is in it.
var withoutClass = corev1.ScopedResourceSelectorRequirement{
	ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpDoesNotExist}

// countUsed writes how many pods of the namespace count against a quota, as the quota controller does.
func countUsed(ctx context.Context, quota *corev1.ResourceQuota) {
	GinkgoHelper()
	Expect(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := cluster.Get(ctx, client.ObjectKeyFromObject(quota), quota); err != nil {
			return err
		}
		used := *resource.NewQuantity(int64(len(podsIn(ctx, quota.Namespace))), resource.DecimalSI)
		if used.Cmp(quota.Status.Used["pods"]) == 0 {
			return nil
		}
		quota.Status.Used["pods"] = used
		return cluster.Status().Update(ctx, quota)
	})).To(Succeed())
}

// quotaComes has a quota made just before a line is written to the journal of an operator for the first
// time: nobody could know of it.
func quotaComes(op *operator, come func(context.Context), before string) {
	var once sync.Once
	op.answer(func(ctx context.Context, line string) error {
		if line == before {
			once.Do(func() { come(ctx) })
		}
		return nil
	})
}

// meeting has the writers of some lines wait for each other. It says whether a line is one of them.
func meeting(lines ...string) func(line string) bool {
	var missing sync.WaitGroup
	missing.Add(len(lines))
	var mu sync.Mutex
	came := map[string]bool{}
	return func(line string) bool {
		if !slices.Contains(lines, line) {
			return false
		}
		mu.Lock()
		if !came[line] {
			came[line] = true
			missing.Done()
		}
		mu.Unlock()
		missing.Wait()
		return true
	}
}

// lift takes a LimitRange away. The API server may go by it for half a minute more: it keeps what it looked up before its own cache
// had it. Since the operator is told of the change once, and its clock stands still, its requests wait until then.
func lift(ctx context.Context, op *operator, limits *corev1.LimitRange) {
	GinkgoHelper()
	refused := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: limits.Namespace, Name: "probe"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}}},
	}}
	probe := func(ctx context.Context) error { return cluster.Create(ctx, refused.DeepCopy(), client.DryRunAll) }
	Expect(probe(ctx)).NotTo(Succeed(), "the probe has to be one that the limits refuse")
	op.answer(func(ctx context.Context, line string) error {
		if !strings.HasPrefix(line, "ask about Pod ") {
			return nil
		}
		return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, admissionCache, true, func(ctx context.Context) (bool, error) {
			return probe(ctx) == nil, nil
		})
	})
	Expect(cluster.Delete(ctx, limits)).To(Succeed())
}

// expectNothing checks that a job has nothing in the cluster that holds room or quota.
func expectNothing(ctx context.Context, j *job) {
	GinkgoHelper()
	Eventually(j.podNames(ctx)).Should(BeEmpty())
	Eventually(j.groupNames(ctx)).Should(BeEmpty())
}

var _ = Describe("A batch that may not be", func() {
	// The operator's clock stands still here: what goes on by itself does so because it was told
	// of a change, and not because a pause was over.
	It("is not tried while a quota has no room for it, and is once the quota is gone", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		quota := createQuota(ctx, namespace, corev1.ResourceList{"pods": resource.MustParse("1")})
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(Equal(
			"False QuotaExceeded: ResourceQuota team allows 1 pods, 0 are used and the gang of 2 needs 2: 1 too few"))
		expectNothing(ctx, j)
		Expect(op.all()).NotTo(ContainElement(HavePrefix("create")))

		Expect(cluster.Delete(ctx, quota)).To(Succeed())
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-1-0", "digits-1-1"))
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(HavePrefix("True Admitted"))
	})

	It("waits for a quota whose scope depends on admission, and is made once the quota is gone", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		quota := createQuota(ctx, namespace, corev1.ResourceList{"pods": resource.MustParse("1")}, withoutClass)
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(Equal("False Queued: quota team allows 1 of its 2 workers (pods)"))
		op.look(j)
		expectNothing(ctx, j)
		Expect(op.all()).NotTo(ContainElement(HavePrefix("create")))
		Expect(cluster.Delete(ctx, quota)).To(Succeed())
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-1-0", "digits-1-1"))
	})

	It("leaves nothing when a new quota refuses its second pod, and is tried again once the quota is gone", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		var quota *corev1.ResourceQuota
		quotaComes(op, func(ctx context.Context) {
			quota = createQuota(ctx, namespace, corev1.ResourceList{"pods": resource.MustParse("1")}, withoutClass)
		}, "create PodGroup digits-1")
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False QuotaExceeded: the API server refuses pod digits-1-1"),
			ContainSubstring("exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1")))
		expectNothing(ctx, j)
		Eventually(op.all).Should(ContainElements("create Pod digits-1-0", "create Pod digits-1-1: Forbidden", "delete Pod digits-1-0", "delete PodGroup digits-1"))
		op.look(j)
		Expect(op.count("create PodGroup digits-2")).To(BeZero(), "the pause was not kept")
		// What was deleted again is no room for all of it.
		countUsed(ctx, quota)
		op.look(j)
		Consistently(func() int { return op.count("create PodGroup digits-2") }, "300ms").Should(BeZero(), "its own clean-up has it tried again")

		Expect(cluster.Delete(ctx, quota)).To(Succeed())
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-2-2", "digits-2-3"))
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(HavePrefix("True Admitted"))
	})

	It("leaves nothing of many workers that are made at a time", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		quotaComes(op, func(ctx context.Context) {
			createQuota(ctx, namespace, corev1.ResourceList{"pods": resource.MustParse("9")}, withoutClass)
		}, "create PodGroup digits-1")
		j := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) {
			object.Spec.Workers.Min, object.Spec.Workers.Max = ptr.To[int32](40), ptr.To[int32](40)
		})
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(HavePrefix("False QuotaExceeded: the API server refuses pod digits-1-"))
		expectNothing(ctx, j)
		tries := 0
		for _, line := range op.all() {
			if strings.HasPrefix(line, "create Pod ") {
				tries++
			}
		}
		Expect(tries).To(Equal(15), "batches of 1, 2, 4 and 8")
	})

	It("does not hold up another that waits for the same quota", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		// Both have begun when the quota comes. Each gets a part of it, and then none gets the rest.
		var quota *corev1.ResourceQuota
		begun := meeting("create PodGroup one-1", "create PodGroup two-1")
		refused := meeting("create Pod one-1-1", "create Pod two-1-1")
		var once sync.Once
		op.answer(func(ctx context.Context, line string) error {
			if begun(line) {
				once.Do(func() {
					quota = createQuota(ctx, namespace, corev1.ResourceList{"pods": resource.MustParse("2")}, withoutClass)
				})
			}
			refused(line)
			return nil
		})
		one := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) { object.Name = "one" })
		two := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) { object.Name = "two" })
		for _, j := range []*job{one, two} {
			Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(HavePrefix("False QuotaExceeded"))
			expectNothing(ctx, j)
		}
		countUsed(ctx, quota)
		Eventually(one.podNames(ctx)).Should(HaveLen(2), "the older one goes first")
		Eventually(one.condition(ctx, v1alpha1.ConditionAdmitted)).Should(HavePrefix("True Admitted"))
		op.look(two)
		Expect(two.podNames(ctx)()).To(BeEmpty())
		Expect(op.count("create PodGroup two-2")).To(BeZero(), "it has nothing to try while the other one has all")
		Expect(cluster.Delete(ctx, one.get(ctx))).To(Succeed())
		for _, pod := range one.pods(ctx, 0) {
			Expect(cluster.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		}
		countUsed(ctx, quota)
		Eventually(two.podNames(ctx)).Should(HaveLen(2))
	})

	It("names the limit that it breaks, and is tried again once the limit is gone", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypePod, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")}}}}}
		Expect(cluster.Create(ctx, limits)).To(Succeed())
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False PodsForbidden: the API server refuses pod digits-"), ContainSubstring("maximum cpu usage per Pod is 200m")))
		expectNothing(ctx, j)
		lift(ctx, op, limits)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted), admissionCache).Should(HavePrefix("True Admitted"))
	})

	It("is refused while it waits for room, before anything is made for it", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypePod, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")}}}}}
		Expect(cluster.Create(ctx, limits)).To(Succeed())
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) {
			object.Spec.Workers.Template.Spec.NodeSelector = map[string]string{"test": "nowhere"}
		})
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False PodsForbidden: the API server refuses pod digits-1-0"), ContainSubstring("maximum cpu usage per Pod is 200m")))
		Expect(op.count("create PodGroup digits-1")).To(BeZero())
		expectNothing(ctx, j)
		lift(ctx, op, limits)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted), admissionCache).Should(HavePrefix("True Admitted"))
		Eventually(j.condition(ctx, v1alpha1.ConditionGangScheduled)).Should(HavePrefix("False Queued"))
	})

	It("tries a batch again that a default of the namespace made invalid, once that is mended", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")},
				DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}}}}}
		Expect(cluster.Create(ctx, limits)).To(Succeed())
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False InvalidTemplate: the API server refuses pod digits-"), ContainSubstring("must be less than or equal to cpu limit")))
		expectNothing(ctx, j)
		lift(ctx, op, limits)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted), admissionCache).Should(HavePrefix("True Admitted"))
	})

	It("names what Pod Security has against it", func(ctx context.Context) {
		namespace := newNamespace(ctx, "pod-security.kubernetes.io/enforce=restricted")
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False PodsForbidden: the API server refuses pod digits-1-0"),
			ContainSubstring(`violates PodSecurity "restricted:latest"`),
			ContainSubstring(`container "main" must set securityContext.allowPrivilegeEscalation=false`),
			Not(ContainSubstring("concertina-agent"))))
		expectNothing(ctx, j)

		var object corev1.Namespace
		Expect(cluster.Get(ctx, client.ObjectKey{Name: namespace}, &object)).To(Succeed())
		delete(object.Labels, "pod-security.kubernetes.io/enforce")
		Expect(cluster.Update(ctx, &object)).To(Succeed())
		// The API server itself may hear of it later than the operator tries again.
		Eventually(func() string {
			op.clock.advance(lastRefusal)
			j.touch(ctx)
			return j.condition(ctx, v1alpha1.ConditionAdmitted)()
		}).WithPolling(200 * time.Millisecond).Should(HavePrefix("True Admitted"))
	})

	It("passes Pod Security restricted when its template does", func(ctx context.Context) {
		namespace := newNamespace(ctx, "pod-security.kubernetes.io/enforce=restricted")
		startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace, restricted)
		j.gangOf(ctx, 1)
	})

	It("is refused in the API server's words when a pod is invalid", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) {
			object.Spec.Workers.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		})
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False InvalidTemplate: the API server refuses pod digits-1-0"), ContainSubstring("must be less than or equal to cpu limit")))
		expectNothing(ctx, j)
	})

	DescribeTable("is not made from a template that cannot work",
		func(ctx context.Context, message string, change func(*corev1.PodSpec)) {
			namespace := newNamespace(ctx)
			op := startOperator(ctx, namespace, settings{})
			j := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) { change(&object.Spec.Workers.Template.Spec) })
			Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(HavePrefix("False InvalidTemplate: " + message))
			expectNothing(ctx, j)
			Expect(op.all()).NotTo(ContainElement(HavePrefix("create")))
		},
		Entry("mounting what is not there", `container main mounts volume "data", which the template does not have`,
			func(spec *corev1.PodSpec) {
				spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			}),
		Entry("mounting over the agent", `container main mounts volume "data" at /concertina, where the agent needs /concertina`,
			func(spec *corev1.PodSpec) {
				spec.Volumes = []corev1.Volume{{Name: "data"}}
				spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/concertina"}}
			}),
	)

	It("is tried again after longer and longer pauses", func(ctx context.Context) {
		namespace := newNamespace(ctx, "pod-security.kubernetes.io/enforce=restricted")
		op := startOperator(ctx, namespace, settings{clock: stoppedClock()})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(ContainSubstring("refuses pod digits-1-0"))
		asked := func() int { return op.count("ask about Pod digits-2-2: Forbidden") }
		for times, pause := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			Eventually(asked).Should(Equal(times))
			expectNothing(ctx, j)
			op.clock.advance(pause - time.Second)
			op.look(j)
			Expect(asked()).To(Equal(times))
			Expect(j.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)), "nothing is made of what would be refused")
			op.clock.advance(time.Second + pause/4) // some wait a little longer than others
			j.touch(ctx)
		}
	})
})

// The kind is the whole cluster's, so nothing else may run meanwhile.
var _ = Describe("A cluster without PodGroups", Serial, func() {
	remove := func(ctx context.Context) {
		GinkgoHelper()
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: podGroups}}
		Expect(cluster.Delete(ctx, crd)).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(cluster.Get(ctx, client.ObjectKeyFromObject(crd), crd)) }).Should(BeTrue())
	}
	install := func() {
		GinkgoHelper()
		_, err := envtest.InstallCRDs(restConfig, envtest.CRDInstallOptions{Paths: []string{podGroupsFile}, ErrorIfPathMissing: true})
		Expect(err).NotTo(HaveOccurred())
	}
	message := And(HavePrefix("False PodGroupsMissing: the cluster does not know PodGroups of scheduling.x-k8s.io: install the PodGroup CRD"),
		ContainSubstring("the job goes on by itself then"))

	It("says what to install, and goes on by itself once it is", func(ctx context.Context) {
		remove(ctx)
		DeferCleanup(install)
		namespace := newNamespace(ctx)
		op := startOperator(ctx, namespace, settings{})
		j := createJob(ctx, namespace)
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(message)
		Expect(j.podNames(ctx)()).To(BeEmpty())
		Expect(op.all()).NotTo(ContainElement(HavePrefix("create")))
		install()
		Eventually(j.podNames(ctx)).Should(ConsistOf("digits-1-0", "digits-1-1"))
	})

	It("does so too when the kind was there before", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		startOperator(ctx, namespace, settings{})
		createJob(ctx, namespace).gangOf(ctx, 1)
		remove(ctx)
		DeferCleanup(install)
		late := createJob(ctx, namespace, func(object *v1alpha1.TrainingJob) { object.Name = "late" })
		Eventually(late.condition(ctx, v1alpha1.ConditionAdmitted)).Should(message)
		Expect(late.podNames(ctx)()).To(BeEmpty())
		install()
		Eventually(late.podNames(ctx)).Should(ConsistOf("late-1-0", "late-1-1"))
	})
})
