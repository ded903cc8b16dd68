package controller

import (
	"context"
	"encoding/json"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
)

// writeStatus writes everything of the status but the world, if it has changed. The resourceVersion
// makes it fail when anybody has written the job since it was read: the decision is then taken anew. It
// returns the job's new resourceVersion; empty when nothing was written.
func (r *Reconciler) writeStatus(ctx context.Context, job *v1alpha1.TrainingJob, next *v1alpha1.TrainingJobStatus) (string, error) {
	if apiequality.Semantic.DeepEqual(&job.Status, next) {
		return "", nil
	}
	next = next.DeepCopy()
	next.World = nil
	encoded, err := json.Marshal(next)
	if err != nil {
		return "", fmt.Errorf("encode status: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return "", fmt.Errorf("encode status: %w", err)
	}
	written, err := r.applyStatus(ctx, job, fields)
	if unknown := record.Undeclared(err); len(unknown) > 0 {
		// The definition is of an operator before this one: what it does not know is not durable, and the rest is.
		ctrl.LoggerFrom(ctx).Info("the definition of TrainingJobs is older than this operator, and has no place for some of the status: upgrade it",
			"fields", unknown)
		for _, path := range unknown {
			unstructured.RemoveNestedField(fields, path...)
		}
		written, err = r.applyStatus(ctx, job, fields)
	}
	return written, err
}

// applyStatus writes those fields, and returns the job's new resourceVersion.
func (r *Reconciler) applyStatus(ctx context.Context, job *v1alpha1.TrainingJob, fields map[string]any) (string, error) {
	object := &unstructured.Unstructured{Object: map[string]any{"status": runtime.DeepCopyJSON(fields)}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TrainingJob"))
	object.SetNamespace(job.Namespace)
	object.SetName(job.Name)
	object.SetUID(job.UID)
	object.SetResourceVersion(job.ResourceVersion)
	// The answer is read back into the object.
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
		return "", err
	}
	return object.GetResourceVersion(), nil
}
