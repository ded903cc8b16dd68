package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// format is how an answer is written: for people by default.
type format struct {
	name, people string
	known        []string
}

// addFlags adds --output; more are formats that this command alone has.
func (f *format) addFlags(cmd *cobra.Command, people string, more ...string) {
	f.people, f.known = people, append([]string{people, "json", "yaml"}, more...)
	last := len(f.known) - 1
	cmd.Flags().StringVarP(&f.name, "output", "o", people, fmt.Sprintf("how the answer is written: %s or %s", strings.Join(f.known[:last], ", "), f.known[last]))
}

func (f *format) validate() error {
	if !slices.Contains(f.known, f.name) {
		return fmt.Errorf("--output is %q, it must be one of %s", f.name, strings.Join(f.known, ", "))
	}
	return nil
}

// write writes a value, for people in the way that is given.
func (f *format) write(out io.Writer, value any, people func(io.Writer) error) error {
	switch f.name {
	case "json":
		text, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return fmt.Errorf("write the answer as JSON: %w", err)
		}
		_, err = fmt.Fprintf(out, "%s\n", text)
		return err
	case "yaml":
		text, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("write the answer as YAML: %w", err)
		}
		_, err = out.Write(text)
		return err
	default:
		return people(out)
	}
}
