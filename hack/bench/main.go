// Command bench measures Concertina on the local cluster and prints its figures, one per line:
// name, value, unit. What it is doing meanwhile goes to the standard error output.
//
//	go run ./hack/bench start [-runs N] [-torchrun-runs N]
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

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/bench/start"
	"github.com/concertina-dev/concertina/hack/demo/console"
	"github.com/concertina-dev/concertina/hack/demo/kube"
	"github.com/concertina-dev/concertina/hack/demo/platform"
)

const usage = "usage: bench start [-runs N] [-torchrun-runs N]"

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

func command(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] != "start" {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet("bench start", flag.ContinueOnError)
	runs := flags.Int("runs", 5, "how often a TrainingJob and a tuned torchrun are started")
	torchrunRuns := flags.Int("torchrun-runs", 5, "how often torchrun with its defaults is started, 35 s each")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New(usage)
	}
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
	bench := start.Bench{
		Cluster: cluster, Job: job, Plain: []string{"/app/train_plain.py", "--log-every", "1"},
		Runs: *runs, TorchrunRuns: *torchrunRuns, Say: c.Logf,
	}
	measured, err := bench.Measure(ctx)
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
