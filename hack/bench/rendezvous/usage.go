package rendezvous

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Usage is what a process has used: processor time, and memory in bytes, now and at most.
type Usage struct {
	CPU         time.Duration
	RSS, MaxRSS int64
}

// used is what this process has used so far.
func used() (Usage, error) {
	var times syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &times); err != nil {
		return Usage{}, fmt.Errorf("read processor times: %w", err)
	}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Usage{}, fmt.Errorf("read the memory of this process: %w", err)
	}
	u := Usage{CPU: time.Duration(times.Utime.Nano() + times.Stime.Nano())}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		to := map[string]*int64{"VmRSS": &u.RSS, "VmHWM": &u.MaxRSS}[name]
		if to == nil {
			continue
		}
		if _, err := fmt.Sscanf(strings.TrimSpace(value), "%d kB", to); err != nil {
			return Usage{}, fmt.Errorf("malformed status line %q: %w", line, err)
		}
		*to <<= 10
	}
	return u, nil
}
