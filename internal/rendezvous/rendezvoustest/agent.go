// Package rendezvoustest has an agent that speaks the rendezvous protocol over the network and only plays
// that it runs a program, for tests of the operator's side.
package rendezvoustest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/concertina-dev/concertina/internal/rendezvous/link"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// Config says who an agent is and whom it talks to.
type Config struct {
	// Address is the operator's, host:port, Roots are whom its certificate is checked against.
	Address string
	Roots   *x509.CertPool
	// Now is the time at which certificates are checked; nil for the present.
	Now func() time.Time
	// ServerName is the name that the certificate must bear; empty for the host of Address.
	ServerName string
	// Dial opens connections; nil for the usual way.
	Dial link.DialFunc
	// Token is called for every session.
	Token func() string
	Hello *rendezvousv1.Hello
	// Heartbeat is the time between reports; 0 for a second.
	Heartbeat time.Duration
	// Elastic agents play a program with an SDK: it becomes a standby, stops at barriers, takes and loads
	// snapshots, leaves worlds and finishes, as it is told. Others only report what the test says.
	Elastic bool
	// StepEvery is the time of a step of an elastic program; 0 for steps by the test alone.
	StepEvery time.Duration
	// SnapshotEvery is how many steps lie between two periodic snapshots, 0 for none. Whoever writes for
	// its node takes them.
	SnapshotEvery uint64
	// LastStep is the last step of an elastic program; 0 for one that never finishes.
	LastStep uint64
	// Collective is what the elastic programs of a job make their steps in; nil for one that makes them alone. With one the agent
	// goes on to another world with its state only if it stands where that begins, and says what state it has left a world with.
	Collective *Collective
	// Stand is how long its program stands at a barrier after the report that was answered by the newest hold, and then goes on; 0 for
	// an agent that knows no holds, whose program stands until it is told otherwise.
	Stand time.Duration
	// Reach says what has come of a probe; nil for an agent that knows none.
	Reach func(*rendezvousv1.Probe) bool
}

// Open begins a session with a token.
func Open(ctx context.Context, config Config, token string) (*link.Conn, error) {
	return link.Dial(ctx, config.Address, token,
		&tls.Config{RootCAs: config.Roots, ServerName: config.ServerName, MinVersion: tls.VersionTLS13, Time: config.Now}, config.Dial)
}

// Agent obeys the operator by the rules of the protocol, session after session.
type Agent struct {
	config Config
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	address string
	// hangUp ends the current session.
	hangUp    func()
	state     *rendezvousv1.Report
	program   program
	hold      hold
	moved     chan struct{} // closed at every change, and replaced
	worlds    map[uint64]*rendezvousv1.World
	terms     map[uint64]uint64
	refused   []string
	last      error
	released  bool
	violation string
	secret    []byte
}

