package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// +kubebuilder:rbac:groups=training.concertina.dev,resources=trainingjobs,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=training.concertina.dev,resources=trainingjobs/status,verbs=patch
// +kubebuilder:rbac:groups=training.concertina.dev,resources=trainingjobs/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=resourcequotas;limitranges,verbs=list;watch
// +kubebuilder:rbac:groups=scheduling.x-k8s.io,resources=podgroups,verbs=get;list;create;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler runs TrainingJobs.
type Reconciler struct {
	// Client reads from the cache (but PodGroups) and writes.
	Client client.Client
	// Fleet plans for all jobs.
	Fleet fleet.Fleet
	// ReclaimTimeout bounds how long a worker that leaves for another job may take.
	ReclaimTimeout time.Duration
	// AttemptTimeout bounds how long a gang is tried that only the scheduler can place and that has no node; 0 for spec.gang.startTimeout
	// alone.
	AttemptTimeout time.Duration
	// DrainTaints are the keys of taints that ask workers to leave a node.
	DrainTaints []string
	// RackLabel is the label by which nodes say in which rack they are; empty for none.
	RackLabel string
	// UploadRate is how many bytes of a checkpoint each worker may upload in a second; 0 for all that it can.
	UploadRate uint64
	// Live reads from the API server.
	Live client.Reader
	// Gang places the gangs.
	Gang gang.Scheduler
	// Rendezvous forms the worlds.
	Rendezvous rendezvous.Coordinator
	// Events takes the notes of plans.
	Events events.EventRecorder
	// CABundle returns what agents should trust, in PEM.
	CABundle func() []byte
	// Now is the clock.
	Now func() time.Time
	// Metrics count what happens; nil for nobody who counts.
	Metrics *Metrics
	// AsksFirst is true to ask the API server what it would make of a worker before anybody leaves for a job that has none.
	AsksFirst bool
	// Pods are the operator's settings that go into every pod.
	Pods PodSettings
	// ConcurrentJobs is how many jobs are looked at at a time, one job only once; 0 for the default.
	ConcurrentJobs int

	memory  memories
	answers answers
}

