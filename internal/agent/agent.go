package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/durable"
	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/masterport"
	"github.com/concertina-dev/concertina/internal/agent/process"
	"github.com/concertina-dev/concertina/internal/agent/reach"
	"github.com/concertina-dev/concertina/internal/agent/session"
	"github.com/concertina-dev/concertina/internal/agent/snapshots"
	"github.com/concertina-dev/concertina/internal/agent/socket"
)

// ExitAgentFailed is the exit code when the agent itself cannot do its work.
const ExitAgentFailed = 125

// killBound is how long processes may take to go after SIGKILL.
const killBound = 2 * time.Second

// agent does what its machine says. The machine belongs to the loop.
type agent struct {
	config  Config
	machine *lifecycle.Machine
	reaper  *process.Reaper
	port    *masterport.Port
	server  *socket.Server
	keeper  *snapshots.Keeper
	prober  *reach.Prober
	// durable speaks to the uploader; nil where the job has no storage.
	durable *durable.Keeper
	session *session.Session
	log     *log
	// ctx ends with the agent; background is what is done beside the loop until then.
	ctx        context.Context
	background sync.WaitGroup

	programs []*process.Program
	events   chan envelope
	// refused is why a directive was refused last: said once.
	refused string
	// leaving is closed when the machine has said its last word.
	leaving chan struct{}

	mu       sync.Mutex
	standing standing
	// lastWords is what the programs said that failed before those that run now were started.
	lastWords string

	// trouble belongs to the session.
	trouble trouble
}

// envelope is an event; obeyed, when set, gets false if a directive was refused.
type envelope struct {
	event  lifecycle.Event
	obeyed chan<- bool
}

// passedOn are the signals that reach the program at once. SIGTERM waits for the operator's release.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// Run is the agent's life: it returns the exit code of the training program. There can be one in a
// process, which must have no other children. An error means that the agent could not do its work.
func Run(ctx context.Context, config Config, stderr io.Writer) (exitCode int, err error) {
	dialer, err := session.NewDialer(config.Rendezvous, config.TokenFile, config.CAFile)
	if err != nil {
		return ExitAgentFailed, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, append(passedOn, syscall.SIGTERM)...)
	defer signal.Stop(signals)

	a := &agent{
		config: config,
		machine: lifecycle.New(time.Now(), config.Limits, lifecycle.Shape{
			Programs: config.Programs(), Processes: config.Processes, Strategy: config.Strategy, Check: config.CheckDevice,
		}),
		log:     newLog(stderr),
		events:  make(chan envelope),
		leaving: make(chan struct{}),
	}
	a.session = session.New(dialer, a, config.Session)
	a.standing = standingOf(a.machine, config)
	if a.reaper, err = process.NewReaper(); err != nil {
		return ExitAgentFailed, err
	}
	defer a.reaper.Close()
	if a.port, err = masterport.Reserve(); err != nil {
		return ExitAgentFailed, err
	}
	defer func() { a.port.Release() }()
	if a.keeper, err = snapshots.Open(config.Snapshots, config.PodIP, a.log.note, a.session.Tell); err != nil {
		return ExitAgentFailed, err
	}
	defer a.closing("stop serving snapshots", a.keeper.Close)
	a.prober = reach.New(a.reach, a.session.Tell)
	defer a.prober.Close()
	if config.Uploader != "" {
		a.durable = durable.New(config.Uploader, a.keeper, durable.DefaultPauses(), a.log.note, a.session.Tell)
		defer a.closing("end the work for the storage", a.durable.Close)
	}
	identity := socket.Identity{
		Namespace: config.Namespace, Job: config.Job, Attempt: config.Attempt, Slots: config.Processes,
		Snapshots: a.keeper.Folder(), Interval: config.Interval, Restarts: config.Strategy == lifecycle.Restart,
		Best:     config.Best,
		Launcher: config.Launch == LaunchPerWorker,
	}
	a.server, err = socket.Listen(config.Socket, identity, masterport.Listen, a.said, config.Program)
	if err != nil {
		return ExitAgentFailed, err
	}
	defer a.closing("close the socket", a.server.Close)

	ctx, cancel := context.WithCancel(ctx)
	a.ctx = ctx
	defer a.background.Wait()
	a.background.Go(func() { a.session.Run(ctx) })
	defer cancel()
	a.log.note("worker %s of %s/%s, attempt %d: waiting for its world", config.PodName, config.Namespace, config.Job, config.Attempt)
	code := a.loop(signals)
	a.lastReport(ctx)
	return code, nil
}

// closing mentions what goes wrong at the end. The program's exit code stands all the same.
func (a *agent) closing(what string, end func() error) {
	if err := end(); err != nil {
		a.log.note("%s: %v", what, err)
	}
}

// loop takes one event after another until the machine says to leave.
func (a *agent) loop(signals <-chan os.Signal) int {
	defer close(a.leaving)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if due, ok := a.machine.Deadline(); ok {
			timer.Reset(time.Until(due))
		} else {
			timer.Stop()
		}
		var next envelope
		select {
		case next = <-a.events:
		case sig := <-signals:
			next.event = a.signalled(sig)
		case <-timer.C:
			next.event = lifecycle.Tick{}
		}
		if next.event == nil {
			continue
		}
		if code, over := a.do(a.machine.Step(time.Now(), next.event), next.obeyed); over {
			return code
		}
	}
}

// signalled passes a signal on, or returns the event that it is.
func (a *agent) signalled(sig os.Signal) lifecycle.Event {
	started := a.machine.Started()
	if sig == syscall.SIGTERM || (sig == syscall.SIGINT && !started) {
		a.log.note("%v has arrived", sig)
		return lifecycle.Terminated{}
	}
	number, _ := sig.(syscall.Signal)
	for _, program := range a.programs {
		program.Signal(number)
	}
	return nil
}

// post sends an event from within the loop.
func (a *agent) post(event lifecycle.Event) { go a.send(event) }

func (a *agent) send(event lifecycle.Event) {
	select {
	case a.events <- envelope{event: event}:
	case <-a.leaving:
	}
}

// lastReport tells the operator how it ended, if it can be reached.
func (a *agent) lastReport(ctx context.Context) {
	a.server.Drain(allSlots, a.config.Drain)
	ctx, cancel := context.WithTimeout(ctx, a.config.LastReport)
	defer cancel()
	if err := a.session.Deliver(ctx); err != nil {
		a.log.note("the operator did not take the last report within %v", a.config.LastReport)
	}
}

// log writes the agent's own messages, which go between those of the program.
type log struct {
	mu  sync.Mutex
	out io.Writer
}

func newLog(out io.Writer) *log { return &log{out: out} }

func (l *log) note(format string, arguments ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = io.WriteString(l.out, "concertina-agent: "+fmt.Sprintf(format, arguments...)+"\n")
}
