// Package deviceerror knows the errors after which a program may look at its device, and find that broken.
package deviceerror

import (
	"regexp"
	"strings"
	"syscall"
	"time"
)

// CheckTimeout is how long a program may look at its devices when an error of them has ended it.
const CheckTimeout = time.Minute

// SDKs know the same: testdata/device_errors.json has what both have to make of some lines.
var (
	ofDevices = regexp.MustCompile(`(?i)CUDA error|CUDA failure|CUDA driver error|CUDA_ERROR_|Triton Error \[CUDA\]|` +
		`CUDNN_STATUS_EXECUTION_FAILED|cudaGetDeviceCount|uncorrectable (ECC|NVLink)`)
	others = regexp.MustCompile(`(?i)out of memory|CUDA_ERROR_OUT_OF_MEMORY|ALLOC(ATION)?_FAILED|_STATUS_NOT_INITIALIZED|` +
		`no kernel image is available|unsupported toolchain`)
)

// Is says whether a program's error, such as a traceback, is one of them: its last line is what counts.
func Is(text string) bool {
	text = strings.TrimSpace(text)
	line := text[strings.LastIndexByte(text, '\n')+1:]
	return ofDevices.MatchString(line) && !others.MatchString(line)
}

// Crashed says whether a program's exit code is that of an end by a signal, as libraries end one when a device has failed: it had no
// time to look at that.
func Crashed(code int) bool {
	return syscall.Signal(code-128) == syscall.SIGABRT || Faulted(code)
}

// Faulted says the same where others were lost at the same time: a library that waits for those ends a program by SIGABRT.
func Faulted(code int) bool {
	signal := syscall.Signal(code - 128)
	return signal == syscall.SIGSEGV || signal == syscall.SIGBUS
}
