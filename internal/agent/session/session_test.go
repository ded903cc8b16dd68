package session_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/agent/session"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fast keeps the tests short; the watchdog is long enough for a busy machine.
var fast = session.Timing{
	Heartbeat: 20 * time.Millisecond, Watchdog: 2 * time.Second, Patience: 2 * time.Second, Silence: 2 * time.Second,
	BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
}

// owner is an agent that notes what its session says.
type owner struct {
	mu     sync.Mutex
	round  uint64
	refuse bool
	lost   []error
	// sent are when the reports were sent that the directives answered.
	sent   []time.Time
	events chan string
}

func (o *owner) State() *rendezvousv1.Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &rendezvousv1.Report{Round: o.round}
}

func (o *owner) Hello() *rendezvousv1.Hello { return &rendezvousv1.Hello{Protocol: 2, Job: "digits"} }

func (o *owner) Hear(_ context.Context, d *rendezvousv1.Directive, sent time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = append(o.sent, sent)
	o.note("heard")
	return !o.refuse || d.GetTerm() > 1
}

func (o *owner) Gone(context.Context) { o.note("gone") }
func (o *owner) Found()               { o.note("found") }

func (o *owner) Lost(err error) {
	o.mu.Lock()
	o.lost = append(o.lost, err)
	o.mu.Unlock()
	o.note("lost")
}

func (o *owner) note(event string) {
	select {
	case o.events <- event:
	default:
	}
}

func (o *owner) await(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(agenttest.Patience)
	for {
		select {
		case event := <-o.events:
			if event == want {
				return
			}
		case <-deadline:
			t.Fatalf("waited for %q", want)
		}
	}
}

// awaitLoss waits until a session has ended with such an error.
func (o *owner) awaitLoss(t *testing.T, want string) {
	t.Helper()
	for {
		o.await(t, "lost")
		o.mu.Lock()
		found := slices.ContainsFunc(o.lost, func(err error) bool { return strings.Contains(err.Error(), want) })
		o.mu.Unlock()
		if found {
			return
		}
	}
}

func (o *owner) setRound(round uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.round = round
}

func run(t *testing.T, r *agenttest.Rendezvous, timing session.Timing) (*session.Session, *owner) {
	t.Helper()
	dialer, err := session.NewDialer(r.Address, r.TokenFile, r.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{events: make(chan string, 1000)}
	s := session.New(dialer, o, timing)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s, o
}

func TestReportsAreNumberedAndIntroducedOnce(t *testing.T) {
	r := agenttest.New(t)
	run(t, r, fast)
	third := r.Await("sequence 3", func(report *rendezvousv1.Report) bool { return report.GetSequence() == 3 })
	if third.GetHello() != nil {
		t.Error("a later report introduces the agent again")
	}
	if hellos := r.Hellos(); len(hellos) != 1 || hellos[0].GetJob() != "digits" {
		t.Errorf("introductions: %v", hellos)
	}
	if diff := cmp.Diff([]string{agenttest.Token}, r.Tokens()); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
}

func TestAChangeIsToldAtOnce(t *testing.T) {
	r := agenttest.New(t)
	timing := fast
	timing.Heartbeat, timing.Watchdog = time.Hour, time.Hour
	s, o := run(t, r, timing)
	o.await(t, "found")
	o.setRound(7)
	s.Tell()
	r.Await("round 7", func(report *rendezvousv1.Report) bool { return report.GetRound() == 7 })
}

// The operator reads only so many reports a second, and what waits there is old when it is read: what changes
// faster goes into one report.
func TestAStormOfChangesIsNotSentFasterThanItIsRead(t *testing.T) {
	r := agenttest.New(t)
	timing := fast
	timing.Heartbeat, timing.Watchdog = time.Hour, time.Hour
	begun := time.Now()
	s, o := run(t, r, timing)
	o.await(t, "found")
	over := make(chan struct{})
	var storm sync.WaitGroup
	storm.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				s.Tell()
			}
		}
	})
	r.Await("sequence 40", func(report *rendezvousv1.Report) bool { return report.GetSequence() >= 40 })
	took := time.Since(begun)
	close(over)
	storm.Wait()
	// 31 reports go at once, and 15 a second after that.
	if least := 600 * time.Millisecond; took < least {
		t.Errorf("40 reports came within %s, sooner than %s", took, least)
	}
}

