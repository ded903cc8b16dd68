package scale

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

const (
	// Sizes of part c, unless the bench says otherwise.
	contestNodes, contestJobs = 500, 200
	// contestWorkers is the size of each gang.
	contestWorkers = 8
	contestTeam    = "team"
	// calm is for how long nobody must write before a run is over.
	calm = 3 * time.Second
)

// outcome is one run of one contender.
type outcome struct {
	jobs int
	// took is the time from the first job's submission until all pods ran.
	took time.Duration
	// writes is what was written, cpu how much processor time was used, by each of the
	// contender's programs, until nobody wrote any more.
	writes []writes
	cpu    []time.Duration
	// server is how much processor time the API server has used, whoever asked for it; looks is how often the operator has
	// looked at a job, 0 for others.
	server time.Duration
	looks  float64
}

// contest has all contenders start the same gangs, in turn, each time with an API server of its own.
func (b Bench) contest(ctx context.Context) ([]figures.Figure, error) {
	all, err := b.contenders(ctx)
	if err != nil {
		return nil, err
	}
	outcomes := make([][]outcome, len(all))
	for run := range b.Runs {
		for i, c := range all {
			o, err := b.compete(ctx, c)
			if err != nil {
				return nil, fmt.Errorf("%s, run %d of %d: %w", c.title, run+1, b.Runs, err)
			}
			b.Say("c: %s, run %d of %d: %d jobs in %.2f s, %v of processor time, %v of the API server's; beside pods: %v",
				c.title, run+1, b.Runs, o.jobs, o.took.Seconds(), o.cpu, o.server, o.writes)
			outcomes[i] = append(outcomes[i], o)
		}
	}
	var measured []figures.Figure
	for i, c := range all {
		measured = append(measured, figuresOf(c, outcomes[i])...)
	}
	return measured, nil
}

// compete measures one contender once.
func (b Bench) compete(ctx context.Context, c contender) (_ outcome, err error) {
	s, err := startServer(ctx, b.binaries(), c.definitions...)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	nodes, jobs := or(b.Nodes, contestNodes), or(b.Jobs, contestJobs)
	if (jobs+1)*contestWorkers > nodes*devicesPerNode {
		return outcome{}, fmt.Errorf("%d nodes of %d devices have no room for %d gangs of %d and one to warm up: choose other sizes",
			nodes, devicesPerNode, jobs, contestWorkers)
	}
	if err := s.team(ctx, contestTeam); err != nil {
		return outcome{}, err
	}
	if err := s.nodes(ctx, nodes); err != nil {
		return outcome{}, err
	}
	k, err := startKubelet(ctx, s)
	if err != nil {
		return outcome{}, err
	}
	defer k.end()
	started, err := c.start(s, c.program)
	defer func() { err = errors.Join(err, endAll(started)) }()
	if err != nil {
		return outcome{}, err
	}
	// One gang that does not count shows that everybody is there.
	if err := b.gangs(ctx, s, k, c, started, 0, 1); err != nil {
		return outcome{}, err
	}
	before, err := s.spent(ctx, c, started)
	if err != nil {
		return outcome{}, err
	}
	begin := time.Now()
	profiles := b.profile(ctx, s, c.name)
	if err := b.gangs(ctx, s, k, c, started, 1, jobs); err != nil {
		return outcome{}, err
	}
	took := time.Since(begin)
	if err := profiles(); err != nil {
		return outcome{}, err
	}
	after, err := s.spent(ctx, c, started)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{jobs: jobs, took: took, server: after.server - before.server, looks: after.looks - before.looks}
	for i := range started {
		o.writes = append(o.writes, after.writes[i].minus(before.writes[i]))
		o.cpu = append(o.cpu, after.cpu[i]-before.cpu[i])
	}
	return o, nil
}

