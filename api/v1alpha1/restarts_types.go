package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AvoidedNode is a node on which the job is not placed for a while.
type AvoidedNode struct {
	// name is that of the node.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`

	// failures is how often workers failed there or were lost with it. The time for which the node is avoided doubles with it.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	Failures *int32 `json:"failures,omitempty"`

	// devices is how many of these failures were exit code 113, by which a program says that a device of the node is broken.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	Devices *int32 `json:"devices,omitempty"`

	// until is when it may be used again.
	//
	// +optional
	Until *metav1.Time `json:"until,omitempty"`

	// message says what happened there last.
	//
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// RestartsStatus counts how often the job started over, by cause.
type RestartsStatus struct {
	// program counts failures of the training program; spec.failure.maxRestarts bounds it.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Program *int32 `json:"program,omitempty"`

	// infrastructure counts losses of nodes and pods that the program did not cause.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Infrastructure *int32 `json:"infrastructure,omitempty"`
}
