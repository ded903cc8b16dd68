package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SpeedStatus is how fast the job was at the sizes that it has had, and whether what its program says of the steps that
// are left is believed. It is refreshed together with progress.
type SpeedStatus struct {
	// sizes are those that the job has had, at most 16, those that were seen last. Pauses, the first step of each
	// world, evaluation and snapshots are left out.
	//
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=workers
	// +listMapKey=nodes
	// +optional
	Sizes []SizeSpeed `json:"sizes,omitempty"`

	// firstTotalSteps is the first progress.totalSteps that the program has told.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	FirstTotalSteps *int64 `json:"firstTotalSteps,omitempty"`

	// leastTotalSteps is the least progress.totalSteps that the program has told.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	LeastTotalSteps *int64 `json:"leastTotalSteps,omitempty"`

	// doubt says why progress.totalSteps is not believed, until the job ends; empty where it is: it has grown by more
	// than 10% of the least one, or more than 15% steps than that were made. As many steps as were made are then
	// expected to be left.
	//
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Doubt string `json:"doubt,omitempty"`

	// shortSince is since when the planner would give the job less than half of its share of the devices, where sizes go
	// by value; none while it would not.
	//
	// +optional
	ShortSince *metav1.Time `json:"shortSince,omitempty"`

	// triedAgain is the last time that the job was tried again with more workers than what is known of it would give it,
	// where sizes go by value and devices were free; none where it never was, or where it is faster since.
	//
	// +optional
	TriedAgain *TriedAgain `json:"triedAgain,omitempty"`
}

// TriedAgain is a trial of more workers for a job that seemed to make nothing of them.
type TriedAgain struct {
	// from is how many workers the job had before, while it is tried; none once that is over.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	From *int32 `json:"from,omitempty"`

	// at is when that began, or when it was over.
	//
	// +required
	At *metav1.Time `json:"at,omitempty"`

	// vain is how often in a row it was of no use: the next trial waits for the longer.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Vain *int32 `json:"vain,omitempty"`
}

// SizeSpeed is how fast the job was at one size.
type SizeSpeed struct {
	// workers is how many members the world had.
	//
	// +kubebuilder:validation:Minimum=1
	// +required
	Workers *int32 `json:"workers,omitempty"`

	// nodes is on how many nodes they were.
	//
	// +kubebuilder:validation:Minimum=1
	// +required
	Nodes *int32 `json:"nodes,omitempty"`

	// stepsPerSecond is the pace there, such as 12.5 or 0.004: of the last minute of steps there, or nearly.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +required
	StepsPerSecond string `json:"stepsPerSecond,omitempty"`

	// settledStepsPerSecond is the pace there that is certain, while it changes or differs by noise; empty where that is
	// stepsPerSecond.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +optional
	SettledStepsPerSecond string `json:"settledStepsPerSecond,omitempty"`

	// steps is how many steps were seen there.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	Steps *int64 `json:"steps,omitempty"`

	// time is how long those steps took, such as 1h2m3.4s, each at the pace of then.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Time *metav1.Duration `json:"time,omitempty"`

	// at is when the last of them was seen.
	//
	// +optional
	At *metav1.Time `json:"at,omitempty"`
}
