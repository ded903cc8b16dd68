package elastic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

const (
	// helloTimeout bounds how long the agent may take to answer hello.
	helloTimeout = 10 * time.Second
	// sendTimeout bounds how long a message may hold the training up.
	sendTimeout = 50 * time.Millisecond
)

// agent is the connection to the worker's agent. Once something goes wrong with it, it stays
// silent: the training does not depend on it. A nil agent is silent from the start.
type agent struct {
	conn   *wire.Conn
	broken bool
}

// dialAgent connects to the agent and claims the slot of this process.
func dialAgent(ctx context.Context, path string, localRank int) (*agent, *gate.Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the agent (CONCERTINA_SOCKET): %w", err)
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("connect to the agent: %T is no unix socket", conn), conn.Close())
	}
	a := &agent{conn: wire.NewReceiver(unix)}
	slot, err := a.hello(ctx, localRank)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("say hello to the agent: %w", err), conn.Close())
	}
	return a, slot, nil
}

func (a *agent) hello(ctx context.Context, localRank int) (*gate.Slot, error) {
	hello := wire.Hello{Type: wire.TypeHello, Protocol: wire.Protocol, LocalRank: localRank}
	welcome, files, err := ask[wire.Welcome](ctx, a, hello, func(w wire.Welcome) int { return w.FDs })
	defer closeFiles(files)
	if err != nil {
		return nil, err
	}
	if welcome.Protocol != wire.Protocol || len(files) != 1 {
		return nil, fmt.Errorf("the agent speaks protocol %d and sent %d files: use an SDK of the operator's version", welcome.Protocol, len(files))
	}
	return gate.Open(files[0], welcome.Slot)
}

// join waits for the world.
func (a *agent) join(ctx context.Context) (World, error) {
	world, files, err := ask[wire.World](ctx, a, wire.Join{Type: wire.TypeJoin}, func(w wire.World) int { return w.FDs })
	defer closeFiles(files)
	if err != nil {
		return World{}, fmt.Errorf("join the world: %w", err)
	}
	w := World{
		Round: world.Round,
		Rank:  world.Rank, Size: world.Size,
		LocalRank: world.LocalRank, LocalSize: world.LocalSize,
		WorkerRank: world.WorkerRank, Workers: world.Workers,
		MasterAddress: net.JoinHostPort(world.MasterAddress, strconv.Itoa(world.MasterPort)),
	}
	if w.Rank < 0 || w.Rank >= w.Size {
		return World{}, fmt.Errorf("join the world: the agent makes this process rank %d of %d", w.Rank, w.Size)
	}
	if len(files) > 0 {
		w.MasterListener, err = listenerFrom(files[0])
	}
	return w, err
}

// ask sends a message and waits for the answer, with the files that come with it, which belong to
// the caller whatever the error.
func ask[Answer any](ctx context.Context, a *agent, message any, fds func(Answer) int) (answer Answer, files []*os.File, err error) {
	stop := context.AfterFunc(ctx, func() { _ = a.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := a.conn.Write(message); err != nil {
		return answer, nil, err
	}
	line, err := a.conn.ReadLine()
	if ctx.Err() != nil {
		return answer, nil, context.Cause(ctx)
	}
	if err != nil {
		return answer, nil, err
	}
	reply, err := wire.FromAgent(line)
	if err != nil {
		return answer, nil, err
	}
	answer, ok := reply.(Answer)
	if !ok {
		return answer, nil, fmt.Errorf("the agent answered %T with %T", message, reply)
	}
	files, err = a.conn.Take(fds(answer))
	return answer, files, err
}

// tell sends a message that has no answer.
func (a *agent) tell(message any) {
	if a == nil || a.broken {
		return
	}
	_ = a.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := a.conn.Write(message); err != nil {
		a.close()
	}
}

func (a *agent) close() {
	if a == nil || a.broken {
		return
	}
	a.broken = true
	a.conn.CloseFiles()
	_ = a.conn.Close()
}

func closeFiles(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}
