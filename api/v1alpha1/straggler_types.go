package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Straggler is a process that keeps the others waiting: a step takes as long as its slowest process.
type Straggler struct {
	// rank is that of the process in its world.
	//
	// +kubebuilder:validation:Minimum=0
	// +required
	Rank *int32 `json:"rank,omitempty"`

	// pod is the name of the pod of the worker.
	//
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Pod string `json:"pod,omitempty"`

	// node is the name of the node on which the pod runs.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`

	// factor is how many times as long as most it works in a step, such as "1.80", without what it waits for others.
	//
	// +kubebuilder:validation:MaxLength=16
	// +optional
	Factor string `json:"factor,omitempty"`

	// since is when it was first seen to be slow, without a break since.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}
