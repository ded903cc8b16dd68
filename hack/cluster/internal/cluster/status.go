package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/concertina-dev/concertina/hack/cluster/internal/control"
	"github.com/concertina-dev/concertina/hack/cluster/internal/kube"
	"github.com/concertina-dev/concertina/hack/cluster/internal/node"
	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
)

// ErrNotRunning says that the cluster, or a part of it, does not run.
var ErrNotRunning = errors.New("the cluster is not running: start it with `go run ./hack/cluster up`")

// part is a process that should run.
type part struct {
	name string
	// pid is 0 when it does not run.
	pid int
	// down parts belong to a killed node.
	down bool
}

// parts lists the processes of the cluster, running or not.
func (c Cluster) parts(r record) ([]part, error) {
	marks, err := process.Marked()
	if err != nil {
		return nil, err
	}
	running := func(component, node string) int {
		i := slices.IndexFunc(marks, func(m process.Mark) bool {
			// A shim carries its containerd's marks and runs another program.
			return m.Component == component && m.Node == node && m.Program == component
		})
		if i < 0 {
			return 0
		}
		return marks[i].ID.PID
	}
	var all []part
	for _, component := range control.Components {
		all = append(all, part{name: component, pid: running(component, "")})
	}
	for _, n := range r.Nodes {
		for _, component := range []string{"containerd", "kubelet"} {
			all = append(all, part{name: n.Name + "-" + component, pid: running(component, n.Name), down: n.Down})
		}
	}
	return all, nil
}

// Status prints what runs. It returns ErrNotRunning when the cluster does not
// run as a whole; killed nodes do not count.
func (c Cluster) Status(ctx context.Context, out io.Writer) error {
	r, err := c.load()
	if err != nil {
		return err
	}
	if !r.Running {
		return ErrNotRunning
	}
	parts, err := c.parts(r)
	if err != nil {
		return err
	}
	var problem error
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "COMPONENT\tSTATE\tPID")
	for _, p := range parts {
		state := "running"
		switch {
		case p.down:
			state = "killed"
		case p.pid == 0:
			state = "ended"
			problem = fmt.Errorf("%s has ended (see `go run ./hack/cluster logs %s`); `up` starts a new cluster", p.name, p.name)
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\n", p.name, state, p.pid)
	}
	if err := c.nodeTable(ctx, table, r); err != nil {
		problem = errors.Join(problem, err)
	}
	archives, err := c.store().List()
	if err != nil {
		return err
	}
	for _, archive := range archives {
		_, _ = fmt.Fprintf(table, "\nimages\t%s\n", names(archive))
	}
	_, _ = fmt.Fprintf(table, "\nkubeconfig\t%s\n", c.Layout.Kubeconfig())
	return errors.Join(problem, table.Flush())
}

func (c Cluster) nodeTable(ctx context.Context, table io.Writer, r record) error {
	client, err := c.connect()
	if err != nil {
		return err
	}
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(table, "\nNODE\tREADY\tPODS\t%s\n", strings.ToUpper(string(kube.Device)))
	for _, n := range r.Nodes {
		status := nodes[n.Name]
		ready := status.Ready
		if status.Cordoned {
			ready += ", cordoned"
		}
		if n.Cut {
			ready += ", cut off"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d of %d\t%d\n", n.Name, ready, status.Pods, node.MaxPods, status.Devices)
	}
	return nil
}

// Log returns the path of a component's log. Its error lists the components
// that have one.
func (c Cluster) Log(component string) (string, error) {
	path := c.Layout.Log(component)
	if _, err := os.Stat(path); err == nil && filepath.Base(component) == component {
		return path, nil
	}
	files, err := filepath.Glob(c.Layout.Log("*"))
	if err != nil {
		return "", fmt.Errorf("list logs: %w", err)
	}
	if len(files) == 0 {
		return "", ErrNotRunning
	}
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".log"))
	}
	return "", fmt.Errorf("nothing named %q has a log: choose from %s", component, strings.Join(names, ", "))
}
