package controller

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// restarts lets a job's programs be started anew in every world.
func restarts(job *v1alpha1.TrainingJob) {
	job.Spec.Resize.Strategy = v1alpha1.ResizeRestart
	job.Spec.Resize.CompleteWhen = "**/.metadata"
}

// environment is what the operator tells the agent of a pod, by name.
func environment(pod *corev1.Pod) map[string]string {
	all := map[string]string{}
	for _, variable := range pod.Spec.Containers[0].Env {
		all[variable.Name] = variable.Value
	}
	return all
}

// What a template says of itself is nobody's role.
func TestATemplateCannotSpeakForTheOperator(t *testing.T) {
	job := jobWith(func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Template.Annotations = map[string]string{"mine": "stays"}
		job.Spec.Workers.Template.Labels = map[string]string{v1alpha1.LabelRole: v1alpha1.RoleGrowth}
	})
	pod := newPod(job, settings, 1, 0)
	if pod.Annotations["mine"] != "stays" || isGrowth(pod) {
		t.Errorf("annotations %v, labels %v", pod.Annotations, pod.Labels)
	}
}

func TestTheAgentLearnsHowWorldsChange(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.TrainingJob)
		want   map[string]string
	}{
		{name: "in place, by default", change: func(*v1alpha1.TrainingJob) {}, want: map[string]string{
			"CONCERTINA_STRATEGY": "InPlace", "CONCERTINA_MEMORY": "/concertina/memory", "CONCERTINA_SNAPSHOT_INTERVAL": "auto",
			"CONCERTINA_CHECKPOINT_SIGNAL": "", "CONCERTINA_CHECKPOINT_COMPLETE": "", "CONCERTINA_CHECKPOINT_TIMEOUT": "60",
			"CONCERTINA_GRACE_SECONDS": "75",
		}},
		{name: "restarted", change: restarts, want: map[string]string{
			"CONCERTINA_STRATEGY": "Restart", "CONCERTINA_MEMORY": "", "CONCERTINA_SNAPSHOT_INTERVAL": "auto",
			"CONCERTINA_CHECKPOINT_SIGNAL": "SIGUSR2", "CONCERTINA_CHECKPOINT_COMPLETE": "**/.metadata",
		}},
		{name: "a launcher", change: func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Launch = v1alpha1.LaunchPerWorker },
			want: map[string]string{"CONCERTINA_STRATEGY": "Restart", "CONCERTINA_MEMORY": "", "CONCERTINA_CHECKPOINT_SIGNAL": "SIGUSR2"}},
		{name: "times that are no whole seconds", change: func(job *v1alpha1.TrainingJob) {
			job.Spec.Checkpoint.MemoryInterval = "1m2.5s"
			job.Spec.Checkpoint.Timeout.Duration = 1200 * time.Millisecond
		}, want: map[string]string{"CONCERTINA_SNAPSHOT_INTERVAL": "62.5", "CONCERTINA_CHECKPOINT_TIMEOUT": "2", "CONCERTINA_GRACE_SECONDS": "17"}},
		{name: "a template that says the opposite", change: func(job *v1alpha1.TrainingJob) {
			job.Spec.Workers.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CONCERTINA_STRATEGY", Value: "Restart"}, {Name: "LR", Value: "1"}}
		}, want: map[string]string{"CONCERTINA_STRATEGY": "InPlace", "LR": "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := environment(newPod(jobWith(c.change), settings, 1, 0))
			for name, want := range c.want {
				if value, there := got[name]; !there || value != want {
					t.Errorf("%s is %q (set: %t), want %q", name, value, there, want)
				}
			}
		})
	}
}

func TestTheMemoryVolumeCountsAsMemoryOfTheTrainer(t *testing.T) {
	list := func(memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourceCPU: resource.MustParse("2")}
	}
	job := jobWith(func(job *v1alpha1.TrainingJob) {
		spec := &job.Spec.Workers.Template.Spec
		spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("1Gi"), Limits: list("2Gi")}
		spec.Containers = append([]corev1.Container{{Name: "logs", Resources: corev1.ResourceRequirements{Requests: list("1Gi")}}}, spec.Containers...)
		spec.Resources = &corev1.ResourceRequirements{Limits: list("8Gi")}
		job.Spec.Workers.Container = "main"
		job.Spec.Checkpoint.Memory = "3Gi"
	})
	before := job.DeepCopy()
	pod := newPod(job, settings, 1, 0)

	trainer := pod.Spec.Containers[1]
	for _, c := range []struct {
		what string
		got  corev1.ResourceList
		want string
	}{
		{"the trainer's request", trainer.Resources.Requests, "4Gi"},
		{"the trainer's limit", trainer.Resources.Limits, "5Gi"},
		{"the pod's limit", pod.Spec.Resources.Limits, "11Gi"},
		{"the sidecar's request", pod.Spec.Containers[0].Resources.Requests, "1Gi"},
	} {
		if memory := c.got[corev1.ResourceMemory]; memory.Cmp(resource.MustParse(c.want)) != 0 {
			t.Errorf("%s is %s, want %s", c.what, memory.String(), c.want)
		}
	}
	if !slices.ContainsFunc(trainer.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == "concertina-memory" && m.MountPath == "/concertina/memory" && !m.ReadOnly
	}) {
		t.Errorf("the trainer mounts %+v", trainer.VolumeMounts)
	}
	if len(pod.Spec.Containers[0].VolumeMounts) != 0 {
		t.Errorf("the sidecar mounts %+v", pod.Spec.Containers[0].VolumeMounts)
	}
	index := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "concertina-memory" })
	if index < 0 {
		t.Fatal("no memory volume")
	}
	volume := pod.Spec.Volumes[index].EmptyDir
	if volume.Medium != corev1.StorageMediumMemory || volume.SizeLimit.Cmp(resource.MustParse("3Gi")) != 0 {
		t.Errorf("the memory volume is %+v", volume)
	}
	if !equality.Semantic.DeepEqual(before, job) {
		t.Errorf("the job was changed (-before +after):\n%s", cmp.Diff(before, job))
	}
}

