// Command bench measures Concertina on the local cluster and prints its figures, one per line:
// name, value, unit. What it is doing meanwhile goes to the standard error output.
//
//	go run ./hack/bench start [-runs N] [-torchrun-runs N]
//	go run ./hack/bench resize [-runs N] [-tuned-runs N] [-torchrun-runs N]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/bench/resize"
	"github.com/concertina-dev/concertina/hack/bench/start"
	"github.com/concertina-dev/concertina/hack/demo/console"
	"github.com/concertina-dev/concertina/hack/demo/kube"
	"github.com/concertina-dev/concertina/hack/demo/platform"
)

const usage = `usage: bench start [-runs N] [-torchrun-runs N]
       bench resize [-runs N] [-tuned-runs N] [-torchrun-runs N]`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// measure is one bench on a cluster that is ready.
type measure func(ctx context.Context, cluster kube.Cluster, job *v1alpha1.TrainingJob, say func(string, ...any)) ([]figures.Figure, error)

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet("bench "+args[0], flag.ContinueOnError)
	var bench measure
	switch args[0] {
	case "start":
		bench = startBench(flags)
	case "resize":
		bench = resizeBench(flags)
	default:
		return errors.New(usage)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New(usage)
	}
	return run(ctx, bench)
}

func startBench(flags *flag.FlagSet) measure {
	runs := flags.Int("runs", 5, "how often a TrainingJob and a tuned torchrun are started")
	torchrunRuns := flags.Int("torchrun-runs", 5, "how often torchrun with its defaults is started, 35 s each")
	return func(ctx context.Context, cluster kube.Cluster, job *v1alpha1.TrainingJob, say func(string, ...any)) ([]figures.Figure, error) {
		return start.Bench{
			Cluster: cluster, Job: job, Plain: []string{"/app/train_plain.py", "--log-every", "1"},
			Runs: *runs, TorchrunRuns: *torchrunRuns, Say: say,
		}.Measure(ctx)
	}
}

func resizeBench(flags *flag.FlagSet) measure {
	runs := flags.Int("runs", 10, "how many changes of each kind a TrainingJob goes through")
	tunedRuns := flags.Int("tuned-runs", 10, "the same under a tuned torchrun, 35 s each")
	torchrunRuns := flags.Int("torchrun-runs", 10, "the same under torchrun with its defaults, 90 s each")
	return func(ctx context.Context, cluster kube.Cluster, job *v1alpha1.TrainingJob, say func(string, ...any)) ([]figures.Figure, error) {
		return resize.Bench{
			Cluster: cluster, Job: job, Twin: []string{"/app/train_elastic_torchrun.py"},
			Runs: *runs, TunedRuns: *tunedRuns, TorchrunRuns: *torchrunRuns, Say: say,
		}.Measure(ctx)
	}
}

// run makes the machine ready, measures and prints.
func run(ctx context.Context, bench measure) error {
	c := console.New(os.Stderr)
	p, err := platform.Open(ctx, c)
	if err != nil {
		return err
	}
	if err := p.Prepare(ctx); err != nil {
		return err
	}
	cluster, err := kube.Connect(p.Kubeconfig)
	if err != nil {
		return err
	}
	job, err := kube.ReadJob(filepath.Join(p.Checkout, "examples/pytorch-digits/job.yaml"))
	if err != nil {
		return err
	}
	warnOfLoad(c)
	measured, err := bench(ctx, cluster, job, c.Logf)
	if err != nil {
		return err
	}
	return figures.Print(os.Stdout, measured)
}

// warnOfLoad says when others use the machine too: the figures are then theirs as well.
func warnOfLoad(c *console.Console) {
	text, err := os.ReadFile("/proc/loadavg")
	var load float64
	if _, scanned := fmt.Sscan(string(text), &load); err == nil && scanned == nil && load > float64(runtime.NumCPU())/2 {
		c.Logf("the machine is busy (load %.1f on %d cores): expect figures that are too high", load, runtime.NumCPU())
	}
}
