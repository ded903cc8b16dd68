// Package console puts the cluster, as the planner of the operator sees it, into words and tables for
// people at a terminal: what would change (Plan), why one job has its size (Explain), and what the jobs are
// doing (Top).
//
// It is pure: objects go in, text comes out. internal/console/listing reads the objects,
// cmd/kubectl-concertina has the flags. It knows the API, internal/fleet and internal/allocation.
//
//	look.go      the cluster at one moment, job by job
//	rest.go      jobs that the planner has no say in, and why
//	plan.go      what would change; plantable.go writes it
//	explain.go   one job in sentences; size.go, lending.go, bounds.go, past.go have its chapters
//	whatif.go    what would let a job start or grow: the planner is asked again, with more room
//	top.go       what the jobs are doing; toptable.go writes it
//	near.go      names that somebody may have meant
//	words.go     numbers, times and lists
package console
