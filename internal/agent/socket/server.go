package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// Identity is what every process of this worker is told.
type Identity struct {
	Namespace, Job string
	Attempt        int
	// Slots is the number of training processes in this worker.
	Slots int
	// Snapshots is the folder for snapshots, empty for none; Interval how often to take one.
	Snapshots, Interval string
	// Best is the metric by which the job keeps its best checkpoints; empty for none.
	Best string
	// Restarts is true when programs are started anew in each world.
	Restarts bool
	// Launcher is true when the program starts the processes itself, and may speak to the agent as well.
	Launcher bool
}

// Message is what a process has said that matters to more than its state.
type Message struct {
	// Slot is the process's, or that of the launcher.
	Slot int
	// Connection tells the connections of all time apart; it is not 0.
	Connection uint64
	// Round is the world that the process was given last; 0 for none.
	Round uint64
	// Body is a wire.Hello, Join, Parked, Want, Snapshot, Aborted, Fault, Finished, Left or Stopped; nil when the
	// connection has ended.
	Body any
}

// Place is a process's place in a world.
type Place struct {
	Term, Round, Parent, FromStep uint64
	WorkerRank, Workers           int
	MasterAddress                 string
	MasterPort                    int
	// GivesPort is true when the process of rank 0 gets the listening socket of the master port;
	// false when a launcher binds it.
	GivesPort bool
	// Restore, Handover, Snapshot, Shares, Shards, Writer and Staging are told to the process as they are.
	Restore  bool
	Handover bool
	Snapshot string
	Shares   []string
	Shards   []string
	Writer   bool
	Staging  *wire.Staging
}

// State is what is known of the process in one slot.
type State struct {
	gate.Progress
	Metrics map[string]float64
	// Fault is what ended the program, FaultStep when; empty for none. FaultOrder counts the
	// faults of this worker from 1, in the order in which they came.
	Fault      string
	FaultStep  uint64
	FaultOrder int
	// Pause is how long it stood still before its first step in its world.
	Pause Pause
	// StepTime is how long a step takes there, OwnTime how long the process works in it without what it waits for others; 0
	// while it is not known.
	StepTime, OwnTime time.Duration
}

// Timing says how patient the server is.
type Timing struct {
	// Hello is how long a connection may take to say who it is.
	Hello time.Duration
	// Write bounds one answer.
	Write time.Duration
}

// DefaultTiming is what docs/program-protocol.md says.
func DefaultTiming() Timing { return Timing{Hello: 10 * time.Second, Write: 5 * time.Second} }

// maxExtra is how many connections may be open beyond two for each slot.
const maxExtra = 8

// maxPath is the longest path that a unix socket can have.
const maxPath = 107

// ListenMaster opens the listening socket of the master port.
type ListenMaster func(ctx context.Context, address string, port int) (*net.TCPListener, error)

// Server is the agent's end of the socket.
type Server struct {
	path     string
	identity Identity
	timing   Timing
	listen   ListenMaster
	// said is called with every message, in their order for each connection.
	said func(Message)
	// user is who may connect without being a descendant.
	user int

	ctx      context.Context
	cancel   context.CancelFunc
	listener *net.UnixListener
	serving  sync.WaitGroup

	mu sync.Mutex
	// scores are what processes have said of states that were evaluated, oldest first, at most mostScores.
	scores []Score
	page   *gate.Page
	term   uint64
	slots  []slot
	faults int
	// round is the world that the program was started in, and from the step after which that begins; 0 for none.
	round, from uint64
	// launcher is the connection of the program that starts the processes; nil for none.
	launcher *connection
	open     map[*connection]struct{}
	// connections counts those of all time.
	connections uint64
}

type slot struct {
	owner *connection
	state State
	// total is what progress said of the last step; the gate page has the last word.
	total uint64
	// round is the world that the process was given, and from the step after which it begins.
	round, from uint64
	// before is the end of its last step before that world; begun and stood are when the first step there was
	// seen, and when the process said that it makes no step for now.
	before       before
	begun, stood time.Time
	// pace is how long its steps take.
	pace pace
	// interrupted is what the process was about when it was told to leave that world.
	interrupted gate.Progress
}

