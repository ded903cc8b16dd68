// Package reach finds out for the operator whether the agents of peers can be reached from here. The operator asks
// when it does not hear them itself.
package reach

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxProbes is how many agents may be asked about at a time. It is a rule of the protocol.
	maxProbes = 8
	// patience is how long an agent may take to answer.
	patience = time.Second
	// probeRate is how many probes may begin in a second in the long run, probeBurst how many at once. An operator
	// asks for fewer.
	probeRate  = 8
	probeBurst = 2 * maxProbes
)

// Peer is an agent, and the SHA-256 of the certificate that it shows.
type Peer struct {
	Address     string
	Port        int
	Certificate [32]byte
}

// Probe asks about one agent.
type Probe struct {
	Number uint64
	Peer   Peer
}

// Result is what has come of a probe.
type Result struct {
	Number uint64
	// Reached is true when the agent has answered, Refused when nobody is at its port: its machine has said so.
	Reached, Refused bool
}

// Prober does the probes that it is asked for, each once, and remembers what came of the newest. Its methods return
// at once, but for Close.
type Prober struct {
	reach func(context.Context, Peer) error
	// changed is called when Results has changed.
	changed func()
	limit   *rate.Limiter
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	term uint64
	// asked are the probes that were asked for last, results what has come of those that have ended.
	asked   []Probe
	results map[Probe]Result
}

// New makes a Prober that reaches agents in this way.
func New(reach func(context.Context, Peer) error, changed func()) *Prober {
	ctx, cancel := context.WithCancel(context.Background())
	return &Prober{
		reach: reach, changed: changed, limit: rate.NewLimiter(probeRate, probeBurst),
		ctx: ctx, cancel: cancel, results: map[Probe]Result{},
	}
}

// Close ends what is under way.
func (p *Prober) Close() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.running.Wait()
}

// Ask takes the probes of a directive. They are all that the operator wants to know now: what it asked before is
// forgotten. Numbers belong to a term.
func (p *Prober) Ask(term uint64, probes []Probe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	if term != p.term {
		p.term, p.asked, p.results = term, nil, map[Probe]Result{}
	}
	probes = slices.Clone(probes[:min(len(probes), maxProbes)])
	before := p.asked
	p.asked = probes
	for probe := range p.results {
		if !slices.Contains(probes, probe) {
			delete(p.results, probe)
		}
	}
	for _, probe := range probes {
		if !slices.Contains(before, probe) && p.limit.Allow() {
			p.running.Go(func() { p.do(term, probe) })
		}
	}
}

// do does a probe.
func (p *Prober) do(term uint64, probe Probe) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	err := p.reach(ctx, probe.Peer)
	if p.ctx.Err() != nil {
		return // the agent ends: that says nothing of others
	}
	p.mu.Lock()
	wanted := p.term == term && slices.Contains(p.asked, probe)
	if wanted {
		p.results[probe] = Result{probe.Number, err == nil, errors.Is(err, syscall.ECONNREFUSED)}
	}
	p.mu.Unlock()
	if wanted {
		p.changed()
	}
}

// Results is what has come of the probes that were asked for last, by number.
func (p *Prober) Results() []Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	var results []Result
	for _, probe := range p.asked {
		if result, ended := p.results[probe]; ended {
			results = append(results, result)
		}
	}
	return results
}
