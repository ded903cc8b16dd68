package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit codes of programs that could not be started, as shells have them.
const (
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// StartError says why a program could not be started.
type StartError struct {
	// Code is ExitNotFound or ExitNotExecutable.
	Code int
	err  error
}

func (e *StartError) Error() string { return e.err.Error() }
func (e *StartError) Unwrap() error { return e.err }

// Reaper owns all children of this process. There can be one in a process, and nothing else in the
// process may start or wait for children meanwhile.
type Reaper struct {
	signals chan os.Signal
	done    chan struct{}
	stopped sync.WaitGroup
	reaped  chan struct{}

	// mu is held while a child is started and while children are waited for, so that a program's
	// exit is never seen before its pid is known, and no signal is sent to a pid that was reaped.
	mu       sync.Mutex
	programs map[int]func(code int)
}

// NewReaper makes this process the reaper of all its descendants and begins to wait for them.
func NewReaper() (*Reaper, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the reaper of orphaned processes: %w", err)
	}
	r := &Reaper{
		signals:  make(chan os.Signal, 1),
		done:     make(chan struct{}),
		reaped:   make(chan struct{}, 1),
		programs: map[int]func(int){},
	}
	signal.Notify(r.signals, syscall.SIGCHLD)
	r.stopped.Go(r.run)
	return r, nil
}

// Close stops waiting for children.
func (r *Reaper) Close() {
	signal.Stop(r.signals)
	close(r.done)
	r.stopped.Wait()
}

func (r *Reaper) run() {
	for {
		select {
		case <-r.done:
			return
		case <-r.signals:
			for r.reapOne() {
			}
			select {
			case r.reaped <- struct{}{}:
			default:
			}
		}
	}
}

// reapOne waits for one child that has ended; false when there is none.
func (r *Reaper) reapOne() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if errors.Is(err, syscall.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if ended, ok := r.programs[pid]; ok {
		delete(r.programs, pid)
		ended(exitCode(status))
	}
	return true
}

func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// Program is a program that was started.
type Program struct {
	reaper *Reaper
	pid    int
}

// Start starts a program with this process's standard streams, in a process group of its own.
// ended is called once, with its exit code, or 128 + signal; it must not block or call back. A
// *StartError says that the command is no program; other errors that the system refused.
func (r *Reaper) Start(command, environment []string, ended func(code int)) (*Program, error) {
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return nil, startError(command[0], err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, command, &syscall.ProcAttr{
		Env:   environment,
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return nil, startError(command[0], err)
	}
	r.programs[pid] = ended
	return &Program{reaper: r, pid: pid}, nil
}

func startError(command string, err error) error {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return &StartError{ExitNotFound, fmt.Errorf("cannot start %q: neither in PATH nor a file of the image, or its interpreter is missing: %w", command, err)}
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR):
		return &StartError{ExitNotExecutable, fmt.Errorf("cannot start %q: not a program that this image can run: %w", command, err)}
	default:
		return fmt.Errorf("cannot start %q: %w", command, err)
	}
}

// Signal sends a signal to the program's first process, as if it were the first of its container.
// A program that has ended, or was never started (nil), gets none.
func (p *Program) Signal(sig syscall.Signal) {
	if p == nil {
		return
	}
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if _, alive := p.reaper.programs[p.pid]; alive {
		_ = syscall.Kill(p.pid, sig)
	}
}

// KillAll kills all descendants of this process and waits until they are reaped, at most so long.
// It returns how many are left: processes that the kernel does not let go of.
func (r *Reaper) KillAll(atMost time.Duration) int {
	deadline := time.NewTimer(atMost)
	defer deadline.Stop()
	for {
		left := r.killOnce()
		if left == 0 {
			return 0
		}
		// A process forked meanwhile is seen by the next look; the kernel reports none of them.
		again := time.NewTimer(20 * time.Millisecond)
		select {
		case <-deadline.C:
			again.Stop()
			return left
		case <-r.reaped:
		case <-again.C:
		}
		again.Stop()
	}
}

func (r *Reaper) killOnce() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	pids := Descendants(os.Getpid())
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(pids)
}
