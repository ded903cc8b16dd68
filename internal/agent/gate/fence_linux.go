package gate

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h.
const membarrierGlobal = 1

// fenceAll makes every thread of the machine pass a full memory barrier, and takes milliseconds. A program in
// Python has no instruction for one between its store of entered and its load of stop. The lock that it takes there
// is one on amd64, and on other processors lets the two change places. Where the kernel does not allow the call, the
// program's lock is all there is.
func fenceAll() {
	if runtime.GOARCH != "amd64" {
		_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
	}
}
