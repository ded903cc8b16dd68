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
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/console/listing"
	"github.com/concertina-dev/concertina/internal/controller"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/release"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(release.Get()).ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

func command(own release.Info) *cobra.Command {
	a := &access{flags: genericclioptions.NewConfigFlags(true), version: own.Version}
	cmd := &cobra.Command{
		Use:   "kubectl-concertina",
		Short: "Tells what Concertina does with TrainingJobs, and why. It changes nothing.",
		Example: `  kubectl concertina plan             # what the operator would do with all jobs now
  kubectl concertina explain digits   # why a job has its size, or waits
  kubectl concertina ranks digits     # which worker has which rank
  kubectl concertina top -A           # what all jobs are doing`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl concertina"},
		Version:       own.String(),
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	a.flags.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(planCommand(a), explainCommand(a), ranksCommand(a), topCommand(a), replayCommand(a), versionCommand())
	return cmd
}

// access is how the cluster is reached, and of which version this program is.
type access struct {
	flags   *genericclioptions.ConfigFlags
	version string
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
	mostMemory                 string
}

func (s *settings) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.file, "fleet-config", "", "file with the settings of the fleet, instead of those of the operator")
	f.StringVar(&s.namespace, "operator-namespace", "concertina-system", "namespace that the operator runs in")
	f.StringVar(&s.configMap, "fleet-configmap", "", "name of the ConfigMap there that has the settings; empty: the one with the label "+
		listing.LabelSettings+"="+listing.SettingsOfFleet)
	f.StringSliceVar(&s.drainTaints, "drain-taints", nil, "keys of taints that announce the end of a node; not given: as the operator has them")
	f.StringVar(&s.mostMemory, "checkpoint-memory-most", "", "size of the volume for snapshots that a worker gets at most with checkpoint.memory: auto; empty: as the operator has it")
}

// options are those that the operator plans with.
func (s *settings) options(cmd *cobra.Command, from *listing.Lister) (fleet.Options, error) {
	found, err := from.Settings(cmd.Context(), s.namespace, s.configMap)
	_, denied := errors.AsType[*listing.Denied](err)
	switch missing := denied || apierrors.IsNotFound(err) || errors.Is(err, listing.ErrNoSettings); {
	case s.file != "":
		if err != nil {
			warn(cmd, "the plan is made with the flags that the operator has by default, beside %s (--drain-taints and --checkpoint-memory-most give others): %v", s.file, err)
		}
		found.Settings, err = fleet.LoadSettings(s.file)
	case missing:
		warn(cmd, "the plan is made with default settings, those of the operator may be others (--operator-namespace and "+
			"--fleet-configmap say where they are, --fleet-config FILE gives them): %v", err)
		found.Settings, err = fleet.LoadSettings("")
	}
	if err != nil {
		return fleet.Options{}, err
	}
	if cmd.Flags().Changed("drain-taints") {
		found.Operator.DrainTaints = append([]string{}, s.drainTaints...)
	}
	if s.mostMemory != "" {
		if found.Operator.CheckpointMemoryMost, err = resource.ParseQuantity(s.mostMemory); err != nil {
			return fleet.Options{}, fmt.Errorf("--checkpoint-memory-most is %q: it must be a quantity of bytes such as 64Gi", s.mostMemory)
		}
	}
	return planning(found), nil
}

// planning has pods as the operator makes them, as far as its settings tell.
func planning(found listing.Settings) fleet.Options {
	flags := &found.Operator
	if flags.DrainTaints == nil {
		flags.DrainTaints = controller.DefaultDrainTaints
	}
	pods := controller.PodSettings{MostMemory: flags.CheckpointMemoryMost.Value(), ImageVolume: flags.AgentFrom == "image-volume"}
	return fleet.Options{Settings: found.Settings, DrainTaints: flags.DrainTaints, Shapes: controller.Shapes(pods), Plan: allocation.NewPlan}
}

// warn tells something beside the answer.
func warn(cmd *cobra.Command, format string, arguments ...any) {
	fmt.Fprintf(cmd.ErrOrStderr(), "Warning: "+format+"\n", arguments...)
}
