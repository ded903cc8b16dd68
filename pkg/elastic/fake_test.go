package elastic_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

const patience = 20 * time.Second

// fatal is what *testing.T, *testing.B and *rapid.T have in common.
type fatal interface {
	Helper()
	Fatalf(format string, arguments ...any)
	Errorf(format string, arguments ...any)
}

// agent is the agent's end of the socket and the page, moved by a test.
type agent struct {
	t        fatal
	path     string
	folder   string
	interval string
	page     *gate.Page
	listener *net.UnixListener
	programs []*program
	// best is the metric by which the job keeps its best checkpoints.
	best string
	// old agents know nothing of programs that can be told to leave.
	old bool
}

// startAgent starts an agent with so many slots; done ends it.
func startAgent(t fatal, dir string, slots int) (a *agent, done func()) {
	t.Helper()
	page, err := gate.New(slots)
	if err != nil {
		t.Fatalf("%v", err)
	}
	a = &agent{t: t, path: filepath.Join(dir, "agent.sock"), folder: filepath.Join(dir, "snapshots"), interval: "3600", page: page}
	if err := os.MkdirAll(a.folder, 0o700); err != nil {
		t.Fatalf("%v", err)
	}
	if a.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: a.path}); err != nil {
		t.Fatalf("%v", err)
	}
	return a, func() {
		_ = a.listener.Close()
		for _, p := range a.programs {
			p.hangUp()
		}
		_ = page.Close()
	}
}

// begin starts an agent for one program that lives as long as the test.
func begin(t testing.TB) *agent {
	t.Helper()
	a, done := startAgent(t, t.TempDir(), 2)
	t.Cleanup(done)
	environment(t, map[string]string{"CONCERTINA_SOCKET": a.path, "LOCAL_RANK": "0"})
	return a
}

// program is the agent's view of one process.
type program struct {
	t    fatal
	a    *agent
	slot int
	conn *wire.Conn
	said chan any
	// answers, when it is set, sees parked before the test does, and says whether it has answered it. It
	// is called with the lock held.
	mu      sync.Mutex
	answers func(wire.Parked) bool
	// back is what was read too early.
	back []any
	over sync.WaitGroup
}

// welcome accepts the program that says hello next, and welcomes it.
func (a *agent) welcome() *program {
	unix, err := a.listener.AcceptUnix()
	if err != nil {
		return nil
	}
	p := &program{t: a.t, a: a, conn: wire.NewConn(unix), said: make(chan any, 1000)}
	line, err := p.conn.ReadLine()
	if err != nil {
		a.t.Errorf("hello: %v", err)
		return nil
	}
	message, err := wire.FromProgram(line)
	hello, ok := message.(wire.Hello)
	if err != nil || !ok {
		a.t.Errorf("the program began with %+v, %v", message, err)
		return nil
	}
	p.slot = hello.LocalRank
	a.page.Clear(p.slot)
	err = p.conn.Write(wire.Welcome{
		Type: wire.TypeWelcome, Protocol: wire.Protocol, Namespace: "team", Job: "digits", Attempt: 1,
		Slot: p.slot, Slots: a.page.Slots(), Snapshots: a.folder, Interval: a.interval, FDs: 1,
		Leaves: hello.Leaves && !a.old, Sharded: hello.Sharded && !a.old, Best: a.best,
	}, a.page.File())
	if err != nil {
		a.t.Errorf("welcome: %v", err)
	}
	a.programs = append(a.programs, p)
	p.over.Go(p.hear)
	return p
}

func (p *program) hear() {
	defer close(p.said)
	for {
		line, err := p.conn.ReadLine()
		if err != nil {
			return
		}
		message, err := wire.FromProgram(line)
		if err != nil {
			p.t.Errorf("the program says %s: %v", line, err)
			return
		}
		p.hold(message)
	}
}

// hold keeps a message for the test.
func (p *program) hold(message any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if parked, ok := message.(wire.Parked); ok && p.answers != nil && p.answers(parked) {
		return
	}
	p.said <- message
}

func (p *program) hangUp() {
	_ = p.conn.Close()
	p.over.Wait()
}

// join makes a Run and the agent's view of it.
func (a *agent) join(ctx context.Context, options elastic.Options) (*elastic.Run, *program) {
	a.t.Helper()
	var p *program
	var welcoming sync.WaitGroup
	welcoming.Go(func() { p = a.welcome() })
	run, err := elastic.Join(ctx, options)
	welcoming.Wait()
	if err != nil || p == nil {
		a.t.Fatalf("join: %v", err)
	}
	return run, p
}

