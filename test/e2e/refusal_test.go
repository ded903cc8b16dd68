package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

var _ = Describe("Bad input", short, func() {
	DescribeTable("is refused when it is submitted, with the remedy",
		func(ctx context.Context, words string, change func(*v1alpha1.TrainingJob)) {
			namespace := newNamespace(ctx)
			object := framework.NewJob("digits").In(namespace)
			change(object)
			err := cluster.Create(ctx, object)
			Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
			Expect(err).To(MatchError(ContainSubstring(words)))
			var jobs v1alpha1.TrainingJobList
			Expect(cluster.List(ctx, &jobs, client.InNamespace(namespace))).To(Succeed())
			Expect(jobs.Items).To(BeEmpty())
			Expect(leftIn(ctx, namespace)).To(BeEmpty())
		},
		Entry("min above max", "raise max or lower min", func(job *v1alpha1.TrainingJob) { *job.Spec.Workers.Max = 1 }),
		Entry("min 0", "spec.workers.min in body should be greater than or equal to 1", func(job *v1alpha1.TrainingJob) { *job.Spec.Workers.Min = 0 }),
		Entry("sizes without min", "add min to sizes", func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Sizes = []int32{4} }),
		Entry("no command", "set command", inPod(func(spec *corev1.PodSpec) { spec.Containers[0].Command = nil })),
		Entry("two containers and no way to tell which trains", "say in spec.workers.container which one trains",
			inPod(func(spec *corev1.PodSpec) {
				spec.Containers[0].Name = "main"
				spec.Containers = append(spec.Containers, *spec.Containers[0].DeepCopy())
				spec.Containers[1].Name = "logs"
			})),
		Entry("restartPolicy Always", "must be Never or left out", inPod(func(spec *corev1.PodSpec) { spec.RestartPolicy = corev1.RestartPolicyAlways })),
		Entry("a volume name of the agent", "rename that volume",
			inPod(func(spec *corev1.PodSpec) { spec.Volumes = []corev1.Volume{{Name: "concertina-agent"}} })),
		Entry("a name too long", "choose a shorter one", func(job *v1alpha1.TrainingJob) { job.Name = strings.Repeat("a", 49) }),
	)

	DescribeTable("that the schema cannot see is refused in the job's conditions",
		func(ctx context.Context, words string, change func(*v1alpha1.TrainingJob)) {
			namespace := newNamespace(ctx)
			j := submit(ctx, namespace, framework.NewJob("digits").With(func(spec *v1alpha1.TrainingJobSpec) {
				job := &v1alpha1.TrainingJob{Spec: *spec}
				change(job)
				*spec = job.Spec
			}))
			Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(HavePrefix("False InvalidTemplate: "), ContainSubstring(words)))
			Expect(leftIn(ctx, namespace)).To(BeEmpty())
		},
		Entry("a mount of no volume", `container trainer mounts volume "data", which the template does not have: add it to volumes or drop the mount`,
			inPod(func(spec *corev1.PodSpec) {
				spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			})),
		Entry("a mount where the agent is", `choose another path`,
			inPod(func(spec *corev1.PodSpec) {
				spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
				spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/concertina/bin"}}
			})),
	)

	It("that the API server refuses leaves no PodGroup and no pod", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits").WithPod(func(spec *corev1.PodSpec) {
			spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 99999}}
		}))
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False InvalidTemplate: the API server refuses pod digits-1-0"), ContainSubstring("containerPort")))
		Eventually(j.holding(ctx)).Should(BeZero())
		Eventually(groups(ctx, namespace)).Should(BeEmpty())
	})
})

func inPod(change func(*corev1.PodSpec)) func(*v1alpha1.TrainingJob) {
	return func(job *v1alpha1.TrainingJob) { change(&job.Spec.Workers.Template.Spec) }
}

// groups lists the PodGroups of a namespace.
func groups(ctx context.Context, namespace string) func() []string {
	return func() []string {
		left, err := leftIn(ctx, namespace)
		Expect(err).NotTo(HaveOccurred())
		var names []string
		for _, object := range left {
			if strings.Contains(object, "PodGroup") {
				names = append(names, object)
			}
		}
		return names
	}
}

// notStarting is the startTimeout of a gang that will not start. A kubelet takes up to 15 seconds to
// tell that an image could not be pulled: it does so when it tries again.
const notStarting = 25 * time.Second

