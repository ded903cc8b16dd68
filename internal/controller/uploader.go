package controller

import (
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/uploader"
)

const (
	uploaderName     = "concertina-uploader"
	uploaderSocket   = agentMount + "/uploader/uploader.sock" // in a folder of its own: the two may run as different users
	credentialVolume = "concertina-storage"
	credentialMount  = identityMount + "/storage"
)

// uploaderAt is the socket of the uploader in a worker; empty when there is none.
func uploaderAt(job *v1alpha1.TrainingJobSpec) string {
	if job.Checkpoint.Storage == nil || !hasVolume(job) {
		return ""
	}
	return uploaderSocket
}

// addUploader puts the container beside the trainer that has the storage's credentials. It begins before the trainer
// and ends after it, and a worker is not kept alive by it.
func addUploader(pod *corev1.Pod, trainer *corev1.Container, job *v1alpha1.TrainingJob, settings PodSettings, attempt int32) {
	storage := job.Spec.Checkpoint.Storage
	beside := corev1.Container{
		Name:            uploaderName,
		Image:           settings.UploaderImage,
		ImagePullPolicy: corev1.PullIfNotPresent,
		RestartPolicy:   ptr.To(corev1.ContainerRestartPolicyAlways),
		Env: []corev1.EnvVar{
			{Name: uploader.EnvNamespace, Value: job.Namespace},
			{Name: uploader.EnvJob, Value: job.Name},
			{Name: uploader.EnvJobUID, Value: string(job.UID)},
			{Name: uploader.EnvAttempt, Value: strconv.Itoa(int(attempt))},
			{Name: uploader.EnvStorage, Value: storage.URL},
			{Name: uploader.EnvRestoreFrom, Value: job.Spec.Checkpoint.RestoreFrom},
			{Name: uploader.EnvSocket, Value: uploaderSocket},
			{Name: uploader.EnvBest, Value: bestOf(&job.Spec).String()},
		},
		Resources:       uploaderResources(trainer),
		VolumeMounts:    []corev1.VolumeMount{{Name: agentName, MountPath: agentMount}},
		SecurityContext: restricted(&pod.Spec, trainer),
		// Why it has ended is told with the pod then.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	if mount := mountOf(trainer, storage.URL); mount != nil {
		beside.VolumeMounts = append(beside.VolumeMounts, *mount)
	}
	if name := storage.SecretName; name != "" {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: credentialVolume, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: name},
		}})
		beside.VolumeMounts = append(beside.VolumeMounts,
			corev1.VolumeMount{Name: credentialVolume, MountPath: credentialMount, ReadOnly: true})
		beside.EnvFrom = []corev1.EnvFromSource{{
			SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
		}}
	}
	// After the one that installs the agent, which makes no folder that this needs, and before those of the template.
	first := 1 + slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == agentName })
	pod.Spec.InitContainers = slices.Insert(pod.Spec.InitContainers, first, beside)
}

// uploaderResources are what the uploader needs: little while it waits, and two processors while it works. It reads a
// snapshot by pieces, and what it restores is memory of the trainer's. Where the trainer's requests are its limits so are
// the uploader's: its pod keeps the Guaranteed class then, and the processors that it has for itself.
func uploaderResources(trainer *corev1.Container) corev1.ResourceRequirements {
	needs := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("512Mi")}
	if guaranteed(trainer) {
		limits[corev1.ResourceCPU] = resource.MustParse("1")
		needs = limits
	}
	return corev1.ResourceRequirements{Requests: needs, Limits: limits}
}

// guaranteed says whether a container has limits of processors and memory, and its requests are these.
func guaranteed(container *corev1.Container) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, limited := container.Resources.Limits[name]
		request, requested := container.Resources.Requests[name]
		if !limited || limit.IsZero() || requested && request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

// mountOf is the trainer's mount that a file:// URL lies below; nil when there is none, or for another URL.
func mountOf(trainer *corev1.Container, address string) *corev1.VolumeMount {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "file" {
		return nil
	}
	folder := path.Clean(parsed.Path) + "/"
	var found *corev1.VolumeMount
	for i := range trainer.VolumeMounts {
		mount := &trainer.VolumeMounts[i]
		if below := path.Clean(mount.MountPath) + "/"; strings.HasPrefix(folder, below) &&
			(found == nil || len(mount.MountPath) > len(found.MountPath)) {
			found = mount
		}
	}
	return found.DeepCopy()
}
