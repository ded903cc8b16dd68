package elastic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

// ErrWorldEnded is why the loop over Steps, Poll or the context of the training function ended: the
// process is needed in another world, or waits for one. Train goes on by itself.
var ErrWorldEnded = errors.New("elastic: this world has ended")

// World is the processes that train together, as one of them sees it.
type World struct {
	// Round is the number of the world; it grows with every world of a job. 0 without an agent.
	Round uint64
	// Rank is this process's place, 0 to Size-1; Size is the number of processes.
	Rank, Size int
	// LocalRank is its place in its worker, 0 to LocalSize-1.
	LocalRank, LocalSize int
	// WorkerRank is its worker's place, 0 to Workers-1. Without an agent both stay 0.
	WorkerRank, Workers int
	// MasterAddress is where rank 0 listens, host:port. It may take a moment until rank 0 does:
	// try again when the connection is refused.
	MasterAddress string
	// MasterListener listens at MasterAddress. It is set for rank 0 alone, and nil there too when a
	// launcher such as torchrun started the process: the port is the launcher's then. Train
	// closes it.
	MasterListener net.Listener
}

// check says what is wrong with a world that the agent has sent.
func (a *arrival) check() error {
	if a.Rank < 0 || a.Rank >= a.Size || a.Size > maxRanks {
		return fmt.Errorf("the agent makes this process rank %d of %d", a.Rank, a.Size)
	}
	return nil
}

func (a *arrival) view() World {
	return World{
		Round: a.Round,
		Rank:  a.Rank, Size: a.Size,
		LocalRank: a.LocalRank, LocalSize: a.LocalSize,
		WorkerRank: a.WorkerRank, Workers: a.Workers,
		MasterAddress:  net.JoinHostPort(a.MasterAddress, strconv.Itoa(a.MasterPort)),
		MasterListener: a.listener,
	}
}

// worldFromEnvironment is the world that a launcher describes with RANK and so on; a world of one
// without it.
func worldFromEnvironment(ctx context.Context, getenv func(string) string) (World, error) {
	if getenv("RANK") == "" {
		w := World{Size: 1, LocalSize: 1}
		err := w.listen(ctx, "127.0.0.1:0")
		return w, err
	}
	var w World
	var errs [4]error
	w.Size, errs[0] = countFrom(getenv, "WORLD_SIZE", 1, maxRanks, "")
	w.Rank, errs[1] = countFrom(getenv, "RANK", 0, max(0, w.Size-1), "")
	w.LocalRank, errs[2] = countFrom(getenv, "LOCAL_RANK", 0, maxRanks, "0")
	w.LocalSize, errs[3] = countFrom(getenv, "LOCAL_WORLD_SIZE", 1, maxRanks, "1")
	if err := errors.Join(errs[:]...); err != nil {
		return World{}, fmt.Errorf("the world that the environment describes: %w", err)
	}
	address, port := getenv("MASTER_ADDR"), getenv("MASTER_PORT")
	if w.Size > 1 && (address == "" || port == "") {
		return World{}, errors.New("the world that the environment describes: MASTER_ADDR and MASTER_PORT say where rank 0 listens, and one of them is not set")
	}
	w.MasterAddress = net.JoinHostPort(address, port)
	switch {
	case w.Rank != 0:
		return w, nil
	case w.Size == 1 && (address == "" || port == ""):
		return w, w.listen(ctx, "127.0.0.1:0")
	default:
		return w, w.listen(ctx, w.MasterAddress)
	}
}

// maxRanks is the largest number of ranks: 10000 workers of 64 processes.
const maxRanks = 640000

func countFrom(getenv func(string) string, name string, low, high int, otherwise string) (int, error) {
	text := getenv(name)
	if text == "" {
		text = otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%s is %q: a number from %d to %d is wanted", name, text, low, high)
	}
	return n, nil
}

func (w *World) listen(ctx context.Context, address string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on the master address: %w", err)
	}
	w.MasterListener, w.MasterAddress = listener, listener.Addr().String()
	return nil
}

// listenerFrom makes a listener of a socket that the agent handed over.
func listenerFrom(file *os.File) (net.Listener, error) {
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("take the master listener over: %w", err)
	}
	return listener, nil
}
