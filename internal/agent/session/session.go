package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/concertina-dev/concertina/internal/rendezvous/link"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// Timing says how patient a session is.
type Timing struct {
	// Heartbeat is the longest time between two reports, unless the operator says that it is longer.
	Heartbeat time.Duration
	// Watchdog ends a stream on which no further directive came for so long, or for three beats of the
	// operator's.
	Watchdog time.Duration
	// Patience ends a stream on which no directive came at all. An operator that has only begun to lead directs
	// nobody before it has taken the job over, and it may have thousands to take over. It says that it is there
	// meanwhile: one that says nothing at all for Silence is left.
	Patience, Silence time.Duration
	// BackoffMin and BackoffMax bound the wait before the next stream; it doubles with every stream
	// on which no directive was obeyed. A job with longer beats than a second comes back over as long.
	BackoffMin, BackoffMax time.Duration
}

// DefaultTiming fits a heartbeat timeout of one second or more.
func DefaultTiming() Timing {
	return Timing{
		Heartbeat:  900 * time.Millisecond,
		Watchdog:   3 * time.Second,
		Patience:   30 * time.Second,
		Silence:    12 * time.Second,
		BackoffMin: 50 * time.Millisecond,
		BackoffMax: 2 * time.Second,
	}
}

// Owner is the agent as the session sees it. Its methods are called from the session's goroutines.
type Owner interface {
	// State is the agent's whole state; the session fills in the sequence.
	State() *rendezvousv1.Report
	// Hello introduces the agent at the start of a stream.
	Hello() *rendezvousv1.Hello
	// Hear takes a directive, and when the report was sent that it answers. It returns false to have the
	// stream ended: the directive came from somebody who no longer leads.
	Hear(ctx context.Context, d *rendezvousv1.Directive, sent time.Time) bool
	// Gone is called when the operator says that there is no such job.
	Gone(ctx context.Context)
	// Lost is called when a stream has ended, with the cause; Found when the first directive came
	// on a new one.
	Lost(err error)
	Found()
}

// Session is the agent's connection to the operator.
type Session struct {
	dial   *Dialer
	owner  Owner
	timing Timing

	mu sync.Mutex
	// version is the number of the newest state that the owner wants told; sent maps sequence
	// numbers of the current stream to the version that their report had.
	version, acked uint64
	sent           []sentReport
	// beat is the longest time between two reports that the operator has asked for last; 0 for none. longest is the longest
	// beat of the stream: one of a large job is short while its world is about to change.
	beat, longest time.Duration
	// answered is when the newest report of the stream that has an answer was sent; when the stream began,
	// before the first.
	answered     time.Time
	changed      chan struct{}
	acknowledged chan struct{}
}

const (
	// reportRate is how many reports are sent per second in the long run, reportBurst how many at once. The
	// operator reads 20 and 50 (maxReportRate there): what comes faster would wait, and be old when it is read.
	reportRate  = 15
	reportBurst = 30
)

const (
	// missedBeats is how many beats of the operator's may go without an answer.
	missedBeats = 3
	// usualBeat is that of an operator that does not say which, maxBeat the longest that one may ask for.
	usualBeat = time.Second
	maxBeat   = time.Minute
)

// maxUnanswered is how many reports without an answer are remembered.
const maxUnanswered = 64

type sentReport struct {
	sequence, version uint64
	at                time.Time
}

// New returns a session that does nothing before Run.
func New(dial *Dialer, owner Owner, timing Timing) *Session {
	return &Session{
		dial: dial, owner: owner, timing: timing,
		changed:      make(chan struct{}, 1),
		acknowledged: make(chan struct{}),
	}
}

// Tell has the state reported at once.
func (s *Session) Tell() {
	s.mu.Lock()
	s.version++
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Deliver reports the state and waits until the operator has answered that report, or has said that
// there is no such job. It returns the context's error when that does not happen.
func (s *Session) Deliver(ctx context.Context) error {
	s.mu.Lock()
	wanted := s.version + 1
	s.mu.Unlock()
	s.Tell()
	for {
		s.mu.Lock()
		done, wait := s.acked >= wanted, s.acknowledged
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wait:
		}
	}
}

// remember notes which state a report has. An operator that answers none of them costs no memory.
func (s *Session) remember(sent sentReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sent) == maxUnanswered {
		s.sent = s.sent[1:]
	}
	s.sent = append(s.sent, sent)
}

// acknowledge notes that the operator has seen the report with this sequence number.
func (s *Session) acknowledge(sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.sent) > 0 && s.sent[0].sequence <= sequence {
		s.ackLocked(s.sent[0].version)
		s.answered = s.sent[0].at
		s.sent = s.sent[1:]
	}
}

// sentAt is when the report was sent that a directive with this sequence number answers.
func (s *Session) sentAt(sequence uint64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.answered
	for _, sent := range s.sent {
		if sent.sequence > sequence {
			break
		}
		at = sent.at
	}
	return at
}

func (s *Session) ackLocked(version uint64) {
	if version > s.acked {
		s.acked = version
		close(s.acknowledged)
		s.acknowledged = make(chan struct{})
	}
}

