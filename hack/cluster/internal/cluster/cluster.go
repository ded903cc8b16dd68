// Package cluster brings the whole cluster up and down and changes its nodes:
// it puts the other packages' parts in order.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/cluster/internal/image"
	"github.com/concertina-dev/concertina/hack/cluster/internal/kube"
	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
	"github.com/concertina-dev/concertina/hack/cluster/internal/node"
	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
	"github.com/concertina-dev/concertina/hack/cluster/internal/toolchain"
)

// Cluster is the machine's cluster, whether it runs or not.
type Cluster struct {
	Layout   layout.Layout
	Progress toolchain.Progress
}

func (c Cluster) store() image.Store { return image.Store{Dir: c.Layout.Images()} }

func (c Cluster) node(host node.Host, r nodeRecord) node.Node {
	return node.Node{Name: r.Name, Number: r.Number, Layout: c.Layout, Host: host}
}

func (c Cluster) connect() (kube.Client, error) { return kube.Connect(c.Layout.Kubeconfig()) }

// lock keeps other commands from changing the cluster at the same time.
func (c Cluster) lock() (unlock func(), err error) {
	if err := os.MkdirAll(c.Layout.State, 0o755); err != nil {
		return nil, fmt.Errorf("lock the cluster: %w", err)
	}
	file, err := os.OpenFile(c.Layout.LockFile(), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cluster: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		c.Progress("waiting for another command that changes the cluster")
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock the cluster: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

// open locks the running cluster and returns what is needed to change it. It
// is an error when no cluster runs.
func (c Cluster) open(ctx context.Context) (record, kube.Client, func(), error) {
	if err := mustBeRoot(); err != nil {
		return record{}, kube.Client{}, nil, err
	}
	unlock, err := c.lock()
	if err != nil {
		return record{}, kube.Client{}, nil, err
	}
	fail := func(err error) (record, kube.Client, func(), error) {
		unlock()
		return record{}, kube.Client{}, nil, err
	}
	r, err := c.load()
	if err != nil {
		return fail(err)
	}
	if !r.Running {
		return fail(errors.New("no cluster is running: start one with `go run ./hack/cluster up`"))
	}
	client, err := c.connect()
	if err != nil {
		return fail(err)
	}
	if err := client.Ready(ctx); err != nil {
		return fail(fmt.Errorf("the cluster's API server is not ready (`go run ./hack/cluster status` says more): %w", err))
	}
	return r, client, unlock, nil
}

// marksOf returns the processes of one node, the kubelet first.
func marksOf(name string) ([]process.Mark, error) {
	all, err := process.Marked()
	if err != nil {
		return nil, err
	}
	var kubelet, others []process.Mark
	for _, mark := range all {
		switch {
		case mark.Node != name:
		case mark.Component == "kubelet":
			kubelet = append(kubelet, mark)
		default:
			others = append(others, mark)
		}
	}
	return append(kubelet, others...), nil
}

func ids(marks []process.Mark) []process.ID {
	var found []process.ID
	for _, mark := range marks {
		found = append(found, mark.ID)
	}
	return found
}

// nodeFolders lists the nodes that have left a folder, running or not.
func (c Cluster) nodeFolders() ([]string, error) {
	entries, err := os.ReadDir(c.Layout.Nodes())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list the nodes' folders: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, filepath.Base(entry.Name()))
		}
	}
	return names, nil
}
