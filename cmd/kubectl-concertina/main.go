// kubectl concertina tells what the operator would do, why a job has its size, and what the jobs are doing. It
// changes nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/console/listing"
	"github.com/concertina-dev/concertina/internal/controller"
	"github.com/concertina-dev/concertina/internal/fleet"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

func command() *cobra.Command {
	a := &access{flags: genericclioptions.NewConfigFlags(true)}
	cmd := &cobra.Command{
		Use:   "kubectl-concertina",
		Short: "Tells what Concertina does with TrainingJobs, and why. It changes nothing.",
		Example: `  kubectl concertina plan             # what the operator would do with all jobs now
  kubectl concertina explain digits   # why a job has its size, or waits
  kubectl concertina ranks digits     # which worker has which rank
  kubectl concertina top -A           # what all jobs are doing`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl concertina"},
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	a.flags.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(planCommand(a), explainCommand(a), ranksCommand(a), topCommand(a), replayCommand(a))
	return cmd
}

// access is how the cluster is reached.
type access struct {
	flags *genericclioptions.ConfigFlags
}

func (a *access) lister() (*listing.Lister, error) {
	raw, err := a.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, listing.NoCluster(err)
	}
	if len(raw.Clusters) == 0 && *a.flags.APIServer == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return nil, listing.ErrNoCluster // and not localhost:8080, which nobody means
	}
	config, err := a.flags.ToRESTConfig()
	if err != nil {
		return nil, listing.NoCluster(err)
	}
	return listing.New(config)
}

// namespace is the one that was given, or that of the context.
func (a *access) namespace() (string, error) {
	name, _, err := a.flags.ToRawKubeConfigLoader().Namespace()
	return name, listing.NoCluster(err)
}

// oneOrAll refuses one namespace together with all of them.
func (a *access) oneOrAll(everywhere bool) error {
	if everywhere && *a.flags.Namespace != "" {
		return errors.New("--namespace and --all-namespaces exclude each other")
	}
	return nil
}

// settings are what a plan needs to know of the operator.
type settings struct {
	file, namespace, configMap string
	drainTaints                []string
}

func (s *settings) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.file, "fleet-config", "", "file with the settings of the fleet, instead of those of the operator")
	f.StringVar(&s.namespace, "operator-namespace", "concertina-system", "namespace that the operator runs in")
	f.StringVar(&s.configMap, "fleet-configmap", "", "name of the ConfigMap there that has the settings; empty: the one with the label "+
		listing.LabelSettings+"="+listing.SettingsOfFleet)
	f.StringSliceVar(&s.drainTaints, "drain-taints", controller.DefaultDrainTaints, "keys of taints that announce the end of a node, as the operator has them")
}

// options are those that the operator plans with.
func (s *settings) options(cmd *cobra.Command, from *listing.Lister) (fleet.Options, error) {
	found, err := fleet.LoadSettings(s.file)
	if s.file == "" {
		found, err = from.Settings(cmd.Context(), s.namespace, s.configMap)
		if _, denied := errors.AsType[*listing.Denied](err); denied || apierrors.IsNotFound(err) || errors.Is(err, listing.ErrNoSettings) {
			warn(cmd, "the plan is made with default settings, those of the operator may be others (--operator-namespace and "+
				"--fleet-configmap say where they are, --fleet-config FILE gives them): %v", err)
			found, err = fleet.LoadSettings("")
		}
	}
	return planning(found, s.drainTaints), err
}

func planning(found fleet.Settings, drainTaints []string) fleet.Options {
	return fleet.Options{
		Settings: found, DrainTaints: drainTaints, Shapes: controller.Shapes(controller.PodSettings{}), Plan: allocation.NewPlan,
	}
}

// warn tells something beside the answer.
func warn(cmd *cobra.Command, format string, arguments ...any) {
	fmt.Fprintf(cmd.ErrOrStderr(), "Warning: "+format+"\n", arguments...)
}
