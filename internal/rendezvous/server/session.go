package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/link"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// session is one agent's connection after its hello.
type session struct {
	uid  string
	job  *job
	conn *link.Conn
	// from is the address that it comes from, own says whether that is one of its pod's.
	from netip.Addr
	own  bool
	// says is the address that its hello names.
	says netip.Addr
	// joined is when it began, heard when its last report came.
	joined, heard time.Time
	// heeded is what its agent has obeyed; it belongs to the job's lock. sentRound is the last world that was sent.
	heeded    heeded
	sentRound uint64
	// sequence is that of the last report seen.
	sequence atomic.Uint64
	// due counts what has asked for a directive since the last one was begun; whoever finds 0 sends. late ends a
	// sending that takes too long, over says that it has; senders are the goroutines that send unasked.
	due  atomic.Int64
	late *time.Timer
	// yields ends the turn in which a directive is sent that takes long; sending is that.
	yields  *time.Timer
	sending atomic.Pointer[turn]
	over    chan struct{}
	senders sync.WaitGroup
	// send sends a directive; nil says that we are there.
	send func(*rendezvousv1.Directive) error
	end  func(*rendezvous.Refusal)
}

// newSession is a session that sends its directives with send; stop is called when that takes too long.
func newSession(uid string, job *job, send func(*rendezvousv1.Directive) error, stop func(), end func(*rendezvous.Refusal)) *session {
	s := &session{uid: uid, job: job, send: send, end: end, over: make(chan struct{})}
	s.late = time.AfterFunc(sendTimeout, func() {
		defer close(s.over)
		stop()
	})
	s.late.Stop()
	s.yields = time.AfterFunc(turnPatience, func() { s.sending.Load().end() })
	s.yields.Stop()
	return s
}

// publish has the current directive sent. It does not wait. The job's lock is held, and the session is one of the
// job's: so none begins once it has left.
func (s *session) publish() {
	if s.due.Add(1) == 1 {
		s.senders.Go(s.writeInTurn)
	}
}

// answer sends the current directive, unless somebody sends already and will see to it. Where it has to wait for a turn, that is behind
// the next reports.
func (s *session) answer() {
	if s.due.Add(1) != 1 {
		return
	}
	turn, free := s.job.freeTurn()
	if !free {
		s.senders.Go(s.writeInTurn)
		return
	}
	defer turn.end()
	s.write(turn)
}

func (s *session) writeInTurn() {
	turn := s.job.turn()
	defer turn.end()
	s.write(turn)
}

// converse serves one agent.
func (s *Server) converse(ctx context.Context, v *visitor, conn *link.Conn) {
	err := s.session(ctx, v, conn)
	v.attend(false) // who reads no answer keeps us waiting
	s.metrics.ended(err)
	if err == nil {
		_ = conn.Close()
		return
	}
	s.options.Logger.V(1).Info("a session has ended", "peer", v.RemoteAddr().String(), "cause", err.Error())
	conn.End(err, dismissAfter)
}

// session returns when the session is over, with the cause; nil when the agent has hung up.
func (s *Server) session(ctx context.Context, visitor *visitor, conn *link.Conn) error {
	in, err := s.introduce(ctx, visitor, conn)
	if err != nil {
		return err
	}
	full := statusOf(&rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: fmt.Sprintf(
		"%d workers are connected, no more may be (--rendezvous-max-connections): connect again", s.options.MaxConnections)})
	if s.door.full() {
		return full
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	one := newSession(in.hello.podUID, in.job, conn.Answer, conn.EndWrite, func(why *rendezvous.Refusal) { cancel(statusOf(why)) })
	one.conn, one.from, one.says = conn, visitor.address, in.hello.address
	one.sequence.Store(in.sequence)
	ctx, expire := context.WithDeadlineCause(ctx, in.who.Expires, statusOf(&rendezvous.Refusal{Kind: rendezvous.RefusedForNow,
		Message: "the token of this session has expired: connect again with a fresh one"}))
	defer expire()
	if refused := in.job.join(one, &in.hello, in.first); refused != nil {
		return statusOf(refused)
	}
	defer one.senders.Wait()
	defer in.job.leave(one)
	// Only now: whoever has a token and gets no session is a stranger like others.
	if !visitor.welcome() {
		return full
	}
	defer visitor.dismiss()

	defer whenDone(ctx, conn.EndRead)()
	cancel(one.read(ctx, s.options.IdleTimeout, func() {
		s.metrics.floods.Inc()
		s.options.Logger.Info("a worker reports faster than it is read", "job", one.job.key.String(), "pod", in.hello.podName,
			"from", one.from.String(), "readPerSecond", maxReportRate)
	}))
	if cause := context.Cause(ctx); !errors.Is(cause, io.EOF) {
		return cause
	}
	return nil
}

