package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ManagedByOperator is the value of spec.managedBy that means this operator, the same as leaving
// the field out.
const ManagedByOperator = "training.concertina.dev/operator"

// Labels and annotations that the operator sets on the objects of a job.
const (
	// LabelJob holds the job's name on every object that belongs to it.
	LabelJob = "training.concertina.dev/job"
	// LabelAttempt holds the number of the attempt that an object was made for.
	LabelAttempt = "training.concertina.dev/attempt"
	// LabelKueueQueue is the label by which users give a job to a queue of Kueue.
	LabelKueueQueue = "kueue.x-k8s.io/queue-name"
	// LabelRole says which part a pod plays where that is not plain: RoleGrowth.
	LabelRole = "training.concertina.dev/role"
	// RoleGrowth is the role of a pod that was added to a job beyond its gang. It has no pod group.
	RoleGrowth = "growth"
	// AnnotationCABundle holds what the agent of a pod trusts the operator by, in PEM.
	AnnotationCABundle = "training.concertina.dev/ca-bundle"
	// AnnotationMemory is how large the volume of a worker is that holds snapshots. Workers of one attempt may differ in it.
	AnnotationMemory = "training.concertina.dev/memory"
	// AnnotationMemoryUnknown is on a worker whose volume was made when nobody had measured the state.
	AnnotationMemoryUnknown = "training.concertina.dev/memory-unknown"
)

// PodLeaving is the condition of a pod that is to leave for another job: its reason says why (Reclaimed, Evened, Moved), its
// message for which job (namespace/name). What it says is in force, whoever leads.
//
// It is a condition and no annotation, since kubelets look at a pod anew for each change of its metadata, and a deletion then
// waits until they have looked at all containers, which they do once a second.
const PodLeaving corev1.PodConditionType = "training.concertina.dev/Leaving"

// Launch says how many processes the agent starts in a worker.
// +kubebuilder:validation:Enum=PerProcess;PerWorker
type Launch string

const (
	// LaunchPerProcess starts processesPerWorker copies of the command, each with its own rank.
	LaunchPerProcess Launch = "PerProcess"
	// LaunchPerWorker starts the command once (torchrun, deepspeed), which starts the processes.
	LaunchPerWorker Launch = "PerWorker"
)

// GangScheduler names a way to have a batch of pods placed together.
// +kubebuilder:validation:Enum=Coscheduling
type GangScheduler string

// GangSchedulerCoscheduling is the coscheduling plugin of scheduler-plugins
// (PodGroup in scheduling.x-k8s.io).
const GangSchedulerCoscheduling GangScheduler = "Coscheduling"

