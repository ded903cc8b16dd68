package rendezvous

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/internal/agent/session"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1/rendezvousv1connect"
)

// transport compares what carries a session: net/http's HTTP/2 with connect, which ships, and messages with their
// length before them over TLS. What answers knows nothing of jobs, so the difference is the transport's alone.
func (b Bench) transport(ctx context.Context, framed bool) (err error) {
	name := "transport_http"
	if framed {
		name = "transport_framed"
	}
	b.Say("%s: %d connections", name, b.Transport)
	t := &trial{ctx: ctx, trialConfig: trialConfig{Jobs: 1, Members: 1}}
	if t.dir, err = os.MkdirTemp("", "concertina-bench-"); err != nil {
		return fmt.Errorf("make a folder for the trial: %w", err)
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	if err := t.files(); err != nil {
		return err
	}
	if t.address, err = freeAddress(); err != nil {
		return err
	}
	config := transportConfig{
		Address: t.address, Certificate: filepath.Join(t.dir, "tls.crt"), Key: filepath.Join(t.dir, "tls.key"),
		Token: filepath.Join(t.dir, "tokens", podName(0, 0)), Connections: b.Transport, Rate: b.Rate, Framed: framed,
	}
	if t.operator, err = startChild(ctx, roleAnswerer, config); err != nil {
		return err
	}
	if err := t.operator.Call("Answerer.Start", None{}, &None{}); err != nil {
		return err
	}
	if t.agents, err = startChild(ctx, roleCallers, config); err != nil {
		return err
	}
	return b.carry(t, name)
}

// carry measures connections and beats.
func (b Bench) carry(t *trial, name string) error {
	var empty, formed, after Usage
	var before, beats Count
	usage := func(u *Usage) error { return t.operator.Call("Answerer.Usage", None{}, u) }
	count := func(c *Count) error { return t.operator.Call("Answerer.Count", None{}, c) }
	if err := errors.Join(usage(&empty), t.agents.Call("Callers.Start", None{}, &None{})); err != nil {
		return err
	}
	// The last one to connect is answered, too.
	time.Sleep(3 * time.Second)
	if err := errors.Join(usage(&formed), count(&before)); err != nil {
		return err
	}
	if before.N < int64(b.Transport) {
		return fmt.Errorf("%d connections have had %d answers", b.Transport, before.N)
	}
	time.Sleep(b.Beats)
	if err := errors.Join(usage(&after), count(&beats)); err != nil {
		return err
	}
	// Who loses a connection says so, and now all would.
	t.agents.kill()
	beat := float64((after.CPU - formed.CPU).Microseconds()) / float64(max(beats.N-before.N, 1))
	start := float64((formed.CPU - empty.CPU).Microseconds()) - beat*float64(before.N)
	b.Tell(
		figures.Figure{Name: name + "_us_per_beat", Value: beat, Unit: "us"},
		figures.Figure{Name: name + "_us_per_connection", Value: start / float64(b.Transport), Unit: "us"},
		figures.Figure{Name: name + "_kib_per_connection", Value: float64(after.RSS-empty.RSS) / 1024 / float64(b.Transport), Unit: "KiB"},
	)
	return nil
}

// transportConfig is what both processes are started with.
type transportConfig struct {
	Address, Certificate, Key, Token string
	Connections, Rate                int
	Framed                           bool
}

// Answerer is the process that answers each report with a directive.
type Answerer struct {
	config  transportConfig
	answers atomic.Int64
}

func serveAnswerer() error {
	config, err := configured[transportConfig]()
	if err != nil {
		return err
	}
	return answer("Answerer", &Answerer{config: config})
}

// Start listens.
func (a *Answerer) Start(None, *None) error {
	certificate, err := tls.LoadX509KeyPair(a.config.Certificate, a.config.Key)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", a.config.Address)
	if err != nil {
		return err
	}
	secured := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
	if a.config.Framed {
		go a.serveFramed(tls.NewListener(listener, secured))
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle(rendezvousv1connect.NewRendezvousHandler(a, connect.WithCompression("gzip", nil, nil)))
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	server := &http.Server{
		Handler: mux, TLSConfig: secured, Protocols: &protocols, ReadHeaderTimeout: patience,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1, SendPingTimeout: 15 * time.Second},
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	return nil
}

// Count is how many answers were given.
func (a *Answerer) Count(_ None, count *Count) error {
	count.N = a.answers.Load()
	return nil
}

// Usage is what the process has used.
func (a *Answerer) Usage(_ None, usage *Usage) (err error) {
	*usage, err = used()
	return err
}

func (a *Answerer) directive(sequence uint64) *rendezvousv1.Directive {
	a.answers.Add(1)
	return &rendezvousv1.Directive{
		Term: 1, Round: 1, Sequence: sequence,
		World: &rendezvousv1.World{MembersDigest: "0123456789abcdef", WorkerRank: 1},
	}
}

// Session implements the RPC.
func (a *Answerer) Session(_ context.Context, stream *connect.BidiStream[rendezvousv1.Report, rendezvousv1.Directive]) error {
	for {
		report, err := stream.Receive()
		if err != nil {
			return err
		}
		if err := stream.Send(a.directive(report.GetSequence())); err != nil {
			return err
		}
	}
}

func (a *Answerer) serveFramed(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go a.framed(conn)
	}
}

// framed serves a connection until it ends.
func (a *Answerer) framed(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for {
		var report rendezvousv1.Report
		if conn.SetDeadline(time.Now().Add(time.Minute)) != nil || readFrame(conn, &report) != nil ||
			writeFrame(conn, a.directive(report.GetSequence())) != nil {
			return
		}
	}
}

// maxFrame is the longest message in bytes.
const maxFrame = 64 << 10

func readFrame(from io.Reader, message proto.Message) error {
	var head [4]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("a message of %d bytes is too long", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(from, body); err != nil {
		return err
	}
	return proto.Unmarshal(body, message)
}

func writeFrame(to io.Writer, message proto.Message) error {
	frame, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 4, 4+proto.Size(message)), message)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	_, err = to.Write(frame)
	return err
}