// gangs submits so many jobs and waits until all their pods run.
func (b Bench) gangs(ctx context.Context, s *server, k *kubelet, c contender, started []*process, first, count int) error {
	wanted := k.running.Load() + int64(count*contestWorkers)
	err := each(ctx, count, func(ctx context.Context, i int) error {
		job, err := c.job(contestTeam, fmt.Sprintf("job-%05d", first+i), contestWorkers)
		if err != nil {
			return err
		}
		if err := s.client.Create(ctx, job, client.FieldOwner("bench")); err != nil {
			return fmt.Errorf("submit %s: %w", job.GetName(), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.reaches(ctx, k, wanted, started...)
}

// spent is what each of a contender's programs has written and used, once nobody writes any more.
func (s *server) spent(ctx context.Context, c contender, started []*process) (outcome, error) {
	var now outcome
	since := time.Now()
	err := poll(ctx, 200*time.Millisecond, time.Minute, "wait until nobody writes any more", func(context.Context) (bool, error) {
		counts, err := s.audit()
		if err != nil {
			return false, err
		}
		before := now.writes
		now.writes = nil
		for _, user := range c.users {
			now.writes = append(now.writes, counts[user])
		}
		if !slices.EqualFunc(before, now.writes, func(a, b writes) bool { return a.other == b.other && a.pods == b.pods }) {
			since = time.Now()
		}
		return time.Since(since) >= calm, nil
	})
	if err != nil {
		return outcome{}, err
	}
	for _, p := range started {
		cpu, err := p.cpu()
		if err != nil {
			return outcome{}, err
		}
		now.cpu = append(now.cpu, cpu)
	}
	if now.server, err = s.cpu(ctx); err != nil {
		return outcome{}, err
	}
	if s.operator == nil {
		return now, nil
	}
	page, err := scrape(ctx, s.operator[0])
	now.looks = page.sum("controller_runtime_reconcile_total", "controller", controllerName)
	return now, err
}

// figuresOf are the medians of a contender's runs. The others of its programs are counted in, and where
// there are any its own is also told by itself.
func figuresOf(c contender, outcomes []outcome) []figures.Figure {
	perJob := func(of func(o outcome, program int) float64, programs int) float64 {
		return median(outcomes, func(o outcome) float64 {
			total := 0.0
			for i := range programs {
				total += of(o, i)
			}
			return total / float64(o.jobs)
		})
	}
	extra := func(o outcome, i int) float64 { return float64(o.writes[i].other) }
	cpu := func(o outcome, i int) float64 { return o.cpu[i].Seconds() }
	all := []figures.Figure{
		{Name: c.figure + "jobs_per_s", Value: median(outcomes, func(o outcome) float64 { return float64(o.jobs) / o.took.Seconds() }), Unit: "1/s"},
		{Name: c.figure + "extra_writes_per_job", Value: perJob(extra, len(c.users)), Unit: "requests"},
		{Name: c.figure + "controller_cpu_s_per_job", Value: perJob(cpu, len(c.users)), Unit: "s"},
		{Name: c.figure + "apiserver_cpu_s_per_job", Value: median(outcomes, func(o outcome) float64 { return o.server.Seconds() / float64(o.jobs) }), Unit: "s"},
	}
	if looks := median(outcomes, func(o outcome) float64 { return o.looks / float64(o.jobs) }); looks > 0 {
		all = append(all, figures.Figure{Name: c.figure + "looks_per_job", Value: looks, Unit: "looks"})
	}
	if len(c.users) > 1 {
		all = append(all,
			figures.Figure{Name: c.figure + "alone_extra_writes_per_job", Value: perJob(extra, 1), Unit: "requests"},
			figures.Figure{Name: c.figure + "alone_controller_cpu_s_per_job", Value: perJob(cpu, 1), Unit: "s"})
	}
	return all
}

func median(outcomes []outcome, of func(outcome) float64) float64 {
	var all []float64
	for _, o := range outcomes {
		all = append(all, of(o))
	}
	slices.Sort(all)
	if len(all) == 0 {
		return 0
	}
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