// Run keeps one stream after another open until the context ends.
func (s *Session) Run(ctx context.Context) {
	backoff := s.timing.BackoffMin
	for ctx.Err() == nil {
		obeyed, err := s.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		s.owner.Lost(err)
		if status.Code(err) == codes.NotFound {
			s.owner.Gone(ctx)
			s.mu.Lock()
			s.ackLocked(s.version)
			s.mu.Unlock()
		}
		if obeyed {
			backoff = s.timing.BackoffMin
		}
		wait := time.NewTimer(s.pause(backoff, obeyed))
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
		backoff = min(2*backoff, s.timing.BackoffMax)
	}
}

// follow takes over the beat that the operator asks for. A shorter one begins at once.
func (s *Session) follow(d *rendezvousv1.Directive) {
	asked := min(time.Duration(d.GetBeatMillis())*time.Millisecond, maxBeat)
	s.mu.Lock()
	shorter := asked < s.beat
	s.beat, s.longest = asked, max(s.longest, asked)
	s.mu.Unlock()
	if shorter {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// asked is the beat that the operator has asked for last.
func (s *Session) asked() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beat
}

// heartbeat is the longest time to the next report. A little jitter keeps the workers of a large job apart.
func (s *Session) heartbeat() time.Duration {
	longest := max(s.timing.Heartbeat, s.asked()/10*9)
	return longest - rand.N(longest/5+1)
}

// watchdog is how long the operator may say nothing.
func (s *Session) watchdog() time.Duration {
	return max(s.timing.Watchdog, missedBeats*s.asked())
}

// pause is the wait before the next stream. It is spread when an operator is lost that was there: those who have not
// come to the next one yet are apart.
func (s *Session) pause(backoff time.Duration, obeyed bool) time.Duration {
	pause := backoff/2 + rand.N(backoff/2+1)
	if obeyed {
		pause += s.spread()
	}
	return pause
}

// spread is a part of the wait before the next stream that keeps the workers of a large job apart when they have
// all lost their operator: it takes them in over as long as one beat.
func (s *Session) spread() time.Duration {
	s.mu.Lock()
	over := s.longest - usualBeat
	s.mu.Unlock()
	if over <= 0 {
		return 0
	}
	return rand.N(over)
}

var (
	errSilent  = errors.New("the operator sent no directive in time")
	errRefused = errors.New("the operator's directive was refused")
)

// stream lives as long as one stream. It says whether a directive was obeyed on it.
func (s *Session) stream(ctx context.Context) (obeyed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(s.timing.Patience, func() { cancel(errSilent) })
	defer patience.Stop()
	conn, err := s.dial.dial(ctx)
	if err != nil {
		return false, s.trouble(err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	watchdog := time.AfterFunc(s.timing.Silence, func() { cancel(errSilent) })
	defer watchdog.Stop()

	s.mu.Lock()
	s.sent, s.answered, s.longest = nil, time.Now(), 0
	s.mu.Unlock()
	var sender sync.WaitGroup
	sender.Go(func() { s.send(ctx, conn) })
	obeyed, err = s.receive(ctx, conn, patience, watchdog)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	_ = conn.Close()
	sender.Wait()
	return obeyed, err
}

// trouble says with whom there is trouble.
func (s *Session) trouble(err error) error {
	return fmt.Errorf("session with the operator at %s: %w", s.dial.address, err)
}

// send reports at every change and heartbeat. When it fails, receive learns the cause.
func (s *Session) send(ctx context.Context, conn *link.Conn) {
	limiter := rate.NewLimiter(reportRate, reportBurst)
	for sequence := uint64(1); ; sequence++ {
		s.mu.Lock()
		version := s.version
		s.mu.Unlock()
		report := s.owner.State()
		report.Sequence = sequence
		if sequence == 1 {
			report.Hello = s.owner.Hello()
		}
		s.remember(sentReport{sequence, version, time.Now()})
		if conn.SendReport(report) != nil {
			return
		}
		beat := time.NewTimer(s.heartbeat())
		select {
		case <-ctx.Done():
			beat.Stop()
			return
		case <-s.changed:
		case <-beat.C:
		}
		beat.Stop()
		if limiter.Wait(ctx) != nil {
			return
		}
	}
}

func (s *Session) receive(ctx context.Context, conn *link.Conn, patience, watchdog *time.Timer) (obeyed bool, err error) {
	for {
		directive, err := conn.Directive()
		switch {
		case err != nil:
			return obeyed, s.trouble(err)
		case directive == nil:
			if !obeyed {
				watchdog.Reset(s.timing.Silence)
			}
			continue
		}
		patience.Stop()
		s.follow(directive)
		watchdog.Reset(s.watchdog())
		if !s.owner.Hear(ctx, directive, s.sentAt(directive.GetSequence())) {
			return obeyed, errRefused
		}
		if !obeyed {
			s.owner.Found()
		}
		obeyed = true
		s.acknowledge(directive.GetSequence())
	}
}
