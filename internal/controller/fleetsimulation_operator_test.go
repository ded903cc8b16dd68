package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// simOperator is one life of the operator: its reconciler, its fleet, its queue, and what it has heard of
// the cluster. All of it is lost when it crashes.
type simOperator struct {
	sim    *fleetSim
	number int
	dead   bool
	cancel context.CancelFunc
	calls  map[string]int

	cache      simObjects
	reconciler *Reconciler
	fleet      *fleet.Cluster
	queue      workqueue.TypedRateLimitingInterface[reconcile.Request]
	worlds     chan rendezvous.JobKey
	leading    map[rendezvous.JobKey]*simLeader
	running    sync.WaitGroup
	// registry is the rendezvous where that is the real one; nil where it is made up.
	registry *simRegistry
	// clock is what it has of the time; nil for the right one.
	clock *simClock
}

// simWorkers is how many jobs an operator looks at at a time: so many that none waits for another, and only
// the seed decides which comes first.
const simWorkers = 48

// startOperator has a new operator lead. The caller holds the lock.
func (s *fleetSim) startOperator() {
	s.lives++
	op := &simOperator{
		sim: s, number: s.lives, calls: map[string]int{}, cache: newSimObjects(), worlds: make(chan rendezvous.JobKey, 1<<16),
		leading: map[rendezvous.JobKey]*simLeader{},
	}
	if s.training != nil {
		op.clock = s.training.clock(fmt.Sprint("operator ", op.number))
	} else {
		op.clock = &simClock{}
	}
	op.fleet = fleet.New(fleet.Options{
		Settings: s.settings, DrainTaints: DefaultDrainTaints, Shapes: Shapes(settings), AsksFirst: true, Plan: op.plan, Now: op.clock.now,
	})
	cached, live := &simClient{op: op}, &simClient{op: op, live: true}
	op.reconciler = &Reconciler{
		Client: cached, Live: live, Fleet: op.fleet, Gang: gang.Coscheduling{Client: cached}, Rendezvous: s.rendezvousOf(op),
		Events: op, CABundle: func() []byte { return nil }, Now: op.clock.now, Pods: settings, DrainTaints: DefaultDrainTaints,
		ReclaimTimeout: s.settings.ReclaimTimeout.Duration, AsksFirst: true,
	}
	op.queue = workqueue.NewTypedRateLimitingQueue(retries())
	ctx, cancel := context.WithCancel(context.Background())
	op.cancel = cancel
	s.operator = op
	op.listAndWatch(ctx)
	s.reconnectAgents()
	op.running.Go(func() { _ = op.fleet.Run(ctx) })
	_ = op.reconciler.watchWorlds(ctx, op.queue)
	_ = op.reconciler.watchFleet(ctx, op.queue)
	for range simWorkers {
		op.running.Go(func() {
			time.Sleep(time.Millisecond) // what is due from the beginning is due once, whoever has said so first
			op.work(ctx)
		})
	}
}

// plan is the planner, watched.
func (op *simOperator) plan(cluster *allocation.Cluster) allocation.Plan {
	plan := allocation.NewPlan(cluster)
	op.sim.plans.Add(1)
	return plan
}

// crash ends the operator, and has another one begin some time later. The caller holds the lock.
func (s *fleetSim) crash() {
	op := s.operator
	if op == nil || op.dead {
		return
	}
	s.stopOperator()
	s.counts["crashes"]++
	s.say("the operator crashes")
	s.after(s.span(100*time.Millisecond, 5*time.Second), s.takeOver)
}

// takeOver has an operator begin to lead, unless one does.
func (s *fleetSim) takeOver() {
	if s.operator.dead {
		s.startOperator()
	}
}

func (s *fleetSim) stopOperator() {
	if op := s.operator; op != nil && !op.dead {
		op.stop()
	}
}

// stop ends all that the operator does.
func (op *simOperator) stop() {
	op.dead = true
	op.cancel()
	op.queue.ShutDown()
	if op.registry != nil {
		op.registry.close()
	}
}

// rendezvousOf is the rendezvous of an operator: the real one where a job's worlds are what is looked at.
func (s *fleetSim) rendezvousOf(op *simOperator) rendezvous.Coordinator {
	if s.training == nil {
		return &simCoordinator{op}
	}
	op.registry = newSimRegistry(s.training, op)
	return op.registry
}

