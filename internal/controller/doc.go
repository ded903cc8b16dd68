// Package controller runs TrainingJobs: it reads what is there (gather), decides without touching
// anything (plan), does what was decided (apply) and writes the status once.
//
// One rule makes it safe to kill at any point: what the plan does to the cluster follows from what
// is durable in the job's status alone. A decision that counts (a new attempt, a restart, the end)
// is written to status first, by a reconcile that does nothing else; the next one acts on it.
//
//	reconciler.go  one look at one job; setup.go when there is one
//	gather.go      reads what a decision may look at, which is state.go
//	slim.go        what of a pod is kept in memory
//	memory.go      what is kept of a job between looks
//	plan.go        the decision: the order of the questions
//	queue.go       a job that waits for room, and why one has no more workers; late.go who will miss its deadline
//	phase.go       what an attempt is in the middle of: what is done for it depends on nothing else
//	start.go       a new attempt, once nothing of the last one stands in its way
//	attempt.go     the life of one gang: create, wait, release
//	placing.go     its places: pins, the scheduler's second look, whole jobs that make room
//	elastic.go     an attempt whose world changes while it trains
//	crew.go        its workers, and what is known of each
//	growth.go      how many workers, and names for those that are missing
//	make.go        makes pods: gangs, refills, growth
//	leaving.go     who leaves, and why
//	marks.go       who leaves for other jobs, durable
//	fault.go       whose fault the loss of one worker was
//	exits.go       how programs failed, and which of them explains the others
//	losses.go      losses taken together
//	resizes.go     changes of the world, and what they count
//	regroup.go     fewer than min are left
//	nodes.go       nodes that go
//	goodput.go     how much of the job's time was of use
//	failure.go     what follows from a failure; logs.go which pods stay to show it
//	avoid.go       nodes that are to blame, and are left out for a while
//	template.go    can this template train?
//	quota.go       does a batch fit the namespace's quotas?
//	ask.go         what would the API server make of a worker?
//	forgive.go     which refused batches may be tried again
//	apply.go       does what was decided
//	groups.go      the objects by which pods are placed together
//	batches.go     many calls at a time, and few when they fail
//	ownwrites.go   what is planned on is no older than what was written
//	status.go      the one write; details.go what is not worth one of its own
//	conditions.go  what the user reads
//	progress.go    how far the training is, and who has which rank
//	facts.go       what the planner of all jobs is told
//	metrics.go     what the operator's metrics are told
//	pods.go        the pod of a worker
//	trust.go       what its agent trusts the operator by
package controller