// whenDone does something when the context ends, unless what it returns was called before; that waits for what has
// begun, since a connection is used for other things afterwards.
func whenDone(ctx context.Context, do func()) func() {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		do()
	})
	return func() {
		if !stop() {
			<-over
		}
	}
}

// introduced is what is known of an agent after its first report.
type introduced struct {
	who      rendezvous.Identity
	job      *job
	hello    hello
	first    rendezvous.Report
	sequence uint64
}

// introduce finds out who is there, within HelloTimeout from its token on, and takes the first report. Only the token of a
// pod that is expected is worth a check; whoever is not expected is told what is known of the job that it
// names, and nothing else.
func (s *Server) introduce(ctx context.Context, visitor *visitor, conn *link.Conn) (introduced, error) {
	token, err := s.token(ctx, visitor, conn)
	if err != nil {
		return introduced{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.HelloTimeout, status.Errorf(codes.DeadlineExceeded,
		"no hello within %s of the start of the session", s.options.HelloTimeout))
	defer cancel()
	who, err := s.options.Authenticator.Claim(token)
	if err != nil {
		s.door.away(awayToken)
		return introduced{}, status.Error(codes.Unauthenticated, err.Error())
	}
	expected := s.jobs.expects(who)
	if expected {
		if who, err = s.authenticate(ctx, visitor, token, who); err != nil {
			return introduced{}, err
		}
		var done func()
		ctx, done = s.introducing.begin(ctx, who.PodUID, visitor.source)
		defer done()
	}
	in, err := s.greet(ctx, visitor, conn, who)
	if err != nil {
		return introduced{}, err
	}
	var refused *rendezvous.Refusal
	if in.job, refused = s.jobs.find(&in.hello); refused == nil && !expected {
		if refused = in.job.admit(&in.hello); refused == nil {
			refused = &rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: "this pod was not expected yet: connect again"}
		}
	}
	if refused != nil {
		return introduced{}, statusOf(refused)
	}
	return in, nil
}

// token takes the first message. From then on the visitor waits for us.
func (s *Server) token(ctx context.Context, visitor *visitor, conn *link.Conn) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, tokenTimeout, status.Errorf(codes.DeadlineExceeded, "no token within %s of the handshake", tokenTimeout))
	defer cancel()
	defer whenDone(ctx, conn.EndRead)()
	token, err := conn.Token()
	visitor.attend(true)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", err
	case token == "":
		return "", status.Error(codes.Unauthenticated, "the session begins with no token")
	}
	return token, nil
}

// greet takes the first report, which must come from the pod that the token speaks of.
func (s *Server) greet(ctx context.Context, visitor *visitor, conn *link.Conn, who rendezvous.Identity) (introduced, error) {
	defer whenDone(ctx, conn.EndRead)()
	visitor.attend(false)
	message, err := conn.Report()
	visitor.attend(true)
	switch {
	case ctx.Err() != nil:
		return introduced{}, context.Cause(ctx)
	case err != nil:
		return introduced{}, err
	}
	in := introduced{who: who, sequence: message.GetSequence()}
	var refused *rendezvous.Refusal
	if in.hello, refused = readHello(message); refused == nil {
		in.first, refused = readReport(message)
	}
	h := &in.hello
	switch {
	case refused != nil:
		return introduced{}, statusOf(refused)
	case in.sequence < 1:
		return introduced{}, statusOf(malformed("the first report has the sequence 0"))
	case h.job.Namespace != who.Namespace || h.podName != who.PodName || h.podUID != who.PodUID:
		return introduced{}, status.Errorf(codes.PermissionDenied, "the token belongs to pod %s/%s (%s), not to %s/%s (%s)",
			who.Namespace, who.PodName, who.PodUID, h.job.Namespace, h.podName, h.podUID)
	}
	return in, nil
}

// authenticate finds out whether the token belongs to the pod that it claims. An address whose tokens are
// refused again and again is not listened to for a while.
func (s *Server) authenticate(ctx context.Context, v *visitor, token string, claimed rendezvous.Identity) (rendezvous.Identity, error) {
	if !s.door.mayTry(v.address, time.Now()) {
		s.door.away(awayIgnored)
		return rendezvous.Identity{}, status.Errorf(codes.Unavailable, "too many tokens from %s were refused: connect again later", v.source)
	}
	who, err := s.options.Authenticator.Authenticate(ctx, token)
	if err == nil && (who.PodUID != claimed.PodUID || who.Namespace != claimed.Namespace || who.PodName != claimed.PodName) {
		err = fmt.Errorf("%w: the token claims another pod than it belongs to", rendezvous.ErrUnauthenticated)
	}
	switch {
	case errors.Is(err, rendezvous.ErrUnauthenticated):
		s.door.away(awayToken)
		s.door.refused(v.address, time.Now())
		return rendezvous.Identity{}, status.Error(codes.Unauthenticated, err.Error())
	case err != nil:
		if ctx.Err() == nil {
			s.options.Logger.Error(err, "a token could not be checked", "pod", claimed.Namespace+"/"+claimed.PodName)
		}
		return rendezvous.Identity{}, status.Error(codes.Unavailable, "the token could not be checked now: connect again")
	}
	return who, nil
}

