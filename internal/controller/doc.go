// Package controller runs TrainingJobs: it reads what is there (gather), decides without touching
// anything (plan), does what was decided (apply) and writes the status once.
//
// One rule makes it safe to kill at any point: what the plan does to the cluster follows from what
// is durable in the job's status alone. A decision that counts (a new attempt, a restart, the end)
// is written to status first, by a reconcile that does nothing else; the next one acts on it.
//
//	state.go       what a decision may look at
//	plan.go        the decision: the order of the questions
//	attempt.go     the life of one gang: create, wait, release
//	elastic.go     an attempt whose world changes while it trains
//	crew.go        its workers, and what is known of each
//	growth.go      how many workers, and names for those that are missing
//	grow.go        makes them
//	leaving.go     who leaves, and why
//	losses.go      whose fault a loss was
//	resizes.go     changes of the world, and what they count
//	regroup.go     fewer than min are left
//	nodes.go       nodes that go, and room that comes with them
//	room.go        how many more workers there is room for, and when to look
//	goodput.go     how much of the job's time was of use
//	failure.go     which failure was it, and what follows
//	template.go    can this template train?
//	quota.go       does a batch fit the namespace's quotas?
//	conditions.go  what the user reads
//	progress.go    how far the training is, and who has which rank
//	waiting.go     gangs that wait for room
//	pods.go        the pod of a worker
package controller
