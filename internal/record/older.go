package record

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	apply "github.com/concertina-dev/concertina/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// undeclaredField is what the API server says of a field that the definition does not have.
var undeclaredField = regexp.MustCompile(`\.status\.([A-Za-z0-9.]+)[^:\s]*: field not declared in schema`)

// Undeclared are the paths below status that the API server says it does not know; of one within a list that of the list. There are none
// in other errors.
func Undeclared(err error) [][]string {
	if err == nil {
		return nil
	}
	var paths [][]string
	for _, found := range undeclaredField.FindAllStringSubmatch(err.Error(), -1) {
		paths = append(paths, strings.Split(strings.Trim(found[1], "."), "."))
	}
	return paths
}

// writeWithout writes a world that was refused, without what the definition has no place for: that is not durable then. It returns the record
// that stands there afterwards.
func (s Status) writeWithout(ctx context.Context, job *v1alpha1.TrainingJob, config *apply.TrainingJobApplyConfiguration, refused error,
) (rendezvous.Record, error) {
	encoded, err := json.Marshal(config)
	if err != nil {
		return rendezvous.Record{}, fmt.Errorf("encode it: %w", err)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(encoded, &object.Object); err != nil {
		return rendezvous.Record{}, fmt.Errorf("encode it: %w", err)
	}
	for err = refused; err != nil; {
		unknown := Undeclared(err)
		if len(unknown) == 0 || !remove(object, unknown) {
			return rendezvous.Record{}, err
		}
		ctrl.LoggerFrom(ctx).Info("the definition of TrainingJobs is older than this operator, and has no place for some of a world's record: upgrade it",
			"job", client.ObjectKeyFromObject(job), "fields", unknown)
		// The answer is read back into what is given, so that is a copy.
		err = s.Writer.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner(FieldManager), client.ForceOwnership)
	}
	if encoded, err = json.Marshal(object.Object["status"]); err != nil {
		return rendezvous.Record{}, fmt.Errorf("read what was written: %w", err)
	}
	written := &v1alpha1.TrainingJob{ObjectMeta: job.ObjectMeta}
	if err := json.Unmarshal(encoded, &written.Status); err != nil {
		return rendezvous.Record{}, fmt.Errorf("read what was written: %w", err)
	}
	return FromStatus(written), nil
}

// remove takes fields out of a world. False when one is not there, or no world can do without it: then nothing is to be written.
func remove(object *unstructured.Unstructured, paths [][]string) bool {
	for _, path := range paths {
		if len(path) < 2 || path[0] != "world" || path[1] == "term" || path[1] == "round" {
			return false
		}
		path = append([]string{"status"}, path...)
		if _, found, err := unstructured.NestedFieldNoCopy(object.Object, path...); !found || err != nil {
			return false
		}
		unstructured.RemoveNestedField(object.Object, path...)
	}
	return true
}