func TestDeliverWaitsForTheAnswer(t *testing.T) {
	r := agenttest.New(t)
	s, o := run(t, r, fast)
	o.await(t, "found")
	r.Mute(true)
	o.setRound(3)
	impatient, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := s.Deliver(impatient); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a report that nobody answered: %v", err)
	}
	o.setRound(4)
	delivered := make(chan error, 1)
	go func() { delivered <- s.Deliver(context.Background()) }()
	r.Await("round 4", func(report *rendezvousv1.Report) bool { return report.GetRound() == 4 })
	r.Mute(false)
	if err := <-delivered; err != nil {
		t.Error(err)
	}
}

func TestDeliverToAnOperatorThatKnowsNoSuchJob(t *testing.T) {
	r := agenttest.New(t)
	r.Fail(codes.NotFound)
	s, o := run(t, r, fast)
	o.await(t, "gone")
	if err := s.Deliver(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestAnOperatorThatIsAwayAndComesBack(t *testing.T) {
	r := agenttest.New(t)
	_, o := run(t, r, fast)
	o.await(t, "found")
	r.Leave()
	o.await(t, "lost")
	o.await(t, "lost")
	// Files are read anew: the operator has another token for us by now.
	r.WriteToken("second")
	r.Return()
	o.await(t, "found")
	if tokens := r.Tokens(); tokens[len(tokens)-1] != "second" {
		t.Errorf("the last token was %q", tokens[len(tokens)-1])
	}
}

func TestASilentOperatorIsLeft(t *testing.T) {
	r := agenttest.New(t)
	r.Mute(true)
	_, o := run(t, r, fast)
	o.awaitLoss(t, "no directive in time")
	// On a slow machine one may be over before the operator has taken it.
	r.AwaitSessions(2)
	r.Mute(false)
	o.await(t, "found")
}

// Nor is one waited for that takes connections and reports, and says nothing at all, or never directs.
func TestAnOperatorThatOnlySaysThatItIsThereIsLeft(t *testing.T) {
	for name, prepare := range map[string]func(*agenttest.Rendezvous, *session.Timing){
		"silent": func(r *agenttest.Rendezvous, timing *session.Timing) {
			r.Mute(true)
			timing.Patience = time.Hour
		},
		"hesitating": func(r *agenttest.Rendezvous, timing *session.Timing) {
			r.Hesitate(true)
			timing.Silence = time.Hour
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := agenttest.New(t)
			timing := fast
			prepare(r, &timing)
			_, o := run(t, r, timing)
			o.awaitLoss(t, "no directive in time")
		})
	}
}

func TestAnOperatorThatHasAnsweredAndFallsSilentIsLeft(t *testing.T) {
	r := agenttest.New(t)
	timing := fast
	timing.Watchdog, timing.Patience = 50*time.Millisecond, time.Hour
	_, o := run(t, r, timing)
	o.await(t, "found")
	r.Mute(true)
	o.await(t, "lost")
}

// A leader that takes over thousands of jobs directs the agents of the last of them after a while only, and says that it
// is there. They would only make it worse by connecting anew.
func TestASessionIsKeptWhileItsJobIsTakenOver(t *testing.T) {
	r := agenttest.New(t)
	timing := fast
	timing.Watchdog, timing.Silence, timing.Patience = 50*time.Millisecond, 500*time.Millisecond, time.Hour
	r.Hesitate(true)
	_, o := run(t, r, timing)
	begun := time.Now()
	r.Await("beats for longer than it may be silent", func(report *rendezvousv1.Report) bool {
		return report.GetSequence() >= 10 && time.Since(begun) > timing.Silence
	})
	r.Hesitate(false)
	o.await(t, "found")
	if hellos := r.Hellos(); len(hellos) != 1 {
		t.Errorf("the agent has introduced itself %d times", len(hellos))
	}
}

// Between two long beats the operator says nothing either. A shorter beat begins at once.
func TestTheOperatorSetsTheBeat(t *testing.T) {
	r := agenttest.New(t)
	timing := fast
	timing.Watchdog = 50 * time.Millisecond
	r.Direct(&rendezvousv1.Directive{Term: 1, BeatMillis: 60_000})
	s, o := run(t, r, timing)
	o.await(t, "found")
	o.setRound(1)
	s.Tell()
	told := r.Await("round 1", func(report *rendezvousv1.Report) bool { return report.GetRound() == 1 }).GetSequence()
	r.Direct(&rendezvousv1.Directive{Term: 2})
	r.Await("the next beat", func(report *rendezvousv1.Report) bool { return report.GetSequence() > told })
}

func TestAnOperatorThatTakesConnectionsAndSaysNothing(t *testing.T) {
	r := agenttest.New(t)
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hole.Close() }()
	r.Address = hole.Addr().String()
	timing := fast
	timing.Patience = 20 * time.Millisecond
	_, o := run(t, r, timing)
	for range 3 {
		o.await(t, "lost")
	}
}

