package main

import (
	"io"

	"github.com/spf13/cobra"
)

func planCommand(a *access) *cobra.Command {
	var s settings
	var f format
	var atRest, everywhere bool
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Shows what the operator would do with all jobs now, and does nothing.",
		Long: `Shows what the operator would do with all jobs now, and does nothing.

The plan is made here, by the operator's own planner, from what the cluster shows: nodes, pods, jobs, priority
classes, quotas and namespaces. The operator knows a little more, such as a change of a world that is under way or
nodes on which new workers have failed. An operator of another version may plan otherwise: a warning tells of it. Jobs
that change or wait are shown; the plan is always made for the whole cluster, and --namespace only narrows down what is
shown.`,
		Example: `  kubectl concertina plan                        # jobs that change or wait, of all namespaces
  kubectl concertina plan --all -n research      # all jobs of one namespace, those at rest too
  kubectl concertina plan --fleet-config new.yaml # what other settings would do
  kubectl concertina plan -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			if err := a.oneOrAll(everywhere); err != nil {
				return err
			}
			from, err := a.lister()
			if err != nil {
				return err
			}
			whole, err := a.lookAtAll(cmd, &s, from)
			if err != nil {
				return err
			}
			plan := whole.Plan(*a.flags.Namespace)
			return f.write(cmd.OutOrStdout(), plan, func(out io.Writer) error { return plan.Write(out, atRest) })
		},
	}
	s.addFlags(cmd)
	f.addFlags(cmd, "table")
	cmd.Flags().BoolVar(&atRest, "all", false, "show jobs at rest too: those that neither change nor wait")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "show the jobs of all namespaces, as without --namespace")
	return cmd
}
