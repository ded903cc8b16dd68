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

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

var _ = Describe("A job with a storage", short, func() {
	It("goes on where it was when it is resumed, and another job begins with its checkpoint", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		url := startS3(ctx, namespace)
		stored := func(name string, change func(*v1alpha1.CheckpointSpec)) *framework.Job {
			return framework.NewJob(name, framework.Endless...).With(func(spec *v1alpha1.TrainingJobSpec) {
				spec.Checkpoint.Storage = &v1alpha1.StorageSpec{URL: url, SecretName: "s3"}
				spec.Checkpoint.Interval = &metav1.Duration{Duration: 10 * time.Second}
				if change != nil {
					change(&spec.Checkpoint)
				}
			})
		}
		j := submit(ctx, namespace, stored("digits", nil))
		j.trains(ctx)
		durable := func() int64 { return ptr.Deref(j.get(ctx).Status.Checkpoint.Step, 0) }
		Eventually(durable).Should(BeNumerically(">", 0))
		j.suspend(ctx, true)
		Eventually(j.condition(ctx, v1alpha1.ConditionSuspended), soon).Should(HavePrefix("True Suspended"))
		Eventually(j.podNames(ctx), soon).Should(BeEmpty())
		left := durable()

		j.suspend(ctx, false)
		j.trains(ctx)
		Expect(*j.get(ctx).Status.Attempt).To(BeEquivalentTo(2))
		Expect(*j.get(ctx).Status.World.FromStep).To(BeNumerically(">=", left))
		j.expectRestarts(ctx, 0, 0)

		other := submit(ctx, namespace, stored("heir", func(spec *v1alpha1.CheckpointSpec) {
			spec.RestoreFrom = namespace + "/digits"
		}))
		other.trains(ctx)
		Expect(*other.get(ctx).Status.World.FromStep).To(BeNumerically(">=", left))
	})
})

// startS3 runs an S3 server with an empty bucket and makes the Secret "s3" for it; it returns the URL.
func startS3(ctx context.Context, namespace string) string {
	GinkgoHelper()
	const access, secret = "tester", "not-a-secret"
	Expect(cluster.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s3", Namespace: namespace},
		StringData: map[string]string{"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"},
	})).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "s3", Namespace: namespace},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), FSGroup: ptr.To[int64](65532)},
			Containers: []corev1.Container{{
				Name: "s3", Image: framework.Image(framework.S3Image), ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{
					"/versitygw", "--port", "0.0.0.0:7070", "--access", access, "--secret", secret, "--quiet",
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
