// Package scale measures what the operator costs in a large cluster: the planner by itself, the operator
// as it ships, and beside it, on a smaller cluster, two others that start gangs of pods.
//
// The API server and its etcd are real. Nodes are objects without a machine, and one program of the bench
// (kubelet.go) plays the scheduler and all kubelets: it binds pending pods and says that they run. No
// container runs, so there are no agents, no worlds and no heartbeats.
//
//	planner.go    part a: the planner in this process
//	large.go      part b: the operator in a large cluster
//	contest.go    part c: the operator beside others
//	contenders.go who takes part in it, and how they are started
//	operator.go   how the operator is started, and what it says of itself
//	server.go     an API server for one measurement; audit.go: who has written what
//	kubelet.go    pods that get nodes and run, without either; places.go: where there is room
//	profile.go    where the time of the operator and of the API server goes
//	load.go       nodes and pods in bulk
//	process.go    programs, their CPU time and memory; metrics.go: what they tell
package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

// Parts are the names of the parts, in their order.
var Parts = []string{"a", "b", "c"}

// Contenders are the names of those that part c has, in their order.
var Contenders = []string{"concertina", "jobset", "training-operator"}

const (
	// fillPatience bounds the time until all gangs run that there is room for, stalled for how long none
	// of their pods may begin to.
	fillPatience, stalled = 30 * time.Minute, time.Minute
)

// Bench measures on this machine; it needs no cluster, and no root.
type Bench struct {
	// Checkout is the source tree, Cache the folder of what can be built again, with etcd,
	// kube-apiserver and kube-controller-manager in its folder bin.
	Checkout, Cache string
	// Parts says which parts are measured.
	Parts []string
	// Contenders says who takes part in part c.
	Contenders []string
	// Profile is a folder for CPU profiles of part c; empty for none.
	Profile string
	// Nodes, Jobs and Pods are the size of every part that is measured; 0 stands for its own.
	Nodes, Jobs, Pods int
	// Runs is how often each contender of part c is measured, Idle how long part b watches a cluster in
	// which nothing happens.
	Runs int
	Idle time.Duration
	// Say tells the person who waits how far it is.
	Say func(format string, args ...any)
}

// Measure measures the chosen parts. What it starts has ended when it returns, also after an error.
func (b Bench) Measure(ctx context.Context) ([]figures.Figure, error) {
	for _, part := range b.Parts {
		if !slices.Contains(Parts, part) {
			return nil, fmt.Errorf("there is no part %q: choose from %s", part, strings.Join(Parts, ", "))
		}
	}
	for _, name := range b.Contenders {
		if !slices.Contains(Contenders, name) {
			return nil, fmt.Errorf("there is no contender %q: choose from %s", name, strings.Join(Contenders, ", "))
		}
	}
	if b.Nodes < 0 || b.Jobs < 0 || b.Pods < 0 || b.Runs < 1 || b.Idle <= 0 {
		return nil, errors.New("there is at least one run, some time in which nothing happens, and no size below 0")
	}
	log.SetLogger(logr.Discard())
	var all []figures.Figure
	for _, part := range []struct {
		name    string
		measure func(context.Context) ([]figures.Figure, error)
	}{{"a", b.planner}, {"b", b.large}, {"c", b.contest}} {
		if !slices.Contains(b.Parts, part.name) {
			continue
		}
		measured, err := part.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("part %s: %w", part.name, err)
		}
		all = append(all, measured...)
	}
	return all, nil
}

// or is a size that was asked for, or the part's own.
func or(asked, own int) int {
	if asked > 0 {
		return asked
	}
	return own
}

// binaries is the folder of the cluster's programs, built those that are measured.
func (b Bench) binaries() string { return filepath.Join(b.Cache, "bin") }

// build builds a program of a module in the checkout, as `make build` does, and returns its path.
func (b Bench) build(ctx context.Context, name, module, pkg string) (string, error) {
	path := filepath.Join(b.Cache, "bench", name)
	b.Say("build %s", name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Dir = filepath.Join(b.Checkout, module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, strings.TrimSpace(string(text)))
	}
	return path, nil
}

// moduleDir is where the files of a module lie that a module of the checkout needs.
func (b Bench) moduleDir(ctx context.Context, module, wanted string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", wanted)
	cmd.Dir = filepath.Join(b.Checkout, module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", wanted, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// poll looks every so often until a look is satisfied.
func poll(ctx context.Context, every, patience time.Duration, what string, look func(context.Context) (bool, error)) error {
	ctx, stop := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s: not within %s", what, patience))
	defer stop()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		done, err := look(ctx)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// reaches waits until so many pods run; it gives up when none has begun to for a while.
func (b Bench) reaches(ctx context.Context, k *kubelet, pods int64, started ...*process) error {
	said, moved, before := time.Now(), time.Now(), k.running.Load()
	err := poll(ctx, 5*time.Millisecond, fillPatience, "wait for the pods", func(context.Context) (bool, error) {
		now := k.running.Load()
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			b.Say("%d of %d pods run", now, pods)
		}
		if now != before {
			moved, before = time.Now(), now
		}
		if time.Since(moved) > stalled {
			return false, fmt.Errorf("none has begun to run for %s; %s", stalled, k.situation())
		}
		if err := k.err(); err != nil {
			return false, err
		}
		for _, p := range started {
			if err := p.alive(); err != nil {
				return false, err
			}
		}
		return now >= pods, nil
	})
	if err != nil && ctx.Err() == nil {
		var logs []string
		for _, p := range started {
			logs = append(logs, fmt.Sprintf("the end of %s's log:\n%s", p.name, p.lastLines()))
		}
		return fmt.Errorf("%d of %d pods run: %w\n%s", k.running.Load(), pods, err, strings.Join(logs, "\n"))
	}
	return err
}
