// Package rendezvous measures the rendezvous by itself, with many simulated agents: how soon a world is known
// to all of its members, what a member costs the operator, and how soon a new leader has everybody back.
//
//	rendezvous.go the parts, and their figures
//	trial.go      one operator and its agents, in processes of their own
//	records.go    what stands for the API server
//	operator.go   the operator's process
//	agents.go     the agents' process; member.go: one agent
//	bare.go       beats with nothing behind them
//	flood.go      a member that reports as fast as it can
//	beside.go     a small job beside a large one
//	usage.go      what a process has used
package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

// Bench measures on this machine; it needs no cluster, and no root.
type Bench struct {
	// Members are the sizes of the jobs that are measured by themselves, one after the other.
	Members []int
	// Jobs is how many jobs of JobMembers members there are at the same time; 0 to leave that out.
	Jobs, JobMembers int
	// Rate is how many agents start in a second, Beats for how long beats are counted.
	Rate  int
	Beats time.Duration
	// Storm says whether the operator is killed.
	Storm bool
	// Flood says whether one member reports as fast as it can while others work.
	Flood bool
	// Bare says whether the beats of the last size are counted once more with nothing behind their connections.
	Bare bool
	// Profile is a folder for CPU profiles of the operator; empty for none.
	Profile string
	// Say tells the person who waits how far it is, Tell takes figures as soon as they are known.
	Say  func(format string, args ...any)
	Tell func(...figures.Figure)
}

// largeJob is how many members a job has beside which a small one is measured.
const largeJob = 1000

// patience bounds each step of a trial.
const patience = 3 * time.Minute

// Measure measures all sizes. What it starts has ended when it returns, also after an error.
func (b Bench) Measure(ctx context.Context) error {
	if b.Rate < 1 || b.Beats <= 0 || b.Jobs < 0 || b.JobMembers < 1 {
		return errors.New("agents start at some rate, beats are counted for some time, and jobs have members")
	}
	for i, members := range b.Members {
		if members < 2 {
			return errors.New("a job has at least two members")
		}
		of := names{
			all: fmt.Sprintf("members_%d", members), change: fmt.Sprintf("change_%d", members),
			storm: fmt.Sprintf("storm_%d", members), operator: fmt.Sprintf("members_%d_operator", members),
		}
		if i == len(b.Members)-1 {
			of.operator = "operator"
		}
		if err := b.measure(ctx, of, 1, members); err != nil {
			return fmt.Errorf("%d members: %w", members, err)
		}
	}
	if len(b.Members) > 0 && b.Bare {
		if err := b.bareBeats(ctx, b.Members[len(b.Members)-1]); err != nil {
			return fmt.Errorf("beats that nobody listens to: %w", err)
		}
	}
	if b.Jobs > 0 {
		name := fmt.Sprintf("jobs_%d", b.Jobs)
		of := names{name, name + "_change", name + "_storm", name + "_operator"}
		if err := b.measure(ctx, of, b.Jobs, b.JobMembers); err != nil {
			return fmt.Errorf("%d jobs of %d members: %w", b.Jobs, b.JobMembers, err)
		}
	}
	if b.Flood {
		if err := b.flood(ctx); err != nil {
			return fmt.Errorf("a flood: %w", err)
		}
	}
	return nil
}

// names are what the figures of one size begin with: all of them, those of a change, of a storm, and of what members
// cost the operator.
type names struct{ all, change, storm, operator string }

