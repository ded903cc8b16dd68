package rendezvous

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/internal/agent/session"
)

const (
	// besideMembers are those of a small job that trains while a large one does something.
	besideMembers = 8
	// besideEvery is how often each of them has something to report.
	besideEvery = 100 * time.Millisecond
)

// StartBeside starts the small job, whose members report changes all the time.
func (a *Agents) StartBeside(None, *None) error {
	job := a.config.Jobs
	for i := range a.config.Beside {
		address := source(job*a.config.Members + i)
		dialer, err := session.NewDialer(a.config.Address, filepath.Join(a.config.Tokens, podName(job, i)), a.config.CA)
		if err != nil {
			return err
		}
		m := &member{job: job, index: i, address: address.String(), fleet: a}
		one := session.New(dialer.From(address), m, session.DefaultTiming())
		m.tell = one.Tell
		m.answers(true)
		a.beside = append(a.beside, m)
		go one.Run(context.Background())
		go func() {
			for {
				time.Sleep(besideEvery)
				m.tell()
			}
		}()
	}
	return nil
}

// Beside is how long each answer took that members of the small job have had since this was asked last.
func (a *Agents) Beside(_ None, took *[]time.Duration) error {
	*took = []time.Duration{}
	for _, m := range a.beside {
		*took = append(*took, m.answers(true)...)
	}
	return nil
}

// startBeside starts the small job, and tells how long its members wait while it is alone.
func (b Bench) startBeside(t *trial) error {
	if t.Beside == 0 {
		return nil
	}
	if err := t.beside.Call("Agents.StartBeside", None{}, &None{}); err != nil {
		return fmt.Errorf("start the small job: %w", err)
	}
	time.Sleep(b.Beats)
	return b.beside(t, "alone")
}

// beside tells how long members of the small job have waited for an answer while the large one did something.
func (b Bench) beside(t *trial, doing string) error {
	if t.Beside == 0 {
		return nil
	}
	var took []time.Duration
	if err := t.beside.Call("Agents.Beside", None{}, &took); err != nil {
		return err
	}
	if len(took) == 0 {
		return fmt.Errorf("the small job beside %s has had no answer", t.Name)
	}
	b.Tell(
		figures.Figure{Name: t.Name + "_beside_" + doing + "_p50", Value: 1000 * quantile(took, 0.5).Seconds(), Unit: "ms"},
		figures.Figure{Name: t.Name + "_beside_" + doing + "_p99", Value: 1000 * quantile(took, 0.99).Seconds(), Unit: "ms"},
	)
	return nil
}
