package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const referencePath = "docs/api.md"

const referenceHead = `# TrainingJob: the reference

Made from the API's types by ` + "`make generate`" + `; do not edit. ` + "`kubectl explain tj.spec`" + ` shows the same.
The pod template is Kubernetes' own and is left out here. It lacks ephemeralContainers, which no pod can
be made with: kubectl refuses the field as unknown, and the API server drops it from other clients' jobs.
`

// ownedElsewhere are fields whose inside is documented by Kubernetes.
var ownedElsewhere = []string{"spec.workers.template", "status.conditions"}

// reference writes the fields of spec and status as Markdown, one table for each object, and the
// rules that the API server checks across fields.
func reference(content []byte) ([]byte, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(content, &crd); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString(referenceHead)
	for _, version := range crd.Spec.Versions {
		root := *version.Schema.OpenAPIV3Schema
		for _, name := range []string{"spec", "status"} {
			writeObject(&out, name, root.Properties[name])
		}
		out.WriteString("\n## Rules\n\nWhat the API server says when it refuses an object:\n\n")
		writeRules(&out, root)
	}
	return out.Bytes(), nil
}

func writeObject(out *bytes.Buffer, path string, object apiextensionsv1.JSONSchemaProps) {
	fmt.Fprintf(out, "\n## %s\n\n%s\n\n| field | type | default | |\n|---|---|---|---|\n", path, object.Description)
	var inside []string
	for _, name := range slices.Sorted(maps.Keys(object.Properties)) {
		field := object.Properties[name]
		label := "`" + name + "`"
		if slices.Contains(object.Required, name) {
			label += " (required)"
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s |\n", label, typeName(field), defaultText(field), strings.ReplaceAll(field.Description, "\n\n", " "))
		if !slices.Contains(ownedElsewhere, path+"."+name) && len(members(field)) > 0 {
			inside = append(inside, name)
		}
	}
	for _, name := range inside {
		child := object.Properties[name]
		if child.Items != nil {
			child.Properties, child.Required = child.Items.Schema.Properties, child.Items.Schema.Required
			name += "[]"
		}
		writeObject(out, path+"."+name, child)
	}
}

// members are the fields of an object or of the objects in a list.
func members(s apiextensionsv1.JSONSchemaProps) map[string]apiextensionsv1.JSONSchemaProps {
	if s.Items != nil {
		return s.Items.Schema.Properties
	}
	return s.Properties
}

func typeName(s apiextensionsv1.JSONSchemaProps) string {
	switch {
	case s.Items != nil:
		return "list of " + typeName(*s.Items.Schema)
	case len(s.Enum) > 0:
		var values []string
		for _, value := range s.Enum {
			values = append(values, "`"+strings.Trim(string(value.Raw), `"`)+"`")
		}
		return strings.Join(values, ", ")
	case s.Format == "date-time":
		return "time"
	case s.XIntOrString:
		return "quantity"
	}
	return s.Type
}

func defaultText(s apiextensionsv1.JSONSchemaProps) string {
	if s.Default == nil || string(s.Default.Raw) == "{}" {
		return ""
	}
	return "`" + strings.Trim(string(s.Default.Raw), `"`) + "`"
}

// writeRules lists what the API server says when a rule is broken, in the order of the schema.
func writeRules(out *bytes.Buffer, s apiextensionsv1.JSONSchemaProps) {
	for _, rule := range s.XValidations {
		fmt.Fprintf(out, "- %s\n", rule.Message)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		writeRules(out, s.Properties[name])
	}
}
