package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorldStatus is the durable record of the current world. It has one writer, the rendezvous, which
// makes it durable before any worker learns of it.
//
// +kubebuilder:validation:XValidation:rule="self.term >= oldSelf.term",message="status.world.term never decreases"
// +kubebuilder:validation:XValidation:rule="self.round >= oldSelf.round",message="status.world.round never decreases"
type WorldStatus struct {
	// term is the number of the leadership that wrote this record. It only grows.
	//
	// +kubebuilder:validation:Minimum=1
	// +required
	Term *int64 `json:"term,omitempty"`

	// round is the number of the world. It only grows; 0 means that there was none yet.
	//
	// +kubebuilder:validation:Minimum=0
	// +required
	Round *int64 `json:"round,omitempty"`

	// attempt is the attempt whose gang this world was made of. A new leader knows by it whether
	// the world may still live, or was that of an earlier gang.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Attempt *int32 `json:"attempt,omitempty"`

	// parent is the round whose history this world goes on from; 0 for none.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Parent *int64 `json:"parent,omitempty"`

	// workers is the number of members.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Workers *int32 `json:"workers,omitempty"`

	// processes is the number of training processes of all members together.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Processes *int32 `json:"processes,omitempty"`

	// fromStep is the number of steps that were done when this world began.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	FromStep *int64 `json:"fromStep,omitempty"`

	// membersDigest is the SHA-256, in hex, over the ordered members.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	MembersDigest string `json:"membersDigest,omitempty"`

	// parentDigest is the membersDigest of the parent. Empty when there is none, and in a record of an older version.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ParentDigest string `json:"parentDigest,omitempty"`

	// parentFromStep is the fromStep of the parent: a leader that finds that the parent lives, and not this round, knows by it
	// whether that has made steps. 0 when there is none, and in a record of an older version.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	ParentFromStep *int64 `json:"parentFromStep,omitempty"`

	// grandparent is the round that the parent continued, whose snapshots are of its history; 0 for none, and in a record of an
	// older version.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Grandparent *int64 `json:"grandparent,omitempty"`

	// members names the members: the numbers at the end of their pods' names in rank order, each as its difference
	// to the one before, packed. A leader that finds the record knows by it who has which rank. Empty in a record
	// of an older version.
	//
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Members string `json:"members,omitempty"`

	// nodes are the names of the nodes of the members in rank order, packed. An operator that starts later knows by
	// them where a member was whose pod is gone. Empty in a record of an older version.
	//
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Nodes string `json:"nodes,omitempty"`

	// racks are those of these nodes, packed, where nodes are labelled with one.
	//
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Racks string `json:"racks,omitempty"`

	// masterAddress is the IP address at which the members of this world meet, that of rank 0.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	MasterAddress string `json:"masterAddress,omitempty"`

	// masterPort is the port there.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	MasterPort *int32 `json:"masterPort,omitempty"`

	// reason is why this world was made, in one word; the same words as in status.resizes.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`

	// from is the number of workers of the world before it; 0 for none.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	From *int32 `json:"from,omitempty"`

	// recoveries are the newest worlds before this one that followed a loss, packed. A leader counts by them what the one
	// before it has not.
	//
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Recoveries string `json:"recoveries,omitempty"`

	// startedAt is when the record of this round was written.
	//
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// jobUID is the uid of the job that this record was made for. One that was made for another job,
	// as after a restore from a backup, counts as none.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	JobUID string `json:"jobUID,omitempty"`

	// leader is a random name of the operator process that wrote this record. By it a leader knows that a
	// write of its own was made although nobody said so.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Leader string `json:"leader,omitempty"`
}
