package controller

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/uploader"
)

// What the agent needs in a pod. Names of containers and volumes that start with reservedPrefix
// are the agent's.
const (
	reservedPrefix = "concertina-"
	agentName      = "concertina-agent"
	identityVolume = "concertina-identity"
	memoryVolume   = "concertina-memory"
	imageVolume    = "concertina-image"

	agentMount    = "/concertina"
	memoryMount   = agentMount + "/memory"
	identityMount = "/var/run/concertina"
	agentBinary   = agentMount + "/bin/agent"
	agentSocket   = agentMount + "/run/agent.sock"

	// caFile is the name of the file in the pod's identity that holds the CA bundle.
	caFile = "ca.crt"
	// tokenLifetime is in seconds; the kubelet renews the token long before.
	tokenLifetime = 3600
	// leaveMargin is what a worker that nobody hurries gets beyond the time for its last barrier and
	// snapshot, to stop its program.
	leaveMargin = 15 * time.Second
	// safeToEvict tells the cluster autoscaler that what our volumes hold is not needed once a worker
	// has left its world.
	safeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
)

// PodSettings are the operator's own settings that go into every pod.
type PodSettings struct {
	// AgentImage is the image that holds the agent as /agent, UploaderImage that of the uploader.
	AgentImage, UploaderImage string
	// ImageVolume is true when the agent comes into a worker as a volume of its image, which is there the moment the pod's
	// containers are made; false when an init container copies it, which every cluster knows and which takes a second.
	ImageVolume bool
	// RendezvousAddress is where agents find the operator, such as name.namespace.svc:8443.
	RendezvousAddress string
	// CABundle is what agents trust the operator by, in PEM. The reconciler fills it in.
	CABundle string
	// MostMemory is how large a volume for snapshots is at most, in bytes, whose size the operator chooses; 0 for DefaultMostMemory.
	MostMemory int64
}

// groupName names the group of a gang.
func groupName(job string, attempt int32) string { return fmt.Sprintf("%s-%d", job, attempt) }

// refillName names the group of a batch that fills a job up to min again, by the batch's first ordinal. What
// it ends with is no number, so it is no gang's name: those of a job a-1 would be refills of a job a.
func refillName(job string, attempt, first int32) string {
	return fmt.Sprintf("%s-%d-r%d", job, attempt, first)
}

func podName(job string, attempt, ordinal int32) string {
	return fmt.Sprintf("%s-%d-%d", job, attempt, ordinal)
}

// newPod makes the pod of one worker. The template has passed templateFault.
func newPod(job *v1alpha1.TrainingJob, settings PodSettings, attempt, ordinal int32) *corev1.Pod {
	template := job.Spec.Workers.Template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        podName(job.Name, attempt, ordinal),
			Namespace:   job.Namespace,
			Labels:      merged(template.Labels, jobLabels(job, attempt)),
			Annotations: merged(template.Annotations, nil),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind("TrainingJob")),
			},
		},
		Spec: template.Spec,
	}
	delete(pod.Labels, v1alpha1.LabelRole) // the template's word makes no growth pod
	delete(pod.Annotations, v1alpha1.AnnotationMemoryUnknown)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	requestLimits(pod.Spec.InitContainers)
	requestLimits(pod.Spec.Containers)
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(wholeSeconds(value(job.Spec.Checkpoint.Timeout).Duration + leaveMargin))
	}
	index, _ := trainingContainer(&job.Spec.Workers)
	trainer := &pod.Spec.Containers[index]
	bringAgent(&pod.Spec, trainer, settings)
	evictable := []string{agentName}
	wrap(trainer, job, settings, attempt, *pod.Spec.TerminationGracePeriodSeconds)
	if hasVolume(&job.Spec) {
		addMemory(pod, trainer, volumeSize(job, settings), isUnknown(job))
		evictable = append(evictable, memoryVolume)
		if uploaderAt(&job.Spec) != "" {
			addUploader(pod, trainer, job, settings, attempt)
		}
	}
	if volumes := pod.Annotations[safeToEvict]; volumes != "" {
		evictable = append([]string{volumes}, evictable...)
	}
	pod.Annotations[safeToEvict] = strings.Join(evictable, ",")
	pod.Annotations[v1alpha1.AnnotationCABundle] = settings.CABundle
	return pod
}

// requestLimits sets the requests that the API server would set: limits that nothing else is asked for
// in. The share of a gang, its quota and its room are reckoned from pods that the server has not seen.
func requestLimits(containers []corev1.Container) {
	for i := range containers {
		resources := &containers[i].Resources
		if resources.Requests == nil && len(resources.Limits) > 0 {
			resources.Requests = corev1.ResourceList{}
		}
		for name, limit := range resources.Limits {
			if _, set := resources.Requests[name]; !set {
				resources.Requests[name] = limit.DeepCopy()
			}
		}
	}
}

