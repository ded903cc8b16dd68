package e2e

import (
	"context"
	"fmt"
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

var _ = Describe("A job with a storage", short, func() {
	var namespace, url string
	BeforeEach(func(ctx context.Context) {
		namespace = newNamespace(ctx)
		url = startS3(ctx, namespace)
	})
	stored := func(name string, interval time.Duration) *framework.Job {
		return framework.NewJob(name, framework.Endless...).With(func(spec *v1alpha1.TrainingJobSpec) {
			spec.Checkpoint.Storage = &v1alpha1.StorageSpec{URL: url, SecretName: "s3"}
			spec.Checkpoint.Interval = &metav1.Duration{Duration: interval}
		})
	}
	// goesOn waits for the second attempt, and sees that it begins with what the first has done.
	goesOn := func(ctx context.Context, j *job) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			status := j.get(ctx).Status
			g.Expect(status.Attempt).To(HaveValue(BeEquivalentTo(2)))
			g.Expect(status.World).NotTo(BeNil())
			g.Expect(status.World.Attempt).To(HaveValue(BeEquivalentTo(2)))
			g.Expect(status.World.FromStep).To(Equal(status.Checkpoint.Step))
		}, "2m").Should(Succeed())
		j.trains(ctx)
		Eventually(j.events(ctx, v1alpha1.EventRestored)).Should(ConsistOf(ContainSubstring("the attempt goes on from step")))
		j.expectRestarts(ctx, 0, 0) // nobody was lost
	}

	It("goes on where it was when it is resumed, and another job begins with its checkpoint", func(ctx context.Context) {
		j := submit(ctx, namespace, stored("digits", 10*time.Second))
		j.trains(ctx)
		durable := func() int64 { return ptr.Deref(j.get(ctx).Status.Checkpoint.Step, 0) }
		Eventually(durable).Should(BeNumerically(">", 0))
		for _, pod := range j.members(ctx) {
			for _, status := range pod.Status.InitContainerStatuses {
				Expect(status.RestartCount).To(BeZero(), "%s of %s", status.Name, pod.Name)
			}
		}
		j.suspend(ctx, true)
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended), soon).Should(HavePrefix("True Suspended"))
		Eventually(j.podNames(ctx), soon).Should(BeEmpty())
		left := durable()
		Expect(left).To(BeNumerically(">=", *j.get(ctx).Status.Progress.Step))

		j.suspend(ctx, false)
		j.trains(ctx)
		Expect(*j.get(ctx).Status.Attempt).To(BeEquivalentTo(2))
		Expect(*j.get(ctx).Status.World.FromStep).To(Equal(left))
		j.expectRestarts(ctx, 0, 0)

		other := submit(ctx, namespace, stored("heir", 10*time.Second).With(func(spec *v1alpha1.TrainingJobSpec) {
			spec.Checkpoint.RestoreFrom = namespace + "/digits"
		}))
		other.trains(ctx)
		Expect(*other.get(ctx).Status.World.FromStep).To(BeNumerically(">=", left))
	})

	It("does not begin with credentials that the storage refuses, and says so", func(ctx context.Context) {
		secret := &corev1.Secret{}
		Expect(cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "s3"}, secret)).To(Succeed())
		wrong := secret.DeepCopy()
		wrong.ObjectMeta = metav1.ObjectMeta{Name: "wrong", Namespace: namespace}
		wrong.Data["AWS_SECRET_ACCESS_KEY"] = []byte("something-else")
		Expect(cluster.Create(ctx, wrong)).To(Succeed())
		j := submit(ctx, namespace, stored("digits", time.Hour).With(func(spec *v1alpha1.TrainingJobSpec) {
			spec.Checkpoint.Storage.SecretName = "wrong"
		}))
		Eventually(j.condition(ctx, v1alpha1.ConditionTraining)).Should(And(HavePrefix("False BackOff"), ContainSubstring("SignatureDoesNotMatch")))
		Expect(j.get(ctx).Status.World).To(Or(BeNil(), HaveField("Round", Or(BeNil(), HaveValue(BeZero())))))
	})

	It("goes on where it was when another job of higher priority has had its room", Serial, func(ctx context.Context) {
		const each = 4
		all := devices(ctx) / each
		low := submit(ctx, namespace, stored("goes", time.Hour).Workers(all, all).GPUs(each).With(func(spec *v1alpha1.TrainingJobSpec) {
			spec.Preemption.Policy = v1alpha1.PreemptionEvict
		}))
		low.trains(ctx)
		reaches(ctx, low.rankZero(ctx), 60)
		urgent := submit(ctx, namespace, framework.NewJob("urgent", "--epochs=3").Workers(2, 2).GPUs(each).Priority(priorityClass(ctx, 1000)))
		Eventually(low.events(ctx, v1alpha1.EventEvicted)).Should(ConsistOf(ContainSubstring("which is in its storage; the job queues again")))
		Expect(*low.get(ctx).Status.Checkpoint.Step).To(BeNumerically(">=", 60))
		urgent.completes(ctx, 2*time.Minute)
		goesOn(ctx, low)
	})

	It("goes on where it was when all of its nodes are drained at once", Serial, func(ctx context.Context) {
		const each = 4
		all := devices(ctx) / each
		j := submit(ctx, namespace, stored("digits", time.Hour).Workers(all, all).GPUs(each))
		j.trains(ctx)
		reaches(ctx, j.rankZero(ctx), 60)
		for _, pod := range j.members(ctx) {
			evict(ctx, &pod)
		}
		Eventually(func() int64 { return ptr.Deref(j.get(ctx).Status.Checkpoint.Step, 0) }).Should(BeNumerically(">=", 60))
		goesOn(ctx, j)
	})
})

// startS3 runs an S3 server with an empty bucket and makes the Secret "s3" for it; it returns the URL.
func startS3(ctx context.Context, namespace string) string {
	GinkgoHelper()
	Expect(cluster.Create(ctx, s3Credentials(namespace))).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "s3", Namespace: namespace},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), FSGroup: ptr.To[int64](65532)},
			Containers: []corev1.Container{{
				Name: "s3", Image: framework.Image(framework.S3Image), ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{
					"/versitygw", "--port", "0.0.0.0:7070", "--access", s3Access, "--secret", s3Secret, "--quiet",
					"posix", "--nometa", "/data",
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "data", MountPath: "/data/checkpoints", SubPath: "checkpoints"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	Expect(cluster.Create(ctx, pod)).To(Succeed())
	Eventually(func() corev1.PodPhase {
		Expect(cluster.Get(ctx, (&job{namespace, pod.Name}).key(), pod)).To(Succeed())
		return pod.Status.Phase
	}).Should(Equal(corev1.PodRunning))
	return fmt.Sprintf("s3://checkpoints/jobs?endpoint=http://%s:7070&use_path_style=true&disable_https=true&region=us-east-1", pod.Status.PodIP)
}
