package v1alpha1

import (
	"encoding/json"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	limits "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
)

// mostAllocations bounds what the rules may allocate at a write of the status. Nearly all of it are copies of the schema:
// each field that a rule reads costs the API server one to three of all fields beside it.
const mostAllocations = 11_500

// simpleJob is a job with nothing that it need not have, as it stands in the API server.
func simpleJob(t *testing.T, s *schema.Structural, running int) map[string]any {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"apiVersion": "training.concertina.dev/v1alpha1", "kind": "TrainingJob",
		"metadata": map[string]any{"name": "digits", "namespace": "team"},
		"spec": map[string]any{"workers": map[string]any{
			"min": 8, "max": 8,
			"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
				"name": "trainer", "image": "digits:1", "command": []any{"/train"},
				"resources": map[string]any{"limits": map[string]any{"example.com/device": "1"}},
			}}}},
		}},
		"status": map[string]any{
			"attempt": 1, "workers": map[string]any{"target": 8, "running": running}, "world": map[string]any{"term": 1, "round": 0},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var job map[string]any
	if err := utiljson.Unmarshal(text, &job); err != nil { // whole numbers are integers
		t.Fatal(err)
	}
	defaulting.Default(job, s)
	return job
}

// Every write of a status evaluates the rules of the whole object, and a job's start needs several: what the rules cost
// then is most of what such a write costs the API server.
func TestRulesCostAWriteOfTheStatusLittle(t *testing.T) {
	own, internal := jobSchema(t), apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&own, &internal, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := schema.NewStructural(&internal)
	if err != nil {
		t.Fatal(err)
	}
	rules := cel.NewValidator(structural, true, limits.PerCallLimit)
	before, after := simpleJob(t, structural, 0), simpleJob(t, structural, 8)
	allocations := testing.AllocsPerRun(5, func() {
		both := common.NewCorrelatedObject(after, before, &model.Structural{Structural: structural})
		faults, _ := rules.Validate(t.Context(), nil, structural, after, before, limits.RuntimeCELCostBudget, cel.WithRatcheting(both))
		if len(faults) > 0 {
			t.Fatal(faults)
		}
	})
	if allocations > mostAllocations {
		t.Errorf("the rules make %.0f allocations at a write of the status, want at most %d", allocations, mostAllocations)
	}
	t.Logf("%.0f allocations", allocations)
}