// newGrowthPod makes the pod of a worker beyond the gang: it belongs to no pod group, and its
// priority has it preempt nobody and leave first.
func newGrowthPod(job *v1alpha1.TrainingJob, settings PodSettings, attempt, ordinal int32) *corev1.Pod {
	pod := newPod(job, settings, attempt, ordinal)
	pod.Labels[v1alpha1.LabelRole] = v1alpha1.RoleGrowth
	delete(pod.Labels, schedv1alpha1.PodGroupLabel)
	pod.Spec.SchedulerName = job.Spec.Gang.SchedulerName
	// Admission refuses a number or policy that is not that of the class.
	pod.Spec.PriorityClassName, pod.Spec.Priority, pod.Spec.PreemptionPolicy = job.Spec.Growth.PriorityClassName, nil, nil
	return pod
}

// isGrowth says whether a pod was made by newGrowthPod.
func isGrowth(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelRole] == v1alpha1.RoleGrowth }

func jobLabels(job *v1alpha1.TrainingJob, attempt int32) map[string]string {
	return map[string]string{
		v1alpha1.LabelJob:     job.Name,
		v1alpha1.LabelAttempt: strconv.Itoa(int(attempt)),
	}
}

// bringAgent gives the pod the agent, and the volumes that it needs.
func bringAgent(spec *corev1.PodSpec, trainer *corev1.Container, settings PodSettings) {
	spec.Volumes = append(spec.Volumes, agentVolumes()...)
	trainer.VolumeMounts = append(trainer.VolumeMounts, corev1.VolumeMount{Name: agentName, MountPath: agentMount})
	if !settings.ImageVolume {
		spec.InitContainers = append([]corev1.Container{installContainer(spec, trainer, settings)}, spec.InitContainers...)
		return
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: imageVolume, VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: settings.AgentImage, PullPolicy: corev1.PullIfNotPresent},
	}})
	trainer.VolumeMounts = append(trainer.VolumeMounts, corev1.VolumeMount{Name: imageVolume, MountPath: path.Dir(agentBinary), ReadOnly: true})
}

// installContainer copies the agent into the pod. It satisfies Pod Security "restricted" as far as
// the template lets it: it runs as the user that the training container runs as.
func installContainer(spec *corev1.PodSpec, trainer *corev1.Container, settings PodSettings) corev1.Container {
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("100m"),
		corev1.ResourceMemory: resource.MustParse("64Mi"),
	}
	return corev1.Container{
		Name:            agentName,
		Image:           settings.AgentImage,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"/agent", "install", agentBinary},
		Resources:       corev1.ResourceRequirements{Requests: resources, Limits: resources},
		VolumeMounts:    []corev1.VolumeMount{{Name: agentName, MountPath: agentMount}},
		SecurityContext: restricted(spec, trainer),
	}
}

// restricted is the security context of a container of ours: what Pod Security "restricted" asks for, and the user that
// the training container runs as, with whom it shares files.
func restricted(spec *corev1.PodSpec, trainer *corev1.Container) *corev1.SecurityContext {
	security := &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false),
		ReadOnlyRootFilesystem:   ptr.To(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if own := trainer.SecurityContext; own != nil {
		security.RunAsUser, security.RunAsGroup = own.RunAsUser, own.RunAsGroup
	}
	user := security.RunAsUser
	if user == nil && spec.SecurityContext != nil {
		user = spec.SecurityContext.RunAsUser
	}
	security.RunAsNonRoot = ptr.To(user == nil || *user != 0)
	return security
}

// agentVolumes hold the agent, and who the pod is: its token, and the bundle of its annotation, which
// the kubelet carries into the file of a running pod.
func agentVolumes() []corev1.Volume {
	return []corev1.Volume{
		{Name: agentName, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("64Mi"))},
		}},
		{Name: identityVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
					Audience: identity.Audience, ExpirationSeconds: ptr.To(int64(tokenLifetime)), Path: "token",
				}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
					Path:     caFile,
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + v1alpha1.AnnotationCABundle + "']"},
				}}}},
			},
		}}},
	}
}

