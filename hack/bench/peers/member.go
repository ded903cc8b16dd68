package peers

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/concertina-dev/concertina/hack/bench/steps"
	"github.com/concertina-dev/concertina/hack/images/chroot"
)

const (
	// nobody is the user of members, as in the images.
	nobody = 65532
	// tail is how many lines an error shows of what a member has said.
	tail = 60
	// inside is where members see the folder of the run, source the checkout, peerLibraries what was installed.
	inside, source, peerLibraries = "/mnt", "/src", "/opt"
)

// member is the first process of a member, and those that it starts.
type member struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
	// read is closed once all that it has said was taken in.
	read chan struct{}

	mu    sync.Mutex
	steps timeline
	lines []string
}

// start starts a command in the files of the PyTorch image, where env is added to what the image has.
func (p place) start(name string, env []string, command ...string) (*member, error) {
	setup := chroot.Setup{
		Root: p.root.Dir, UID: nobody, GID: nobody, Args: command, Dir: "/tmp",
		Env: append([]string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME=/tmp", "USER=trainer", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=ignore",
			"USE_LIBUV=0", "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo",
			"PYTHONPATH=" + strings.Join([]string{source + "/python", source + "/examples/pytorch-digits", peerLibraries}, ":"),
		}, env...),
		Binds: []chroot.Bind{
			{Source: p.Checkout, Target: source}, {Source: p.dir, Target: inside}, {Source: p.path("hosts"), Target: "/etc/hosts"},
			{Source: p.libraries, Target: peerLibraries},
		},
	}
	// Whoever is interrupted ends its members in its own order.
	cmd, err := chroot.Command(context.Background(), setup)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr.Setpgid = true
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	m := &member{name: name, cmd: cmd, ended: make(chan struct{}), read: make(chan struct{})}
	go m.takeIn(out)
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(m.ended)
	}()
	return m, nil
}

// takeIn takes in what the member says, until nobody is left who could say something.
func (m *member) takeIn(out *os.File) {
	defer close(m.read)
	defer func() { _ = out.Close() }()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m.mu.Lock()
		if s, ok := steps.Parse(lines.Text()); ok {
			m.steps = append(m.steps, s)
		} else {
			m.lines = append(m.lines[max(0, len(m.lines)-tail):], lines.Text())
		}
		m.mu.Unlock()
	}
}

func (m *member) timeline() timeline {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.steps)
}

func (m *member) lastLines() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.lines, "\n")
}

// over says whether the first process has ended.
func (m *member) over() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

// kill ends all processes of the member at once, as the loss of its machine would, and waits for the first one.
func (m *member) kill() error {
	if m.over() {
		return nil
	}
	for _, pid := range family(m.cmd.Process.Pid, parents()) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("kill a process of %s: %w", m.name, err)
		}
	}
	<-m.ended
	return nil
}

// family is a process and all that it and its children have started.
func family(pid int, parents map[int]int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		for child, parent := range parents {
			if parent == all[i] {
				all = append(all, child)
			}
		}
	}
	return all
}

// parents are the parents of all processes of this machine.
func parents() map[int]int {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	all := map[int]int{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if parent, ok := parentOf(string(text)); ok && err == nil {
			all[pid] = parent
		}
	}
	return all
}

// parentOf reads the parent from a line of /proc/PID/stat. The program's name, in brackets, may hold blanks and brackets.
func parentOf(stat string) (int, bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}

// trainingFlags are what all programs are told.
func trainingFlags(mib int) []string {
	return []string{
		"--epochs", "100000", "--log-every", "1000", "--step-times", "--ballast", strconv.Itoa(mib),
		"--step-seconds", strconv.FormatFloat(stepTime.Seconds(), 'f', -1, 64),
	}
}
