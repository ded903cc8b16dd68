package v1alpha1

// Types of conditions of a TrainingJob.
const (
	// ConditionAdmitted is True when the job may have workers: its template is valid, and
	// neither quota nor policy refuses its pods.
	ConditionAdmitted = "Admitted"
	// ConditionGangScheduled is True when every worker of the gang has a node.
	ConditionGangScheduled = "GangScheduled"
	// ConditionTraining is True while a world trains.
	ConditionTraining = "Training"
	// ConditionFullSize is True when the job has as many workers as it may have; otherwise its reason says
	// why it does not have more.
	ConditionFullSize = "FullSize"
	// ConditionSnapshotsFit is False while the volumes of some workers are too small for what these write of snapshots. It is there
	// once that was measured.
	ConditionSnapshotsFit = "SnapshotsFit"
	// ConditionBestKept is False while it is not known how good the states of the training are, or one that was evaluated well is not
	// kept. It is there once something was evaluated, in a job with spec.checkpoint.storage.best, and stays when the job has ended.
	ConditionBestKept = "BestKept"
	// ConditionSuspended is True while the job is suspended and holds no worker.
	ConditionSuspended = "Suspended"
	// ConditionComplete is True when every process ended with exit code 0.
	ConditionComplete = "Complete"
	// ConditionFailed is True when the job has ended without success.
	ConditionFailed = "Failed"
)

// Reasons of conditions.
const (
	// ReasonAdmitted: nothing stands in the way of the job's pods.
	ReasonAdmitted = "Admitted"
	// ReasonInvalidTemplate: the pod template cannot train; the message says what to change.
	ReasonInvalidTemplate = "InvalidTemplate"
	// ReasonQuotaExceeded: a ResourceQuota leaves too little; the message says which and how much.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonPodsForbidden: admission refused a pod (Pod Security, LimitRange, a webhook).
	ReasonPodsForbidden = "PodsForbidden"
	// ReasonPodGroupsMissing: the cluster does not know PodGroups; the message says what to install.
	ReasonPodGroupsMissing = "PodGroupsMissing"

	// ReasonScheduled: every worker of the gang has a node.
	ReasonScheduled = "Scheduled"
	// ReasonWaitingForRoom: the scheduler has not placed the gang yet.
	ReasonWaitingForRoom = "WaitingForRoom"
	// ReasonQueued: the job waits until there is room for its gang; it has no pods.
	ReasonQueued = "Queued"
	// ReasonFixed: the world of the job cannot change, since its program does not speak to the agent.
	ReasonFixed = "Fixed"
	// ReasonFullSize: the job has as many workers as it may have.
	ReasonFullSize = "FullSize"
	// ReasonLate: the job will miss spec.deadline with the workers that it has; the message says with how many it would not.
	ReasonLate = "Late"
	// ReasonGrowthBackOff: workers that were added have failed; more are tried again later.
	ReasonGrowthBackOff = "GrowthBackOff"
	// ReasonWorkersLeftOut: workers are in no world until their peers reach them; the message says which, and why.
	ReasonWorkersLeftOut = "WorkersLeftOut"
	// ReasonNoGang: there is no gang now.
	ReasonNoGang = "NoGang"

	// ReasonVolumesFit: every worker that writes snapshots has the memory for them.
	ReasonVolumesFit = "VolumesFit"
	// ReasonVolumeTooSmall: some have not; the message says what would do.
	ReasonVolumeTooSmall = "VolumeTooSmall"
	// ReasonStarting: pods are placed and the first world is not there yet.
	ReasonStarting = "Starting"
	// ReasonWaitingForPods: a pod cannot start; the message names the pod and the cause.
	ReasonWaitingForPods = "WaitingForPods"
	// ReasonNotConnected: the agent of a running pod has not reached the operator.
	ReasonNotConnected = "AgentNotConnected"
	// ReasonWorldFormed: the world of the round in status trains.
	ReasonWorldFormed = "WorldFormed"
	// ReasonResizing: a planned change is under way; the message says which and how far it is.
	ReasonResizing = "Resizing"
	// ReasonRecovering: a worker was lost, and the others are about to go on.
	ReasonRecovering = "Recovering"
	// ReasonRegrouping: fewer than min workers are left; they wait for others, with their state.
	ReasonRegrouping = "Regrouping"
	// ReasonBackOff: the last attempt failed; the next one starts at status.retryTime.
	ReasonBackOff = "BackOff"
	// ReasonStopping: workers of the last attempt are still ending.
	ReasonStopping = "Stopping"
	// ReasonFinished: the job has ended.
	ReasonFinished = "Finished"

	// ReasonSuspended: spec.suspend is true.
	ReasonSuspended = "Suspended"
	// ReasonResumed: spec.suspend is false again.
	ReasonResumed = "Resumed"

	// ReasonCompleted: every process ended with exit code 0.
	ReasonCompleted = "Completed"
	// ReasonProgramFailed: the program failed more often than spec.failure.maxRestarts allows.
	ReasonProgramFailed = "ProgramFailed"
	// ReasonDeadlineExceeded: the job was not complete within spec.activeDeadline.
	ReasonDeadlineExceeded = "DeadlineExceeded"
)

