// Package fleet is the cluster as the planner sees it: nodes, all pods that hold room, jobs, priority
// classes and quotas, in memory and kept up by events. It has internal/allocation plan for all jobs at
// once, and gives each job its grant.
//
// It may know allocation, informers, and the helpers by which the scheduler matches pods and nodes. The
// controller sees Fleet (seam.go), Mark, Pin, UnmodelledWords and Demand, and nothing else of it.
//
//	seam.go                    what the controller sees
//	marks.go                   what stands on a worker that leaves for another job
//	settings.go                the operator's settings for all jobs
//	source.go, slim.go         where events come from, and what is kept of objects
//	cluster.go                 the state, and how to make it of lists
//	nodes.go, pods.go          who holds what, assumed pods included
//	jobs.go, build.go          jobs, reports, and a job as the planner sees it
//	priority.go, quotas.go     classes, quotas and their scopes
//	names.go                   resources as small numbers
//	shapes.go, reach.go        what equal pods ask for, and where they may go
//	snapshot.go, waiting.go    the input of one plan; verdict.go what the scheduler says of a pod
//	planner.go, grants.go      when plans are made, and what becomes of them
//	changes.go, metrics.go     who hears of a new grant; what planning costs
package fleet