func TestNoMemoryIsAskedForWhereNoneWasSet(t *testing.T) {
	trainer := newPod(jobWith(), settings, 1, 0).Spec.Containers[0]
	if memory, set := trainer.Resources.Requests[corev1.ResourceMemory]; set || trainer.Resources.Limits != nil {
		t.Errorf("asks for %s, limits %v: the template sets neither", memory.String(), trainer.Resources.Limits)
	}
}

// TestLimitsAreRequestedToo: a device is often named in the limits alone, and still takes room.
func TestLimitsAreRequestedToo(t *testing.T) {
	job := jobWith(func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			"example.com/gpu": resource.MustParse("2"), corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		}
	})
	for name, want := range map[corev1.ResourceName]string{"example.com/gpu": "6", corev1.ResourceCPU: "1500m", corev1.ResourceMemory: "4608Mi"} {
		if got := batchResources(newPod(job, settings, 1, 0), 3)[name]; got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("three workers ask for %s %s, want %s", got.String(), name, want)
		}
	}
	if len(job.Spec.Workers.Template.Spec.Containers[0].Resources.Requests) != 1 {
		t.Error("the job was changed")
	}
}

func TestProgramsThatAreRestartedHaveNoMemoryVolume(t *testing.T) {
	pod := newPod(jobWith(restarts, func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
	}), settings, 1, 0)
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == memoryVolume {
			t.Error("there is a memory volume")
		}
	}
	if memory := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]; memory.Cmp(resource.MustParse("1Gi")) != 0 {
		t.Errorf("asks for %s of memory, want 1Gi", memory.String())
	}
	if got := pod.Annotations[safeToEvict]; got != "concertina-agent" {
		t.Errorf("safe to evict: %q", got)
	}
}

func TestVolumesOfOursDoNotHoldNodes(t *testing.T) {
	for own, want := range map[string]string{"": "concertina-agent,concertina-memory", "scratch": "scratch,concertina-agent,concertina-memory"} {
		pod := newPod(jobWith(func(job *v1alpha1.TrainingJob) {
			if own != "" {
				job.Spec.Workers.Template.Annotations = map[string]string{safeToEvict: own}
			}
		}), settings, 1, 0)
		if got := pod.Annotations[safeToEvict]; got != want {
			t.Errorf("safe to evict with %q in the template: %q, want %q", own, got, want)
		}
	}
}

func TestGracePeriod(t *testing.T) {
	for _, c := range []struct {
		name    string
		timeout time.Duration
		own     *int64
		want    int64
		says    string
	}{
		{"left out", time.Minute, nil, 75, "75"},
		{"left out, long barrier", time.Hour, nil, 3615, "3615"},
		{"set", time.Minute, ptr.To[int64](20), 20, "20"},
		{"set to nothing", time.Minute, ptr.To[int64](0), 0, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := newPod(jobWith(func(job *v1alpha1.TrainingJob) {
				job.Spec.Checkpoint.Timeout = &metav1.Duration{Duration: c.timeout}
				job.Spec.Workers.Template.Spec.TerminationGracePeriodSeconds = c.own
			}), settings, 1, 0)
			if got := value(pod.Spec.TerminationGracePeriodSeconds); got != c.want {
				t.Errorf("terminationGracePeriodSeconds is %d, want %d", got, c.want)
			}
			if got := environment(pod)["CONCERTINA_GRACE_SECONDS"]; got != c.says {
				t.Errorf("the agent is told %s seconds, want %s", got, c.says)
			}
		})
	}
}

