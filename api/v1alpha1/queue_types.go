package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// QueueStatus is the place of a job that waits for its gang to start.
type QueueStatus struct {
	// position counts from 1 among all jobs of the cluster that wait, in the order in which they are
	// looked at: by priority, then by age.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	Position *int32 `json:"position,omitempty"`

	// since is when the job began to wait. It is kept until the job trains.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// waitsFor says in a sentence what it waits for.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	WaitsFor string `json:"waitsFor,omitempty"`

	// estimatedStart is when it starts at the latest, as far as the deadlines (spec.activeDeadline) of jobs
	// that run tell. Of several gangs that wait for the same nodes only the first one has it.
	//
	// +optional
	EstimatedStart *metav1.Time `json:"estimatedStart,omitempty"`
}
