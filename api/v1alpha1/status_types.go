package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkersStatus counts workers.
type WorkersStatus struct {
	// target is how many workers the job should have now.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Target *int32 `json:"target,omitempty"`

	// running is how many workers run their containers now.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Running *int32 `json:"running,omitempty"`

	// standby is how many workers are ready and in no world yet.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Standby *int32 `json:"standby,omitempty"`

	// spares is how many of these are ready to take the place of a worker that is lost; for a job with
	// spec.workers.spares.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Spares *int32 `json:"spares,omitempty"`

	// summary reads "running/min-max", for kubectl get; of a job with spec.workers.spares max stands with these, as
	// in "5/2-4+1".
	//
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Summary string `json:"summary,omitempty"`
}

// CheckpointStatus is the newest state of the job that outlives all of its workers, and the one that is in their memory.
type CheckpointStatus struct {
	// step is the number of steps that were done.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Step *int64 `json:"step,omitempty"`

	// round is the world in which the snapshot was taken; 0 when it is the state of another job.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Round *int64 `json:"round,omitempty"`

	// location is where it is, below spec.checkpoint.storage.url.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Location string `json:"location,omitempty"`

	// at is when it was seen to be durable.
	//
	// +optional
	At *metav1.Time `json:"at,omitempty"`

	// best are the checkpoints in the storage with the best scores, the best first, as spec.checkpoint.storage.best asks for them.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Best []BestCheckpoint `json:"best,omitempty"`

	// memory is the state that the job goes back to as long as workers are left that hold it. It is written as often as
	// status.progress.
	//
	// +optional
	Memory MemoryStatus `json:"memory,omitzero"`

	// size is how large the state has been at most. It outlives the workers: spec.checkpoint.memory of those that
	// follow goes by it.
	//
	// +optional
	Size StateSize `json:"size,omitzero"`
}

// BestCheckpoint is a checkpoint in the storage, and how good it is.
type BestCheckpoint struct {
	// metric is what the score is of.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +required
	Metric string `json:"metric,omitempty"`

	// score is how good it is, as text.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +required
	Score string `json:"score,omitempty"`

	// step is the number of steps that were done.
	//
	// +kubebuilder:validation:Minimum=0
	// +required
	Step *int64 `json:"step,omitempty"`

	// round is the world in which it was evaluated.
	//
	// +kubebuilder:validation:Minimum=0
	// +required
	Round *int64 `json:"round,omitempty"`

	// location is where it is, below spec.checkpoint.storage.url. As spec.checkpoint.restoreFrom of another job it is what that
	// begins with.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Location string `json:"location,omitempty"`

	// at is when it was seen to be durable.
	//
	// +optional
	At *metav1.Time `json:"at,omitempty"`
}

// MemoryStatus is a state in the memory of the workers.
type MemoryStatus struct {
	// step is the number of steps that were done.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Step *int64 `json:"step,omitempty"`

	// copies is on how many nodes each part of it is, at least: spec.checkpoint.copies, or as many as there are, but for a
	// while after a loss.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	Copies *int32 `json:"copies,omitempty"`

	// at is when it was first seen.
	//
	// +optional
	At *metav1.Time `json:"at,omitempty"`
}

// Metric is one number that the training program reported.
type Metric struct {
	// name is what the program calls it, such as loss.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +required
	Name string `json:"name,omitempty"`

	// value is the number, as text.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +required
	Value string `json:"value,omitempty"`
}

// ProgressStatus is how far the training is. It is refreshed while the job trains, every 2 seconds in a
// cluster with a few jobs and every 2 minutes in one with thousands; finer detail is in the operator's metrics.
type ProgressStatus struct {
	// step is the number of steps (optimizer updates) that all processes have done.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Step *int64 `json:"step,omitempty"`

	// totalSteps is the last step of the whole training, when the program has told it.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	TotalSteps *int64 `json:"totalSteps,omitempty"`

	// samplesPerSecond is the rate of all processes together since the last refresh.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	SamplesPerSecond *int64 `json:"samplesPerSecond,omitempty"`

	// goodput is the part of the job's time that went into steps which were kept, over all of its
	// attempts, from "0.000" to "1.000": keptTime / (time of this refresh - since - suspendedTime).
	// What is missing are pauses, steps that had to be made again, and waiting for another attempt.
	//
	// +kubebuilder:validation:MaxLength=8
	// +optional
	Goodput string `json:"goodput,omitempty"`

	// since is when the first step of the job was made. For a job whose first steps the operator has
	// not seen it is when the world began in which it saw them first.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// keptTime is the time that the steps counted in step took, such as 1h2m3.4s. Steps that are lost
	// are taken off it at their average length; steps that no operator saw being made are added at that.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +optional
	KeptTime *metav1.Duration `json:"keptTime,omitempty"`

	// suspendedTime is for how long the job was suspended since its first step, up to when it was
	// last resumed.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +optional
	SuspendedTime *metav1.Duration `json:"suspendedTime,omitempty"`

	// metrics are the last numbers that the process of rank 0 reported.
	//
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Metrics []Metric `json:"metrics,omitempty"`
}

