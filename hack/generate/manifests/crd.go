package main

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// templatePath leads from the root of a version's schema to the pod template.
var templatePath = []string{"spec", "workers", "template"}

// trimCRD makes the descriptions of a CRD fit for kubectl explain, in every version: it drops those
// below the pod template and takes the line breaks of the Go source out of the others.
func trimCRD(content []byte) ([]byte, error) {
	var crd map[string]any
	if err := yaml.Unmarshal(content, &crd); err != nil {
		return nil, err
	}
	spec, _ := crd["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	if len(versions) == 0 {
		return nil, errors.New("no versions in spec")
	}
	for _, v := range versions {
		version, _ := v.(map[string]any)
		schema, _ := version["schema"].(map[string]any)
		root, _ := schema["openAPIV3Schema"].(map[string]any)
		template, err := property(root, templatePath...)
		if err != nil {
			return nil, fmt.Errorf("version %v: %w", version["name"], err)
		}
		children(template, dropDescription)
		dropEphemeral(template)
		reflow(root)
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return nil, err
	}
	return append([]byte("---\n"), out...), nil
}

// property walks down from a schema along the names of properties.
func property(schema map[string]any, path ...string) (map[string]any, error) {
	for i, name := range path {
		properties, _ := schema["properties"].(map[string]any)
		child, ok := properties[name].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("the schema has no property %v", path[:i+1])
		}
		schema = child
	}
	return schema, nil
}

func dropDescription(schema map[string]any) {
	delete(schema, "description")
	children(schema, dropDescription)
}

// dropEphemeral takes the containers away that can only be added to a pod which is there: no worker can
// be made with them, and they are a fifth of the template's schema.
func dropEphemeral(template map[string]any) {
	if spec, err := property(template, "spec"); err == nil {
		properties, _ := spec["properties"].(map[string]any)
		delete(properties, "ephemeralContainers")
	}
}

// reflow joins the lines of each paragraph of the descriptions.
func reflow(schema map[string]any) {
	if text, ok := schema["description"].(string); ok {
		paragraphs := strings.Split(text, "\n\n")
		for i, p := range paragraphs {
			paragraphs[i] = strings.Join(strings.Fields(p), " ")
		}
		schema["description"] = strings.Join(paragraphs, "\n\n")
	}
	children(schema, reflow)
}

// children calls visit for every schema directly below one. A property may itself be called
// description or items, so keywords and names of properties must not be mixed up.
func children(schema map[string]any, visit func(map[string]any)) {
	if properties, ok := schema["properties"].(map[string]any); ok {
		for _, p := range properties {
			if child, ok := p.(map[string]any); ok {
				visit(child)
			}
		}
	}
	for _, keyword := range []string{"items", "additionalProperties", "not"} {
		if child, ok := schema[keyword].(map[string]any); ok {
			visit(child)
		}
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		list, _ := schema[keyword].([]any)
		for _, item := range list {
			if child, ok := item.(map[string]any); ok {
				visit(child)
			}
		}
	}
}
