package process

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// SignalTopmost sends a signal to those processes that handle it, among these programs and their
// descendants, and not to what a process that got it has started itself: a forked child inherits the
// handler. With below, the programs themselves get none. It returns how many got the signal.
func (r *Reaper) SignalTopmost(programs []*Program, sig syscall.Signal, below bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	children := childrenOf()
	var pids []int
	for _, program := range programs {
		if program == nil || r.programs[program.pid] == nil {
			continue
		}
		if below {
			pids = append(pids, children[program.pid]...)
		} else {
			pids = append(pids, program.pid)
		}
	}
	sent := 0
	for len(pids) > 0 {
		pid := pids[0]
		pids = pids[1:]
		if !handles(pid, int(sig)) {
			pids = append(pids, children[pid]...)
		} else if syscall.Kill(pid, sig) == nil {
			sent++
		}
	}
	return sent
}

// handles is true when a process has a handler for a signal.
func handles(pid, sig int) bool {
	if sig < 1 || sig > 64 {
		return false
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(status) {
		text, ok := bytes.CutPrefix(line, []byte("SigCgt:"))
		if !ok {
			continue
		}
		caught, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 16, 64)
		return err == nil && caught&(1<<(sig-1)) != 0
	}
	return false
}
