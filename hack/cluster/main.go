// Command cluster runs a real Kubernetes cluster on this machine without
// Docker: control plane, kubelets and container runtimes as ordinary
// processes, built from pinned Go modules.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand(newProgress()).ExecuteContext(ctx)
	stop()
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

// newProgress returns a printer of lines with the time that has passed.
func newProgress() func(format string, args ...any) {
	began := time.Now()
	return func(format string, args ...any) {
		_, _ = fmt.Fprintf(os.Stderr, "[%5.1fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}
