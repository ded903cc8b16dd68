package rendezvous

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/internal/rendezvous/link"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"

	product "github.com/concertina-dev/concertina/internal/rendezvous"
)

// Bare is a process in the operator's place that answers each report with what a member of a world that trains is told, over the same
// connection, and knows of nothing: what is left is what a beat costs the kernel, TLS and the Go runtime here and now.
type Bare struct{ config operatorConfig }

// serveBare is that process. It answers to the operator's name.
func serveBare() error {
	config, err := configured[operatorConfig]()
	if err != nil {
		return err
	}
	return answer("Operator", &Bare{config})
}

// Start has it listen.
func (b *Bare) Start(None, *None) error {
	certificate, err := tls.LoadX509KeyPair(b.config.Certificate, b.config.Key)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", b.config.Address)
	if err != nil {
		return err
	}
	secured := link.Secured(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the process ends
			}
			go b.converse(tls.Server(conn, secured))
		}
	}()
	return nil
}

// converse answers one agent until it hangs up.
func (b *Bare) converse(secured *tls.Conn) {
	defer func() { _ = secured.Close() }()
	conn := link.New(secured)
	if _, err := conn.Token(); err != nil {
		return
	}
	for {
		report, err := conn.Report()
		if err != nil {
			return
		}
		if err := conn.Answer(b.told(report.GetSequence())); err != nil {
			return
		}
	}
}

// told is what a member is told while nothing happens.
func (b *Bare) told(sequence uint64) *rendezvousv1.Directive {
	size := uint32(b.config.Members)
	return &rendezvousv1.Directive{
		Term: 1, Round: 1, Sequence: sequence, TicketKey: make([]byte, 32),
		BeatMillis: uint32(product.BeatOf(b.config.Members).Milliseconds()),
		World: &rendezvousv1.World{
			MembersDigest: strings.Repeat("0", 64), Workers: size, WorkerRank: size - 1, ProcessesPerWorker: 1,
			MasterAddress: "127.0.0.1", MasterPort: 2000,
		},
	}
}

// Usage is what the process has used.
func (b *Bare) Usage(_ None, usage *Usage) (err error) {
	*usage, err = used()
	return err
}

// bareBeats measures what the beats of so many members cost with nothing behind their connections.
func (b Bench) bareBeats(ctx context.Context, members int) (err error) {
	b.Say("%d agents start once more, with nothing behind their connections", members)
	t, err := start(ctx, trialConfig{Jobs: 1, Members: members, Rate: b.Rate, Name: "bare", Bare: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	if err := t.agents.Call("Agents.Start", None{}, &None{}); err != nil {
		return fmt.Errorf("start the agents: %w", err)
	}
	if _, err := t.ranked(); err != nil {
		return fmt.Errorf("wait for the answers of all members: %w", err)
	}
	spent, err := b.spent(t)
	if err != nil {
		return err
	}
	b.Tell(
		figures.Figure{Name: "bare_beats_per_s", Value: float64(spent.beats) / b.Beats.Seconds(), Unit: "1/s"},
		figures.Figure{Name: "bare_us_per_beat", Value: spent.operator, Unit: "us"},
		figures.Figure{Name: "bare_clients_us_per_beat", Value: spent.clients, Unit: "us"},
	)
	return nil
}