// unread puts a message back for whoever reads next.
func (p *program) unread(message any) { p.back = append([]any{message}, p.back...) }

// hears is the next message that is not progress; nil at the end.
func (p *program) hears() any {
	p.t.Helper()
	if len(p.back) > 0 {
		message := p.back[0]
		p.back = p.back[1:]
		return message
	}
	timeout := time.After(patience)
	for {
		select {
		case message, ok := <-p.said:
			if !ok {
				return nil
			}
			if _, numbers := message.(wire.Progress); !numbers {
				return message
			}
		case <-timeout:
			p.t.Fatalf("local rank %d says nothing", p.slot)
		}
	}
}

// expects fails the test when the next message is another.
func (p *program) expects(want any) {
	p.t.Helper()
	if diff := cmp.Diff(want, p.hears()); diff != "" {
		p.t.Fatalf("local rank %d says something else (-want +got):\n%s", p.slot, diff)
	}
}

// says tells the process something, if it is still there.
func (p *program) says(message any, files ...*os.File) { _ = p.conn.Write(message, files...) }

// world sends a world, with what is the same in all of them filled in, and a listener for rank 0.
func (p *program) world(w wire.World) {
	p.t.Helper()
	p.a.page.Lift(p.slot)
	w.Type, w.Term, w.LocalRank = wire.TypeWorld, 1, p.slot
	w.Size, w.LocalSize, w.Workers = max(w.Size, 1), max(w.LocalSize, 1), max(w.Workers, 1)
	w.MasterAddress, w.MasterPort = "127.0.0.1", 1
	if w.Rank != 0 {
		p.says(w)
		return
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	defer func() { _ = listener.Close() }()
	file, err := listener.File()
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	defer func() { _ = file.Close() }()
	w.MasterPort, w.FDs = listener.Addr().(*net.TCPAddr).Port, 1
	p.says(w, file)
}

// start brings the process that has just joined into round 1.
func (p *program) start() {
	p.t.Helper()
	p.expects(wire.Join{Type: wire.TypeJoin})
	p.world(wire.World{Round: 1, Restore: true})
}

// snapshot asks the parked process for one, and returns its path under the name that the agent gives.
func (p *program) snapshot(round, step uint64) string {
	p.t.Helper()
	p.says(wire.Save{Type: wire.TypeSave, Step: step})
	message := p.hears()
	s, ok := message.(wire.Snapshot)
	if !ok || s.Error != "" || s.Step != step {
		p.t.Fatalf("the program answers save with %+v", message)
	}
	return p.keep(round, s)
}

func (p *program) keep(round uint64, s wire.Snapshot) string {
	p.t.Helper()
	from, to := filepath.Join(p.a.folder, s.File), filepath.Join(p.a.folder, fmt.Sprintf("%d-%d", round, s.Step))
	info, err := os.Stat(from)
	if err != nil || info.Size() != int64(s.Bytes) || !strings.HasSuffix(s.File, ".part") {
		p.t.Fatalf("%+v: the file is %v, %v", s, info, err)
	}
	if err := os.Rename(from, to); err != nil {
		p.t.Fatalf("%v", err)
	}
	return to
}

func (p *program) progress() gate.Progress { return p.a.page.Progress(p.slot) }

var variables = []string{
	"CONCERTINA_SOCKET", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
}

// environment gives this process the variables of a training process, and no others of them.
func environment(t testing.TB, set map[string]string) {
	t.Helper()
	for _, name := range variables {
		t.Setenv(name, set[name])
	}
}

// training is a Train call that runs beside the test.
type training struct {
	t      testing.TB
	result chan error
}

func goTrain(t testing.TB, run *elastic.Run, train func(context.Context, elastic.World) error) *training {
	g := &training{t: t, result: make(chan error, 1)}
	go func() {
		defer func() {
			if p := recover(); p != nil {
				g.result <- fmt.Errorf("panicked: %w", p.(error))
			}
		}()
		g.result <- run.Train(train)
	}()
	return g
}

// ends returns what Train returned.
func (g *training) ends() error {
	g.t.Helper()
	select {
	case err := <-g.result:
		return err
	case <-time.After(patience):
		g.t.Fatal("Train does not return")
		return nil
	}
}

func setLocalRank(rank int) { _ = os.Setenv("LOCAL_RANK", strconv.Itoa(rank)) }
