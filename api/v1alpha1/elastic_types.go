package v1alpha1

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResizeStrategy says how programs get from one world to the next.
// +kubebuilder:validation:Enum=InPlace;Restart
type ResizeStrategy string

const (
	// ResizeInPlace: the process lives on, and its SDK re-forms the world.
	ResizeInPlace ResizeStrategy = "InPlace"
	// ResizeRestart: programs are asked for a checkpoint, stopped, and started in the next world.
	ResizeRestart ResizeStrategy = "Restart"
)

// CheckpointSignal is the signal that asks a program for a checkpoint.
// +kubebuilder:validation:Enum=SIGUSR1;SIGUSR2;SIGHUP;SIGINT;SIGTERM
type CheckpointSignal string

// DefaultCheckpointSignal is the signal that a job has unless it says otherwise.
const DefaultCheckpointSignal CheckpointSignal = "SIGUSR2"

// MemoryIntervalAuto as spec.checkpoint.memoryInterval lets the program's SDK choose the interval.
const MemoryIntervalAuto = "auto"

// MemorySize is the size of the volume that holds snapshots: MemoryAuto, a quantity of bytes, or, as in objects that were
// written without one, nothing, which is MemoryAuto too. The schema has no default, so that an operator that knows quantities
// alone can read objects that do not name a size.
//
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:Type=""
type MemorySize string

// MemoryAuto as spec.checkpoint.memory lets the operator choose the size, by what the state has been seen to have.
const MemoryAuto MemorySize = "auto"

// UnmarshalJSON takes a number as well, as quantities may be written. What no quantity can be made of the schema refuses; an
// object that has it all the same is read, and counts as MemoryAuto: a list of jobs is not lost for one of them.
func (m *MemorySize) UnmarshalJSON(text []byte) error {
	var words string
	if err := json.Unmarshal(text, &words); err != nil {
		words = string(bytes.TrimSpace(text))
	}
	*m = MemorySize(words)
	return nil
}

// Quantity is the size that the user has chosen; ok is false for MemoryAuto.
func (m MemorySize) Quantity() (size resource.Quantity, ok bool) {
	size, err := resource.ParseQuantity(string(m))
	return size, err == nil && size.Sign() > 0
}

// Strategy is spec.resize.strategy, or what follows from spec.workers.launch when it is left out:
// a launcher such as torchrun cannot take its processes into another world.
func (s *TrainingJobSpec) Strategy() ResizeStrategy {
	if s.Resize.Strategy != "" {
		return s.Resize.Strategy
	}
	if s.Workers.Launch == LaunchPerWorker {
		return ResizeRestart
	}
	return ResizeInPlace
}

// ResizeSpec says how programs get from one world to the next.
type ResizeSpec struct {
	// strategy says how programs get from one world to the next when workers come, leave or are
	// lost. InPlace: the process lives on, and its SDK re-forms the world. Restart: programs are
	// asked for a checkpoint, stopped, and started anew in the same pods, which suits every
	// program that goes on from its own checkpoints; those that ask the SDK whether they should
	// stop lose nothing by it. Left out it is InPlace for launch PerProcess
	// and Restart for launch PerWorker, which knows no other. It changes only while the job is
	// suspended and has no worker.
	//
	// +optional
	Strategy ResizeStrategy `json:"strategy,omitempty"`

	// checkpointSignal asks a program for a checkpoint before a planned change, with strategy
	// Restart. Only processes that handle the signal get it. SIGUSR1, SIGUSR2, SIGHUP, SIGINT or
	// SIGTERM, default SIGUSR2. It changes only while the job is suspended and has no worker.
	//
	// +kubebuilder:default=SIGUSR2
	// +optional
	CheckpointSignal CheckpointSignal `json:"checkpointSignal,omitempty"`

	// completeWhen is a glob of the file that says that a checkpoint is complete, such as
	// /checkpoints/**/.metadata: a file that matches, is newer than the signal, and has not changed for
	// a quarter of a second. ** stands for any number of folders; a relative pattern counts from the
	// program's working folder. Left out, a program has 2 seconds after the signal. Only with strategy
	// Restart. At most 256 characters. It changes only while the job is suspended and has no worker.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +optional
	CompleteWhen string `json:"completeWhen,omitempty"`
}

