package controller

import (
	"context"
	"encoding/json"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
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
	object := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
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
