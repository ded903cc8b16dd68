// Command demo shows Concertina on this machine: it brings up a real cluster with the operator in
// it, submits a PyTorch job and follows it to its end.
//
//	go run ./hack/demo                           all of it
//	go run ./hack/demo watch NAME [NAMESPACE]    the live view of any TrainingJob of the cluster
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/demo/console"
	"github.com/concertina-dev/concertina/hack/demo/kube"
	"github.com/concertina-dev/concertina/hack/demo/live"
	"github.com/concertina-dev/concertina/hack/demo/platform"
)

const usage = "usage: demo | demo watch NAME [NAMESPACE]"

// interrupted is the exit code of a program that was ended by Ctrl-C.
const interrupted = 130

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := console.New(os.Stdout)
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		err = demonstrate(ctx, c)
	case args[0] == "watch" && (len(args) == 2 || len(args) == 3):
		err = watch(ctx, c, args[1], append(args, "default")[2])
	default:
		err = errors.New(usage)
	}
	switch {
	case errors.Is(err, context.Canceled):
		os.Exit(interrupted)
	case err != nil:
		fmt.Fprintf(os.Stderr, "\nerror: %v\n", err)
		os.Exit(1)
	}
}

// demonstrate prepares the machine, runs the example and says how it went.
func demonstrate(ctx context.Context, c *console.Console) error {
	p, err := platform.Open(ctx, c)
	if err != nil {
		return err
	}
	err = p.Prepare(ctx, "pytorch-digits")
	if err == nil {
		err = train(ctx, c, p)
	}
	if errors.Is(err, context.Canceled) {
		c.Print("\n" + stillRunning(p) + "\n")
	}
	return err
}

// train submits the example, follows it and ends with its accuracy.
func train(ctx context.Context, c *console.Console, p *platform.Platform) error {
	cluster, err := kube.Connect(p.Kubeconfig)
	if err != nil {
		return err
	}
	job, err := kube.ReadJob(filepath.Join(p.Checkout, example))
	if err != nil {
		return err
	}
	if err := cluster.Delete(ctx, job); err != nil {
		return err
	}
	if err := cluster.Client.Create(ctx, job); err != nil {
		return fmt.Errorf("submit TrainingJob %s: %w", job.Name, err)
	}
	c.Donef("kubectl apply -f %s", example)
	c.Print("\n")
	model, err := live.Follow(ctx, source(cluster, job.Namespace, job.Name), c)
	if err != nil {
		return err
	}
	switch accuracy := model.Training.Accuracy; {
	case model.Outcome == live.Failed:
		return failure(p, job, model)
	case accuracy == nil:
		return fmt.Errorf("TrainingJob %s is complete and printed no test accuracy: see %s", job.Name, kubectl(p, "logs -l "+v1alpha1.LabelJob+"="+job.Name))
	default:
		c.Print(fmt.Sprintf("\nTest accuracy: %.2f%%, %s after the job was submitted.\n", 100**accuracy, model.Elapsed.Round(time.Second)))
	}
	c.Print("\n" + next(p, job) + "\n")
	return nil
}

// watch follows a job that somebody else submitted.
func watch(ctx context.Context, c *console.Console, name, namespace string) error {
	p, err := platform.Open(ctx, c)
	if err != nil {
		return err
	}
	kubeconfig, err := p.FindKubeconfig(ctx)
	if err != nil {
		return err
	}
	cluster, err := kube.Connect(kubeconfig)
	if err != nil {
		return err
	}
	model, err := live.Follow(ctx, source(cluster, namespace, name), c)
	if err == nil && model.Outcome == live.Failed {
		return fmt.Errorf("TrainingJob %s has failed", name)
	}
	return err
}

func source(cluster kube.Cluster, namespace, name string) *live.Source {
	return &live.Source{Objects: cluster.Client, Pods: cluster.Core, Namespace: namespace, Name: name}
}
