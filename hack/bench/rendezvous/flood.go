package rendezvous

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/internal/rendezvous/link"
)

const (
	// floodedJobs of floodedMembers train while the first member of the first job reports as fast as it can.
	floodedJobs, floodedMembers = 2, 8
	// asksEvery is how often each of the others has something to report.
	asksEvery = 200 * time.Millisecond
)

// flooder is the first member of the first job, with a stream that knows no pace.
type flooder struct {
	*member
	hasty atomic.Bool
	sent  atomic.Int64
}

// startFlooder starts the first member. Its session does not come back when it ends.
func (a *Agents) startFlooder(m *member, address net.IP) error {
	m.tell = func() {}
	authorities, err := os.ReadFile(a.config.CA)
	if err != nil {
		return fmt.Errorf("read the operator's CA: %w", err)
	}
	token, err := os.ReadFile(filepath.Join(a.config.Tokens, podName(m.job, m.index)))
	if err != nil {
		return fmt.Errorf("read the flooder's token: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authorities)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: address}}
	conn, err := link.Dial(context.Background(), a.config.Address, strings.TrimSpace(string(token)),
		&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, dialer.DialContext)
	if err != nil {
		return fmt.Errorf("begin the flooder's session: %w", err)
	}
	a.flooder = &flooder{member: m}
	go a.flooder.hear(conn)
	go a.flooder.report(conn)
	return nil
}

func (f *flooder) hear(conn *link.Conn) {
	for {
		directive, err := conn.Directive()
		if err != nil {
			f.Lost(err)
			return
		}
		if directive == nil {
			continue
		}
		f.Hear(context.Background(), directive, time.Time{})
	}
}

// report reports like the others, or as fast as the connection takes it.
func (f *flooder) report(conn *link.Conn) {
	for sequence := uint64(1); ; sequence++ {
		report := f.State()
		if report.Sequence = sequence; sequence == 1 {
			report.Hello = f.Hello()
		}
		if conn.SendReport(report) != nil {
			return // it hears why
		}
		f.sent.Add(1)
		if !f.hasty.Load() {
			time.Sleep(asksEvery)
		}
	}
}

// AskFor says for how long members report changes, and whether the first one reports as fast as it can meanwhile.
type AskFor struct {
	For   time.Duration
	Flood bool
}

// Asked is how long the others waited for the answers of their reports, and how many reports the flooder has sent.
type Asked struct {
	Took []time.Duration
	Sent int64
}

// Ask has all members but the first report a change every now and then for a while, and says how long each of them
// waited for an answer. The first one reports as fast as it can, or like the others.
func (a *Agents) Ask(how AskFor, asked *Asked) error {
	if a.flooder == nil {
		return errors.New("there is no member that floods")
	}
	before := a.flooder.sent.Load()
	a.flooder.hasty.Store(how.Flood)
	defer a.flooder.hasty.Store(false)
	for _, m := range a.members {
		m.answers(true)
	}
	for end := time.Now().Add(how.For); time.Now().Before(end); {
		for i, m := range a.members {
			if i > 0 {
				m.tell()
			}
			time.Sleep(asksEvery / time.Duration(len(a.members)))
		}
	}
	for i, m := range a.members {
		if took := m.answers(false); i > 0 {
			asked.Took = append(asked.Took, took...)
		}
	}
	asked.Sent = a.flooder.sent.Load() - before
	return nil
}

// flood measures how long members wait for an answer while one reports as fast as it can, and while it does not.
func (b Bench) flood(ctx context.Context) (err error) {
	b.Say("flood: %d jobs of %d members, one of which reports as fast as it can", floodedJobs, floodedMembers)
	t, err := start(ctx, trialConfig{Jobs: floodedJobs, Members: floodedMembers, Rate: b.Rate, Flood: true, Profile: b.Profile, Name: "flood"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	if err := t.agents.Call("Agents.Start", None{}, &None{}); err != nil {
		return fmt.Errorf("start the agents: %w", err)
	}
	if _, err := t.ranked(); err != nil {
		return fmt.Errorf("wait for the places of all members: %w", err)
	}
	quiet, err := t.ask(b.Beats, false)
	if err != nil {
		return err
	}
	flooded, err := t.ask(b.Beats, true)
	if err != nil {
		return err
	}
	b.Tell(
		milliseconds("flood_without_answer_p99", quantile(quiet.Took, 0.99)),
		milliseconds("flood_answer_p50", quantile(flooded.Took, 0.5)), milliseconds("flood_answer_p99", quantile(flooded.Took, 0.99)),
		figures.Figure{Name: "flood_reports_per_s", Value: float64(flooded.Sent) / b.Beats.Seconds(), Unit: "1/s"},
	)
	return nil
}

func milliseconds(name string, took time.Duration) figures.Figure {
	return figures.Figure{Name: name, Value: float64(took.Microseconds()) / 1000, Unit: "ms"}
}
