package ring

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/pkg/elastic"
)

const (
	// formTimeout bounds how long the ranks may take to find each other.
	formTimeout = time.Minute
	// greetTimeout bounds how long a connection may take to say who it is.
	greetTimeout = 5 * time.Second
	// retryAfter is the wait before a refused connection is tried again: rank 0 may not listen yet.
	retryAfter = 20 * time.Millisecond
	// maxAddress is the longest address of a rank in bytes.
	maxAddress = 256
)

// greeting says who is at the other end.
type greeting struct {
	Round   uint64 `json:"round"`
	Rank    int    `json:"rank"`
	Size    int    `json:"size"`
	Address string `json:"address"`
}

// Dial forms the ring of a world. Rank 0 collects the address of every rank on the master listener
// and tells all of them; then each connects to the next. When ctx ends, all connections are closed.
// Errors: the ranks do not find each other within a minute, or ctx ends.
func Dial(ctx context.Context, w elastic.World) (*Ring, error) {
	if w.Size == 1 {
		return &Ring{ctx: ctx, size: 1}, nil
	}
	forming, cancel := context.WithTimeout(ctx, formTimeout)
	defer cancel()
	ring, err := form(ctx, forming, w)
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		if ring != nil {
			ring.Close() // the context ended just then
		}
		return nil, fmt.Errorf("form the ring of %d ranks as rank %d: %w", w.Size, w.Rank, err)
	}
	return ring, nil
}

func form(ctx, forming context.Context, w elastic.World) (*Ring, error) {
	me := greeting{Round: w.Round, Rank: w.Rank, Size: w.Size}
	exchange := askMaster
	if w.Rank == 0 {
		exchange = serveMaster
	}
	addresses, listener, err := exchange(forming, w, me)
	if listener != nil {
		defer func() { _ = listener.Close() }()
	}
	if err != nil {
		return nil, err
	}
	var next, prev net.Conn
	var nextErr, prevErr error
	var both sync.WaitGroup
	both.Go(func() { next, nextErr = dialNext(forming, addresses[(w.Rank+1)%w.Size], me) })
	both.Go(func() { prev, prevErr = acceptFrom(forming, listener, me, (w.Rank+w.Size-1)%w.Size) })
	both.Wait()
	if err := errors.Join(nextErr, prevErr); err != nil {
		closeAll(next, prev)
		return nil, err
	}
	return newRing(ctx, w.Rank, w.Size, next, prev), nil
}

func closeAll(conns ...net.Conn) {
	for _, conn := range conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// listenBeside listens on a free port of the address that a peer reaches this rank by.
func listenBeside(ctx context.Context, address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
}

// serveMaster is rank 0's part: it hears every rank's address and tells all of them.
func serveMaster(ctx context.Context, w elastic.World, me greeting) ([]string, net.Listener, error) {
	if w.MasterListener == nil {
		return nil, nil, errors.New("rank 0 has no master listener: start this program with launch PerProcess")
	}
	listener, err := listenBeside(ctx, w.MasterListener.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	addresses := make([]string, w.Size)
	addresses[0] = listener.Addr().String()
	peers := make([]net.Conn, w.Size)
	defer func() { closeAll(peers...) }()
	for missing := w.Size - 1; missing > 0; {
		conn, peer, err := accept(ctx, w.MasterListener, me)
		if err != nil {
			return nil, listener, fmt.Errorf("%d ranks did not come: %w", missing, err)
		}
		if peer.Rank == 0 {
			closeAll(conn)
			continue
		}
		if peers[peer.Rank] == nil {
			missing--
		}
		// A rank that comes again has lost its first connection.
		closeAll(peers[peer.Rank])
		peers[peer.Rank], addresses[peer.Rank] = conn, peer.Address
	}
	for _, conn := range peers[1:] {
		if err := send(conn, addresses); err != nil {
			return nil, listener, err
		}
	}
	return addresses, listener, nil
}

// askMaster is every other rank's part.
func askMaster(ctx context.Context, w elastic.World, me greeting) ([]string, net.Listener, error) {
	conn, err := dial(ctx, w.MasterAddress)
	if err != nil {
		return nil, nil, fmt.Errorf("reach rank 0: %w", err)
	}
	defer closeAll(conn)
	listener, err := listenBeside(ctx, conn.LocalAddr().String())
	if err != nil {
		return nil, nil, err
	}
	me.Address = listener.Addr().String()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := send(conn, me); err != nil {
		return nil, listener, fmt.Errorf("greet rank 0: %w", err)
	}
	var addresses []string
	if err := receive(conn, &addresses, int64(w.Size)*(maxAddress+4)+16); err != nil {
		return nil, listener, fmt.Errorf("hear of the other ranks: %w", err)
	}
	if len(addresses) != w.Size {
		return nil, listener, fmt.Errorf("rank 0 knows %d ranks, not %d", len(addresses), w.Size)
	}
	return addresses, listener, nil
}

func dialNext(ctx context.Context, address string, me greeting) (net.Conn, error) {
	conn, err := dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("reach the next rank: %w", err)
	}
	if err := send(conn, me); err != nil {
		closeAll(conn)
		return nil, fmt.Errorf("greet the next rank: %w", err)
	}
	return conn, nil
}

func acceptFrom(ctx context.Context, listener net.Listener, me greeting, rank int) (net.Conn, error) {
	for {
		conn, peer, err := accept(ctx, listener, me)
		if err != nil {
			return nil, fmt.Errorf("wait for the previous rank: %w", err)
		}
		if peer.Rank == rank {
			return conn, nil
		}
		closeAll(conn)
	}
}

// dial connects, and tries again while nobody listens.
func dial(ctx context.Context, address string) (net.Conn, error) {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn, nil
		}
		again := time.NewTimer(retryAfter)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil, err
		case <-again.C:
		}
	}
}

// accept waits for a connection of this world; others are turned away.
func accept(ctx context.Context, listener net.Listener, me greeting) (net.Conn, greeting, error) {
	bounded, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, greeting{}, fmt.Errorf("%T is no TCP listener", listener)
	}
	if err := bounded.SetDeadline(time.Time{}); err != nil {
		return nil, greeting{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = bounded.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		conn, err := bounded.Accept()
		if err != nil {
			return nil, greeting{}, err
		}
		_ = conn.SetReadDeadline(time.Now().Add(greetTimeout))
		var peer greeting
		err = receive(conn, &peer, maxAddress+128)
		if err == nil && peer.Round == me.Round && peer.Size == me.Size &&
			peer.Rank >= 0 && peer.Rank < me.Size && len(peer.Address) <= maxAddress {
			return conn, peer, conn.SetReadDeadline(time.Time{})
		}
		closeAll(conn)
	}
}

func send(conn net.Conn, message any) error { return json.NewEncoder(conn).Encode(message) }

// receive reads one line of JSON, at most so many bytes, and not one byte beyond it.
func receive(conn net.Conn, message any, most int64) error {
	lines := bufio.NewReaderSize(io.LimitReader(oneByte{conn}, most), 16)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, message)
}

// oneByte reads a byte at a time: what follows the line belongs to whoever reads next.
type oneByte struct{ io.Reader }

func (r oneByte) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(1, len(p))]) }
