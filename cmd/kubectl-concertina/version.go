package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/concertina-dev/concertina/internal/release"
)

func versionCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Tells the version of this program, and of what its operator and agents say and write.",
		Long: `Tells the version of this program, and of what an operator and agents of it say to each other and write. Plans are made by this
program's own planner: they are the operator's where it is of the same version, which its --version and its metric
concertina_build_info tell. No cluster is asked.`,
		Example: `  kubectl concertina version
  kubectl concertina version -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			info := release.Get()
			return f.write(cmd.OutOrStdout(), info, func(out io.Writer) error {
				_, err := fmt.Fprintln(out, info)
				return err
			})
		},
	}
	f.addFlags(cmd, "text")
	return cmd
}