// measure takes so many jobs of a size through their life.
func (b Bench) measure(ctx context.Context, of names, jobs, members int) (err error) {
	name, total := of.all, jobs*members
	b.Say("%s: %d agents start, %d in a second", name, total, b.Rate)
	config := trialConfig{Jobs: jobs, Members: members, Rate: b.Rate, Profile: b.Profile, Name: name}
	if members >= largeJob {
		config.Beside = besideMembers
	}
	t, err := start(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	if err := b.startBeside(t); err != nil {
		return err
	}
	empty, err := t.operatorUsage()
	if err != nil {
		return err
	}
	if err := t.agents.Call("Agents.Start", None{}, &None{}); err != nil {
		return fmt.Errorf("start the agents: %w", err)
	}
	ranked, err := t.ranked()
	if err != nil {
		return fmt.Errorf("wait for the places of all members: %w", err)
	}
	formed, clients, err := t.usage()
	if err != nil {
		return err
	}
	b.Tell(
		seconds(name+"_ranked_p50", quantile(ranked.Took, 0.5)), seconds(name+"_ranked_p99", quantile(ranked.Took, 0.99)),
		seconds(name+"_start_operator_cpu", formed.CPU-empty.CPU), seconds(name+"_start_clients_cpu", clients.CPU),
	)
	if err := b.beside(t, "start"); err != nil {
		return err
	}
	if err := b.beats(of, t, total, empty); err != nil {
		return fmt.Errorf("count beats: %w", err)
	}
	if err := b.beside(t, "beats"); err != nil {
		return err
	}
	b.Say("%s: each job is made smaller", name)
	changed, err := t.shrink()
	if err != nil {
		return fmt.Errorf("make each job smaller: %w", err)
	}
	b.Tell(seconds(of.change+"_p50", quantile(changed.Took, 0.5)), seconds(of.change+"_p99", quantile(changed.Took, 0.99)),
		seconds(of.change+"_armed_p99", quantile(changed.Armed, 0.99)))
	if err := b.beside(t, "change"); err != nil {
		return err
	}
	if b.Storm {
		if err := b.storm(t, of.storm, total); err != nil {
			return fmt.Errorf("replace the operator: %w", err)
		}
	}
	return nil
}

// beats measures what members cost that have nothing to say but that they live.
func (b Bench) beats(of names, t *trial, total int, empty Usage) error {
	b.Say("%s: %s of beats", of.all, b.Beats)
	spent, err := b.spent(t)
	if err != nil {
		return err
	}
	b.Tell([]figures.Figure{
		{Name: of.all + "_beats_per_s", Value: float64(spent.beats) / b.Beats.Seconds(), Unit: "1/s"},
		{Name: of.operator + "_us_per_beat", Value: spent.operator, Unit: "us"},
		{Name: of.all + "_clients_us_per_beat", Value: spent.clients, Unit: "us"},
		{Name: of.operator + "_kib_per_member", Value: float64(spent.after.RSS-empty.RSS) / 1024 / float64(total), Unit: "KiB"},
		{Name: of.operator + "_rss_mib", Value: float64(spent.after.RSS) / (1 << 20), Unit: "MiB"},
		{Name: of.operator + "_rss_max_mib", Value: float64(spent.after.MaxRSS) / (1 << 20), Unit: "MiB"},
	}...)
	return nil
}

// spending is what beats have cost the operator and the agents, each in microseconds, and what the operator has used by then.
type spending struct {
	beats             int64
	operator, clients float64
	after             Usage
}

// spent has agents beat for a while.
func (b Bench) spent(t *trial) (s spending, err error) {
	// What comes of the start is over first.
	time.Sleep(3 * time.Second)
	operator, clients, err := t.usage()
	if err != nil {
		return s, err
	}
	var before, after Count
	if err := t.agents.Call("Agents.Reports", None{}, &before); err != nil {
		return s, err
	}
	time.Sleep(b.Beats)
	if err := t.agents.Call("Agents.Reports", None{}, &after); err != nil {
		return s, err
	}
	operatorAfter, clientsAfter, err := t.usage()
	if err != nil {
		return s, err
	}
	s.beats, s.after = max(after.N-before.N, 1), operatorAfter
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(s.beats) }
	s.operator, s.clients = each(operatorAfter.CPU-operator.CPU), each(clientsAfter.CPU-clients.CPU)
	return s, nil
}

// storm kills the operator and starts its successor.
func (b Bench) storm(t *trial, name string, total int) error {
	b.Say("%s: the operator is killed", name)
	_, clientsBefore, err := t.usage()
	if err != nil {
		return err
	}
	done, err := t.succeed()
	if err != nil {
		return err
	}
	lost := 0
	for why, count := range done.lost {
		lost += count
		b.Say("%s: %d streams: %s", name, count, why)
	}
	operator, clients, err := t.usage()
	if err != nil {
		return err
	}
	b.Tell([]figures.Figure{
		seconds(name+"_s", slices.Max(done.adopted)), seconds(name+"_p50", quantile(done.adopted, 0.5)),
		{Name: name + "_lost_streams_per_member", Value: float64(lost) / float64(total), Unit: "streams"},
		seconds(name+"_operator_cpu", operator.CPU), seconds(name+"_clients_cpu", clients.CPU-clientsBefore.CPU),
	}...)
	return nil
}

func seconds(name string, took time.Duration) figures.Figure {
	return figures.Figure{Name: name, Value: took.Seconds(), Unit: "s"}
}

// quantile is what this share of the samples does not exceed.
func quantile(samples []time.Duration, share float64) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

// Role runs one of the processes of a trial when the program was started as one: it is for main. It returns
// false otherwise.
func Role() (bool, error) {
	switch os.Getenv(roleVariable) {
	case roleOperator:
		return true, serveOperator()
	case roleAgents:
		return true, serveAgents()
	case roleBare:
		return true, serveBare()
	}
	return false, nil
}