// Reasons of events that are no reasons of conditions.
const (
	// EventGangCreated: the pods of an attempt and their PodGroup were made.
	EventGangCreated = "GangCreated"
	// EventStartTimeout: the gang had room and did not start in time, and lets go of it.
	EventStartTimeout = "StartTimeout"
	// EventTTLExpired: the job ended spec.ttlAfterFinished ago and is deleted.
	EventTTLExpired = "TTLExpired"

	// EventGrowing: pods were made beyond the world's, because there is room for them.
	EventGrowing = "Growing"
	// EventGrowthWithdrawn: a growth pod found no node within spec.growth.stabilization.
	EventGrowthWithdrawn = "GrowthWithdrawn"
	// EventWorkerLeaving: a worker is to leave; the message says which and why.
	EventWorkerLeaving = "WorkerLeaving"
	// EventQueued: the job waits for room; the message says for what.
	EventQueued = "Queued"
	// EventReclaimed: workers are to leave because a gang needs their room; the message says which.
	EventReclaimed = "Reclaimed"
	// EventEvened: workers are to leave because a job with as much claim to their room has less.
	EventEvened = "Evened"
	// EventMoved: workers are to leave because others have taken their places, so that a gang gets whole nodes.
	EventMoved = "Moved"
	// EventEvicted: all workers are released because a job of higher priority needs their room.
	EventEvicted = "Evicted"
	// EventKueueNotAsked: the job has Kueue's label. It is started without Kueue, and neither grown nor shrunk.
	EventKueueNotAsked = "KueueNotAsked"
	// EventPolicyNotAllowed: the administrator does not allow spec.preemption.policy in this namespace; Shrink is used.
	EventPolicyNotAllowed = "PolicyNotAllowed"
	// EventTotalDoubted: what the program says of how many steps the training has is not believed any more; the message
	// says why.
	EventTotalDoubted = "TotalDoubted"
	// EventLate: the job will miss spec.deadline, by what was measured of it; the message says with how many workers it would not.
	EventLate = "Late"
	// EventLent: the job has grown beyond its min into room that nobody else needs now.
	EventLent = "Lent"
	// EventReplacing: a pod was made in the place of one that leaves or was lost.
	EventReplacing = "Replacing"
	// EventResized: the world changed as planned; the message says from what to what, why, and how
	// long it paused.
	EventResized = "Resized"
	// EventResizeCalledOff: a planned change did not come about; the message says why and when it is
	// tried again.
	EventResizeCalledOff = "ResizeCalledOff"
	// EventRecovered: the world goes on after a loss; the message says who was lost, why, and how many
	// steps are made again.
	EventRecovered = "Recovered"
	// EventSpareTookOver: after a loss a worker that was ready has taken the place of the lost one, and the world keeps its size.
	EventSpareTookOver = "SpareTookOver"
	// EventWorkerRestarted: the program of a worker has ended before its time, and is started anew in its pod.
	EventWorkerRestarted = "WorkerRestarted"
	// EventWorkerUnheard: the operator does not hear a worker that trains on: the link between the two is bad.
	EventWorkerUnheard = "WorkerUnheard"
	// EventGangReleased: the job fell below min for too long, or could not go on, and all workers were
	// let go.
	EventGangReleased = "GangReleased"
	// EventRestored says which checkpoint an attempt begins with.
	EventRestored = "Restored"
	// EventParking says that all workers are about to be released, and that their world stops for its state to be made
	// durable first.
	EventParking = "Parking"
	// EventStorageTrouble says why snapshots are not made durable, or none is brought back.
	EventStorageTrouble = "StorageTrouble"
	// EventBestCheckpoint says that a state is durable that was evaluated well, and where it is. It is the reason of BestKept as well.
	EventBestCheckpoint = "BestCheckpoint"
	// EventBestMissed says why a state that was evaluated is not kept, or nothing is known of how good it is. It is the reason of BestKept
	// as well.
	EventBestMissed = "BestMissed"
	// EventCopiesMissing says that the snapshots in memory are on fewer nodes than they should be.
	EventCopiesMissing = "CopiesMissing"
	// EventVolumesEnlarged says that an attempt has ended early to begin anew with volumes that its snapshots fit into.
	EventVolumesEnlarged = "VolumesEnlarged"
	// EventReplicasDiffer names workers whose states differ that should be the same.
	EventReplicasDiffer = "ReplicasDiffer"
	// EventStraggler names a process that has kept the others waiting for minutes, and its node.
	EventStraggler = "Straggler"
)
