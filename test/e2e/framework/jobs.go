package framework

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Job builds a TrainingJob.
type Job struct{ object v1alpha1.TrainingJob }

// NewJob is a job of two workers that learn digits with the fast Go program. It passes Pod Security
// "restricted".
func NewJob(name string, flags ...string) *Job {
	job := &Job{}
	job.object.Name = name
	workers := &job.object.Spec.Workers
	workers.Min, workers.Max = ptr.To[int32](2), ptr.To[int32](2)
	workers.Template.Spec = corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "trainer", Image: Image(GoDigits), ImagePullPolicy: corev1.PullIfNotPresent,
			Command: append([]string{"/go-digits"}, flags...),
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
			}},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
	return job
}

// Endless are flags of a job that trains until somebody ends it, a step every 50 ms.
var Endless = []string{"--epochs=100000", "--step-time=50ms", "--log-every=1"}

// Example reads a job of the project's examples. Its image is that of the tests which has the same name.
func (c *Cluster) Example(path string) (*Job, error) {
	text, err := os.ReadFile(filepath.Join(c.Checkout, "examples", path))
	if err != nil {
		return nil, err
	}
	job := &Job{}
	if err := yaml.UnmarshalStrict(text, &job.object); err != nil {
		return nil, fmt.Errorf("read examples/%s: %w", path, err)
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(job.trainer().Image, "localhost/"), ":")
	job.trainer().Image = Image(name)
	return job, nil
}

// In puts the job into a namespace and returns it.
func (j *Job) In(namespace string) *v1alpha1.TrainingJob {
	object := j.object.DeepCopy()
	object.Namespace = namespace
	return object
}

// Workers sets min and max.
func (j *Job) Workers(min, max int32) *Job {
	j.object.Spec.Workers.Min, j.object.Spec.Workers.Max = &min, &max
	return j
}

// Command replaces the training container's command.
func (j *Job) Command(command ...string) *Job {
	j.trainer().Command = command
	return j
}

// Arguments are further ones of the training container's command.
func (j *Job) Arguments(more ...string) *Job {
	j.trainer().Command = append(slices.Clone(j.trainer().Command), more...)
	return j
}

// Named gives the job another name.
func (j *Job) Named(name string) *Job {
	j.object.Name = name
	return j
}

// GPUs is how many devices each worker asks for.
func (j *Job) GPUs(count int64) *Job {
	j.trainer().Resources.Requests[GPU] = *resource.NewQuantity(count, resource.DecimalSI)
	j.trainer().Resources.Limits = corev1.ResourceList{GPU: *resource.NewQuantity(count, resource.DecimalSI)}
	return j
}

// Priority sets the PriorityClass of the workers.
func (j *Job) Priority(class string) *Job {
	j.object.Spec.Workers.Template.Spec.PriorityClassName = class
	return j
}

// StartTimeout sets gang.startTimeout.
func (j *Job) StartTimeout(timeout time.Duration) *Job {
	j.object.Spec.Gang.StartTimeout = &metav1.Duration{Duration: timeout}
	return j
}

// MaxRestarts sets failure.maxRestarts.
func (j *Job) MaxRestarts(count int32) *Job {
	j.object.Spec.Failure.MaxRestarts = &count
	return j
}

// With changes anything else.
func (j *Job) With(change func(*v1alpha1.TrainingJobSpec)) *Job {
	change(&j.object.Spec)
	return j
}

// WithPod changes anything of the pod template.
func (j *Job) WithPod(change func(*corev1.PodSpec)) *Job {
	change(&j.object.Spec.Workers.Template.Spec)
	return j
}

func (j *Job) trainer() *corev1.Container {
	return &j.object.Spec.Workers.Template.Spec.Containers[0]
}