// WorkersSpec says how many workers a job has and what each of them runs.
//
// +kubebuilder:validation:XValidation:rule="self.max >= self.min",message="spec.workers.max is below spec.workers.min: raise max or lower min; to release all workers set spec.suspend",fieldPath=".max"
// +kubebuilder:validation:XValidation:rule="!has(self.sizes) || self.min in self.sizes",message="spec.workers.sizes does not contain spec.workers.min: add min to sizes, because the job starts with that many workers",fieldPath=".sizes"
// +kubebuilder:validation:XValidation:rule="self.max + self.?spares.orValue(0) <= 10000",message="spec.workers.max and spec.workers.spares are more than 10000 together: lower one of them",fieldPath=".spares"
// +kubebuilder:validation:XValidation:rule="!has(self.container) || !has(self.template.spec) || self.template.spec.containers.exists(c, c.name == self.container)",message="spec.workers.container names no container of spec.workers.template: use the name of one, or add it",fieldPath=".container"
// +kubebuilder:validation:XValidation:rule="size(self.template.?spec.?containers.orValue([])) <= 1 || has(self.container) || self.template.spec.containers.exists(c, c.name == 'trainer')",message="spec.workers.template has several containers and none is named trainer: say in spec.workers.container which one trains",fieldPath=".container"
// +kubebuilder:validation:XValidation:rule="!has(self.template.spec) || self.template.spec.containers.all(c, (has(c.command) && size(c.command) > 0) || (has(self.container) ? c.name != self.container : size(self.template.spec.containers) > 1 && c.name != 'trainer'))",message="the training container in spec.workers.template has no command: set command (the image's entrypoint cannot be used, because the agent starts the program)",fieldPath=".template"
type WorkersSpec struct {
	// min is the number of workers that start together or not at all: the gang. From 1 to 10000.
	// It changes only while the job is suspended and has no worker.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +required
	Min *int32 `json:"min,omitempty"`

	// max is the largest number of workers that the job may ever have, spares not counted, at least min, at most 10000.
	// It can change at any time, and kubectl scale sets it.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +required
	Max *int32 `json:"max,omitempty"`

	// sizes lists the only numbers of workers that are legal for this program, for example
	// because the global batch must divide evenly. It contains min; entries above max are
	// ignored. Left out, every number from min to max is legal. At most 64 entries. It changes only
	// while the job is suspended and has no worker.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=10000
	// +listType=set
	// +optional
	Sizes []int32 `json:"sizes,omitempty"`

	// spares is how many workers beyond those that train are kept ready: started, with their program waiting for a
	// world. Once a worker is lost, or has to leave, a spare takes its place in the very next world, which
	// so keeps its size, and another spare is made. They come after the gang, where there is room that nobody else
	// needs, as workers beyond min do, so a job with growth.policy Off or preemption.policy Never, or with Kueue's
	// label, gets none. A job that has P workers trains with P - spares of them, or the next of sizes, but with no
	// fewer than min; sizes and max are numbers of those that train, so it has up to max + spares. For others spares
	// leave first. From 0 to 100. It can change at any time. Left out, there are none.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	Spares *int32 `json:"spares,omitempty"`

	// processesPerWorker is the number of training processes in each worker, usually one per
	// GPU. Each of them has its own rank. From 1 to 64, default 1. It changes only while the job
	// is suspended and has no worker.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +optional
	ProcessesPerWorker *int32 `json:"processesPerWorker,omitempty"`

	// launch says who starts the processes of a worker. PerProcess: the command is started
	// processesPerWorker times, each with its own RANK. PerWorker: it is started once, with PET_*
	// variables, and starts the processes itself, as torchrun does. Default PerProcess. It changes
	// only while the job is suspended and has no worker.
	//
	// +kubebuilder:default=PerProcess
	// +optional
	Launch Launch `json:"launch,omitempty"`

	// container is the name of the container that trains. It can be left out when the template
	// has one container only, or one with the name trainer. It changes only while the job is
	// suspended and has no worker.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Container string `json:"container,omitempty"`

	// template is the pod of one worker. The training container needs a command: the agent
	// starts it. restartPolicy is Never or left out: a lost worker is replaced by a new pod.
	// Names of volumes and containers that start with concertina- are the agent's. It changes
	// only while the job is suspended and has no worker. It has no ephemeralContainers.
	//
	// +kubebuilder:validation:XValidation:rule="has(self.spec)",message="spec.workers.template.spec is missing: give the pod that trains"
	// +kubebuilder:validation:XValidation:rule="self.?spec.?restartPolicy.orValue('Never') == 'Never'",message="spec.workers.template.spec.restartPolicy must be Never or left out: the operator replaces workers itself"
	// +kubebuilder:validation:XValidation:rule="!self.?spec.?volumes.hasValue() || !self.spec.volumes.exists(v, v.name.startsWith('concertina-'))",message="spec.workers.template.spec.volumes uses a name that starts with concertina-, which the agent needs: rename that volume"
	// +kubebuilder:validation:XValidation:rule="size(self.?spec.?containers.orValue([])) > 0 || !has(self.spec)",message="spec.workers.template.spec.containers is empty: give the container that trains"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || (self.spec.containers.all(c, !c.name.startsWith('concertina-')) && (!has(self.spec.initContainers) || self.spec.initContainers.all(c, !c.name.startsWith('concertina-'))))",message="spec.workers.template.spec has a container whose name starts with concertina-, which the agent needs: rename it"
	// +kubebuilder:validation:XValidation:rule="!self.?spec.?hostNetwork.orValue(false)",message="spec.workers.template.spec.hostNetwork must be false or left out: workers on one node would fight over the same ports"
	// +required
	Template corev1.PodTemplateSpec `json:"template,omitzero"`
}