// maxIntroductions is how many sessions of one pod may be between its token and its hello.
const maxIntroductions = 4

// introductions are the sessions of pods that are known and have not said hello yet.
type introductions struct {
	mu sync.Mutex
	of map[string][]*introduction // by pod uid, in the order in which they came
}

type introduction struct {
	source netip.Prefix
	end    context.CancelCauseFunc
}

// begin adds a session. Beyond the limit one of the same address is ended, or else the oldest: a token that
// was stolen cannot keep its pod out by being silent.
func (i *introductions) begin(ctx context.Context, uid string, source netip.Prefix) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	one := &introduction{source, cancel}
	i.mu.Lock()
	defer i.mu.Unlock()
	all := i.of[uid]
	if len(all) >= maxIntroductions {
		last := max(0, slices.IndexFunc(all, func(other *introduction) bool { return other.source == source }))
		all[last].end(statusOf(&rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: "other sessions of this pod have begun since: connect again"}))
		all = slices.Delete(slices.Clone(all), last, last+1)
	}
	i.of[uid] = append(all, one)
	return ctx, func() {
		cancel(nil)
		i.mu.Lock()
		defer i.mu.Unlock()
		rest := slices.DeleteFunc(slices.Clone(i.of[uid]), func(other *introduction) bool { return other == one })
		if i.of[uid] = rest; len(rest) == 0 {
			delete(i.of, uid)
		}
	}
}

// read takes reports until the connection ends, and returns why it did. One that the agent ends is
// io.EOF. Hasty is called when reports have come faster than they are read, once.
func (s *session) read(ctx context.Context, idle time.Duration, hasty func()) error {
	limiter := rate.NewLimiter(maxReportRate, reportBurst)
	hasty = sync.OnceFunc(hasty)
	silence := time.AfterFunc(idle, func() {
		s.end(&rendezvous.Refusal{Kind: rendezvous.RefusedSilence, Message: fmt.Sprintf("no report within %s of the last one: connect again", idle)})
	})
	defer silence.Stop()
	for {
		if limiter.Tokens() < 1 {
			hasty()
		}
		if err := limiter.Wait(ctx); err != nil {
			return context.Cause(ctx)
		}
		silence.Reset(idle)
		message, err := s.conn.Report()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		if refused := s.reply(message); refused != nil {
			return statusOf(refused)
		}
	}
}

// reply takes a report and answers it. It waits for no turn: who is not heard counts as silent.
func (s *session) reply(message *rendezvousv1.Report) *rendezvous.Refusal {
	if refused := s.take(message); refused != nil {
		return refused
	}
	s.answer()
	return nil
}

func (s *session) take(message *rendezvousv1.Report) *rendezvous.Refusal {
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

// write sends directives as long as any is due. One of them answers all reports before it.
func (s *session) write(turn *turn) {
	for {
		due := s.due.Load()
		sequence := s.sequence.Load()
		directive, ok := s.job.directive(s)
		var message *rendezvousv1.Directive
		if ok {
			message = directiveMessage(&directive, sequence)
		}
		if !s.transmit(message, turn) {
			return // and nobody sends any more
		}
		if ok {
			s.told(directive.Round)
		}
		if s.due.CompareAndSwap(due, 0) {
			return
		}
	}
}

// statuses are how refusals travel.
var statuses = map[rendezvous.RefusalKind]codes.Code{
	rendezvous.RefusedForNow:   codes.Unavailable,
	rendezvous.RefusedForGood:  codes.NotFound,
	rendezvous.RefusedNonsense: codes.InvalidArgument,
	rendezvous.RefusedRight:    codes.PermissionDenied,
	rendezvous.RefusedVersion:  codes.FailedPrecondition,
	rendezvous.RefusedSilence:  codes.DeadlineExceeded,
}

// rpcError is a refusal as the status that ends a session.
func statusOf(r *rendezvous.Refusal) error { return status.Error(statuses[r.Kind], r.Message) }

// transmit sends one directive. It returns false when that failed, or took too long.
func (s *session) transmit(message *rendezvousv1.Directive, turn *turn) bool {
	s.late.Reset(sendTimeout)
	if turn != nil {
		s.sending.Store(turn)
		s.yields.Reset(turnPatience)
		defer s.yields.Stop()
	}
	err := s.send(message)
	if !s.late.Stop() {
		<-s.over // the connection is used for other things afterwards
		err = errors.Join(err, os.ErrDeadlineExceeded)
	}
	if err != nil {
		s.end(&rendezvous.Refusal{Kind: rendezvous.RefusedForNow, Message: "the agent does not read: " + err.Error()})
	}
	return err == nil
}
