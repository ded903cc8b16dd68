package v1alpha1

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The conventions of the Kubernetes API that can be read off the generated schema: every string
// and list is bounded, there are no floats, maps or phases, the only bool is suspend, lists say how
// they merge, each description begins with the name of its field, and no part of a status is
// required.

const crdFile = "../../config/crd/bases/training.concertina.dev_trainingjobs.yaml"

func jobSchema(t *testing.T) apiextensionsv1.JSONSchemaProps {
	t.Helper()
	content, err := os.ReadFile(crdFile)
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(content, &crd); err != nil {
		t.Fatal(err)
	}
	if n := len(crd.Spec.Versions); n != 1 {
		t.Fatalf("%d versions in %s", n, crdFile)
	}
	return *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// foreign are fields whose types belong to Kubernetes.
var foreign = []string{"metadata", "spec.workers.template", "status.conditions"}

// walk visits every schema of our own with its path.
func walk(path string, s apiextensionsv1.JSONSchemaProps, visit func(path string, s apiextensionsv1.JSONSchemaProps)) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		child := strings.TrimPrefix(path+"."+name, ".")
		visit(child, s.Properties[name])
		if !slices.Contains(foreign, child) {
			walk(child, s.Properties[name], visit)
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		visit(path+"[]", *s.Items.Schema)
		walk(path+"[]", *s.Items.Schema, visit)
	}
}

func TestSchemaFollowsTheConventions(t *testing.T) {
	root := jobSchema(t)
	visited := 0
	walk("", apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"spec": root.Properties["spec"], "status": root.Properties["status"],
	}}, func(path string, s apiextensionsv1.JSONSchemaProps) {
		visited++
		for _, fault := range conventionFaults(path, s) {
			t.Errorf("%s: %s", path, fault)
		}
	})
	if visited < 40 {
		t.Errorf("only %d fields seen", visited)
	}
}

func conventionFaults(path string, s apiextensionsv1.JSONSchemaProps) []string {
	var faults []string
	fault := func(wrong bool, text string) {
		if wrong {
			faults = append(faults, text)
		}
	}
	name := path[strings.LastIndex(path, ".")+1:]
	item := strings.HasSuffix(path, "[]")
	switch s.Type {
	case "string":
		fault(s.MaxLength == nil && len(s.Enum) == 0 && s.Format != "date-time", "a string without a maximum length")
	case "array":
		fault(s.MaxItems == nil, "a list without a maximum")
		fault(s.XListType == nil, "a list that does not say how it merges")
	case "integer":
		fault(s.Format != "int32" && s.Format != "int64", "an integer that is neither int32 nor int64")
	case "boolean":
		fault(path != "spec.suspend", "a bool: two values are seldom enough, use an enum")
	case "object":
		fault(s.AdditionalProperties != nil, "a map: use a list with a key")
	case "": // a quantity: 2 as well as "2Gi"
		fault(!s.XIntOrString, "no type")
		bounded := func(r apiextensionsv1.ValidationRule) bool {
			return strings.HasPrefix(r.Rule, "size(string(self)) <= ")
		}
		fault(!slices.ContainsFunc(s.XValidations, bounded), "a quantity without a maximum length")
	default:
		fault(true, "type "+s.Type)
	}
	fault(!item && !strings.HasPrefix(s.Description, name+" "), "the description does not begin with the field's name: "+s.Description)
	fault(strings.EqualFold(name, "phase"), "a phase: use conditions")
	fault(strings.HasSuffix(strings.ToLower(name), "timestamp"), "a name that ends in timestamp: use …Time or …At")
	fault(s.Nullable, "nullable")
	fault(path == "status" && len(s.Required) > 0, "a status with required fields")
	return faults
}

func TestConditionsMergeByType(t *testing.T) {
	conditions := jobSchema(t).Properties["status"].Properties["conditions"]
	if got := conditions.XListMapKeys; !slices.Equal(got, []string{"type"}) {
		t.Errorf("list map keys are %v", got)
	}
	if got := reflect.TypeOf(TrainingJobStatus{}.Conditions); got != reflect.TypeOf([]metav1.Condition{}) {
		t.Errorf("conditions are %v", got)
	}
}

// TestNothingIsWrittenThatWasNotSet: an empty object must not claim fields in server-side apply.
func TestNothingIsWrittenThatWasNotSet(t *testing.T) {
	out, err := yaml.Marshal(TrainingJob{})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out); got != "{}\n" {
		t.Errorf("an empty TrainingJob is written as:\n%s", got)
	}
}
