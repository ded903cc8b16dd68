package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/concertina-dev/concertina/internal/console"
)

func topCommand(a *access) *cobra.Command {
	var f format
	var everywhere bool
	var order string
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Shows what the jobs are doing: sizes, steps, speed, goodput, pauses, devices.",
		Long: `Shows what the jobs of a namespace are doing: running workers, target and bounds, step, samples per
second, goodput, the median pause of the last changes, and the devices that their pods hold. Steps, speed and goodput
are as of the last refresh of status.progress: every 2 seconds in a cluster with a few jobs, every 2 minutes in one with
thousands.`,
		Example: `  kubectl concertina top                     # who holds most devices comes first
  kubectl concertina top -A --sort-by=samples
  kubectl concertina top -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			if err := a.oneOrAll(everywhere); err != nil {
				return err
			}
			namespace, err := a.namespace()
			if err != nil {
				return err
			}
			if everywhere {
				namespace = ""
			}
			look, err := a.lookAtJobs(cmd, namespace)
			if err != nil {
				return err
			}
			top, err := look.Top(order)
			if err != nil {
				return err
			}
			return f.write(cmd.OutOrStdout(), top, func(out io.Writer) error {
				if len(top.Jobs) == 0 && !everywhere {
					_, err := fmt.Fprintf(out, "no jobs in namespace %s: --all-namespaces shows those of all\n", namespace)
					return err
				}
				return top.Write(out, everywhere)
			})
		},
	}
	f.addFlags(cmd, "table")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "show the jobs of all namespaces")
	cmd.Flags().StringVar(&order, "sort-by", "devices", "what to sort by: "+strings.Join(console.Orders(), ", "))
	return cmd
}
