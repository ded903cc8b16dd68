package controller

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// defaultContainer is the name of the training container when several are there and none is named.
const defaultContainer = "trainer"

// trainingContainer returns the index of the container that trains, and otherwise says what is
// wrong.
func trainingContainer(workers *v1alpha1.WorkersSpec) (int, string) {
	containers := workers.Template.Spec.Containers
	if len(containers) == 0 {
		return 0, "spec.workers.template.spec.containers is empty: give the container that trains"
	}
	name := workers.Container
	if name == "" {
		if len(containers) == 1 {
			return 0, ""
		}
		name = defaultContainer
	}
	names := make([]string, 0, len(containers))
	for i := range containers {
		if containers[i].Name == name {
			return i, ""
		}
		names = append(names, containers[i].Name)
	}
	if workers.Container == "" {
		return 0, fmt.Sprintf("the template has %d containers (%s) and none is named %s: say in spec.workers.container which one trains",
			len(names), strings.Join(names, ", "), defaultContainer)
	}
	return 0, fmt.Sprintf("spec.workers.container is %q, but the template's containers are %s", name, strings.Join(names, ", "))
}

// templateFault says why the template cannot train, in words for its author; empty when it can.
// These are the checks that the schema's cost budget has no room for, and those that it makes too,
// for objects that were stored before it did.
func templateFault(job *v1alpha1.TrainingJobSpec) string {
	workers := &job.Workers
	checks := []func(*v1alpha1.WorkersSpec, *corev1.PodSpec) string{
		checkContainer, checkRestartPolicy, checkHostNetwork, checkNames, checkVolumeMounts,
	}
	for _, check := range checks {
		if fault := check(workers, &workers.Template.Spec); fault != "" {
			return fault
		}
	}
	if job.Strategy() == v1alpha1.ResizeRestart {
		return probeFault(workers)
	}
	return storageFault(job)
}

// storageFault refuses a folder for checkpoints that dies with its pod, and credentials that everybody in the pod sees.
func storageFault(job *v1alpha1.TrainingJobSpec) string {
	storage := job.Checkpoint.Storage
	switch {
	case storage == nil:
		return ""
	case storage.SecretName != "" && value(job.Workers.Template.Spec.ShareProcessNamespace):
		return fmt.Sprintf("spec.checkpoint.storage.secretName is %s, and the template has shareProcessNamespace, with which programs see the "+
			"credentials of the container that uploads: leave one of them out", storage.SecretName)
	case !strings.HasPrefix(storage.URL, "file://"):
		return ""
	}
	index, _ := trainingContainer(&job.Workers)
	container := &job.Workers.Template.Spec.Containers[index]
	if mountOf(container, storage.URL) != nil {
		return ""
	}
	return fmt.Sprintf("spec.checkpoint.storage.url is %s, and container %s mounts no volume there: mount one that all workers share, at this path or above it",
		storage.URL, container.Name)
}

// probeFault refuses probes that would have a standby killed, which runs no program under Restart.
func probeFault(workers *v1alpha1.WorkersSpec) string {
	index, _ := trainingContainer(workers)
	container := &workers.Template.Spec.Containers[index]
	probes := []struct {
		name  string
		probe *corev1.Probe
	}{{"startupProbe", container.StartupProbe}, {"livenessProbe", container.LivenessProbe}}
	for _, p := range probes {
		if p.probe != nil {
			return fmt.Sprintf("container %s has a %s: drop it, with resize strategy Restart a worker that waits for its world runs no program (spec.failure.hangTimeout finds one that hangs)",
				container.Name, p.name)
		}
	}
	return ""
}

func checkContainer(workers *v1alpha1.WorkersSpec, spec *corev1.PodSpec) string {
	index, fault := trainingContainer(workers)
	if fault != "" {
		return fault
	}
	if len(spec.Containers[index].Command) == 0 {
		return fmt.Sprintf("container %s has no command: set command in the template (the image's entrypoint cannot be used, because the agent starts the program)",
			spec.Containers[index].Name)
	}
	return ""
}

func checkRestartPolicy(_ *v1alpha1.WorkersSpec, spec *corev1.PodSpec) string {
	if spec.RestartPolicy != "" && spec.RestartPolicy != corev1.RestartPolicyNever {
		return fmt.Sprintf("restartPolicy is %s: set Never or leave it out, the operator replaces workers itself", spec.RestartPolicy)
	}
	return ""
}

func checkHostNetwork(_ *v1alpha1.WorkersSpec, spec *corev1.PodSpec) string {
	if spec.HostNetwork {
		return "hostNetwork is true: leave it out, workers of one node would fight over the same ports"
	}
	return ""
}

// checkNames keeps the names that the agent needs free.
func checkNames(_ *v1alpha1.WorkersSpec, spec *corev1.PodSpec) string {
	for _, volume := range spec.Volumes {
		if strings.HasPrefix(volume.Name, reservedPrefix) {
			return fmt.Sprintf("volume %s: names that start with %s are the agent's, rename it", volume.Name, reservedPrefix)
		}
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if strings.HasPrefix(containers[i].Name, reservedPrefix) {
				return fmt.Sprintf("container %s: names that start with %s are the agent's, rename it", containers[i].Name, reservedPrefix)
			}
		}
	}
	return ""
}

func checkVolumeMounts(_ *v1alpha1.WorkersSpec, spec *corev1.PodSpec) string {
	volumes := map[string]bool{}
	for _, volume := range spec.Volumes {
		volumes[volume.Name] = true
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if fault := mountFault(&containers[i], volumes); fault != "" {
				return fault
			}
		}
	}
	return ""
}

func mountFault(container *corev1.Container, volumes map[string]bool) string {
	for _, mount := range container.VolumeMounts {
		if !volumes[mount.Name] {
			return fmt.Sprintf("container %s mounts volume %q, which the template does not have: add it to volumes or drop the mount",
				container.Name, mount.Name)
		}
		for _, ours := range []string{agentMount, identityMount} {
			if overlaps(mount.MountPath, ours) {
				return fmt.Sprintf("container %s mounts volume %q at %s, where the agent needs %s: choose another path",
					container.Name, mount.Name, mount.MountPath, ours)
			}
		}
	}
	return ""
}

// overlaps says whether a mount takes the place of ours or stands inside it. One above ours does no
// harm: the runtime mounts by depth.
func overlaps(mounted, ours string) bool {
	mounted = path.Clean("/" + mounted)
	return mounted == "/" || mounted == ours || strings.HasPrefix(mounted, ours+"/")
}
