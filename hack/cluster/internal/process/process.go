// Package process starts, recognises and ends the cluster's own processes.
//
// A process is known by its pid together with the instant at which it
// started, so that a pid which the kernel has given to somebody else is never
// signalled.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ID names one process for all time.
type ID struct {
	PID int `json:"pid"`
	// Start is the instant of the start in clock ticks since the machine's boot.
	Start uint64 `json:"start"`
	// Boot is the kernel's id of that boot.
	Boot string `json:"boot"`
}

// Spec describes a daemon to start.
type Spec struct {
	// Name of the component; it names the log too.
	Name string
	// Path of the program and its arguments.
	Path string
	Args []string
	// Env is the whole environment as NAME=value, beside the marks.
	Env []string
	// Node is the node that the process belongs to; empty for the control plane.
	Node string
	// Log is the file that receives what the daemon prints.
	Log string
	// Urgent daemons are put before ordinary work, so that a busy machine does
	// not look like a dead node.
	Urgent bool
}

// urgentNice is the nice value of urgent daemons (-20 first, 19 last).
const urgentNice = -5

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// Identify returns the identity of a live process.
func Identify(pid int) (ID, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	state, start, err := parseStat(string(raw))
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	if state == 'Z' || state == 'X' {
		return ID{}, fmt.Errorf("identify process %d: it has ended", pid)
	}
	boot, err := os.ReadFile(bootIDFile)
	if err != nil {
		return ID{}, fmt.Errorf("read the boot id: %w", err)
	}
	return ID{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// parseStat reads state and start time from a line of /proc/PID/stat. The
// program's name, in brackets, may hold blanks and brackets itself.
func parseStat(line string) (state byte, start uint64, err error) {
	const startField = 22 - 3 // counted from the state, which is field 3
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("malformed stat line %q", line)
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) <= startField {
		return 0, 0, fmt.Errorf("malformed stat line %q", line)
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("malformed start time in stat line: %w", err)
	}
	return fields[0][0], start, nil
}

// Running reports whether this very process still runs.
func (id ID) Running() bool {
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// Start starts a daemon in its own session, with the marks by which Marked finds it.
func Start(spec Spec) (ID, error) {
	if err := os.MkdirAll(filepath.Dir(spec.Log), 0o755); err != nil {
		return ID{}, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return ID{}, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer func() { _ = log.Close() }()

	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env = append(append([]string{}, spec.Env...), marks(spec)...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return ID{}, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if spec.Urgent {
		// Where the right to do so is missing the daemon runs like any other.
		_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, urgentNice)
	}
	id, err := Identify(cmd.Process.Pid)
	// Reaps the child if it ends before this program does.
	go func() { _ = cmd.Wait() }()
	if err != nil {
		return ID{}, fmt.Errorf("start %s: it ended at once: %s", spec.Name, Tail(spec.Log, tailLines))
	}
	return id, nil
}

// Stop asks the process to end and kills it when it has not ended within the
// grace time. A process that is gone, or whose pid belongs to another now, is
// left alone.
func (id ID) Stop(grace time.Duration) error {
	fd, err := id.open()
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if grace > 0 {
		if err := send(fd, unix.SIGTERM); err != nil {
			return fmt.Errorf("stop process %d: %w", id.PID, err)
		}
		if ended(fd, grace) {
			return nil
		}
	}
	if err := send(fd, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	if !ended(fd, killWait) {
		return fmt.Errorf("process %d did not end within %s of SIGKILL: it hangs in the kernel (state D?)", id.PID, killWait)
	}
	return nil
}

// Signal sends a signal. A process that is gone, or whose pid belongs to another
// now, is left alone.
func (id ID) Signal(sig unix.Signal) error {
	fd, err := id.open()
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := send(fd, sig); err != nil {
		return fmt.Errorf("signal process %d: %w", id.PID, err)
	}
	return nil
}

const killWait = 10 * time.Second

// Kill sends SIGKILL to all of them first and waits for their end afterwards,
// so that none of them sees another one die.
func Kill(ids []ID) error {
	var errs []error
	var fds []int
	for _, id := range ids {
		fd, err := id.open()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if fd < 0 {
			continue
		}
		fds = append(fds, fd)
		if err := send(fd, unix.SIGKILL); err != nil {
			errs = append(errs, fmt.Errorf("kill process %d: %w", id.PID, err))
		}
	}
	for _, fd := range fds {
		if !ended(fd, killWait) {
			errs = append(errs, fmt.Errorf("a killed process did not end within %s", killWait))
		}
		_ = unix.Close(fd)
	}
	return errors.Join(errs...)
}

// open returns a handle of the process that stays with it whatever happens to
// the pid, or -1 when it is gone.
func (id ID) open() (int, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	if !id.Running() {
		_ = unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

func send(fd int, sig unix.Signal) error {
	err := unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// ended waits until the process has ended, at most for the given time.
func ended(fd int, within time.Duration) bool {
	deadline := time.Now().Add(within)
	for {
		left := max(time.Until(deadline), 0)
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(left.Milliseconds()))
		if n > 0 {
			return true
		}
		if left == 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return false
		}
	}
}

const tailLines = 15

// Tail returns the last lines of a log, or a remark when there are none.
func Tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	all := bytes.Split(bytes.TrimRight(raw, "\n"), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	text := string(bytes.Join(all, []byte("\n")))
	if text == "" {
		return "(it printed nothing)"
	}
	return text
}
