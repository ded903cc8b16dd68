package cluster

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
)

// Freeze has a component of the control plane stand still until Thaw: its connections stay open, and nobody answers.
func (c Cluster) Freeze(component string) error {
	if err := signalComponent(component, unix.SIGSTOP); err != nil {
		return err
	}
	c.Progress("%s stands still; `thaw %s` lets it go on", component, component)
	return nil
}

// Thaw lets a component go on. It may run already.
func (c Cluster) Thaw(component string) error {
	if err := signalComponent(component, unix.SIGCONT); err != nil {
		return err
	}
	c.Progress("%s runs", component)
	return nil
}

func signalComponent(component string, sig unix.Signal) error {
	all, err := process.Marked()
	if err != nil {
		return err
	}
	var names []string
	for _, mark := range all {
		switch {
		case mark.Node != "":
		case mark.Component == component:
			return mark.ID.Signal(sig)
		default:
			names = append(names, mark.Component)
		}
	}
	if len(names) == 0 {
		return ErrNotRunning
	}
	return fmt.Errorf("no %s runs: choose from %s", component, strings.Join(names, ", "))
}