// CheckpointSpec says where the state of a program is kept, and how often.
type CheckpointSpec struct {
	// memory is the size of the volume in memory that holds snapshots, with strategy InPlace: auto, or a quantity from 1Mi to
	// 16Ti. It is added to the memory request and limit of the training container, where those are set. auto: as much as the
	// state needs, as status.checkpoint.size has it, in a world of workers.min: three times what a worker writes of a snapshot, since
	// two are kept while another is written, and at least that and one whole state, with which newcomers may begin; or with a storage four
	// times, and at least twice that and one whole state, which is brought back there, and once more with storage.best; seven times and eight times of a state in shards that is on two nodes, whose copies lie there too; a sixteenth more, at least 512Mi, which it is before the state's size is known, and at most what the administrator allows,
	// 64Gi unless said otherwise. A worker keeps the volume that it was made with; one that is too small is told in the condition
	// SnapshotsFit. Default auto. A change to auto reaches workers that start after it; any other is made only while the job is suspended
	// and has no worker.
	//
	// +kubebuilder:validation:XValidation:rule="size(string(self)) <= 32 && (string(self) == 'auto' || isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('16Ti')) <= 0)",message="spec.checkpoint.memory must be auto or a quantity of bytes such as 512Mi or 4Gi, from 1Mi to 16Ti"
	// +optional
	Memory MemorySize `json:"memory,omitempty"`

	// memoryInterval is how often a snapshot is taken into memory while training goes on, with
	// strategy InPlace: a lost worker costs at most the steps since. auto: as often as costs at most
	// 1% of training, and at most every second; or a duration from 1s to 24h. Default auto. A change
	// reaches workers that start after it.
	//
	// +kubebuilder:default=auto
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == 'auto' || self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="spec.checkpoint.memoryInterval must be auto or a duration such as 90s, 15m or 24h, from 1s to 24h"
	// +optional
	MemoryInterval string `json:"memoryInterval,omitempty"`

	// timeout is how long a planned change may wait for the barrier and the snapshot, or for a
	// program's own checkpoint; what happens then is said in status. From 1s to 1h, default 60s.
	//
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="spec.checkpoint.timeout must be a duration such as 90s, 15m or 1h, from 1s to 1h"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// copies is on how many nodes each part of a snapshot in memory is, with strategy InPlace, where the world has as many:
	// so many less one may be lost at once, and the newest snapshot is still whole. Each worker holds about
	// copies/workers of a large state for each snapshot, and all of a small one. A change counts from the next world on.
	// From 1 to 8, default 2.
	//
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8
	// +optional
	Copies *int32 `json:"copies,omitempty"`

	// storage is where checkpoints go that outlive all workers, with strategy InPlace; a job without one begins
	// at step 0 again when its last worker is gone. A job that has one, and a checkpoint in it, may give way as a whole to one of
	// higher priority, unless preemption.policy is Never. It changes only while the job is suspended and has no worker.
	//
	// +optional
	Storage *StorageSpec `json:"storage,omitempty"`

	// interval is how often a snapshot is made durable in the storage while training goes on. From 10s to 24h,
	// default 5m.
	//
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="spec.checkpoint.interval must be a duration such as 90s, 15m or 1h, from 10s to 24h"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// keep is how many checkpoints are kept in the storage; older ones are deleted. From 1 to 1000, default 3.
	//
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	Keep *int32 `json:"keep,omitempty"`

	// restoreFrom is the checkpoint of another job that this one begins with: a path below the URL of the storage,
	// NAMESPACE/NAME for the newest of the jobs of that name, or NAMESPACE/NAME/UID/attempt-A/ROUND-STEP for a certain
	// one. Once the job has a checkpoint of its own it goes on from that. It changes only while the job is suspended and
	// has no worker.
	//
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-zA-Z0-9][a-zA-Z0-9.-]*(/[a-zA-Z0-9][a-zA-Z0-9.-]*)+$') && !self.contains('..')",message="spec.checkpoint.restoreFrom must be a path such as NAMESPACE/NAME, without .."
	// +optional
	RestoreFrom string `json:"restoreFrom,omitempty"`
}

// StorageSpec says where checkpoints go.
type StorageSpec struct {
	// url names the storage: s3://bucket/prefix, gs://bucket/prefix, azblob://container/prefix, or file:///path on a
	// volume that the training container mounts, which all nodes must share for checkpoints to outlive one.
	// Parameters of the provider follow as a query: for S3 region=eu-central-1, or for other servers that speak it
	// endpoint=https://host&region=us-east-1&use_path_style=true, which MinIO and most others need.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('s3://') || self.startsWith('gs://') || self.startsWith('azblob://') || self.startsWith('file:///')",message="spec.checkpoint.storage.url must begin with s3://, gs://, azblob:// or file:///"
	// +required
	URL string `json:"url"`

	// secretName is the Secret in the job's namespace with the storage's credentials. Its keys become variables of
	// the container that speaks to the storage, as the provider's own tools read them (AWS_ACCESS_KEY_ID and so on), and
	// files in /var/run/concertina/storage, where GOOGLE_APPLICATION_CREDENTIALS may point. The training program sees
	// none of them. Without one the identity of the pod's service account counts.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SecretName string `json:"secretName,omitempty"`

	// best keeps checkpoints of the states that were evaluated best, beside the newest ones that spec.checkpoint.keep is
	// about. Which they are says status.checkpoint.best.
	//
	// +optional
	Best *BestSpec `json:"best,omitempty"`
}