// wrap makes the agent start the container's command. Nothing else of the container changes but
// what the agent needs: its variables, its mounts, and the last lines of output as the message of
// a failure.
func wrap(trainer *corev1.Container, job *v1alpha1.TrainingJob, settings PodSettings, attempt int32, grace int64) {
	trainer.Command = append([]string{agentBinary, "run", "--"}, trainer.Command...)
	if trainer.TerminationMessagePolicy == "" {
		trainer.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	}
	trainer.VolumeMounts = append(trainer.VolumeMounts,
		corev1.VolumeMount{Name: identityVolume, MountPath: identityMount, ReadOnly: true})
	ours := append([]corev1.EnvVar{
		{Name: "CONCERTINA_NAMESPACE", Value: job.Namespace},
		{Name: "CONCERTINA_JOB", Value: job.Name},
		{Name: "CONCERTINA_ATTEMPT", Value: strconv.Itoa(int(attempt))},
		{Name: "CONCERTINA_LAUNCH", Value: string(job.Spec.Workers.Launch)},
		{Name: "CONCERTINA_PROCESSES", Value: strconv.Itoa(int(value(job.Spec.Workers.ProcessesPerWorker)))},
		{Name: "CONCERTINA_RENDEZVOUS", Value: settings.RendezvousAddress},
		{Name: "CONCERTINA_SOCKET", Value: agentSocket},
		// A pod that may be killed at once still has an agent that counts from one.
		{Name: "CONCERTINA_GRACE_SECONDS", Value: strconv.FormatInt(max(grace, 1), 10)},
		fieldVariable("CONCERTINA_POD_NAME", "metadata.name"),
		fieldVariable("CONCERTINA_POD_UID", "metadata.uid"),
		fieldVariable("CONCERTINA_POD_IP", "status.podIP"),
	}, resizeVariables(&job.Spec)...)
	reserved := map[string]bool{}
	for _, variable := range ours {
		reserved[variable.Name] = true
	}
	for _, variable := range trainer.Env {
		if !reserved[variable.Name] {
			ours = append(ours, variable)
		}
	}
	trainer.Env = ours
}

// resizeVariables tell the agent how its program gets from one world to the next.
func resizeVariables(job *v1alpha1.TrainingJobSpec) []corev1.EnvVar {
	strategy, memory, signal, complete := job.Strategy(), "", "", ""
	if hasVolume(job) {
		memory = memoryMount
	}
	if strategy == v1alpha1.ResizeRestart {
		signal, complete = string(job.Resize.CheckpointSignal), job.Resize.CompleteWhen
	}
	timeout := wholeSeconds(value(job.Checkpoint.Timeout).Duration)
	return []corev1.EnvVar{
		{Name: "CONCERTINA_STRATEGY", Value: string(strategy)},
		{Name: "CONCERTINA_MEMORY", Value: memory},
		{Name: "CONCERTINA_SNAPSHOT_INTERVAL", Value: snapshotInterval(job.Checkpoint.MemoryInterval)},
		{Name: "CONCERTINA_CHECKPOINT_SIGNAL", Value: signal},
		{Name: "CONCERTINA_CHECKPOINT_COMPLETE", Value: complete},
		{Name: uploader.EnvSocket, Value: uploaderAt(job)},
		{Name: uploader.EnvBest, Value: bestOf(job).String()},
		{Name: "CONCERTINA_CHECKPOINT_TIMEOUT", Value: strconv.FormatInt(timeout, 10)},
	}
}

// snapshotInterval is spec.checkpoint.memoryInterval as the agent reads it: auto, or seconds.
func snapshotInterval(text string) string {
	interval, err := time.ParseDuration(text)
	if err != nil {
		return v1alpha1.MemoryIntervalAuto // the schema lets through nothing else
	}
	return strconv.FormatFloat(interval.Seconds(), 'f', -1, 64)
}

// wholeSeconds rounds up: a bound that the user has set is not cut short.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func fieldVariable(name, field string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}}
}

func merged(a, b map[string]string) map[string]string {
	both := make(map[string]string, len(a)+len(b)+1)
	maps.Copy(both, a)
	maps.Copy(both, b)
	return both
}

func sortedKeys[V any](items map[string]V) []string { return slices.Sorted(maps.Keys(items)) }

func sorted(items []string) []string {
	sort.Strings(items)
	return items
}

// podAttempt is the attempt that a pod was made for; 0 for a pod that is not one of ours.
func podAttempt(pod *corev1.Pod) int32 {
	attempt, err := strconv.ParseInt(pod.Labels[v1alpha1.LabelAttempt], 10, 32)
	if err != nil {
		return 0
	}
	return int32(attempt)
}

// podOrdinal is the number at the end of a pod's name.
func podOrdinal(pod *corev1.Pod) int32 {
	name := pod.Name
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '-' {
			ordinal, err := strconv.ParseInt(name[i+1:], 10, 32)
			if err != nil {
				return -1
			}
			return int32(ordinal)
		}
	}
	return -1
}

// podEnded says whether the kubelet has reported that every container of the pod has ended.
func podEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// containersEnded says whether every container of the pod has ended, sidecars included.
func containersEnded(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Terminated == nil {
			return false
		}
	}
	return len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers)
}

// trainerExit is how the training container ended; nil while it has not.
func trainerExit(pod *corev1.Pod, workers *v1alpha1.WorkersSpec) *corev1.ContainerStateTerminated {
	status := trainerStatus(pod, workers)
	if status == nil {
		return nil
	}
	return status.State.Terminated
}

func trainerRunning(pod *corev1.Pod, workers *v1alpha1.WorkersSpec) bool {
	status := trainerStatus(pod, workers)
	return status != nil && status.State.Running != nil
}

func trainerStatus(pod *corev1.Pod, workers *v1alpha1.WorkersSpec) *corev1.ContainerStatus {
	index, fault := trainingContainer(workers)
	if fault != "" {
		return nil
	}
	name := workers.Template.Spec.Containers[index].Name
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}