func TestGrowthPods(t *testing.T) {
	job := jobWith(func(job *v1alpha1.TrainingJob) {
		template := &job.Spec.Workers.Template
		template.Labels = map[string]string{
			"team": "vision", schedv1alpha1.PodGroupLabel: "theirs", v1alpha1.LabelRole: v1alpha1.RoleGrowth,
		}
		template.Spec.PriorityClassName, template.Spec.Priority = "research", ptr.To[int32](1000)
		template.Spec.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority)
		template.Spec.SchedulerName = "default-scheduler"
		job.Spec.Gang.SchedulerName = "gangs"
	})
	growth, member := newGrowthPod(job, settings, 3, 7), newPod(job, settings, 3, 7)

	if !isGrowth(growth) || isGrowth(member) {
		t.Errorf("roles are %q and %q", growth.Labels[v1alpha1.LabelRole], member.Labels[v1alpha1.LabelRole])
	}
	if group, there := growth.Labels[schedv1alpha1.PodGroupLabel]; there {
		t.Errorf("the growth pod is in group %q", group)
	}
	if growth.Labels["team"] != "vision" || growth.Labels[v1alpha1.LabelJob] != "digits" || growth.Labels[v1alpha1.LabelAttempt] != "3" {
		t.Errorf("labels are %v", growth.Labels)
	}
	spec := growth.Spec
	if spec.PriorityClassName != "concertina-growth" || spec.Priority != nil || spec.PreemptionPolicy != nil {
		t.Errorf("priority is %q, %v, %v", spec.PriorityClassName, spec.Priority, spec.PreemptionPolicy)
	}
	if spec.SchedulerName != "gangs" {
		t.Errorf("the scheduler is %q", spec.SchedulerName)
	}
	if member.Spec.PriorityClassName != "research" {
		t.Errorf("the gang's priority class is %q", member.Spec.PriorityClassName)
	}
	if growth.Name != member.Name || !equality.Semantic.DeepEqual(growth.Spec.Containers, member.Spec.Containers) {
		t.Error("a growth pod does other work than a member of the gang")
	}
}

func TestProbesOfProgramsThatAreRestarted(t *testing.T) {
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	startup := func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Template.Spec.Containers[0].StartupProbe = probe }
	liveness := func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Template.Spec.Containers[0].LivenessProbe = probe }
	for _, c := range []struct {
		name    string
		changes []func(*v1alpha1.TrainingJob)
		says    string
	}{
		{"startup", []func(*v1alpha1.TrainingJob){restarts, startup}, "container main has a startupProbe: drop it"},
		{"liveness", []func(*v1alpha1.TrainingJob){restarts, liveness}, "container main has a livenessProbe: drop it"},
		{"a launcher's", []func(*v1alpha1.TrainingJob){liveness, func(job *v1alpha1.TrainingJob) {
			job.Spec.Workers.Launch = v1alpha1.LaunchPerWorker
		}}, "container main has a livenessProbe"},
		{"in place", []func(*v1alpha1.TrainingJob){startup, liveness}, ""},
		{"readiness", []func(*v1alpha1.TrainingJob){restarts, func(job *v1alpha1.TrainingJob) {
			job.Spec.Workers.Template.Spec.Containers[0].ReadinessProbe = probe
		}}, ""},
		{"of a sidecar", []func(*v1alpha1.TrainingJob){restarts, func(job *v1alpha1.TrainingJob) {
			job.Spec.Workers.Container = "main"
			job.Spec.Workers.Template.Spec.Containers = append(job.Spec.Workers.Template.Spec.Containers,
				corev1.Container{Name: "logs", Image: "logs", LivenessProbe: probe})
		}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			fault := templateFault(&jobWith(c.changes...).Spec)
			if (c.says == "") != (fault == "") || !strings.Contains(fault, c.says) {
				t.Errorf("fault is %q, want %q", fault, c.says)
			}
		})
	}
}

func TestMountsOverTheMemoryVolumeAreRefused(t *testing.T) {
	job := jobWith(func(job *v1alpha1.TrainingJob) {
		spec := &job.Spec.Workers.Template.Spec
		spec.Volumes = []corev1.Volume{{Name: "data"}}
		spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: memoryMount + "/snapshots"}}
	})
	if fault := templateFault(&job.Spec); !strings.Contains(fault, `mounts volume "data" at /concertina/memory/snapshots`) {
		t.Errorf("fault is %q", fault)
	}
}

func TestNamesOfAllJobsDiffer(t *testing.T) {
	taken := map[string]string{}
	for _, job := range []string{"llama", "llama-1", "llama-1-2", "llama-1-r2", "1", "1-1"} {
		for attempt := int32(1); attempt <= 13; attempt++ {
			names := []string{groupName(job, attempt)}
			for first := int32(0); first <= 13; first++ {
				names = append(names, refillName(job, attempt, first))
			}
			for _, name := range names {
				who := fmt.Sprintf("%s, attempt %d", job, attempt)
				if other := taken[name]; other != "" {
					t.Fatalf("%s names groups of %s and of %s", name, other, who)
				}
				taken[name] = who
			}
		}
	}
}

func TestNamesOfTheLongestJobFit(t *testing.T) {
	job := "a" + strings.Repeat("b", 47)
	for _, name := range []string{groupName(job, math.MaxInt32), refillName(job, 99999, 9999999), podName(job, 99999, 9999999)} {
		if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
			t.Errorf("%s: %v", name, faults)
		}
	}
}
