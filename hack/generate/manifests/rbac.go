package main

import (
	"bytes"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"
)

// rules are those of the generated roles, as YAML lists: in the whole cluster, and in the
// operator's own namespace.
type rules struct {
	cluster, namespace []byte
}

// roleRules takes the rules out of the roles that controller-gen has written. The chart writes
// the objects around them, with its own names and labels.
func roleRules(content []byte) (rules, error) {
	var out rules
	for _, doc := range bytes.Split(content, []byte("\n---\n")) {
		var role struct {
			Kind  string `json:"kind"`
			Rules []any  `json:"rules"`
		}
		if err := yaml.Unmarshal(doc, &role); err != nil {
			return rules{}, err
		}
		list, err := yaml.Marshal(role.Rules)
		if err != nil {
			return rules{}, err
		}
		switch role.Kind {
		case "ClusterRole":
			out.cluster = append(out.cluster, list...)
		case "Role":
			out.namespace = append(out.namespace, list...)
		default:
			return rules{}, fmt.Errorf("unexpected kind %q", role.Kind)
		}
	}
	if out.cluster == nil || out.namespace == nil {
		return rules{}, errors.New("a ClusterRole and a Role are expected: the markers name both kinds of rules")
	}
	return out, nil
}