// Resize is one change of the world, and what it cost.
type Resize struct {
	// round is the number of the world that the change led to.
	//
	// +kubebuilder:validation:Minimum=0
	// +required
	Round *int64 `json:"round,omitempty"`

	// from is the number of workers before the change; 0 for none.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	From *int32 `json:"from,omitempty"`

	// to is the number of workers after it.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	To *int32 `json:"to,omitempty"`

	// reason is why the world changed, in one word such as CapacityAvailable, ScaledDown or
	// WorkerLost.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`

	// message says so in a sentence.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`

	// pause is how long training stood still, such as 180ms, from the end of a worker's last step before
	// to the beginning of its first in this world, by its own clock, on the slowest worker that was in
	// both; left out when it is not known, as when no worker was.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Pause *metav1.Duration `json:"pause,omitempty"`

	// stepsLost is how many steps had to be made again.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	StepsLost *int64 `json:"stepsLost,omitempty"`

	// at is when the world of this round began.
	//
	// +optional
	At *metav1.Time `json:"at,omitempty"`
}

// TrainingJobStatus is what the operator has seen and done.
type TrainingJobStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`

	// selector selects the job's pods, for the scale subresource.
	//
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Selector string `json:"selector,omitempty"`

	// conditions are Admitted, GangScheduled, Training, FullSize, SnapshotsFit, BestKept, Suspended, Complete and Failed.
	//
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// state is what the job is doing, in one word, for kubectl get: Queued, Starting, Training, Resizing,
	// Recovering, Suspended, Complete, Failed, or why it may not start. It says no more than conditions do.
	//
	// +kubebuilder:validation:MaxLength=32
	// +optional
	State string `json:"state,omitempty"`

	// queue is the place of a job that waits for its gang to start.
	//
	// +optional
	Queue QueueStatus `json:"queue,omitzero"`

	// attempt is the number of the current life of the gang, from its PodGroup to its release.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Attempt *int32 `json:"attempt,omitempty"`

	// endedAttempt is the newest attempt whose workers are known to make no further step. An operator that starts later
	// misses none of them whose pods are gone.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	EndedAttempt *int32 `json:"endedAttempt,omitempty"`

	// nextOrdinal is the ordinal of the next pod. It is saved before pods are created, so that
	// no pod name is ever used twice.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	NextOrdinal *int32 `json:"nextOrdinal,omitempty"`

	// startTime is when the job became active, at first, after its last suspension, or after it was
	// evicted for another job.
	//
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// completionTime is when the job was complete or failed.
	//
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// retryTime is when the next attempt may start, after a failure.
	//
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`

	// retries is how many attempts in a row were lost to the infrastructure, or did not start in the room that
	// they had been given. It is 0 again once the job
	// has trained for a minute, is suspended, or has another template, min or gang. The pause before the next attempt grows with it.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Retries *int32 `json:"retries,omitempty"`

	// avoidedNodes are nodes to blame for workers that failed, were lost or did not start, at most 16. Until their time is over the job does
	// not grow there, and its gang is placed there only where it fits nowhere else. One is forgotten once the job has trained
	// for a minute after that, and all of them when it is suspended.
	//
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	AvoidedNodes []AvoidedNode `json:"avoidedNodes,omitempty"`

	// workers counts workers.
	//
	// +optional
	Workers WorkersStatus `json:"workers,omitzero"`

	// world is the durable record of the current world.
	//
	// +optional
	World *WorldStatus `json:"world,omitempty"`

	// progress is how far the training is.
	//
	// +optional
	Progress ProgressStatus `json:"progress,omitzero"`

	// speed is how fast the job was at which size.
	//
	// +optional
	Speed SpeedStatus `json:"speed,omitzero"`

	// stragglers are the processes that have kept the others waiting for minutes, the slowest first, at most 8. They are written
	// with the progress.
	//
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=rank
	// +optional
	Stragglers []Straggler `json:"stragglers,omitempty"`

	// checkpoint is the newest state of the job in its storage, and in the memory of its workers.
	//
	// +optional
	Checkpoint CheckpointStatus `json:"checkpoint,omitzero"`

	// resizes are the last 16 changes of the world, oldest first.
	//
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=round
	// +optional
	Resizes []Resize `json:"resizes,omitempty"`

	// restarts counts how often the job started over, by cause.
	//
	// +optional
	Restarts RestartsStatus `json:"restarts,omitzero"`
}