// Listen makes the socket. Nobody gets a slot before Open.
func Listen(path string, identity Identity, listen ListenMaster, said func(Message), timing Timing) (*Server, error) {
	listener, err := listenUnix(path)
	if err != nil {
		return nil, fmt.Errorf("make the socket for the training program: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		path: path, identity: identity, timing: timing, listen: listen, said: said,
		user: os.Geteuid(),
		ctx:  ctx, cancel: cancel, listener: listener,
		open: map[*connection]struct{}{},
	}
	s.serving.Go(s.accept)
	return s, nil
}

func listenUnix(path string) (*net.UnixListener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("the path %s is longer than %d bytes", path, maxPath)
	}
	// A program that a root agent starts may give up root: it must still get here. Who it is, is
	// checked on every connection.
	directory, socket := fs.FileMode(0o700), fs.FileMode(0o600)
	if os.Geteuid() == 0 {
		directory, socket = 0o711, 0o666
	}
	if err := ownDirectory(filepath.Dir(path), directory); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socket); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// ownDirectory makes a directory that nobody else may change. One that is there already must be
// ours.
func ownDirectory(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("%s must belong to the agent: %w", path, err)
	}
	return nil
}

// Open opens the slots to the processes of a program that is about to start, in the world of a round that begins after
// step from, or with round 0 in none. What an earlier program said is forgotten.
func (s *Server) Open(round, from uint64) error { return s.reopen(round, from, nil) }

// reopen does so, and keeps one connection.
func (s *Server) reopen(round, from uint64, kept *connection) error {
	page, err := gate.New(s.identity.Slots)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, slots := s.page, make([]slot, s.identity.Slots)
	for i := range s.slots {
		slots[i].before = s.carried(i)
	}
	s.page, s.slots, s.faults = page, slots, 0
	s.round, s.from = round, from
	s.setTerm()
	s.launcher = kept
	for c := range s.open {
		if c != kept {
			c.hangUp()
		}
	}
	if old != nil {
		return old.Close()
	}
	return nil
}

// SetTerm tells the processes which leader the agent obeys now.
func (s *Server) SetTerm(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != term {
		s.term = term
		s.setTerm()
	}
}

// setTerm writes terms and rounds to the page. The lock is held.
func (s *Server) setTerm() {
	for i := range s.slots {
		s.page.SetWorld(i, s.term, s.slots[i].round)
	}
}

// States is what is known of each slot, by local rank; nil before the first Open. How long steps take is known by
// looking often: each call is a look.
func (s *Server) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []State
	for i := range s.slots {
		state := s.slots[i].state
		state.Metrics = maps.Clone(state.Metrics)
		state.Progress = s.page.Progress(i)
		if state.LastStep == 0 && s.slots[i].total >= state.Entered {
			state.LastStep = s.slots[i].total
		}
		state.Pause = s.pause(i, state.Done)
		s.slots[i].pace.look(time.Now(), s.slots[i].round, s.slots[i].from, state.Progress, s.page.Stamps(i))
		state.StepTime, state.OwnTime = median(s.slots[i].pace.last), median(s.slots[i].pace.own)
		states = append(states, state)
	}
	return states
}

// Drain waits until all that the owner of a slot has said is read: until its connection has ended,
// at most so long. A slot of -1 means all of them.
func (s *Server) Drain(slot int, atMost time.Duration) {
	deadline := time.NewTimer(atMost)
	defer deadline.Stop()
	for _, ended := range s.owners(slot) {
		select {
		case <-ended:
		case <-deadline.C:
			return
		}
	}
}

func (s *Server) owners(slot int) []<-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []<-chan struct{}
	for i := range s.slots {
		if owner := s.slots[i].owner; owner != nil && (slot == i || slot < 0) {
			all = append(all, owner.ended)
		}
	}
	return all
}

// Close ends all connections and removes the socket.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.mu.Lock()
	for c := range s.open {
		c.hangUp()
	}
	s.mu.Unlock()
	s.serving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.page != nil {
		err = errors.Join(err, s.page.Close())
		s.page, s.slots = nil, nil
	}
	return err
}

func (s *Server) accept() {
	for {
		unix, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors, most likely: those who wait try again.
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
				continue
			}
		}
		s.admit(unix)
	}
}

// admit serves a connection, unless there are too many.
func (s *Server) admit(unix *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
	c := &connection{
		server: s, number: s.connections, unix: unix, wire: wire.NewConn(unix), slot: -1,
		outgoing: make(chan parcel, maxOutgoing), ended: make(chan struct{}),
	}
	if s.ctx.Err() != nil || len(s.open) >= 2*s.identity.Slots+maxExtra {
		_ = unix.Close()
		return
	}
	s.open[c] = struct{}{}
	s.serving.Go(c.serve)
	s.serving.Go(c.deliver)
}
