package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/console"
	"github.com/concertina-dev/concertina/internal/console/listing"
	"github.com/concertina-dev/concertina/internal/fleet"
)

func explainCommand(a *access) *cobra.Command {
	var s settings
	var f format
	cmd := &cobra.Command{
		Use:   "explain JOB",
		Short: "Says why a job has its size or waits, and what would let it start or grow.",
		Long: `Says in sentences why a job has its size or waits, what would let it start or grow, what it lends and to
whom, its bounds, its last changes, and what they cost. Who may not see the whole cluster is told what the job
itself says.`,
		Example: `  kubectl concertina explain digits
  kubectl concertina explain tj/digits -n research
  kubectl concertina explain digits -o json`,
		Args: oneJob,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			namespace, err := a.namespace()
			if err != nil {
				return err
			}
			from, err := a.lister()
			if err != nil {
				return err
			}
			look, err := a.look(cmd, &s, from, namespace)
			if err != nil {
				return err
			}
			name := types.NamespacedName{Namespace: namespace, Name: jobName(arguments)}
			told, found := look.Explain(name)
			if !found {
				return look.NotFound(name)
			}
			return f.write(cmd.OutOrStdout(), told, func(out io.Writer) error { return told.Write(out) })
		},
	}
	s.addFlags(cmd)
	f.addFlags(cmd, "text")
	return cmd
}

// isKind says whether a word names TrainingJobs, as kubectl takes it.
func isKind(word string) bool {
	kind, _, _ := strings.Cut(word, ".")
	return slices.Contains([]string{"tj", "trainingjob", "trainingjobs"}, kind)
}

// oneJob takes the name of one job, as kubectl does: digits, tj/digits or tj digits.
func oneJob(cmd *cobra.Command, arguments []string) error {
	if len(arguments) == 1 || len(arguments) == 2 && isKind(arguments[0]) {
		return nil
	}
	return fmt.Errorf("name one job, such as: %s digits", cmd.CommandPath())
}

// jobName is the name of the job that was named, as kubectl prints it too, such as tj/digits.
func jobName(arguments []string) string {
	argument := arguments[len(arguments)-1]
	if kind, name, found := strings.Cut(argument, "/"); found && isKind(kind) {
		return name
	}
	return argument
}

// look looks at the whole cluster, or, where that is denied, at the jobs of one namespace.
func (a *access) look(cmd *cobra.Command, s *settings, from *listing.Lister, namespace string) (*console.Look, error) {
	whole, err := a.lookAtAll(cmd, s, from)
	denied, isDenied := errors.AsType[*listing.Denied](err)
	if !isDenied {
		return whole, err
	}
	objects, err := from.Jobs(cmd.Context(), namespace)
	if err != nil {
		return nil, err
	}
	warn(cmd, "what the plan is for this job cannot be told, only what the job itself says: %v", denied)
	return partialLook(objects)
}

// partialLook is a look at jobs of which no plan can be made.
func partialLook(objects fleet.Objects) (*console.Look, error) {
	defaults, err := fleet.ParseSettings(nil)
	if err != nil {
		return nil, fmt.Errorf("default settings of the fleet: %w", err)
	}
	return console.NewPartialLook(objects, planning(listing.Settings{Settings: defaults})), nil
}

// lookAtJobs looks at the jobs and their pods of a namespace, or, with an empty one, of all.
func (a *access) lookAtJobs(cmd *cobra.Command, namespace string) (*console.Look, error) {
	from, err := a.lister()
	if err != nil {
		return nil, err
	}
	objects, err := from.Jobs(cmd.Context(), namespace)
	if err != nil {
		return nil, err
	}
	return partialLook(objects)
}

func (a *access) lookAtAll(cmd *cobra.Command, s *settings, from *listing.Lister) (*console.Look, error) {
	objects, err := from.Cluster(cmd.Context())
	if err != nil {
		return nil, err
	}
	options, err := s.options(cmd, from)
	if err != nil {
		return nil, err
	}
	if others := otherVersions(a.version, s.namespace, objects.Pods); len(others) > 0 {
		warn(cmd, "the operator is of version %s, and this program of %s: the plan is made here, the operator's may be another one (use the program "+
			"that was built with the operator)", strings.Join(others, ", "), a.version)
	}
	return console.NewLook(objects, options), nil
}
