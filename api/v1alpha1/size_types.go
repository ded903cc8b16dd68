package v1alpha1

// StateSize is how large a state is, in bytes, as its programs have measured it.
type StateSize struct {
	// state is the whole state of one worker.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	State *int64 `json:"state,omitempty"`

	// own is what each worker writes for itself: what differs by rank, or all of it where the state is small, below 16 MiB, or the
	// program knows no shares. The rest is written in shares.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Own *int64 `json:"own,omitempty"`

	// shards is what of the state the ranks have between them, each a shard of its own; 0 where all ranks have the same.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Shards *int64 `json:"shards,omitempty"`

	// written is the most that a worker has written of one snapshot. Where nodes have unlike numbers of workers that is more than
	// its share.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Written *int64 `json:"written,omitempty"`

	// volume is how large the volumes for snapshots were that the last world trained with: the smallest of them.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Volume *int64 `json:"volume,omitempty"`

	// volumeAtMost is how large volumes are made in the attempt that waits or trains, though the state needs more: with more the cluster
	// had no place for it. It goes with the attempt.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	VolumeAtMost *int64 `json:"volumeAtMost,omitempty"`
}
