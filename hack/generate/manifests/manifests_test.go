package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestTrimCRDKeepsWhatExplainsTheJob(t *testing.T) {
	got, err := trimCRD([]byte(`
spec:
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        description: |-
          A job is one run
          of a program.

          It ends.
        properties:
          spec:
            properties:
              workers:
                properties:
                  template:
                    description: |-
                      template is the pod
                      of one worker.
                    properties:
                      description:
                        description: a property with that name
                        maximum: 10000
                        type: integer
                      containers:
                        items:
                          description: an item
                          properties:
                            env: {additionalProperties: {description: a value, type: string}, type: object}
                            port: {anyOf: [{description: one way, type: integer}, {type: string}]}
                          type: object
                        type: array
                      spec:
                        properties:
                          ephemeralContainers: {type: array}
                          hostname: {type: string}
                        type: object
`))
	if err != nil {
		t.Fatal(err)
	}
	want := `---
spec:
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        description: |-
          A job is one run of a program.

          It ends.
        properties:
          spec:
            properties:
              workers:
                properties:
                  template:
                    description: template is the pod of one worker.
                    properties:
                      containers:
                        items:
                          properties:
                            env:
                              additionalProperties:
                                type: string
                              type: object
                            port:
                              anyOf:
                              - type: integer
                              - type: string
                          type: object
                        type: array
                      description:
                        maximum: 10000
                        type: integer
                      spec:
                        properties:
                          hostname:
                            type: string
                        type: object
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("trimmed CRD (-want +got):\n%s", diff)
	}
}

func TestTrimCRDRefusesASchemaWithoutTemplate(t *testing.T) {
	for name, content := range map[string]string{
		"no versions": `spec: {}`,
		"no workers":  `spec: {versions: [{name: v1, schema: {openAPIV3Schema: {properties: {spec: {type: object}}}}}]}`,
	} {
		if _, err := trimCRD([]byte(content)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestReferenceShowsFieldsAndRules(t *testing.T) {
	got, err := reference([]byte(`
spec:
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        properties:
          spec:
            description: spec is wanted.
            required: [size]
            x-kubernetes-validations: [{rule: "true", message: size must be even}]
            properties:
              size: {type: integer, description: size is a number.}
              room: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}], description: room is a quantity.}
              mode: {type: string, enum: [A, B], default: A, description: mode is a way.}
              parts:
                type: array
                description: parts are many.
                items: {type: object, properties: {at: {type: string, format: date-time, description: at is when.}}}
          status: {type: object, description: status is seen.}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n## spec\n\nspec is wanted.\n",
		"| `size` (required) | integer |  | size is a number. |\n",
		"| `room` | quantity |  | room is a quantity. |\n",
		"| `mode` | `A`, `B` | `A` | mode is a way. |\n",
		"| `parts` | list of object |  | parts are many. |\n",
		"\n## spec.parts[]\n",
		"| `at` | time |  | at is when. |\n",
		"- size must be even\n",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
}

func TestRoleRulesNeedsBothRoles(t *testing.T) {
	if _, err := roleRules([]byte("kind: ClusterRole\nrules: [{verbs: [get]}]\n")); err == nil {
		t.Error("a file without a Role is accepted")
	}
}

var (
	marker   = regexp.MustCompile(`(?m)^\s*// \+kubebuilder:rbac:(.*)$`)
	argument = regexp.MustCompile(`(groups|resources|verbs|namespace|urls)=([^,\s]*)`)
)

// TestEveryMarkerCounts: controller-gen ignores a marker in a function's comment without a word,
// and the operator would then be refused at run time.
func TestEveryMarkerCounts(t *testing.T) {
	granted := grantedRights(t)
	markers := 0
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join("../../..", dir), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, match := range marker.FindAllStringSubmatch(string(source), -1) {
				markers++
				for _, right := range markedRights(match[1]) {
					if !slices.Contains(granted, right) {
						t.Errorf("%s: %s is in no generated role: is the marker in a comment of its own, and was make generate run?", path, right)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if markers == 0 {
		t.Error("no marker found")
	}
}

// markedRights writes the rights of one marker as "namespace group/resource verb", those to a path as "path verb".
func markedRights(arguments string) []string {
	fields := map[string]string{}
	for _, match := range argument.FindAllStringSubmatch(arguments, -1) {
		fields[match[1]] = strings.Trim(match[2], `"`)
	}
	var rights []string
	for url := range strings.SplitSeq(fields["urls"], ";") {
		for verb := range strings.SplitSeq(fields["verbs"], ";") {
			if url != "" {
				rights = append(rights, url+" "+verb)
			}
		}
	}
	if len(rights) > 0 {
		return rights
	}
	for group := range strings.SplitSeq(fields["groups"], ";") {
		for resource := range strings.SplitSeq(fields["resources"], ";") {
			for verb := range strings.SplitSeq(fields["verbs"], ";") {
				rights = append(rights, fields["namespace"]+" "+group+"/"+resource+" "+verb)
			}
		}
	}
	return rights
}

func grantedRights(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../..", rolePath))
	if err != nil {
		t.Fatal(err)
	}
	var rights []string
	for doc := range strings.SplitSeq(string(content), "\n---\n") {
		var role struct {
			Metadata struct{ Namespace string }
			Rules    []struct{ APIGroups, Resources, NonResourceURLs, Verbs []string }
		}
		if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, url := range rule.NonResourceURLs {
				for _, verb := range rule.Verbs {
					rights = append(rights, url+" "+verb)
				}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						rights = append(rights, role.Metadata.Namespace+" "+group+"/"+resource+" "+verb)
					}
				}
			}
		}
	}
	return rights
}
