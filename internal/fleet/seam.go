package fleet

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/allocation"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Grant is what the planner allows a job now.
type Grant struct {
	// Known is false until the planner has looked at the job as it is now.
	Known bool
	// Count is how many workers the job should have.
	Count int32
	// Start is true when the gang of a queued job may be made now.
	Start bool
	// Places are the nodes of pods that may be made now, those of the job's own class first.
	Places []Place
	// Leave are the workers that are to leave, by pod uid: those that are marked already, and others.
	Leave map[types.UID]Leave
	// Evict says for which job all of the job's workers must go, as namespace/name; empty for none.
	Evict string
	// NotAllowed is true when the administrator does not allow the job's preemption policy in its namespace.
	NotAllowed bool
	// Reason is one word that says why the job has this size or waits, Why a sentence.
	Reason, Why string
	// Late is true when the job will miss its deadline, while it waits or with the workers that it has: Why says so then.
	Late bool
	// NoSpares is true for a job that trains and gets no spares although it is to have some (allocation.Decision.NoSpares).
	NoSpares bool
	// Queue is the place of a job that waits.
	Queue Queue
	// ShortSince is since when the job would have less than half of its share of the devices; zero where it would not.
	ShortSince time.Time
	// Again is the last time that the job was tried again with more workers (allocation.Decision.Again).
	Again allocation.Again
	// Bound is when the scheduler of the job's gang has last given a worker of any job a node; zero where that was not
	// seen.
	Bound time.Time
}

// Place is where one pod is to be made.
type Place struct {
	// Node is the name of the node; empty when the scheduler chooses.
	Node string
	// Own is true for a pod of the job's own priority class, false for one of the growth class.
	Own bool
}

// Why a worker leaves for another job, in one word: its room is for a gang, for the growth of a job with as
// much claim to it, or another worker takes its place elsewhere.
const (
	Reclaimed = "Reclaimed"
	Evened    = "Evened"
	Moved     = "Moved"
)

// Leave is why a worker is to leave.
type Leave struct {
	// Reason is Reclaimed, Evened or Moved where it leaves for another job; empty otherwise.
	Reason string
	// For is the job that its room is for, as namespace/name; empty when there is none.
	For string
	// Why says so in a sentence.
	Why string
}

// Queue is the place of a job that waits for its gang to start.
type Queue struct {
	// Position counts from 1 among the jobs that wait; 0 for one that does not.
	Position int32
	// Start is when it may start, as far as that is known; zero when it is not.
	Start time.Time
}

// Facts are what only the reconciler knows of a job: it hears the rendezvous.
type Facts struct {
	// Held is true when the job may not start now, for a reason of its own: back-off, a template that
	// cannot train, old workers that have yet to end.
	Held bool
	// Elastic is true when the job's world can change.
	Elastic bool
	// Unheard is true while this leader has yet to learn what has become of the job's world. Its status and
	// its pods tell of it meanwhile, and whoever leaves by the plan in force goes on leaving.
	Unheard bool
	// Finishing is true when the last step was made.
	Finishing bool
	// Regrouping is true while fewer than min are left and wait for others.
	Regrouping bool
	// Armed is true while a planned change of the world is under way.
	Armed bool
	// Durable is true while nothing is lost when all of the job's workers are released.
	Durable bool
	// Ranks are the worker ranks of the members of the world, by pod uid.
	Ranks map[types.UID]int32
	// Lost are workers that will make no step any more, or are to leave for a reason that is not the
	// planner's, by pod uid.
	Lost map[types.UID]bool
	// GrowAfter is when growth may be tried again after it failed; zero for now.
	GrowAfter time.Time
	// Pause is how long the last changes of its world stopped it.
	Pause time.Duration
	// Asked is the generation of the job of whose workers the API server has said that it would take them; 0 for none. It holds for
	// later ones that have the same workers. Sample is one as it would make it, nil where that is not known. It must not be changed.
	Asked  int64
	Sample *corev1.Pod
}

// Fleet is what the controller needs of the fleet. Its methods return at once, but for Take, which waits for a plan that is being
// made.
type Fleet interface {
	// Report brings what is known of a job up to date: the job as the reconciler has read or written it,
	// and what only the reconciler knows. What is kept of it is a copy. A plan is made again only if something of it has
	// changed.
	Report(job *v1alpha1.TrainingJob, facts Facts)
	// Grant is what the planner allows the job now.
	Grant(job types.UID) Grant
	// Take charges pods that are about to be made for a job, until their events come. It is false, and
	// charges nothing, when they are not what the planner grants now: then they must not be made, and the
	// job is delivered by Changed.
	Take(job types.UID, pods []*corev1.Pod) bool
	// Made says that pods that were taken are not in the making any more: their events come soon, or never.
	Made(pods []*corev1.Pod)
	// Drop lets go of pods that were taken, and were not made.
	Drop(pods []*corev1.Pod)
	// Forget drops what was reported of a job that is gone.
	Forget(job types.UID)
	// Nodes returns those of the named nodes that are there, with their labels, taints, readiness and
	// what they offer. They must not be changed.
	Nodes(names []string) map[string]*corev1.Node
	// FreeMemory is how many bytes of memory nobody has asked for of those of the named nodes that are there. Pods that wait for a
	// node are not counted.
	FreeMemory(names []string) map[string]int64
	// Changed delivers the names of jobs whose grant has changed, or whose workers' nodes have.
	Changed() <-chan types.NamespacedName
}