// listAndWatch fills the cache and the fleet with what is there, and has them follow. Each lags on its own,
// and of one kind all comes in order.
func (op *simOperator) listAndWatch(ctx context.Context) {
	s := op.sim
	type feed struct {
		deliver func(simKind, client.Object, client.Object)
		last    map[simKind]time.Time
	}
	feeds := []*feed{{deliver: func(kind simKind, before, after client.Object) { op.hear(ctx, kind, before, after) }, last: map[simKind]time.Time{}},
		{deliver: op.tellFleet, last: map[simKind]time.Time{}}}
	for _, kind := range simKinds {
		for _, object := range simSorted[client.Object](s.server.objects[kind]) {
			op.cache[kind][client.ObjectKeyFromObject(object)] = simSlim(object)
			op.tellFleet(kind, nil, object)
			if kind == simJob {
				op.queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
			}
		}
	}
	op.fleet.Synced()
	s.server.watches = s.server.watches[:1] // the world's own eyes stay
	s.server.watches = append(s.server.watches, func(kind simKind, before, after client.Object) {
		for _, f := range feeds {
			at := time.Now().Add(s.lag())
			if !at.After(f.last[kind]) {
				at = f.last[kind].Add(time.Nanosecond)
			}
			f.last[kind] = at
			time.AfterFunc(time.Until(at), func() { f.deliver(kind, before, after) })
		}
	})
}

// hear takes an event into the cache, and has the controller's own handlers say whom to look at.
func (op *simOperator) hear(ctx context.Context, kind simKind, before, after client.Object) {
	s := op.sim
	s.mu.Lock()
	if op.dead {
		s.mu.Unlock()
		return
	}
	if after != nil {
		op.cache[kind][client.ObjectKeyFromObject(after)] = simSlim(after)
	} else {
		delete(op.cache[kind], client.ObjectKeyFromObject(before))
	}
	s.mu.Unlock()
	switch kind {
	case simJob:
		switch handler := jobHandler(); {
		case before == nil:
			handler.Create(ctx, event.CreateEvent{Object: after}, op.queue)
		case after == nil:
			handler.Delete(ctx, event.DeleteEvent{Object: before}, op.queue)
		default:
			handler.Update(ctx, event.UpdateEvent{ObjectOld: before, ObjectNew: after}, op.queue)
		}
	case simPod:
		object := after
		if object == nil {
			object = before
		}
		if owner := metav1.GetControllerOf(object); owner != nil && owner.Kind == "TrainingJob" {
			op.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: owner.Name}})
		}
	case simQuota:
		if after != nil {
			for _, request := range op.reconciler.forgiveRefusals(ctx, after.GetNamespace(), false) {
				op.queue.Add(request)
			}
		}
	}
}

// simSlim is an object as the operator's cache keeps it.
func simSlim(object client.Object) client.Object {
	slim, err := SlimPod(object)
	if err != nil {
		panic(err)
	}
	return slim.(client.Object)
}

// tellFleet is what the fleet's informers would.
func (op *simOperator) tellFleet(kind simKind, before, after client.Object) {
	c := op.fleet
	object := after
	if object == nil {
		object = before
	}
	switch kind {
	case simPod:
		pod := object.(*corev1.Pod)
		slim := simSlim(pod).(*corev1.Pod)
		if after == nil {
			c.DeletePod(slim)
		} else {
			c.SetPod(slim)
		}
	case simJob:
		if after == nil {
			c.DeleteJob(object.(*v1alpha1.TrainingJob))
		} else {
			c.SetJob(object.(*v1alpha1.TrainingJob))
		}
	case simNode:
		if after == nil {
			c.DeleteNode(object.GetName())
		} else {
			c.SetNode(object.(*corev1.Node))
		}
	case simQuota:
		if after == nil {
			c.DeleteQuota(object.GetNamespace(), object.GetName())
		} else {
			c.SetQuota(object.(*corev1.ResourceQuota))
		}
	case simClass:
		if after == nil {
			c.DeleteClass(object.GetName())
		} else {
			c.SetClass(object.(*schedulingv1.PriorityClass))
		}
	case simNamespace:
		if after == nil {
			c.DeleteNamespace(object.GetName())
		} else {
			c.SetNamespace(object.(*corev1.Namespace))
		}
	}
}

// work is one of the controller's workers, as controller-runtime runs them.
func (op *simOperator) work(ctx context.Context) {
	for {
		request, done := op.queue.Get()
		if done {
			return
		}
		// Jobs that became due at once are looked at one after the other, in an order that the seed decides.
		time.Sleep(time.Duration(op.dice("look", simJob, request.NamespacedName) % uint64(200*time.Microsecond)))
		op.sim.looks.Add(1)
		result, err := op.reconciler.Reconcile(ctx, request)
		switch {
		case err != nil:
			op.queue.AddRateLimited(request)
		case result.RequeueAfter > 0:
			op.queue.Forget(request)
			op.queue.AddAfter(request, result.RequeueAfter)
		default:
			op.queue.Forget(request)
		}
		op.queue.Done(request)
	}
}

// Eventf implements events.EventRecorder.
func (op *simOperator) Eventf(regarding, _ runtime.Object, _, reason, _, format string, args ...any) {
	job, ok := regarding.(*v1alpha1.TrainingJob)
	if !ok {
		return
	}
	op.sim.mu.Lock()
	defer op.sim.mu.Unlock()
	if !op.dead {
		op.sim.say("%s/%s %s: %s", job.Namespace, job.Name, reason, fmt.Sprintf(format, args...))
	}
}
