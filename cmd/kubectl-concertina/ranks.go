package main

import (
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
)

func ranksCommand(a *access) *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "ranks JOB",
		Short: "Shows which worker has which rank, and on which node.",
		Long: `Shows who is in the newest world of a job, in the order of ranks: those of its processes, pod and node. It is what status.world
names, packed. A pod that has ended is shown as "-". A worker with several processes has as many ranks, such as 8-15: each is what a
process has as RANK, and what metrics and status.stragglers name. With -o json rank is that of the worker, and firstRank and ranks
are those of its processes.`,
		Example: `  kubectl concertina ranks digits
  kubectl logs "$(kubectl concertina ranks digits -o json | jq -r '.members[0].worker')"`,
		Args: oneJob,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			namespace, err := a.namespace()
			if err != nil {
				return err
			}
			look, err := a.lookAtJobs(cmd, namespace)
			if err != nil {
				return err
			}
			name := types.NamespacedName{Namespace: namespace, Name: jobName(arguments)}
			told, found := look.Ranks(name)
			if !found {
				return look.NotFound(name)
			}
			return f.write(cmd.OutOrStdout(), told, func(out io.Writer) error { return told.Write(out) })
		},
	}
	f.addFlags(cmd, "table")
	return cmd
}
