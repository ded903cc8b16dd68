// Package replay runs a list of training jobs on a simulated cluster, under published policies and under the
// operator's own planner, and tells how long each job takes.
//
// It is pure: jobs, cluster and constants in, results out; no clock, no file, no randomness but from a seed. internal/replay/traces
// reads the files.
//
//	program.go    what a job trains: how much there is to do, how long a step takes; scaling.go one kind of it
//	profile.go    the other kind, from tables that were measured; batching.go how it splits its batch
//	generated.go  workloads that are drawn, to choose constants on
//	ticks.go      time in intervals, as in the simulator of Pollux (OSDI 2021)
//	place.go      where that simulator puts devices
//	tiresias.go, optimus.go   two policies of its
//	operator.go   the cluster as internal/allocation sees it; planned.go its plans at the end of intervals
//	sight.go      what the operator sees of the steps of jobs: observed speeds, with noise
//	events.go     the operator's own rules: planned when something happens, with short pauses
//	churn.go      nodes that come and go; contenders.go what others make of them
//	result.go     what is told of a run
//
// docs/replay.md says what the numbers mean and what they leave out.
package replay
