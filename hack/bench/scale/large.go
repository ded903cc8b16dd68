package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/contexts"
	"github.com/concertina-dev/concertina/hack/bench/figures"
)

const (
	// Sizes of part b, unless the bench says otherwise.
	largeNodes, largeJobs, largePods = 5000, 2000, 50000
	// largeWorkers is the size of each gang. With 5,000 nodes of 8 devices 1,600 of 2,000 jobs run, and
	// 400 wait for room.
	largeWorkers = 25
	// largeTeams is how many namespaces the jobs are in.
	largeTeams = 20
	// lookPatience bounds the time until a new operator has looked at all jobs.
	lookPatience = 10 * time.Minute
)

// large measures the operator's program in a large cluster. A first life of it starts all gangs that have
// room; then it is started anew, as after an upgrade, and nothing happens any more.
func (b Bench) large(ctx context.Context) (_ []figures.Figure, err error) {
	program, err := b.build(ctx, "operator", ".", "./cmd/operator")
	if err != nil {
		return nil, err
	}
	definitions, err := b.definitions(ctx)
	if err != nil {
		return nil, err
	}
	s, err := startServer(ctx, b.binaries(), definitions...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	nodes, jobs := or(b.Nodes, largeNodes), or(b.Jobs, largeJobs)
	running := min(jobs, nodes*devicesPerNode/largeWorkers)
	others := max(0, or(b.Pods, largePods)-running*largeWorkers)
	b.Say("b: %d nodes, %d jobs of %d workers, %d other pods", nodes, jobs, largeWorkers, others)
	var teams []string
	for i := range largeTeams {
		teams = append(teams, fmt.Sprintf("team-%d", i))
		if err := s.team(ctx, teams[i]); err != nil {
			return nil, err
		}
	}
	if err := s.nodes(ctx, nodes); err != nil {
		return nil, err
	}
	k, err := startKubelet(ctx, s)
	if err != nil {
		return nil, err
	}
	defer k.end()
	if err := s.others(ctx, teams[0], others, nodes); err != nil {
		return nil, err
	}
	if err := b.reaches(ctx, k, int64(others)); err != nil {
		return nil, err
	}
	filled, err := b.fill(ctx, s, k, program, jobs, running, teams)
	if err != nil {
		return nil, err
	}
	settled, err := b.settle(ctx, s, program, jobs)
	return append(filled, settled...), err
}

// fill has an operator start all gangs that there is room for, and ends it.
func (b Bench) fill(ctx context.Context, s *server, k *kubelet, program string, jobs, running int, teams []string) (_ []figures.Figure, err error) {
	o, err := startOperator(s, program, "operator-filling")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.end()) }()
	if _, err := o.firstLook(ctx, 0, lookPatience); err != nil {
		return nil, err
	}
	before, cpuBefore := k.running.Load(), time.Duration(0)
	if cpuBefore, err = o.cpu(); err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := s.submit(ctx, jobs, largeWorkers, teams); err != nil {
		return nil, err
	}
	if err := b.reaches(ctx, k, before+int64(running)*largeWorkers, o.process); err != nil {
		return nil, err
	}
	took := time.Since(begin)
	// What was still to be written of the last ones belongs to this life.
	if _, err := o.firstLook(ctx, jobs, lookPatience); err != nil {
		return nil, err
	}
	cpu, err := o.cpu()
	if err != nil {
		return nil, err
	}
	p99, err := o.reconcileP99(ctx)
	if err != nil {
		return nil, err
	}
	b.Say("b: %d gangs run after %s", running, took.Round(time.Millisecond))
	return []figures.Figure{
		{Name: "fill_s", Value: took.Seconds(), Unit: "s"},
		{Name: "fill_cpu_s", Value: (cpu - cpuBefore).Seconds(), Unit: "s"},
		{Name: "fill_reconcile_p99", Value: milliseconds(p99), Unit: "ms"},
	}, nil
}

// settle starts an operator in the cluster as it is, and watches it.
func (b Bench) settle(ctx context.Context, s *server, program string, jobs int) (_ []figures.Figure, err error) {
	first, err := s.audit()
	if err != nil {
		return nil, err
	}
	o, err := startOperator(s, program, "operator")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.end()) }()
	took, err := o.firstLook(ctx, jobs, lookPatience)
	if err != nil {
		return nil, err
	}
	cold, err := o.cpu()
	if err != nil {
		return nil, err
	}
	before, err := s.audit()
	if err != nil {
		return nil, err
	}
	b.Say("b: first look over after %s, written for it: %s; nothing happens for %s",
		took.Round(time.Millisecond), before[operatorUser].minus(first[operatorUser]), b.Idle)
	if err := contexts.Pause(ctx, b.Idle); err != nil {
		return nil, err
	}
	after, err := s.audit()
	if err != nil {
		return nil, err
	}
	cpu, err := o.cpu()
	if err != nil {
		return nil, err
	}
	now, most, err := o.memory()
	if err != nil {
		return nil, err
	}
	p99, err := o.reconcileP99(ctx)
	if err != nil {
		return nil, err
	}
	idle := after[operatorUser].minus(before[operatorUser])
	b.Say("b: written meanwhile: %s; for leader election: %d", idle, idle.leases)
	return []figures.Figure{
		{Name: "cold_start_s", Value: took.Seconds(), Unit: "s"},
		{Name: "cold_start_cpu_s", Value: cold.Seconds(), Unit: "s"},
		{Name: "operator_rss_mib", Value: mebibytes(now), Unit: "MiB"},
		{Name: "operator_rss_max_mib", Value: mebibytes(most), Unit: "MiB"},
		{Name: "idle_writes_per_s", Value: float64(idle.pods+idle.other) / b.Idle.Seconds(), Unit: "1/s"},
		{Name: "idle_lease_writes_per_s", Value: float64(idle.leases) / b.Idle.Seconds(), Unit: "1/s"},
		{Name: "idle_cpu_s_per_s", Value: (cpu - cold).Seconds() / b.Idle.Seconds(), Unit: "s/s"},
		{Name: "reconcile_p99", Value: milliseconds(p99), Unit: "ms"},
	}, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
