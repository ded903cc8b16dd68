package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/agent/masterport"
	"github.com/concertina-dev/concertina/internal/agent/process"
	"github.com/concertina-dev/concertina/internal/agent/session"
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
	session *session.Session
	log     *log

	programs []*process.Program
	events   chan envelope
	// refused is why a directive was refused last: said once.
	refused string
	// leaving is closed when the machine has said its last word.
	leaving chan struct{}

	mu       sync.Mutex
	standing standing

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
		config:  config,
		machine: lifecycle.New(time.Now(), config.Limits, config.Programs(), config.Processes),
		log:     newLog(stderr),
		events:  make(chan envelope),
		leaving: make(chan struct{}),
	}
	if a.reaper, err = process.NewReaper(); err != nil {
		return ExitAgentFailed, err
	}
	defer a.reaper.Close()
	if a.port, err = masterport.Reserve(); err != nil {
		return ExitAgentFailed, err
	}
	defer a.port.Release()
	a.session = session.New(dialer, a, config.Session)
	identity := socket.Identity{
		Namespace: config.Namespace, Job: config.Job, Attempt: config.Attempt, Slots: config.Processes,
	}
	a.server, err = socket.Listen(config.Socket, identity, masterport.Listen, a.session.Tell, config.Program)
	if err != nil {
		return ExitAgentFailed, err
	}
	defer func() {
		// The program's exit code stands, whatever becomes of the socket.
		if err := a.server.Close(); err != nil {
			a.log.note("close the socket: %v", err)
		}
	}()

	ctx, cancel := context.WithCancel(ctx)
	var talking sync.WaitGroup
	talking.Go(func() { a.session.Run(ctx) })
	defer talking.Wait()
	defer cancel()
	a.log.note("worker %s of %s/%s, attempt %d: waiting for its world", config.PodName, config.Namespace, config.Job, config.Attempt)
	code := a.loop(signals)
	a.lastReport(ctx)
	return code, nil
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
	started := a.machine.In() != nil
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

// do carries effects out in their order; what is told is the state after all of them.
func (a *agent) do(effects []lifecycle.Effect, obeyed chan<- bool) (code int, leave bool) {
	accepted, tell := true, false
	for _, effect := range effects {
		switch effect := effect.(type) {
		case lifecycle.Start:
			a.start(effect)
		case lifecycle.Refuse:
			accepted = false
			if a.refused != effect.Why {
				a.log.note("refused a directive: %s", effect.Why)
			}
			a.refused = effect.Why
		case lifecycle.Terminate:
			for _, i := range effect.Programs {
				a.programs[i].Signal(syscall.SIGTERM)
			}
		case lifecycle.Kill:
			if left := a.reaper.KillAll(killBound); left > 0 {
				a.log.note("%d processes of the program are still there %v after SIGKILL", left, killBound)
			}
		case lifecycle.Note:
			a.log.note("%s", effect.Text)
		case lifecycle.Tell:
			tell = true
		case lifecycle.Leave:
			code, leave = effect.Code, true
		}
	}
	a.server.SetTerm(a.machine.Term())
	a.mu.Lock()
	a.standing = standingOf(a.machine, a.config.Programs())
	a.mu.Unlock()
	if obeyed != nil {
		obeyed <- accepted
	}
	if tell {
		a.session.Tell()
	}
	return code, leave
}

// start starts the programs in a world. One that cannot be started counts as ended.
func (a *agent) start(start lifecycle.Start) {
	a.log.note("round %d: worker %d of %d, master %s port %d", start.Round, start.World.WorkerRank,
		start.World.Workers, start.World.MasterAddress, start.World.MasterPort)
	a.port.Release()
	a.programs = make([]*process.Program, a.config.Programs())
	err := a.server.Enter(socket.Place{
		Term: start.Term, Round: start.Round, FromStep: start.World.FromStep,
		WorkerRank: start.World.WorkerRank, Workers: start.World.Workers,
		MasterAddress: start.World.MasterAddress, MasterPort: start.World.MasterPort,
		HandOver: a.config.Launch == LaunchPerProcess,
	})
	for i := range a.programs {
		if err == nil {
			err = a.startOne(i, start)
		}
		if err != nil {
			a.programs[i] = nil
			a.post(lifecycle.Exited{Program: i, Code: codeOf(err)})
		}
	}
	if err != nil {
		a.log.note("%v", err)
	}
}

func (a *agent) startOne(program int, start lifecycle.Start) error {
	slot := program
	if a.config.Launch == LaunchPerWorker {
		slot = allSlots
	}
	var err error
	a.programs[program], err = a.reaper.Start(a.config.Command,
		environment(os.Environ(), a.config, start, program),
		func(code int) {
			go func() {
				// What the program said last belongs to the report of its end.
				a.server.Drain(slot, a.config.Drain)
				a.send(lifecycle.Exited{Program: program, Code: code})
			}()
		})
	return err
}

// allSlots stands for every slot of the worker.
const allSlots = -1

func codeOf(err error) int {
	if failed := new(process.StartError); errors.As(err, &failed) {
		return failed.Code
	}
	return ExitAgentFailed
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