// Callers is the process of those who report.
type Callers struct{ config transportConfig }

func serveCallers() error {
	config, err := configured[transportConfig]()
	if err != nil {
		return err
	}
	return answer("Callers", &Callers{config})
}

// Start starts all. They live as long as the process.
func (c *Callers) Start(None, *None) error {
	dialer, err := session.NewDialer("https://"+c.config.Address, c.config.Token, c.config.Certificate)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(c.config.Certificate)
	if err != nil {
		return err
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(text)
	for i := range c.config.Connections {
		from := source(i)
		if c.config.Framed {
			go callFramed(c.config.Address, &net.TCPAddr{IP: from.AsSlice()}, &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS13})
		} else {
			go session.New(dialer.From(from), caller{}, session.DefaultTiming()).Run(context.Background())
		}
		time.Sleep(time.Second / time.Duration(c.config.Rate))
	}
	return nil
}

// callFramed reports as often as a session does.
func callFramed(address string, from net.Addr, secured *tls.Config) {
	conn, err := tls.DialWithDialer(&net.Dialer{LocalAddr: from, Timeout: patience}, "tcp", address, secured)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return
	}
	defer func() { _ = conn.Close() }()
	longest := session.DefaultTiming().Heartbeat
	for sequence := uint64(1); ; sequence++ {
		report := caller{}.State()
		report.Sequence = sequence
		var directive rendezvousv1.Directive
		if err := errors.Join(writeFrame(conn, report), readFrame(conn, &directive)); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			return
		}
		time.Sleep(longest - rand.N(longest/5))
	}
}

// caller is the owner of a session that has nothing to say.
type caller struct{}

// State implements session.Owner.
func (caller) State() *rendezvousv1.Report {
	return &rendezvousv1.Report{
		Term: 1, Round: 1, MembersDigest: "0123456789abcdef", WorkerRank: 1,
		Processes: []*rendezvousv1.Process{{Elastic: true, Phase: rendezvousv1.Phase_PHASE_STEP, Entered: 2, Done: 1}},
	}
}

// Hello implements session.Owner.
func (caller) Hello() *rendezvousv1.Hello { return nil }

// Hear implements session.Owner.
func (caller) Hear(context.Context, *rendezvousv1.Directive, time.Time) bool { return true }

// Gone implements session.Owner.
func (caller) Gone(context.Context) {}

// Found implements session.Owner.
func (caller) Found() {}

// Lost implements session.Owner.
func (caller) Lost(err error) { fmt.Fprintln(os.Stderr, "error:", err) }
