package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

const (
	// sendTimeout bounds one directive; an agent that does not read for so long is gone.
	sendTimeout = 5 * time.Second
	// maxReportRate is how many reports per second are read of one session in the long run, and
	// reportBurst how many at once. An agent sends one or two per second, and bounds itself below this:
	// whoever changes one changes the other.
	maxReportRate = 20
	reportBurst   = 50
)

type stream = connect.BidiStream[rendezvousv1.Report, rendezvousv1.Directive]

// session is one agent's stream after its hello.
type session struct {
	uid    string
	job    *job
	stream *stream
	limits deadlines
	// sequence is that of the last report seen.
	sequence atomic.Uint64
	// due is filled when a directive is to be sent.
	due chan struct{}
	end func(*refusal)
}

// answer has the current directive sent. It does not wait.
func (s *session) answer() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// Session serves one agent. It implements the RPC.
func (s *Server) Session(ctx context.Context, stream *stream) error {
	err := s.session(ctx, stream)
	s.metrics.ended(err)
	if err != nil {
		s.options.Logger.V(1).Info("a session has ended", "peer", stream.Peer().Addr, "cause", err.Error())
	}
	return err
}

func (s *Server) session(ctx context.Context, stream *stream) error {
	who, h, first, sequence, err := s.introduce(ctx, stream)
	if err != nil {
		return err
	}
	job, refused := s.jobs.find(&h)
	if refused != nil {
		return refused.rpc()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	one := &session{
		uid: h.podUID, job: job, stream: stream, limits: deadlinesOf(ctx),
		due: make(chan struct{}, 1),
		end: func(why *refusal) { cancel(why.rpc()) },
	}
	one.sequence.Store(sequence)
	ctx, expire := context.WithDeadlineCause(ctx, who.Expires, (&refusal{connect.CodeUnavailable,
		"the token of this session has expired: connect again with a fresh one"}).rpc())
	defer expire()
	if refused := job.join(one, &h, first); refused != nil {
		return refused.rpc()
	}
	defer job.leave(one)

	var reader sync.WaitGroup
	reader.Go(func() { cancel(one.read(ctx, s.options.IdleTimeout)) })
	one.write(ctx)
	// The reader waits for a report that nobody wants any more.
	one.limits.read(0)
	reader.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, io.EOF) {
		return cause
	}
	return nil
}

// introduce finds out who is there, within HelloTimeout, and takes the first report.
func (s *Server) introduce(ctx context.Context, stream *stream) (who Identity, h hello, first report, sequence uint64, err error) {
	fail := func(err error) (Identity, hello, report, uint64, error) { return Identity{}, hello{}, report{}, 0, err }
	select {
	case s.unproven <- struct{}{}:
		defer func() { <-s.unproven }()
	default:
		return fail(connect.NewError(connect.CodeUnavailable, errors.New("too many agents connect at once: connect again")))
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.HelloTimeout)
	defer cancel()
	deadlinesOf(ctx).read(s.options.HelloTimeout)
	if who, err = s.authenticate(ctx, stream); err != nil {
		return fail(err)
	}
	message, err := stream.Receive()
	switch {
	case ctx.Err() != nil || connect.CodeOf(err) == connect.CodeDeadlineExceeded:
		return fail(connect.NewError(connect.CodeDeadlineExceeded,
			fmt.Errorf("no hello within %s of the start of the session", s.options.HelloTimeout)))
	case err != nil:
		return fail(err)
	}
	h, refused := readHello(message)
	if refused == nil {
		first, refused = readReport(message)
	}
	switch {
	case refused != nil:
		return fail(refused.rpc())
	case message.GetSequence() < 1:
		return fail(malformed("the first report has the sequence 0").rpc())
	case h.job.Namespace != who.Namespace || h.podName != who.PodName || h.podUID != who.PodUID:
		return fail(connect.NewError(connect.CodePermissionDenied, fmt.Errorf(
			"the token belongs to pod %s/%s (%s), not to %s/%s (%s)",
			who.Namespace, who.PodName, who.PodUID, h.job.Namespace, h.podName, h.podUID)))
	}
	return who, h, first, message.GetSequence(), nil
}

// authenticate finds out whose token the request bears.
func (s *Server) authenticate(ctx context.Context, stream *stream) (Identity, error) {
	scheme, token, _ := strings.Cut(stream.RequestHeader().Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Identity{}, connect.NewError(connect.CodeUnauthenticated,
			errors.New("the request bears no token: send the header Authorization: Bearer TOKEN"))
	}
	who, err := s.options.Authenticator.Authenticate(ctx, token)
	switch {
	case errors.Is(err, ErrUnauthenticated):
		return Identity{}, connect.NewError(connect.CodeUnauthenticated, err)
	case err != nil:
		s.options.Logger.Error(err, "a token could not be checked")
		return Identity{}, connect.NewError(connect.CodeUnavailable, errors.New("the token could not be checked now: connect again"))
	}
	return who, nil
}

// read takes reports until the stream ends, and returns why it did. A stream that the agent ends is
// io.EOF.
func (s *session) read(ctx context.Context, idle time.Duration) error {
	limiter := rate.NewLimiter(maxReportRate, reportBurst)
	for {
		if err := limiter.Wait(ctx); err != nil {
			return context.Cause(ctx)
		}
		s.limits.read(idle)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		message, err := s.stream.Receive()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case connect.CodeOf(err) == connect.CodeDeadlineExceeded:
			return connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("no report within %s of the last one: connect again", idle))
		case err != nil:
			return err
		}
		if refused := s.take(message); refused != nil {
			return refused.rpc()
		}
	}
}

func (s *session) take(message *rendezvousv1.Report) *refusal {
	if message.GetHello() != nil {
		return malformed("only the first report of a session has a hello")
	}
	if last := s.sequence.Load(); message.GetSequence() <= last {
		return malformed("sequence %d follows %d", message.GetSequence(), last)
	}
	r, refused := readReport(message)
	if refused != nil {
		return refused
	}
	return s.job.hear(s, message.GetSequence(), r)
}

// write sends directives when they are due, until the context ends or the agent does not read.
func (s *session) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.due:
		}
		sequence := s.sequence.Load()
		directive, ok := s.job.directive(s)
		if !ok {
			continue
		}
		s.limits.write(sendTimeout)
		err := s.stream.Send(directive.message(sequence))
		if err != nil {
			s.end(&refusal{connect.CodeUnavailable, "the agent does not read: " + err.Error()})
			return
		}
		s.limits.write(0)
	}
}

// rpc is the refusal as the error of an RPC.
func (r *refusal) rpc() error { return connect.NewError(r.code, r) }
