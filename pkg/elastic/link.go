package elastic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

const (
	// helloTimeout bounds how long the agent may take to answer hello.
	helloTimeout = 10 * time.Second
	// numbersTimeout bounds how long a message that can be missed may hold the training up. A process that does
	// not get the processor for as long loses its agent, so it is not short.
	numbersTimeout = time.Second
	// sendTimeout bounds how long the agent may take to read a message that it needs.
	sendTimeout = 10 * time.Second
)

// link is the connection to the worker's agent. What the agent says is heard by a goroutine of its
// own and put into the inbox.
type link struct {
	conn    *wire.Conn
	hearing sync.WaitGroup

	writing sync.Mutex
	closed  bool

	mu sync.Mutex
	in inbox
	// bell rings when something is new in the inbox.
	bell chan struct{}
	// round is the world that the training function is in, and leave ends its context.
	round uint64
	leave context.CancelCauseFunc
}

// inbox is what the agent has said and nobody has acted on yet.
type inbox struct {
	// world is the next world.
	world *arrival
	// aborted is the highest round that is over, and why.
	aborted uint64
	reason  string
	// look means that the stop of the gate page may have changed. It may be set when the process is
	// just about to park; looking once too often does no harm.
	look bool
	// had are the shards that were asked for last; nil for none.
	had *wire.Had
	// save asks for a snapshot; raise and end are verdicts.
	save, raise, end bool
	// leaving is true once a program that is started anew in each world was told to save and to end.
	leaving bool
	// gone is why nothing more will come.
	gone error
}

// arrival is a world with the listener that came with it.
type arrival struct {
	wire.World
	listener net.Listener
}

func (a *arrival) drop() {
	if a != nil && a.listener != nil {
		_ = a.listener.Close()
	}
}

// dialAgent connects to the agent, and claims the slot of this process with what hello says of it.
func dialAgent(ctx context.Context, path string, hello wire.Hello) (*link, wire.Welcome, *gate.Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, wire.Welcome{}, nil, fmt.Errorf("connect to the agent (CONCERTINA_SOCKET): %w", err)
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, wire.Welcome{}, nil, errors.Join(fmt.Errorf("connect to the agent: %T is no unix socket", conn), conn.Close())
	}
	l := &link{conn: wire.NewReceiver(unix), bell: make(chan struct{}, 1)}
	welcome, slot, err := l.hello(ctx, hello)
	if err != nil {
		l.conn.CloseFiles()
		return nil, wire.Welcome{}, nil, errors.Join(fmt.Errorf("say hello to the agent: %w", err), conn.Close())
	}
	l.hearing.Go(l.hear)
	return l, welcome, slot, nil
}

func (l *link) hello(ctx context.Context, hello wire.Hello) (wire.Welcome, *gate.Slot, error) {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	hello.Type, hello.Protocol = wire.TypeHello, wire.Protocol
	if err := l.conn.Write(hello); err != nil {
		return wire.Welcome{}, nil, err
	}
	line, err := l.conn.ReadLine()
	if ctx.Err() != nil {
		return wire.Welcome{}, nil, context.Cause(ctx)
	}
	if err != nil {
		return wire.Welcome{}, nil, err
	}
	message, err := wire.FromAgent(line)
	if err != nil {
		return wire.Welcome{}, nil, err
	}
	welcome, ok := message.(wire.Welcome)
	if !ok {
		return wire.Welcome{}, nil, fmt.Errorf("the agent answered hello with %T", message)
	}
	files, err := l.conn.Take(welcome.FDs)
	defer closeFiles(files)
	if err != nil {
		return welcome, nil, err
	}
	if welcome.Protocol != wire.Protocol || len(files) != 1 {
		return welcome, nil, fmt.Errorf("the agent speaks protocol %d and sent %d files: use an SDK of the operator's version", welcome.Protocol, len(files))
	}
	slot, err := gate.Open(files[0], welcome.Slot)
	return welcome, slot, err
}

func closeFiles(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}

// hear puts what the agent says into the inbox, until the connection ends.
func (l *link) hear() {
	defer l.conn.CloseFiles()
	for {
		message, files, err := l.next()
		l.mu.Lock()
		if err != nil {
			l.in.gone = fmt.Errorf("the connection to the agent is lost: %w", err)
		} else {
			l.put(message, files)
		}
		l.mu.Unlock()
		select {
		case l.bell <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (l *link) next() (any, []*os.File, error) {
	line, err := l.conn.ReadLine()
	if err != nil {
		return nil, nil, err
	}
	message, err := wire.FromAgent(line)
	if err != nil {
		return nil, nil, err
	}
	world, ok := message.(wire.World)
	if !ok {
		return message, nil, nil
	}
	files, err := l.conn.Take(world.FDs)
	return message, files, err
}

// put is called with the lock held.
func (l *link) put(message any, files []*os.File) {
	defer closeFiles(files)
	switch m := message.(type) {
	case wire.World:
		l.in.world.drop()
		l.in.world = &arrival{World: m}
		if len(files) > 0 {
			listener, err := listenerFrom(files[0])
			if err != nil {
				l.in.gone = err
				return
			}
			l.in.world.listener = listener
		}
	case wire.Abort:
		l.in.aborted, l.in.reason = max(l.in.aborted, m.Round), m.Reason
		l.leaveAborted()
	case wire.Had:
		l.in.had = &m
	case wire.Go:
		l.in.look = true
	case wire.Save:
		l.in.save = true
	case wire.Raise:
		l.in.raise = true
	case wire.End:
		l.in.end = true
	case wire.Leave:
		l.in.leaving = true
	}
}

// leaveAborted ends the context of the training function when its world is over. The lock is held.
func (l *link) leaveAborted() {
	if over := l.in.over(l.round); over != nil && l.leave != nil {
		l.leave(over)
	}
}

// over is why the world of a round has ended; nil when it has not.
func (in *inbox) over(round uint64) error {
	if in.aborted < round {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrWorldEnded, in.reason)
}

// enter says which world the training function is in from now on; that world may be over already.
func (l *link) enter(round uint64, leave context.CancelCauseFunc) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round, l.leave = round, leave
	l.in.save, l.in.look = false, false // they were meant for the world before
	l.leaveAborted()
}

// exit says that the training function is in no world.
func (l *link) exit() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave = nil
}

// await waits until done, called with the inbox, returns true. Errors: ctx ends, or the agent goes
// away before that.
func (l *link) await(ctx context.Context, done func(*inbox) bool) error {
	for {
		l.mu.Lock()
		ready, gone := done(&l.in), l.in.gone
		l.mu.Unlock()
		switch {
		case ready:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case gone != nil:
			return gone
		}
		select {
		case <-l.bell:
		case <-ctx.Done():
		}
	}
}

// say sends a message that the agent needs. When that fails the connection is closed, and whoever
// waits for the agent hears of it.
func (l *link) say(message any) { l.send(message, sendTimeout) }

// tell sends a message that the training does not depend on.
func (l *link) tell(message any) { l.send(message, numbersTimeout) }

func (l *link) send(message any, timeout time.Duration) {
	if l == nil {
		return
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.closed {
		return
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(timeout))
	if err := l.conn.Write(message); err != nil {
		l.closed = true
		_ = l.conn.Close()
	}
}

func (l *link) close() {
	if l == nil {
		return
	}
	l.writing.Lock()
	if !l.closed {
		l.closed = true
		_ = l.conn.Close()
	}
	l.writing.Unlock()
	l.hearing.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.world.drop()
	l.in.world = nil
}
