package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/link"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// Options say how a Server works. Durations and counts that are 0 take their defaults.
type Options struct {
	// Address is where the server listens, host:port; Listener is used instead when it is set.
	Address  string
	Listener net.Listener
	// TLS has the server's certificate. Nothing older than TLS 1.3 is spoken, whatever it allows.
	TLS *tls.Config
	// Authenticator tells who an agent is, Recorder makes rounds durable.
	Authenticator rendezvous.Authenticator
	Recorder      rendezvous.Recorder
	// Logger gets a line for every decision; the zero value drops them.
	Logger logr.Logger
	// Registerer gets the server's metrics while it runs; nil for none.
	Registerer prometheus.Registerer
	// Tracer gets a trace of each change of a world; nil for none.
	Tracer trace.Tracer

	// ReconnectGrace is how long after the start of a leader its agents may take to find it, before
	// their silence counts. Default 10s.
	ReconnectGrace time.Duration
	// HelloTimeout bounds the time from the start of a session to its first report, with the check
	// of its token. Default 10s.
	HelloTimeout time.Duration
	// IdleTimeout ends a session that brings no report for so long. Default 1m.
	IdleTimeout time.Duration
	// RecordTimeout bounds one write of the Recorder. Default 10s.
	RecordTimeout time.Duration
	// MaxConnections bounds the connections of workers. Default DefaultMaxConnections.
	MaxConnections int
	// MaxUnproven and MaxUnprovenPerSource bound the connections whose worker is not known yet, in all
	// and of one address (of IPv6: one /64). Beyond that silent ones make room, and if there are none
	// the newest is closed. Default 4096 and 64: when 10,000 workers come at once, those who are turned away come again,
	// and cost more than those who wait.
	MaxUnproven, MaxUnprovenPerSource int
}

func (o Options) withDefaults() Options {
	setDuration := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	setCount := func(n *int, value int) {
		if *n <= 0 {
			*n = value
		}
	}
	setDuration(&o.ReconnectGrace, 10*time.Second)
	setDuration(&o.HelloTimeout, 10*time.Second)
	setDuration(&o.IdleTimeout, time.Minute)
	setDuration(&o.RecordTimeout, 10*time.Second)
	setCount(&o.MaxUnproven, 4096)
	setCount(&o.MaxConnections, DefaultMaxConnections)
	setCount(&o.MaxUnprovenPerSource, 64)
	return o
}

// DefaultMaxConnections bounds the connections of all workers, unless it is said.
const DefaultMaxConnections = 20000

const (
	// tickEvery is how often the machines are told that time passes.
	tickEvery = 200 * time.Millisecond
	// tokenTimeout bounds how long a token may take that follows the handshake.
	tokenTimeout = 5 * time.Second
	// shutdownTimeout bounds how long sessions may take to end when the server stops.
	shutdownTimeout = 3 * time.Second
)

// Server is the rendezvous of all jobs of one leader. It implements Coordinator, which can be used
// before Start, and controller-runtime's Runnable for leaders.
type Server struct {
	options Options
	jobs    *registry
	metrics *serverMetrics
	// door has no listener before Start.
	door        *door
	callers     callers
	introducing introductions
}

// NewServer returns a server that answers nobody before Start.
func NewServer(options Options) *Server {
	options = options.withDefaults()
	if options.Logger.GetSink() == nil {
		options.Logger = logr.Discard()
	}
	metrics := newServerMetrics()
	return &Server{
		options:     options,
		metrics:     metrics,
		jobs:        newRegistry(options, metrics),
		introducing: introductions{of: map[string][]*introduction{}},
		door: newDoor(options.MaxConnections, options.MaxUnproven, options.MaxUnprovenPerSource,
			options.HelloTimeout+link.HandshakeTimeout),
		callers: callers{all: map[*visitor]struct{}{}},
	}
}

// NeedLeaderElection is true: only the leader may speak to agents.
func (s *Server) NeedLeaderElection() bool { return true }

// Start serves until the context ends, then ends every session. Errors: an address that cannot be
// listened on, or metrics that are registered already.
func (s *Server) Start(ctx context.Context) error {
	if s.options.TLS == nil || s.options.Authenticator == nil || s.options.Recorder == nil {
		return errors.New("the rendezvous needs TLS, an Authenticator and a Recorder")
	}
	if registerer := s.options.Registerer; registerer != nil {
		for _, collector := range []prometheus.Collector{s.metrics, s.jobs, s.door} {
			if err := registerer.Register(collector); err != nil {
				return fmt.Errorf("register the metrics of the rendezvous: %w", err)
			}
			defer registerer.Unregister(collector)
		}
	}
	if err := s.listen(); err != nil {
		return err
	}
	calling, hangUp := context.WithCancelCause(context.Background())
	defer hangUp(nil)
	served := make(chan error, 1)
	go func() { served <- s.serve(calling) }()
	s.options.Logger.Info("the rendezvous serves", "address", s.door.Addr().String())

	var background sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	background.Go(func() { s.jobs.tick(running) })
	background.Go(func() { s.jobs.deliverChanges(running) })

	var err error
	select {
	case err = <-served:
		err = fmt.Errorf("the rendezvous stopped serving: %w", err)
	case <-ctx.Done():
		err = nil
	}
	stop()
	s.jobs.shutdown()
	hangUp(statusOf(&stopping))
	_ = s.door.Close()
	s.callers.end(shutdownTimeout)
	background.Wait()
	s.jobs.writes.Wait()
	return err
}

func (s *Server) listen() error {
	listener := s.options.Listener
	if listener == nil {
		var err error
		if listener, err = net.Listen("tcp", s.options.Address); err != nil {
			return fmt.Errorf("listen for agents: %w", err)
		}
	}
	s.door.Listener = listener
	return nil
}

// Expect implements Coordinator.
func (s *Server) Expect(job rendezvous.JobKey, gang rendezvous.Gang) { s.jobs.expect(job, gang) }

// Release implements Coordinator.
func (s *Server) Release(job rendezvous.JobKey, uid string) { s.jobs.release(job, uid) }

// Forget implements Coordinator.
func (s *Server) Forget(job rendezvous.JobKey, uid string) { s.jobs.forget(job, uid) }

// Observe implements Coordinator.
func (s *Server) Observe(job rendezvous.JobKey) rendezvous.Observation { return s.jobs.observe(job) }

// Inspect returns what is known of a job, for people; false when no gang is expected for it.
func (s *Server) Inspect(job rendezvous.JobKey) (rendezvous.Inspection, bool) {
	return s.jobs.inspect(job)
}

// Changed implements Coordinator. Keys are delivered while the server runs.
func (s *Server) Changed() <-chan rendezvous.JobKey { return s.jobs.changed }