// GangSpec says how the first workers are placed together.
type GangSpec struct {
	// scheduler is the mechanism that places the gang. Coscheduling, the default, makes a PodGroup
	// of scheduling.x-k8s.io, which the coscheduling plugin of a scheduler understands.
	//
	// +kubebuilder:default=Coscheduling
	// +optional
	Scheduler GangScheduler `json:"scheduler,omitempty"`

	// schedulerName is the name under which that scheduler runs in the cluster, default
	// coscheduling. It replaces schedulerName of the template.
	//
	// +kubebuilder:default=coscheduling
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`

	// startTimeout bounds the time from the first worker that holds room to the first world. A
	// gang that has not started by then lets go of its room and queues again. From 1s to 168h,
	// default 10m.
	//
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="spec.gang.startTimeout must be a duration such as 90s, 15m or 24h, from 1s to 168h"
	// +optional
	StartTimeout *metav1.Duration `json:"startTimeout,omitempty"`
}

// FailureSpec says what counts as a failure and how many of them a job survives.
type FailureSpec struct {
	// maxRestarts is how often the job starts over after a failure of its own program. Losses
	// that the infrastructure caused are counted apart and never end the job; exit code 113, a broken
	// device, is one of those until the program has said so on two nodes in a row. A container that cannot be
	// started counts as the program's. From 0 to 1000, default 10.
	//
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	MaxRestarts *int32 `json:"maxRestarts,omitempty"`

	// maxBackOff is the longest pause before another attempt. The pause doubles with each failure of the
	// program (status.restarts.program), from 5s, and with each attempt in a row that was lost to the
	// infrastructure before it had trained for a minute (status.retries), from 2s. Where a node is to blame
	// the job avoids that instead (status.avoidedNodes): for 30s at first, at most for maxBackOff; the next
	// attempt then comes after 2s. Not for a gang that did not start in its room: that pause doubles from 30s
	// to 30m. From 1s to 1h, default 5m.
	//
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="spec.failure.maxBackOff must be a duration such as 90s, 15m or 24h, from 1s to 1h"
	// +optional
	MaxBackOff *metav1.Duration `json:"maxBackOff,omitempty"`

	// heartbeatTimeout is how long a worker may be silent, while no step is made, before it is
	// missed. It is taken for lost then when its pod has ended, or other workers cannot reach it
	// either. From 1s to 1h, default 5s.
	//
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="spec.failure.heartbeatTimeout must be a duration such as 90s, 15m or 24h, from 1s to 1h"
	// +optional
	HeartbeatTimeout *metav1.Duration `json:"heartbeatTimeout,omitempty"`

	// regroupTimeout is how long the workers that are left wait for others, with their state, when
	// they are fewer than min. Then all of them are released and the job queues anew. Time in which no
	// operator leads, or the API server does not answer, does not count; but they never wait for more than
	// three times as long. From 1s to 24h, default 2m.
	//
	// +kubebuilder:default="2m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="spec.failure.regroupTimeout must be a duration such as 90s, 15m or 24h, from 1s to 24h"
	// +optional
	RegroupTimeout *metav1.Duration `json:"regroupTimeout,omitempty"`

	// hangTimeout is how long no worker may make a step, outside of evaluation, snapshots and the
	// start of the program, before the world is taken for hung. It must be longer than the longest
	// step. A worker that is silent, and of which nobody knows more, is lost then too. From 10s to 24h, default 10m.
	//
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="spec.failure.hangTimeout must be a duration such as 90s, 15m or 24h, from 10s to 24h"
	// +optional
	HangTimeout *metav1.Duration `json:"hangTimeout,omitempty"`
}

// TrainingJobSpec is what the user wants.
//
// +kubebuilder:validation:XValidation:rule="self.?workers.?launch.orValue('PerProcess') != 'PerWorker' || self.?resize.?strategy.orValue('Restart') == 'Restart'",message="spec.resize.strategy is InPlace, but with spec.workers.launch PerWorker a launcher such as torchrun starts the processes, and cannot take them into another world: set strategy to Restart, or leave it out",fieldPath=".resize.strategy"
// +kubebuilder:validation:XValidation:rule="!self.?resize.?completeWhen.hasValue() || self.?resize.?strategy.orValue(self.?workers.?launch.orValue('PerProcess') == 'PerWorker' ? 'Restart' : 'InPlace') == 'Restart'",message="spec.resize.completeWhen means nothing with strategy InPlace, where the SDK writes snapshots: set spec.resize.strategy to Restart, or leave completeWhen out",fieldPath=".resize.completeWhen"
// +kubebuilder:validation:XValidation:rule="!self.?checkpoint.?storage.hasValue() || self.?resize.?strategy.orValue(self.?workers.?launch.orValue('PerProcess') == 'PerWorker' ? 'Restart' : 'InPlace') != 'Restart'",message="spec.checkpoint.storage means nothing with strategy Restart, where programs keep checkpoints of their own: leave it out, or, with launch PerProcess and a program with the SDK's loop, set spec.resize.strategy to InPlace",fieldPath=".checkpoint.storage"
// +kubebuilder:validation:XValidation:rule="!self.?checkpoint.?restoreFrom.hasValue() || has(self.checkpoint.storage)",message="spec.checkpoint.restoreFrom needs spec.checkpoint.storage, which it is a path of",fieldPath=".checkpoint.restoreFrom"
// +kubebuilder:validation:XValidation:rule="has(self.managedBy) ? has(oldSelf.managedBy) && self.managedBy == oldSelf.managedBy : !has(oldSelf.managedBy)",message="spec.managedBy cannot change: delete the job and create it anew"
type TrainingJobSpec struct {
	// workers says how many workers the job has and what they run.
	//
	// +required
	Workers WorkersSpec `json:"workers,omitzero"`

	// gang says how the first workers are placed together. It changes only while the job is
	// suspended and has no worker.
	//
	// +kubebuilder:default={}
	// +optional
	Gang GangSpec `json:"gang,omitzero"`

	// resize says how programs get from one world to the next. It changes only while the job is
	// suspended and has no worker.
	//
	// +kubebuilder:default={}
	// +optional
	Resize ResizeSpec `json:"resize,omitzero"`

	// checkpoint says where the state of a program is kept, and how often.
	//
	// +kubebuilder:default={}
	// +optional
	Checkpoint CheckpointSpec `json:"checkpoint,omitzero"`

	// preemption says what may be taken from the job for others.
	//
	// +kubebuilder:default={}
	// +optional
	Preemption PreemptionSpec `json:"preemption,omitzero"`

	// growth says how workers are added to a job that trains.
	//
	// +kubebuilder:default={}
	// +optional
	Growth GrowthSpec `json:"growth,omitzero"`

	// failure says what counts as a failure and how many of them the job survives.
	//
	// +kubebuilder:default={}
	// +optional
	Failure FailureSpec `json:"failure,omitzero"`

	// activeDeadline is how long the job may be active, from its start, its last resumption, or its start
	// after it was evicted for another job, or after an attempt that ended before any of its programs ran.
	// A job that is not complete by then fails with the reason DeadlineExceeded. From 1s to
	// 8760h. Left out, there is no bound.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="spec.activeDeadline must be a duration such as 90s, 15m or 24h, from 1s to 8760h"
	// +optional
	ActiveDeadline *metav1.Duration `json:"activeDeadline,omitempty"`

	// deadline is when the job should be complete. Where devices are shared by value, a job whose program reports
	// its steps and their total gets as many workers as it needs to meet it, from workers.min to workers.max, before
	// other jobs of its namespace and priority grow; one that cannot meet it says with how many it would. Nothing
	// happens to a job that is late. Left out, it has none.
	//
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`

	// ttlAfterFinished is how long a job is kept after it is complete or has failed; then it is
	// deleted with everything that belongs to it. From 0s to 8760h. Left out, it is kept.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('0s') && duration(self) <= duration('8760h')",message="spec.ttlAfterFinished must be a duration such as 90s, 15m or 24h, from 0s to 8760h"
	// +optional
	TTLAfterFinished *metav1.Duration `json:"ttlAfterFinished,omitempty"`

	// suspend releases all workers while it is true. When it is false again the job begins with its last
	// checkpoint, or without a spec.checkpoint.storage at step 0. Default false.
	//
	// +kubebuilder:default=false
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// managedBy names the controller that runs the job. Left out or
	// training.concertina.dev/operator means this operator; it leaves all others alone. It never
	// changes.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ManagedBy string `json:"managedBy,omitempty"`
}

