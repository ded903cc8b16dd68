package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/test/e2e/framework"
	"github.com/concertina-dev/concertina/test/e2e/ledger"
)

// program is a training program that writes a ledger.
type program struct {
	// what says what it is, steps how many it makes, where anybody wants to know.
	what  string
	steps int
	// sharded is true where each worker has a shard of the state, and nobody all of it.
	sharded bool
	// slowness is how long it may take a job of it to train again after anything.
	slowness time.Duration
	// builder is of a job that trains it in a namespace, where that has what the job needs.
	builder func(ctx context.Context, namespace string) *framework.Job
	// undisturbed is what one rank tells of the same training.
	undisturbed func(ctx context.Context, namespace string) []ledger.Loss
}

// goProgram is examples/go-digits with these flags. Its state is in one file.
func goProgram(flags ...string) program {
	flags = append([]string{"--ledger", "--step-time=20ms", "--log-every=1"}, flags...)
	return program{
		what: "Go", slowness: 40 * time.Second,
		builder:     func(context.Context, string) *framework.Job { return framework.NewJob("digits", flags...) },
		undisturbed: func(ctx context.Context, _ string) []ledger.Loss { return undisturbedGo(ctx, flags) },
	}
}

// undisturbedGo trains here.
func undisturbedGo(ctx context.Context, flags []string) []ledger.Loss {
	GinkgoHelper()
	program := filepath.Join(GinkgoT().TempDir(), "go-digits")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./examples/go-digits")
	build.Dir = cluster.Checkout
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	quick := slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		return strings.HasPrefix(flag, "--step-time") || strings.HasPrefix(flag, "--eval-time") || flag == "--ledger"
	})
	out, err = exec.CommandContext(ctx, program, quick...).Output()
	Expect(err).NotTo(HaveOccurred())
	log, err := ledger.Parse(string(out))
	Expect(err).NotTo(HaveOccurred())
	return log.Losses
}

// What tests_torch.once trains on here. The last step of an epoch has fewer samples than there may be ranks.
const pytorchSamples, pytorchStepsOfAnEpoch = 102, 6

// pytorchProgram is tests_torch.once, with a step every tenth of a second.
func pytorchProgram(what string, epochs int, sharded bool, flags ...string) program {
	command := append([]string{"python3", "-m", "tests_torch.once", fmt.Sprintf("--epochs=%d", epochs), fmt.Sprintf("--samples=%d", pytorchSamples)}, flags...)
	if sharded {
		command = append(command, "--sharded")
	}
	return program{
		what: what, steps: epochs * pytorchStepsOfAnEpoch, sharded: sharded, slowness: 90 * time.Second,
		builder: func(ctx context.Context, namespace string) *framework.Job {
			GinkgoHelper()
			programsOfTests(ctx, namespace)
			return pytorchJob("digits", append(slices.Clone(command), "--step-seconds=0.1")...)
		},
		undisturbed: func(ctx context.Context, namespace string) []ledger.Loss {
			GinkgoHelper()
			alone := submit(ctx, namespace, pytorchJob("alone", command...).Workers(1, 1))
			alone.completes(ctx, 5*time.Minute)
			var text strings.Builder
			for _, pod := range alone.pods(ctx, 0) {
				for _, printed := range lines(ctx, &pod) {
					text.WriteString(printed.text + "\n")
				}
			}
			log, err := ledger.Parse(text.String())
			Expect(err).NotTo(HaveOccurred())
			return log.Losses
		},
	}
}

// programsOfTests makes the ConfigMap of programs that pytorchJob mounts.
func programsOfTests(ctx context.Context, namespace string) {
	GinkgoHelper()
	programs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "programs", Namespace: namespace}, Data: map[string]string{}}
	for _, name := range []string{"once.py", "sharded.py"} {
		text, err := os.ReadFile(filepath.Join(cluster.Checkout, "python", "tests_torch", name))
		Expect(err).NotTo(HaveOccurred())
		programs.Data[name] = string(text)
	}
	Expect(cluster.Create(ctx, programs)).To(Succeed())
}

// pytorchJob is a job of a program of the Python tests, in the image of the example.
func pytorchJob(name string, command ...string) *framework.Job {
	GinkgoHelper()
	builder, err := cluster.Example("pytorch-digits/job.yaml")
	Expect(err).NotTo(HaveOccurred())
	return builder.Named(name).Command(command...).WithPod(func(pod *corev1.PodSpec) {
		trainer := &pod.Containers[0]
		trainer.Env = append(trainer.Env, corev1.EnvVar{Name: "PYTHONPATH", Value: "/programs"})
		trainer.VolumeMounts = append(trainer.VolumeMounts, corev1.VolumeMount{Name: "programs", MountPath: "/programs/tests_torch", ReadOnly: true})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "programs", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "programs"}},
		}})
	})
}
