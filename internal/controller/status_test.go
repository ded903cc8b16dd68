package controller

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// olderServer is an API server whose definition of jobs does not have all that this operator writes.
type olderServer struct {
	client.Client
	status olderStatus
}

type olderStatus struct {
	client.SubResourceWriter
	refuses string
	written []map[string]any
}

func (o *olderServer) Status() client.SubResourceWriter { return &o.status }

func (o *olderStatus) Apply(_ context.Context, object runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	status, _, _ := unstructured.NestedMap(fields, "status")
	o.written = append(o.written, status)
	if len(o.written) == 1 && o.refuses != "" {
		return errors.New(o.refuses)
	}
	return nil
}

// An older definition loses what it has no place for, and nothing else.
func TestAnOlderDefinitionLosesNothingElse(t *testing.T) {
	const prefix = "failed to create typed patch object (team/digits; training.concertina.dev/v1alpha1, Kind=TrainingJob): "
	job := jobWith(running)
	next := job.Status.DeepCopy()
	next.Checkpoint.Step, next.Checkpoint.Size.State = ptr.To[int64](7), ptr.To[int64](100)
	next.State, next.Resizes = "Training", []v1alpha1.Resize{{Round: ptr.To[int64](2)}}
	for name, test := range map[string]struct {
		refuses string
		writes  int
		without [][]string
	}{
		"all is known":   {"", 1, nil},
		"one":            {prefix + ".status.checkpoint.size: field not declared in schema", 2, [][]string{{"checkpoint", "size"}}},
		"two":            {prefix + "errors:\n  .status.state: field not declared in schema\n  .status.checkpoint.size: field not declared in schema", 2, [][]string{{"state"}, {"checkpoint", "size"}}},
		"within a list":  {prefix + ".status.resizes[0].round: field not declared in schema", 2, [][]string{{"resizes"}}},
		"something else": {prefix + ".status.checkpoint.size: Invalid value", 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := &olderServer{status: olderStatus{refuses: test.refuses}}
			r := &Reconciler{Client: server}
			_, err := r.writeStatus(t.Context(), job, next)
			if refused := test.refuses != "" && test.without == nil; (err != nil) != refused || len(server.status.written) != test.writes {
				t.Fatalf("after %d writes: %v", len(server.status.written), err)
			}
			want := runtime.DeepCopyJSON(server.status.written[0])
			for _, path := range test.without {
				if _, found, _ := unstructured.NestedFieldNoCopy(want, path...); !found {
					t.Fatalf("%v was not written at first", path)
				}
				unstructured.RemoveNestedField(want, path...)
			}
			if diff := cmp.Diff(want, server.status.written[test.writes-1]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