var _ = Describe("A program that cannot run", short, func() {
	It("because there is no such image is named with the cause, and its gang lets go of its room", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits").StartTimeout(notStarting).
			WithPod(func(spec *corev1.PodSpec) { spec.Containers[0].Image = "localhost/no-such-image:dev" }))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(And(
			HavePrefix("False WaitingForPods: pod digits-1-"), ContainSubstring("container trainer: ErrImage"), ContainSubstring("localhost/no-such-image:dev")))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(And(
			HavePrefix("False BackOff: attempt 1 did not start within spec.gang.startTimeout ("+notStarting.String()+"): pod digits-1-"), ContainSubstring("localhost/no-such-image:dev")))
		Eventually(j.holding(ctx)).Should(BeZero())
		Eventually(groups(ctx, namespace)).Should(BeEmpty())
		j.expectRestarts(ctx, 0, 0)
	})

	It("because it ends at once is tried again, and then given up with its last lines", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", "--rate=-1").MaxRestarts(1))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(And(
			HavePrefix("False BackOff: the next attempt is due at "), ContainSubstring("exited with code 2"),
			ContainSubstring("go-digits: --rate must be above 0")))
		Eventually(j.condition(ctx, v1alpha1.ConditionFailed)).Should(And(
			HavePrefix("True ProgramFailed: the program failed and spec.failure.maxRestarts (1) is used up: "),
			ContainSubstring("worker digits-2-"), ContainSubstring("go-digits: --rate must be above 0")))
		j.expectRestarts(ctx, 1, 0)
		Eventually(j.holding(ctx)).Should(BeZero())
		Eventually(groups(ctx, namespace)).Should(BeEmpty())
	})

	It("because one rank fails again and again is given up, and the worker is named", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		j := submit(ctx, namespace, framework.NewJob("digits", "--fail-at-step=5").MaxRestarts(2))
		Eventually(j.condition(ctx, v1alpha1.ConditionFailed)).Should(And(
			HavePrefix("True ProgramFailed: the program failed and spec.failure.maxRestarts (2) is used up: worker digits-1-"),
			ContainSubstring("(worker rank 0, node "), ContainSubstring("failing in step 5, as --fail-at-step says")))
		j.expectRestarts(ctx, 2, 0)
		Expect(j.get(ctx).Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		Eventually(j.holding(ctx)).Should(BeZero())
	})
})

var _ = Describe("Pod Security restricted", short, func() {
	const enforce = "pod-security.kubernetes.io/enforce=restricted"

	It("passes a job whose template does", func(ctx context.Context) {
		namespace := newNamespace(ctx, enforce)
		submit(ctx, namespace, framework.NewJob("digits", "--epochs=1")).completes(ctx, time.Minute)
	})

	It("names the template's violations, and none of ours", func(ctx context.Context) {
		namespace := newNamespace(ctx, enforce)
		j := submit(ctx, namespace, framework.NewJob("digits").WithPod(func(spec *corev1.PodSpec) {
			spec.Containers[0].SecurityContext = nil
		}))
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False PodsForbidden: the API server refuses pod digits-1-0"),
			ContainSubstring(`violates PodSecurity "restricted:latest"`),
			ContainSubstring(`container "trainer" must set securityContext.allowPrivilegeEscalation=false`),
			Not(ContainSubstring("concertina-agent"))))
		Eventually(j.holding(ctx)).Should(BeZero())
		Eventually(groups(ctx, namespace)).Should(BeEmpty())
	})
})

// Without its definition all PodGroups of the cluster are gone, so this is not for a cluster that
// somebody works with, and nothing else may run meanwhile.
var _ = Describe("A cluster without PodGroups", Serial, func() {
	if framework.KindFromEnvironment() == framework.Existing {
		return
	}
	It("has the job say what to install, and go on by itself once it is", short, func(ctx context.Context) {
		namespace := newNamespace(ctx)
		found := &apiextensionsv1.CustomResourceDefinition{}
		Expect(cluster.Get(ctx, client.ObjectKey{Name: "podgroups.scheduling.x-k8s.io"}, found)).To(Succeed())
		restored := &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: found.Name, Annotations: found.Annotations, Labels: found.Labels},
			Spec:       found.Spec,
		}
		install := func(ctx context.Context) {
			GinkgoHelper()
			Eventually(func() error {
				return client.IgnoreAlreadyExists(cluster.Create(ctx, restored.DeepCopy()))
			}).Should(Succeed())
			Eventually(func() error { return installed(ctx, restored.Name) }).Should(Succeed())
		}
		DeferCleanup(install)
		Expect(cluster.Delete(ctx, found)).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(cluster.Get(ctx, client.ObjectKeyFromObject(found), found)) }).Should(BeTrue())

		j := submit(ctx, namespace, framework.NewJob("digits", "--epochs=1"))
		Eventually(j.condition(ctx, v1alpha1.ConditionAdmitted)).Should(And(
			HavePrefix("False PodGroupsMissing: the cluster does not know PodGroups of scheduling.x-k8s.io"), ContainSubstring("install the PodGroup CRD")))
		Expect(j.podNames(ctx)()).To(BeEmpty())
		install(ctx)
		j.completes(ctx, 2*time.Minute)
		j.expectRestarts(ctx, 0, 0)
	})
})

// installed says why the definition of a kind is not served yet.
func installed(ctx context.Context, name string) error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := cluster.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
		return err
	}
	for _, condition := range crd.Status.Conditions {
		if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue && crd.DeletionTimestamp == nil {
			return nil
		}
	}
	return fmt.Errorf("%s is not established", name)
}
