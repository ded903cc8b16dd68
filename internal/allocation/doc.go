// Package allocation decides how many workers each job has, where, who leaves, which gang may start,
// and why.
//
// NewPlan is pure: it looks at one Cluster and returns one Plan; the same input, time included, gives the
// same output. It knows nothing of Kubernetes: nodes, shapes of pods and jobs are interned as small
// numbers, quantities as dense vectors, so that a pass over thousands of nodes and jobs takes
// milliseconds. internal/fleet makes the input and carries the output.
//
//	cluster.go      the input
//	plan.go         the output, and a Planner that keeps its memory from one plan to the next
//	planner.go      the order of the questions
//	tally.go        what the workers of a job come to
//	room.go         what is free, with undo; touched.go where that has changed; class.go which pods are alike; wide.go one
//	                in the stead of many that differ by little, widelenders.go and whom they ask in vain
//	gangs.go        room for gangs, all or none; attempts where only the scheduler knows
//	promises.go     what the last plan promised to gangs that wait, and who leaves it to them
//	aside.go        what is free beside that
//	claims.go       what pods of others have that wait for the scheduler
//	queue.go        in which order gangs of one namespace and priority stand
//	spread.go       on which nodes: close together, or apart
//	lenders.go      who could give, in the order of what it costs them
//	victims.go      from whom least is lost; fewer.go with one instead of two; wholejobs.go when a whole job must go
//	ahead.go        a look at the next plan where whole jobs end
//	reserve.go      room kept together for a gang that does not fit yet; kept.go what that takes from others
//	vain.go         what is known of demands that cannot be met, so that each costs little
//	consolidate.go  moving workers so that a gang fits in whole nodes
//	growth.go       water-filling; even.go between equals
//	market.go       who shares what by value, and what of it each namespace has (pool.go); leftover.go what nobody could take
//	price.go        who is to have how many by value; pace.go what is known for it; deadline.go who is widened first
//	again.go        who is tried again with more workers than it seems to make anything of
//	trade.go        one that has more than it wishes for gives to one that has less
//	rest.go         rules that hold for a while; sizes.go legal numbers of workers
//	words.go        the sentences that users see; scarce.go what is short beside devices; why.go the rules that they name
//
// docs/fleet.md has the rules; each of them has a name here (Rule), and a sentence that users see.
package allocation
