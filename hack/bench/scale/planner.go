package scale

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/bench/scale/planner"
)

// plans is how many plans of each kind are made: of a cluster as a whole, and after an event.
const plans = 200

// planner measures internal/allocation by itself, in this process.
func (b Bench) planner(context.Context) ([]figures.Figure, error) {
	size := planner.Large
	size.Nodes, size.Jobs, size.Pods = or(b.Nodes, size.Nodes), or(b.Jobs, size.Jobs), or(b.Pods, size.Pods)
	b.Say("a: %d nodes of %d devices, %d jobs, %d pods", size.Nodes, size.Devices, size.Jobs, size.Pods)
	begin := time.Now()
	before, err := ownCPU()
	if err != nil {
		return nil, err
	}
	var measured []figures.Figure
	for _, which := range []struct{ kinds, paced bool }{{}, {paced: true}, {kinds: true}} {
		size.Kinds, size.Paced = which.kinds, which.paced
		for _, f := range planner.Measure(size, plans) {
			measured = append(measured, figures.Figure(f))
		}
	}
	after, err := ownCPU()
	if err != nil {
		return nil, err
	}
	// Both include making the clusters.
	return append(measured,
		figures.Figure{Name: "plan_wall_s", Value: time.Since(begin).Seconds(), Unit: "s"},
		figures.Figure{Name: "plan_cpu_s", Value: (after - before).Seconds(), Unit: "s"}), nil
}

// ownCPU is how much processor time this process has used.
func ownCPU() (time.Duration, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read our own processor time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
