package scale

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// ticksPerSecond is the unit of CPU times under /proc (USER_HZ), the same on all Linux machines.
	ticksPerSecond = 100
	// endPatience is how long a process may take to end when it is asked to.
	endPatience = 20 * time.Second
	// tail is how much of a log an error shows.
	tail = 2000
)

// process is a program that is measured.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// startProcess starts a program whose output goes to a file. env is added to ours.
func startProcess(dir, name, path string, env []string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()
	p.cmd = exec.Command(path, args...)
	p.cmd.Env, p.cmd.Dir = append(os.Environ(), env...), dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// An interrupt from the keyboard is for us: we end the process in our order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.ended)
	}()
	return p, nil
}

// alive is nil as long as the process runs.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended (%s):\n%s", p.name, p.cmd.ProcessState, p.lastLines())
	default:
		return nil
	}
}

func (p *process) lastLines() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-tail):])
}

// end asks the process to end, and kills it when it does not.
func (p *process) end() error {
	if p.alive() != nil {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(endPatience):
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	return fmt.Errorf("%s did not end within %s and was killed", p.name, endPatience)
}

// endAll ends processes, the last one first.
func endAll(all []*process) error {
	var errs []error
	for i := len(all) - 1; i >= 0; i-- {
		errs = append(errs, all[i].end())
	}
	return errors.Join(errs...)
}

// cpu is how much processor time the process has used, in steps of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	if err := p.alive(); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of %s: %w", p.name, err)
	}
	return parseCPU(string(text))
}

// parseCPU reads user and system time from a line of /proc/PID/stat. The program's name, in brackets,
// may hold blanks and brackets itself.
func parseCPU(line string) (time.Duration, error) {
	const user, system = 14 - 3, 15 - 3 // counted from the state, which is field 3
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) <= system {
		return 0, fmt.Errorf("malformed stat line %q", line)
	}
	var ticks int64
	for _, field := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("malformed stat line: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// memory is what the process holds in memory now, and the most that it has held, in bytes.
func (p *process) memory() (now, most int64, err error) {
	if err := p.alive(); err != nil {
		return 0, 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of %s: %w", p.name, err)
	}
	return parseMemory(string(text))
}

func parseMemory(status string) (now, most int64, err error) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		to := map[string]*int64{"VmRSS": &now, "VmHWM": &most}[name]
		if to == nil {
			continue
		}
		if _, err := fmt.Sscanf(strings.TrimSpace(value), "%d kB", to); err != nil {
			return 0, 0, fmt.Errorf("malformed status line %q: %w", line, err)
		}
		*to <<= 10
	}
	if now == 0 || most == 0 {
		return 0, 0, errors.New("the kernel does not say how much memory the process holds")
	}
	return now, most, nil
}

// freeAddresses are addresses of 127.0.0.1 on which nobody listens now.
func freeAddresses(count int) ([]string, error) {
	var addresses []string
	for range count {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		// All are held until all are found, so that they differ.
		defer func() { _ = listener.Close() }()
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}