// BestSpec says which checkpoints are the best.
type BestSpec struct {
	// metric is the name under which the program reports how good its state is, in an evaluation of the loop: accuracy for
	// step.report(accuracy=0.93) where step.evaluates. The state of that step is made durable when it is among the best.
	// What is reported in other steps does not count. The value of rank 0 counts. Up to 32 letters, digits and _.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_]+$')",message="spec.checkpoint.storage.best.metric must be the name of a metric: letters, digits and _"
	// +required
	Metric string `json:"metric"`

	// order is Maximize where a higher value is better, as of an accuracy, and Minimize where a lower one is, as of a loss.
	// Of several that are equal the newest is the best.
	//
	// +required
	Order BestOrder `json:"order"`

	// keep is how many of the best are kept. From 1 to 16, default 1.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	// +optional
	Keep *int32 `json:"keep,omitempty"`
}

// BestOrder says which values are better.
// +kubebuilder:validation:Enum=Maximize;Minimize
type BestOrder string

const (
	// BestMaximize: the higher, the better.
	BestMaximize BestOrder = "Maximize"
	// BestMinimize: the lower, the better.
	BestMinimize BestOrder = "Minimize"
)

// PreemptionPolicy says what may be taken from a job for others.
// +kubebuilder:validation:Enum=Shrink;Evict;Never
type PreemptionPolicy string

const (
	// PreemptionShrink: the workers beyond min, for a gang of any priority and for growth that has more claim to them. All
	// workers too when that costs the job no work.
	PreemptionShrink PreemptionPolicy = "Shrink"
	// PreemptionEvict: the same, and all workers when a job of higher priority cannot start otherwise.
	PreemptionEvict PreemptionPolicy = "Evict"
	// PreemptionNever: nothing, and the job has no workers beyond min.
	PreemptionNever PreemptionPolicy = "Never"
)

// PreemptionSpec says what may be taken from a job for others.
type PreemptionSpec struct {
	// policy says what the operator may take from this job for others. It takes none below min, but by Evict,
	// and from a job with Shrink that loses nothing. Shrink: workers beyond min, for any gang that waits, whatever its priority, and for the
	// growth of jobs of higher priority, or of equal ones that have less. As a planned change that costs no
	// step with resize.strategy InPlace, and what the program has not saved with Restart. Evict: all
	// workers too, for a job of higher priority, when nothing less helps; the job queues again, and what
	// its program has not saved is lost. A job with Shrink that would lose nothing, since its
	// spec.checkpoint.storage has what it did, queues again likewise, and goes on where it was. Never:
	// nothing; such a job does not lend, so it does not borrow either: it has min workers, and gives up
	// what it has beyond them. An administrator may not allow
	// Evict or Never in a namespace: Shrink is used then, and an event says so. It can change at any time.
	// Default Shrink.
	//
	// +kubebuilder:default=Shrink
	// +optional
	Policy PreemptionPolicy `json:"policy,omitempty"`
}

// GrowthPolicy says whether workers are added to a job that trains.
// +kubebuilder:validation:Enum=Auto;Off
type GrowthPolicy string

const (
	// GrowthAuto: as far as there is room that nobody needs more.
	GrowthAuto GrowthPolicy = "Auto"
	// GrowthOff: none beyond those that are there.
	GrowthOff GrowthPolicy = "Off"
)

// GrowthSpec says how workers are added to a job that trains.
type GrowthSpec struct {
	// policy says whether workers are added beyond those that are there: Auto, as far as there is room
	// that nobody needs more, or Off, which YAML wants in quotes. Workers that are there stay, and may still
	// be taken back. It can change at any time. Default Auto.
	//
	// +kubebuilder:default=Auto
	// +optional
	Policy GrowthPolicy `json:"policy,omitempty"`

	// stabilization is how long the first new worker that is ready waits for others, so that all of
	// them come in with one pause. A new worker that has no node by then is withdrawn. From 1s to
	// 1h, default 30s.
	//
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="spec.growth.stabilization must be a duration such as 90s, 15m or 1h, from 1s to 1h"
	// +optional
	Stabilization *metav1.Duration `json:"stabilization,omitempty"`

	// priorityClassName is the PriorityClass of the workers beyond min. It should preempt nobody
	// (preemptionPolicy Never) and stand no higher than the priority of the template, so that the
	// scheduler takes these workers first when room is needed. Default concertina-growth, which is
	// installed with the operator.
	//
	// +kubebuilder:default=concertina-growth
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
}