// Reconcile looks at one job, and takes it one decision further.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	job := &v1alpha1.TrainingJob{}
	if err := r.Client.Get(ctx, req.NamespacedName, job); err != nil {
		if apierrors.IsNotFound(err) {
			r.letGo(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, wrapf(err, "get job %s", req)
	}
	if job.DeletionTimestamp != nil {
		// The garbage collector takes everything that the job owns; the agents need not wait for it.
		r.letGo(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	uid := job.UID
	if gone := r.memory.meet(req.NamespacedName, uid); gone != "" {
		// It was deleted and this one made between two looks. What comes next may let nobody hear of this one, such as that it
		// is suspended, so it takes nobody's place.
		r.forget(req.NamespacedName, gone)
	}
	if managedBy := job.Spec.ManagedBy; managedBy != "" && managedBy != v1alpha1.ManagedByOperator {
		return ctrl.Result{}, nil
	}
	job, err := r.upToDate(ctx, job)
	if err != nil {
		return ctrl.Result{}, r.unanswered(uid, err)
	}
	if job == nil {
		return ctrl.Result{RequeueAfter: r.memory.again(uid)}, nil
	}
	state, err := r.gather(ctx, job)
	if errors.Is(err, errLags) {
		// Their events wake the job, if they come.
		return ctrl.Result{RequeueAfter: cachePatience}, nil
	}
	if err != nil {
		return ctrl.Result{}, r.unanswered(uid, err)
	}
	plan := NewPlan(state, r.settings())
	if err := r.carryOut(ctx, state, &plan); err != nil {
		if errors.Is(err, errTaken) {
			return ctrl.Result{}, nil // the planner has it looked at again
		}
		if apierrors.IsConflict(err) {
			return ctrl.Result{RequeueAfter: r.memory.again(uid)}, nil
		}
		return ctrl.Result{}, r.unanswered(uid, err)
	}
	return ctrl.Result{RequeueAfter: nextLook(state, &plan)}, nil
}

// unanswered notes that a look at a job came to nothing, by the fault of the API server, and returns that.
func (r *Reconciler) unanswered(job types.UID, fault error) error {
	r.memory.update(job, func(m *Memory) { m.Own.Unanswered = true })
	return fault
}

// carryOut applies a plan, writes the status once, and tells of it once that is written.
func (r *Reconciler) carryOut(ctx context.Context, state *State, plan *Plan) error {
	if plan.Actions.Ask != nil {
		r.answered(ctx, state, plan)
	}
	applied := r.apply(ctx, state, &plan.Actions)
	refused := (*errRefused)(nil)
	if errors.As(applied, &refused) {
		r.memory.update(state.Job.UID, func(m *Memory) { m.refused(state.Now, state.Job.UID, state.attempt(), refused.reason, refused.message) })
		state.Memory = r.memory.of(state.Job.UID)
		*plan, applied = NewPlan(state, r.settings()), nil
	}
	if applied != nil {
		return applied
	}
	if plan.Actions.DeleteJob {
		return nil
	}
	starts := value(plan.Status.Workers.Target) > 0 && state.target() == 0
	if starts {
		// The room is taken before anybody else is told that it is free.
		r.report(state, plan, "")
	}
	version, err := r.writeStatus(ctx, state.Job, &plan.Status)
	if err != nil {
		if starts {
			r.Fleet.Report(state.Job, plan.Facts)
		}
		return client.IgnoreNotFound(wrapf(err, "write status of job %s", jobKey(state.Job)))
	}
	if plan.Actions.Expect != nil && !state.World.Known && refused == nil {
		// A rendezvous that has not heard of the job begins with a write to the same status. It would conflict with
		// ours, were it told before.
		r.Rendezvous.Expect(jobKey(state.Job), *plan.Actions.Expect)
	}
	r.report(state, plan, version)
	r.memory.update(state.Job.UID, func(m *Memory) {
		m.remember(plan)
		m.Own.wrote(version, r.Now())
		m.looked(state.Job, plan.Status.ObservedGeneration)
		if attempt := value(plan.Status.Attempt); version != "" && attempt != state.attempt() {
			m.Own.Decided = attempt
		}
		m.Trains = isTrue(plan.Status.Conditions, v1alpha1.ConditionTraining)
		if plan.SizeTold {
			m.SizeToldAt = state.Now
		}
	})
	if refused == nil && !r.grow(ctx, state, &plan.Actions) {
		plan.Actions.Grow = slices.DeleteFunc(plan.Actions.Grow, func(pod *corev1.Pod) bool { return pod.UID == "" })
		plan.Notes = slices.DeleteFunc(plan.Notes, func(note Note) bool {
			return note.Reason == v1alpha1.EventGrowing || note.Reason == v1alpha1.EventReplacing
		})
	}
	r.Metrics.written(state, plan)
	if plan.Progress {
		r.memory.update(state.Job.UID, func(m *Memory) { m.reported(state) })
	}
	for _, note := range plan.Notes {
		r.tell(state.Job, note)
	}
	return nil
}

// report tells the planner of all jobs what became of this one; version is what its status was written
// as, empty for what was read.
func (r *Reconciler) report(state *State, plan *Plan, version string) {
	job := *state.Job // what the planner keeps of it, it copies
	if version != "" {
		job.ResourceVersion = version
	}
	job.Status = plan.Status
	job.Status.World = state.Job.Status.World
	r.Fleet.Report(&job, plan.Facts)
}

// tell makes an event of a note.
func (r *Reconciler) tell(job *v1alpha1.TrainingJob, note Note) {
	var related runtime.Object
	if note.Worker != nil {
		related = note.Worker
	}
	r.Events.Eventf(job, related, note.Type, note.Reason, "Reconcile", "%s", cut(note.Message, maxEvent))
}

// letGo releases the agents of the job that had a name, and forgets it.
func (r *Reconciler) letGo(name types.NamespacedName) {
	r.forget(name, r.memory.part(name))
}

// forget drops what others were told of a job that is gone; its uid is empty when nobody knows that any more.
func (r *Reconciler) forget(name types.NamespacedName, job types.UID) {
	r.Rendezvous.Release(rendezvous.JobKey(name), string(job))
	r.Rendezvous.Forget(rendezvous.JobKey(name), string(job))
	if job != "" {
		r.Fleet.Forget(job)
		r.Metrics.forget(job)
	}
}

func findCondition(job *v1alpha1.TrainingJob, conditionType string) *metav1.Condition {
	for i := range job.Status.Conditions {
		if job.Status.Conditions[i].Type == conditionType {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}