// Start has an agent connect until it is stopped, released, or told that its job is gone.
func Start(config Config) *Agent {
	if config.Heartbeat == 0 {
		config.Heartbeat = time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &Agent{
		config: config, cancel: cancel, done: make(chan struct{}), address: config.Address, hangUp: func() {},
		state: &rendezvousv1.Report{}, moved: make(chan struct{}), worlds: map[uint64]*rendezvousv1.World{}, terms: map[uint64]uint64{},
	}
	a.program.collective, a.program.state = config.Collective, initial
	go func() {
		defer close(a.done)
		var training sync.WaitGroup
		training.Go(func() { a.train(ctx) })
		a.run(ctx)
		cancel()
		training.Wait()
	}()
	return a
}

// Stop ends the agent and waits until it has ended.
func (a *Agent) Stop() {
	a.cancel()
	<-a.done
}

// Redirect leads the agent to another operator, at once.
func (a *Agent) Redirect(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.address = address
	a.hangUp()
}

// Step sets how many steps the agent's process has done, and reports it. An elastic process goes only as
// far as its barrier lets it.
func (a *Agent) Step(step uint64) {
	a.change(func() {
		if a.config.Elastic {
			for a.program.done < step && a.program.step(a.config) {
			}
			return
		}
		a.state.Processes = []*rendezvousv1.Process{{Done: step, Phase: rendezvousv1.Phase_PHASE_STEP}}
	})
}

// Report changes what the agent reports.
func (a *Agent) Report(change func(*rendezvousv1.Report)) { a.change(func() { change(a.state) }) }

// Fail has the elastic process report an exception, and wait for the verdict.
func (a *Agent) Fail(message string) { a.change(func() { a.program.fail(message) }) }

// Exit ends the elastic process.
func (a *Agent) Exit(code int32) { a.change(func() { a.program.exit(code) }) }

// TakeSnapshot has the elastic process take a snapshot of what it has done.
func (a *Agent) TakeSnapshot() { a.change(func() { a.program.save() }) }

// FailSnapshots has every snapshot fail from now on with this error.
func (a *Agent) FailSnapshots(message string) { a.change(func() { a.program.full = message }) }

// train makes steps until the context ends.
func (a *Agent) train(ctx context.Context) {
	if !a.config.Elastic || a.config.StepEvery <= 0 {
		return
	}
	ticker := time.NewTicker(a.config.StepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		a.mu.Lock()
		parked := a.program.waiting
		lapsed := a.program.lapse(&a.hold, time.Now())
		if a.program.meets(a.config); lapsed || a.program.waiting != parked {
			close(a.moved)
			a.moved = make(chan struct{})
		}
		a.mu.Unlock()
	}
}

func (a *Agent) change(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
	close(a.moved)
	a.moved = make(chan struct{})
}

// Snapshot is what an agent has lived through.
type Snapshot struct {
	Term, Round uint64
	Digest      string
	WorkerRank  uint32
	// Worlds are all worlds that it was ever told of and did not refuse, by round.
	Worlds map[uint64]*rendezvousv1.World
	// EnteredTerm is the term of the directive that first told of a round.
	EnteredTerm map[uint64]uint64
	// Refused are the directives that it refused, in words.
	Refused []string
	// Violation is the first directive that broke the protocol; empty for none.
	Violation string
	// Last is how its last session ended; nil while none has.
	Last error
	// Over is true once it was released or its job is gone.
	Over bool
	// Done is the number of steps that an elastic process has done, Waiting what it waits for, and
	// Exited and Code how it ended.
	Done    uint64
	Waiting rendezvousv1.Waiting
	Exited  bool
	Code    int32
	// Secret is what the operator said last that snapshots are served for.
	Secret []byte
}

// Snapshot returns what the agent has lived through so far.
func (a *Agent) Snapshot() Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Snapshot{
		Term: a.state.GetTerm(), Round: a.state.GetRound(), Digest: a.state.GetMembersDigest(),
		WorkerRank: a.state.GetWorkerRank(), Worlds: maps.Clone(a.worlds), EnteredTerm: maps.Clone(a.terms),
		Refused: append([]string(nil), a.refused...), Violation: a.violation, Last: a.last, Over: a.released,
		Done: a.program.done, Waiting: a.program.waiting, Exited: a.program.exited, Code: a.program.code,
		Secret: a.secret,
	}
}

// Await waits until the agent's snapshot satisfies a condition, and returns it. It fails with the
// context.
func (a *Agent) Await(ctx context.Context, condition func(Snapshot) bool) (Snapshot, error) {
	for {
		a.mu.Lock()
		moved := a.moved
		a.mu.Unlock()
		s := a.Snapshot()
		if condition(s) {
			return s, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return s, fmt.Errorf("agent %s: %w", a.config.Hello.GetPodName(), errors.Join(ctx.Err(), s.Last))
		}
	}
}

func (a *Agent) run(ctx context.Context) {
	for backoff := 10 * time.Millisecond; ctx.Err() == nil; {
		heard, err := a.session(ctx)
		over := status.Code(err) == codes.NotFound
		a.change(func() { a.last, a.released = err, a.released || over })
		if over || a.Snapshot().Over {
			return
		}
		if heard {
			backoff = 10 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, 100*time.Millisecond)
	}
}

func (a *Agent) session(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config := a.config
	a.mu.Lock()
	config.Address, a.hangUp = a.address, cancel
	a.hold.sent = map[uint64]time.Time{}
	a.mu.Unlock()
	conn, err := Open(ctx, config, a.config.Token())
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var sender sync.WaitGroup
	sender.Go(func() { a.send(ctx, conn) })
	defer func() {
		cancel()
		_ = conn.Close()
		sender.Wait()
	}()
	for {
		directive, err := conn.Directive()
		if err != nil {
			return heard, err
		}
		if directive == nil {
			continue
		}
		heard = true
		if !a.obey(directive) {
			return heard, fmt.Errorf("refused a directive of term %d", directive.GetTerm())
		}
		if a.Snapshot().Over {
			return heard, nil
		}
	}
}

