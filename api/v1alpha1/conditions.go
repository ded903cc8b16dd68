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
	// ReasonNoGang: there is no gang now.
	ReasonNoGang = "NoGang"

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
	// EventGangReleased: the job fell below min for too long, or could not go on, and all workers were
	// let go.
	EventGangReleased = "GangReleased"
)
