package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/hack/cluster/internal/control"
	"github.com/concertina-dev/concertina/hack/cluster/internal/kube"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
	"github.com/concertina-dev/concertina/hack/cluster/internal/node"
	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
)

// AddNode makes sure that a node of this name runs and takes pods: a new one is
// started, a killed one brought back, a drained one opened again. gpus below 0
// means as many as the other nodes, or as it had.
func (c Cluster) AddNode(ctx context.Context, name string, gpus int) error {
	if err := node.ValidateName(name); err != nil {
		return err
	}
	host, err := inspect()
	if err != nil {
		return err
	}
	r, client, unlock, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	known, exists := r.find(name)
	if exists && !known.Down {
		if known.Cut {
			return fmt.Errorf("node %s is cut off: `node join %s` takes it back first", name, name)
		}
		return c.reopen(ctx, client, known, gpus)
	}
	fresh := known
	if !exists {
		number, err := r.freeNumber()
		if err != nil {
			return err
		}
		fresh = nodeRecord{Name: name, Number: number, GPUs: r.GPUs}
	}
	if gpus >= 0 {
		fresh.GPUs = gpus
	}
	// Down until it is up: should this be interrupted, `node add` starts over.
	fresh.Down = true
	if err := c.save(r.with(fresh)); err != nil {
		return err
	}
	n := c.node(host, fresh)
	watch := &watch{layout: c.Layout}
	err = c.startRuntime(ctx, n, exists)
	if err == nil {
		err = c.join(ctx, client, n, fresh.GPUs, watch)
	}
	if err != nil {
		return errors.Join(watch.explain(err), c.powerOff(n))
	}
	fresh.Down = false
	if err := c.save(r.with(fresh)); err != nil {
		return err
	}
	return client.Cordon(ctx, name, false)
}

func (c Cluster) reopen(ctx context.Context, client kube.Client, n nodeRecord, gpus int) error {
	if gpus >= 0 && gpus != n.GPUs {
		return fmt.Errorf("node %s runs with %d devices: remove it first to add it with %d", n.Name, n.GPUs, gpus)
	}
	c.Progress("node %s is running, opening it to new pods", n.Name)
	return client.Cordon(ctx, n.Name, false)
}

// KillNode ends a node as a power failure does: nothing on it says goodbye, the
// API server keeps its object, and the node may be added again.
func (c Cluster) KillNode(ctx context.Context, name string) error {
	return c.withNode(ctx, name, func(r record, _ kube.Client, n nodeRecord) error {
		n.Down, n.Cut = true, false
		if err := c.save(r.with(n)); err != nil {
			return err
		}
		if err := c.powerOff(c.node(node.Host{}, n)); err != nil {
			return err
		}
		c.Progress("node %s is dead; `node add %s` brings it back", name, name)
		return nil
	})
}

// powerOff cuts the node off the network and kills everything on it.
func (c Cluster) powerOff(n node.Node) error {
	// Half a power failure is none: an interrupt waits.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := network.Unplug(ctx, n.Number); err != nil {
		return err
	}
	if err := killNode(n.Name); err != nil {
		return err
	}
	if err := n.KillContainers(); err != nil {
		return err
	}
	if err := network.RemoveNode(ctx, n.Number); err != nil {
		return err
	}
	return n.Sweep(true)
}

func killNode(name string) error {
	for range rounds {
		marks, err := marksOf(name)
		if err != nil {
			return err
		}
		if len(marks) == 0 {
			return nil
		}
		if err := process.Kill(ids(marks)); err != nil {
			return err
		}
	}
	return fmt.Errorf("the processes of node %s do not end: new ones keep appearing", name)
}

// RemoveNode stops a node, running or killed, and deletes its object. Its pods
// are killed; drain it first to let them leave. Its images stay on disk for a
// node that is added under the same name. The last node cannot be removed.
func (c Cluster) RemoveNode(ctx context.Context, name string) error {
	host, err := inspect()
	if err != nil {
		return err
	}
	return c.withNode(ctx, name, func(r record, client kube.Client, known nodeRecord) error {
		return c.removeNode(ctx, host, r, client, known)
	})
}

func (c Cluster) removeNode(ctx context.Context, host node.Host, r record, client kube.Client, known nodeRecord) error {
	name := known.Name
	if len(r.Nodes) == 1 {
		return fmt.Errorf("%s is the last node: use `down` to end the cluster", name)
	}
	if known.Cut {
		if err := rejoin(ctx, known); err != nil {
			return err
		}
	}
	if err := c.stopNode(ctx, c.node(host, known), known.Down); err != nil {
		return err
	}
	rest := r.without(name)
	if r.ProxyNode == name {
		var err error
		if rest, err = c.moveProxy(host, rest); err != nil {
			return err
		}
	}
	if err := client.DeleteNode(ctx, name); err != nil {
		return err
	}
	if err := c.save(rest); err != nil {
		return err
	}
	c.Progress("node %s is removed", name)
	return nil
}

func (c Cluster) stopNode(ctx context.Context, n node.Node, down bool) error {
	if !down {
		marks, err := marksOf(n.Name)
		if err != nil {
			return err
		}
		if err := n.Stop(ctx, marks); err != nil {
			c.Progress("node %s did not stop in good order: %v", n.Name, err)
		}
	}
	if err := c.powerOff(n); err != nil {
		return err
	}
	return n.Sweep(false)
}

// moveProxy restarts kube-proxy under the name of the first node that is left.
// The rules stay in force meanwhile.
func (c Cluster) moveProxy(host node.Host, r record) (record, error) {
	marks, err := process.Marked()
	if err != nil {
		return r, err
	}
	for _, mark := range marks {
		if mark.Component != control.Proxy {
			continue
		}
		if err := mark.ID.Stop(time.Second); err != nil {
			return r, fmt.Errorf("restart kube-proxy: %w", err)
		}
	}
	r.ProxyNode = r.Nodes[0].Name
	_, err = process.Start(control.ProxySpec(c.Layout, r.ProxyNode, host.Env))
	return r, err
}

// DrainNode closes a node to new pods and evicts those that it has.
func (c Cluster) DrainNode(ctx context.Context, name string, within time.Duration) error {
	r, client, unlock, err := c.open(ctx)
	if err != nil {
		return err
	}
	// Evictions take as long as the pods like; other commands need not wait.
	unlock()
	if _, err := r.mustFind(name); err != nil {
		return err
	}
	if err := client.Drain(ctx, name, within); err != nil {
		return err
	}
	c.Progress("node %s is drained; `node add %s` opens it again", name, name)
	return nil
}

// withNode changes one node of the running cluster, while no other command changes it.
func (c Cluster) withNode(ctx context.Context, name string, change func(record, kube.Client, nodeRecord) error) error {
	r, client, unlock, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	known, err := r.mustFind(name)
	if err != nil {
		return err
	}
	return change(r, client, known)
}

func (r record) mustFind(name string) (nodeRecord, error) {
	if n, found := r.find(name); found {
		return n, nil
	}
	var names []string
	for _, n := range r.Nodes {
		names = append(names, n.Name)
	}
	return nodeRecord{}, fmt.Errorf("the cluster has no node %q: it has %s", name, strings.Join(names, ", "))
}