func TestARefusedDirectiveEndsTheSession(t *testing.T) {
	r := agenttest.New(t)
	timing := fast
	timing.Heartbeat, timing.Watchdog = time.Hour, time.Hour
	_, o := run(t, r, timing)
	o.await(t, "found")
	o.mu.Lock()
	o.refuse = true
	o.mu.Unlock()
	r.Direct(&rendezvousv1.Directive{Term: 1})
	o.await(t, "lost")
	r.Direct(&rendezvousv1.Directive{Term: 2})
	o.await(t, "found")
}

// A directive that comes unasked answers the report that was the last to be answered.
func TestADirectiveIsAsOldAsTheReportThatItAnswers(t *testing.T) {
	r := agenttest.New(t)
	timing := fast
	timing.Heartbeat, timing.Watchdog = time.Hour, time.Hour
	began := time.Now()
	s, o := run(t, r, timing)
	o.await(t, "heard")
	r.Direct(&rendezvousv1.Directive{Term: 1})
	o.await(t, "heard")
	s.Tell()
	o.await(t, "heard")
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.sent[0].Before(began) || time.Now().Before(o.sent[0]):
		t.Errorf("the first report was sent at %s, the session began at %s", o.sent[0], began)
	case !o.sent[1].Equal(o.sent[0]):
		t.Errorf("what comes unasked answers a report of %s, want that of %s", o.sent[1], o.sent[0])
	case !o.sent[2].After(o.sent[1]):
		t.Errorf("the second report was sent at %s, the first at %s", o.sent[2], o.sent[1])
	}
}

func TestErrorsOfTheOperatorAreTold(t *testing.T) {
	r := agenttest.New(t)
	r.Fail(codes.PermissionDenied)
	_, o := run(t, r, fast)
	o.await(t, "lost")
	o.mu.Lock()
	err := o.lost[0]
	o.mu.Unlock()
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("the session ended with %v", err)
	}
	r.Fail(0)
	o.await(t, "found")
}

func TestAnOperatorWithAForeignCertificateGetsNoToken(t *testing.T) {
	r := agenttest.New(t)
	dialer, err := session.NewDialer(r.Address, r.TokenFile, strangersCA(t))
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{events: make(chan string, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { session.New(dialer, o, fast).Run(ctx) })
	o.await(t, "lost")
	cancel()
	running.Wait()
	if tokens := r.Tokens(); len(tokens) > 0 {
		t.Errorf("tokens were sent: %v", tokens)
	}
}

// strangersCA writes a CA that signed nothing of this test's operator.
func strangersCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDialersThatCannotBe(t *testing.T) {
	r := agenttest.New(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct{ address, token, ca, want string }{
		"a URL":       {"https://operator:1", r.TokenFile, r.CAFile, "form host:port"},
		"no port":     {"operator", r.TokenFile, r.CAFile, "form host:port"},
		"empty port":  {"operator:", r.TokenFile, r.CAFile, "form host:port"},
		"no host":     {":443", r.TokenFile, r.CAFile, "form host:port"},
		"no token":    {r.Address, "/no/such/token", r.CAFile, "service account token"},
		"empty token": {r.Address, empty, r.CAFile, "holds no token"},
		"no CA":       {r.Address, r.TokenFile, "/no/such/ca", "operator's CA"},
		"empty CA":    {r.Address, r.TokenFile, empty, "holds no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := session.NewDialer(row.address, row.token, row.ca)
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}
