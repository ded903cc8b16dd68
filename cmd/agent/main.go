// Command agent is the first process of every worker: it joins the job's world and runs the
// training program there.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/concertina-dev/concertina/internal/agent"
	"github.com/concertina-dev/concertina/internal/agent/install"
)

func main() {
	code := 0
	root := &cobra.Command{
		Use:           "agent",
		Short:         "Runs the training program of one Concertina worker",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(&code), installCommand())
	root.CompletionOptions.DisableDefaultCmd = true
	if err := root.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "concertina-agent: %v\n", err)
		if code == 0 {
			code = agent.ExitAgentFailed
		}
	}
	os.Exit(code)
}

func runCommand(code *int) *cobra.Command {
	var tokenFile, caFile string
	command := &cobra.Command{
		Use:   "run -- COMMAND [ARGUMENT...]",
		Short: "Joins the job's world and runs COMMAND in it",
		Long: `Joins the job's world and runs COMMAND in it, with the ranks in its environment.

The operator configures the agent by CONCERTINA_ variables on the training container. The exit code
is that of COMMAND: the first that is not 0 of several, 128 + signal when a signal ended it, 127 when
there is no such command, 126 when it cannot be run, 125 when the agent itself failed, and 143 when
SIGTERM came before COMMAND was started.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := agent.ConfigFromEnvironment(os.Getenv, tokenFile, caFile, args)
			if err != nil {
				return err
			}
			*code, err = agent.Run(cmd.Context(), config, os.Stderr)
			return err
		},
	}
	command.Flags().SetInterspersed(false)
	command.Flags().StringVar(&tokenFile, "token-file", agent.DefaultTokenFile, "file with the service account token for the operator")
	command.Flags().StringVar(&caFile, "ca-file", agent.DefaultCAFile, "file with the certificates that the operator's is checked against")
	return command
}

func installCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "install DESTINATION",
		Short: "Copies this binary to DESTINATION, for the init container of a worker",
		Args:  cobra.ExactArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return install.To(args[0]) },
	}
}