// TrainingJob is one distributed training run: a gang of workers that start together, train as
// one world, and end together.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.workers.max,statuspath=.status.workers.running,selectorpath=.status.selector
// +kubebuilder:resource:shortName=tj,categories=all
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`,description="what the job is doing, in one word"
// +kubebuilder:printcolumn:name="Workers",type=string,JSONPath=`.status.workers.summary`,description="running workers, and the bounds"
// +kubebuilder:printcolumn:name="Round",type=integer,JSONPath=`.status.world.round`,description="number of the current world"
// +kubebuilder:printcolumn:name="Step",type=integer,JSONPath=`.status.progress.step`,description="optimizer updates done"
// +kubebuilder:printcolumn:name="Checkpoint",type=date,JSONPath=`.status.checkpoint.at`,description="age of the newest state in the storage"
// +kubebuilder:printcolumn:name="Queue",type=integer,JSONPath=`.status.queue.position`,description="place among the jobs that wait",priority=1
// +kubebuilder:printcolumn:name="Spares",type=integer,JSONPath=`.status.workers.spares`,description="workers that are ready to take the place of a lost one",priority=1
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="FullSize")].reason`,description="why the job has the size that it has",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48",message="metadata.name is longer than 48 characters, and pods get their names from it: choose a shorter one"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be a DNS label: lower-case letters, digits and -, starting and ending with a letter or digit"
// +kubebuilder:validation:XValidation:rule="self.spec.workers.template == oldSelf.spec.workers.template || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.workers.template cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.workers.template",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.spec.workers.min == oldSelf.spec.workers.min || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.workers.min cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.workers.min",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="(has(self.spec.workers.sizes) ? has(oldSelf.spec.workers.sizes) && self.spec.workers.sizes == oldSelf.spec.workers.sizes : !has(oldSelf.spec.workers.sizes)) || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.workers.sizes cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.workers.sizes",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.spec.workers.launch == oldSelf.spec.workers.launch || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.workers.launch cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.workers.launch",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.spec.workers.processesPerWorker == oldSelf.spec.workers.processesPerWorker || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.workers.processesPerWorker cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.workers.processesPerWorker",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="(has(self.spec.workers.container) ? has(oldSelf.spec.workers.container) && self.spec.workers.container == oldSelf.spec.workers.container : !has(oldSelf.spec.workers.container)) || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.workers.container cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.workers.container",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.spec.gang == oldSelf.spec.gang || (oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0) || (has(self.spec.gang) == has(oldSelf.spec.gang) && (!has(self.spec.gang) || has(self.spec.gang.scheduler) == has(oldSelf.spec.gang.scheduler) && (!has(self.spec.gang.scheduler) || self.spec.gang.scheduler == oldSelf.spec.gang.scheduler) && has(self.spec.gang.schedulerName) == has(oldSelf.spec.gang.schedulerName) && (!has(self.spec.gang.schedulerName) || self.spec.gang.schedulerName == oldSelf.spec.gang.schedulerName) && has(self.spec.gang.startTimeout) == has(oldSelf.spec.gang.startTimeout) && (!has(self.spec.gang.startTimeout) || duration(self.spec.gang.startTimeout) == duration(oldSelf.spec.gang.startTimeout))))",message="spec.gang cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.gang",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.spec.resize == oldSelf.spec.resize || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.resize cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.resize",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!self.spec.?checkpoint.?memory.hasValue() || string(self.spec.checkpoint.memory) == 'auto' || oldSelf.spec.?checkpoint.?memory.hasValue() && string(oldSelf.spec.checkpoint.memory) != 'auto' && quantity(string(self.spec.checkpoint.memory)).compareTo(quantity(string(oldSelf.spec.checkpoint.memory))) == 0 || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.checkpoint.memory cannot change to another quantity while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.checkpoint.memory",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="(self.spec.?checkpoint.?storage.hasValue() ? oldSelf.spec.?checkpoint.?storage.hasValue() && self.spec.checkpoint.storage == oldSelf.spec.checkpoint.storage : !oldSelf.spec.?checkpoint.?storage.hasValue()) || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.checkpoint.storage cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.checkpoint.storage",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="(self.spec.?checkpoint.?restoreFrom.hasValue() ? oldSelf.spec.?checkpoint.?restoreFrom.hasValue() && self.spec.checkpoint.restoreFrom == oldSelf.spec.checkpoint.restoreFrom : !oldSelf.spec.?checkpoint.?restoreFrom.hasValue()) || oldSelf.spec.?suspend.orValue(false) && oldSelf.?status.?workers.?running.orValue(0) == 0",message="spec.checkpoint.restoreFrom cannot change while the job may have workers: set spec.suspend to true and wait until status.workers.running is 0",fieldPath=".spec.checkpoint.restoreFrom",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.?status.?world.hasValue() || !oldSelf.?status.?world.hasValue()",message="status.world is never removed"
type TrainingJob struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata. The name is a DNS label of at most 48 characters.
	//
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the user wants.
	//
	// +required
	Spec TrainingJobSpec `json:"spec,omitzero"`

	// status is what the operator has seen and done.
	//
	// +optional
	Status TrainingJobStatus `json:"status,omitzero"`
}

// TrainingJobList is a list of TrainingJobs.
//
// +kubebuilder:object:root=true
type TrainingJobList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list metadata.
	//
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the jobs.
	//
	// +required
	Items []TrainingJob `json:"items"`
}
