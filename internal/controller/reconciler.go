package controller

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/gang"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// +kubebuilder:rbac:groups=training.concertina.dev,resources=trainingjobs,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=training.concertina.dev,resources=trainingjobs/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=training.concertina.dev,resources=trainingjobs/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=resourcequotas;limitranges,verbs=get;list;watch
// +kubebuilder:rbac:groups=scheduling.x-k8s.io,resources=podgroups,verbs=get;list;create;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler runs TrainingJobs.
type Reconciler struct {
	// Client reads from the cache (but PodGroups) and writes.
	Client client.Client
	// Cluster reads all nodes, and all pods that have one, from a cache.
	Cluster cache.Cache
	// DrainTaints are the keys of taints that ask workers to leave a node.
	DrainTaints []string
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
	// Pods are the operator's settings that go into every pod.
	Pods PodSettings

	memory memories
	room   roomChanges
}

// Reconcile looks at one job, and takes it one decision further.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	job := &v1alpha1.TrainingJob{}
	if err := r.Client.Get(ctx, req.NamespacedName, job); err != nil {
		if apierrors.IsNotFound(err) {
			r.letGo(rendezvous.JobKey{Namespace: req.Namespace, Name: req.Name})
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, wrapf(err, "get job %s", req)
	}
	if job.DeletionTimestamp != nil {
		// The garbage collector takes everything that the job owns; the agents need not wait for it.
		r.letGo(jobKey(job))
		r.memory.drop(job.UID)
		return ctrl.Result{}, nil
	}
	if managedBy := job.Spec.ManagedBy; managedBy != "" && managedBy != v1alpha1.ManagedByOperator {
		return ctrl.Result{}, nil
	}
	state, err := r.gather(ctx, job)
	if err != nil {
		return ctrl.Result{}, err
	}
	plan := NewPlan(state, r.Pods)
	if err := r.carryOut(ctx, state, &plan); err != nil {
		if apierrors.IsConflict(err) {
			return ctrl.Result{RequeueAfter: time.Millisecond}, nil
		}
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: plan.After}, nil
}

// carryOut applies a plan, writes the status once, and tells of it once that is written.
func (r *Reconciler) carryOut(ctx context.Context, state *State, plan *Plan) error {
	applied := r.apply(ctx, state, &plan.Actions)
	if refused := (*errRefused)(nil); errors.As(applied, &refused) {
		r.memory.update(state.Job.UID, func(m *Memory) { m.refused(state.Now, state.attempt(), refused.reason, refused.message) })
		state.Memory = r.memory.of(state.Job.UID)
		*plan, applied = NewPlan(state, r.Pods), nil
	}
	if applied != nil {
		return applied
	}
	if plan.Actions.DeleteJob {
		return nil
	}
	if err := r.writeStatus(ctx, state.Job, &plan.Status); err != nil {
		return client.IgnoreNotFound(wrapf(err, "write status of job %s", jobKey(state.Job)))
	}
	r.memory.update(state.Job.UID, func(m *Memory) { m.remember(plan) })
	if plan.Progress {
		r.memory.update(state.Job.UID, func(m *Memory) { m.reported(state) })
	}
	for _, note := range plan.Notes {
		r.tell(state.Job, note)
	}
	return nil
}

// tell makes an event of a note.
func (r *Reconciler) tell(job *v1alpha1.TrainingJob, note Note) {
	r.Events.Eventf(job, nil, note.Type, note.Reason, "Reconcile", "%s", cut(note.Message, maxEvent))
}

// letGo releases the agents of a job that is gone.
func (r *Reconciler) letGo(key rendezvous.JobKey) {
	r.Rendezvous.Release(key)
	r.Rendezvous.Forget(key)
}

// forgiveRefusals ends the pause after refused batches of a namespace, because a quota or a limit
// there has changed, and returns the jobs to look at.
func (r *Reconciler) forgiveRefusals(ctx context.Context, namespace string) []ctrl.Request {
	var jobs v1alpha1.TrainingJobList
	if err := r.Client.List(ctx, &jobs, client.InNamespace(namespace)); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list jobs whose quota has changed", "namespace", namespace)
		return nil
	}
	var requests []ctrl.Request
	for i := range jobs.Items {
		job := &jobs.Items[i]
		admitted := findCondition(job, v1alpha1.ConditionAdmitted)
		if admitted == nil || admitted.Status != metav1.ConditionFalse {
			continue
		}
		r.memory.update(job.UID, func(m *Memory) {
			if m.Refusal != nil {
				forgiven := *m.Refusal // a reconcile may be reading the old one
				forgiven.Retry = time.Time{}
				m.Refusal = &forgiven
			}
		})
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(job)})
	}
	return requests
}

func findCondition(job *v1alpha1.TrainingJob, conditionType string) *metav1.Condition {
	for i := range job.Status.Conditions {
		if job.Status.Conditions[i].Type == conditionType {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}
