package rendezvous

import (
	"syscall"
	"testing"
	"time"
)

// used is the processor time of this process: others may use the machine as well.
func used(tb testing.TB) time.Duration {
	var times syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &times); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(times.Utime.Nano() + times.Stime.Nano())
}