func (a *Agent) send(ctx context.Context, conn *link.Conn) {
	beat := time.NewTicker(a.config.Heartbeat)
	defer beat.Stop()
	for sequence := uint64(1); ; sequence++ {
		a.mu.Lock()
		report := &rendezvousv1.Report{
			Sequence: sequence, Term: a.state.GetTerm(), Round: a.state.GetRound(),
			MembersDigest: a.state.GetMembersDigest(), WorkerRank: a.state.GetWorkerRank(),
			Processes: a.state.GetProcesses(), Terminating: a.state.GetTerminating(),
			Standby: a.state.GetRound() == 0, Out: a.state.GetOut(), Snapshots: a.state.GetSnapshots(),
			Probed: a.state.GetProbed(), StepNanos: a.state.GetStepNanos(),
			Refused: a.state.GetRefused(), Before: a.state.GetBefore(), Hold: a.hold.number,
		}
		a.hold.sent[sequence] = time.Now()
		if a.config.Elastic {
			a.program.report(a.config, report)
		}
		moved := a.moved
		a.mu.Unlock()
		if sequence == 1 {
			report.Hello = a.config.Hello
		}
		if conn.SendReport(report) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		case <-beat.C:
		}
	}
}

// obey takes a directive. It returns false when it comes from somebody who does not lead any more.
func (a *Agent) obey(d *rendezvousv1.Directive) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.GetTerm() < a.state.GetTerm() || d.GetRound() != 0 && d.GetRound() < a.state.GetRound() {
		a.refused = append(a.refused, fmt.Sprintf("term %d round %d, after term %d round %d",
			d.GetTerm(), d.GetRound(), a.state.GetTerm(), a.state.GetRound()))
		return false
	}
	before := [2]uint64{a.state.GetTerm(), a.state.GetRound()}
	a.state.Term, a.secret = d.GetTerm(), d.GetTicketKey()
	a.released = a.released || d.GetReleased()
	held := a.hold.number
	if a.config.Stand > 0 {
		a.hold.renew(d, d.GetTerm() > before[0], a.config.Stand)
	}
	probed := a.probe(d)
	was := a.program.progress()
	if a.config.Elastic && a.program.unready(d, a.state.GetRound()) {
		a.state.Refused = d.GetRound()
		close(a.moved)
		a.moved = make(chan struct{})
		return true
	}
	if d.GetRound() != 0 {
		a.state.Refused = 0
	}
	if a.config.Elastic {
		if broken := a.program.obey(d, a.state.GetRound()); broken != "" && a.violation == "" {
			a.violation = broken
		}
	}
	if d.GetRound() != 0 {
		a.enter(d)
	}
	if before != [2]uint64{a.state.GetTerm(), a.state.GetRound()} || a.released || probed || held != a.hold.number || was != a.program.progress() {
		close(a.moved)
		a.moved = make(chan struct{})
	}
	return true
}

// probe answers the probes of a directive, and says whether there were new ones.
func (a *Agent) probe(d *rendezvousv1.Directive) bool {
	before := a.state.GetProbed()
	a.state.Probed = nil
	if a.config.Reach == nil {
		return false
	}
	fresh := false
	for _, p := range d.GetProbes() {
		i := slices.IndexFunc(before, func(said *rendezvousv1.Probed) bool { return said.GetNumber() == p.GetNumber() })
		if i >= 0 {
			a.state.Probed = append(a.state.Probed, before[i])
			continue
		}
		fresh = true
		a.state.Probed = append(a.state.Probed, &rendezvousv1.Probed{Number: p.GetNumber(), Reached: a.config.Reach(p)})
	}
	return fresh
}

func (a *Agent) enter(d *rendezvousv1.Directive) {
	if known, ok := a.worlds[d.GetRound()]; ok && known.GetMembersDigest() != d.GetWorld().GetMembersDigest() && a.violation == "" {
		a.violation = fmt.Sprintf("round %d is %s and was %s", d.GetRound(), d.GetWorld().GetMembersDigest(), known.GetMembersDigest())
	}
	if _, ok := a.worlds[d.GetRound()]; !ok {
		a.worlds[d.GetRound()], a.terms[d.GetRound()] = d.GetWorld(), d.GetTerm()
	}
	if d.GetRound() > a.state.GetRound() {
		if a.config.Collective != nil {
			a.state.Before = a.state.GetRound()
		}
		a.state.Round, a.state.MembersDigest = d.GetRound(), d.GetWorld().GetMembersDigest()
		a.state.WorkerRank, a.state.Processes = d.GetWorld().GetWorkerRank(), nil
	}
}
