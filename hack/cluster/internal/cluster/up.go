package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/concertina-dev/concertina/hack/cluster/internal/control"
	"github.com/concertina-dev/concertina/hack/cluster/internal/kube"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
	"github.com/concertina-dev/concertina/hack/cluster/internal/node"
	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
	"github.com/concertina-dev/concertina/hack/cluster/internal/toolchain"
)

// Up starts a cluster and waits until it can run pods. A cluster that runs is
// left as it is; the remains of one that crashed are cleared away first. When
// the start fails, everything that it has started is taken down again.
//
// It is an error when nodes is not between 1 and network.MaxNodes or gpus is
// negative.
func (c Cluster) Up(ctx context.Context, nodes, gpus int) error {
	if nodes < 1 || nodes > network.MaxNodes {
		return fmt.Errorf("--nodes %d: choose from 1 to %d", nodes, network.MaxNodes)
	}
	if gpus < 0 {
		return fmt.Errorf("--gpus %d: a node cannot have fewer than 0 devices", gpus)
	}
	host, err := inspect()
	if err != nil {
		return err
	}
	if err := toolchain.Build(ctx, c.Layout, c.Progress); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	old, err := c.load()
	if err != nil {
		return err
	}
	if old.Running && c.whole(ctx, old) {
		c.Progress("the cluster is running already, with %d nodes; `node add` and `node remove` change that", len(old.Nodes))
		return nil
	}
	if err := c.clear(ctx, old); err != nil {
		return err
	}
	if err := c.start(ctx, host, newRecord(nodes, gpus)); err != nil {
		c.Progress("the start failed, taking everything down again; the logs stay in %s", c.Layout.Logs())
		return errors.Join(err, c.clearAfterFailure())
	}
	return nil
}

func (c Cluster) clearAfterFailure() error {
	// The command may have been interrupted: clearing up is done all the same.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := c.load()
	if err != nil {
		return err
	}
	return c.clear(ctx, r)
}

// whole reports whether every process that should run does.
func (c Cluster) whole(ctx context.Context, r record) bool {
	parts, err := c.parts(r)
	if err != nil {
		return false
	}
	for _, p := range parts {
		if p.pid == 0 && !p.down {
			c.Progress("%s has ended: clearing the old cluster away", p.name)
			return false
		}
	}
	client, err := c.connect()
	return err == nil && client.Ready(ctx) == nil
}

func (c Cluster) start(ctx context.Context, host node.Host, r record) error {
	var err error
	if r.Chains, err = network.ServiceChains(ctx); err != nil {
		return err
	}
	if err := checkFree(ctx, r.Chains); err != nil {
		return err
	}
	if r.Sysctls, err = network.Sysctls(); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Layout.Logs()); err != nil {
		return fmt.Errorf("remove the old cluster's logs: %w", err)
	}
	if err := c.save(r); err != nil {
		return err
	}
	if err := network.SetSysctls(); err != nil {
		return err
	}
	if err := network.Up(ctx); err != nil {
		return err
	}
	if err := control.Write(c.Layout); err != nil {
		return err
	}
	if err := c.startAll(ctx, host, r); err != nil {
		return err
	}
	r.Running = true
	return c.save(r)
}

// startAll starts the control plane and the nodes' runtimes side by side, then
// what needs both.
func (c Cluster) startAll(ctx context.Context, host node.Host, r record) error {
	watch := &watch{layout: c.Layout}
	client, err := c.connect()
	if err != nil {
		return err
	}
	group, parallel := errgroup.WithContext(ctx)
	group.Go(func() error { return c.startControl(parallel, host, r, client, watch) })
	for _, n := range r.Nodes {
		group.Go(func() error { return c.startRuntime(parallel, c.node(host, n), false) })
	}
	if err := group.Wait(); err != nil {
		return watch.explain(err)
	}
	c.Progress("control plane and container runtimes are up, starting the kubelets")
	group, parallel = errgroup.WithContext(ctx)
	for _, n := range r.Nodes {
		group.Go(func() error { return c.join(parallel, client, c.node(host, n), n.GPUs, watch) })
	}
	group.Go(func() error { return client.WaitForDNS(parallel, watch.alive) })
	group.Go(func() error { return client.WaitForAccounts(parallel, watch.alive) })
	return watch.explain(group.Wait())
}

func (c Cluster) startControl(ctx context.Context, host node.Host, r record, client kube.Client, watch *watch) error {
	c.Progress("starting etcd and the API server")
	for i, component := range control.Components {
		spec := control.ProxySpec(c.Layout, r.ProxyNode, host.Env)
		if component != control.Proxy {
			spec = control.Spec(c.Layout, component, host.Env)
		}
		id, err := process.Start(spec)
		if err != nil {
			return err
		}
		watch.add(component, id)
		if component == control.APIServer {
			if err := client.WaitForServer(ctx, watch.alive); err != nil {
				return err
			}
			c.Progress("the API server is ready, starting %d more components", len(control.Components)-i-1)
		}
	}
	if err := client.InstallDefinition(ctx, c.Layout.Binary(toolchain.PodGroupCRD), watch.alive); err != nil {
		return err
	}
	return client.InstallDNS(ctx)
}

// importSlots bounds how many nodes unpack images at once: that is work for
// cores and disk, and two of it keep both busy.
var importSlots = make(chan struct{}, 2)

// startRuntime starts a node's container runtime with all remembered images.
func (c Cluster) startRuntime(ctx context.Context, n node.Node, returns bool) error {
	if err := n.StartRuntime(ctx, returns); err != nil {
		return err
	}
	archives, err := c.store().List()
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if _, err := c.give(ctx, n, archive); err != nil {
			return err
		}
	}
	return nil
}

// join starts a node's kubelet and waits until the node can take pods.
func (c Cluster) join(ctx context.Context, client kube.Client, n node.Node, gpus int, watch *watch) error {
	began := time.Now()
	id, err := n.StartKubelet(ctx)
	if err != nil {
		return err
	}
	watch.add(n.KubeletLog(), id)
	if err := client.WaitForNode(ctx, n.Name, began, watch.alive); err != nil {
		return err
	}
	if err := client.SetDevices(ctx, n.Name, gpus); err != nil {
		return err
	}
	c.Progress("node %s is ready, with %d x %s", n.Name, gpus, kube.Device)
	return nil
}

// watch knows the processes that must live while others are waited for.
type watch struct {
	layout interface{ Log(string) string }
	mu     sync.Mutex
	ids    map[string]process.ID
}

func (w *watch) add(name string, id process.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ids == nil {
		w.ids = map[string]process.ID{}
	}
	w.ids[name] = id
}

// dead names a process that has ended, or none.
func (w *watch) dead() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, id := range w.ids {
		if !id.Running() {
			return name
		}
	}
	return ""
}

func (w *watch) alive() bool { return w.dead() == "" }

// explain adds the end of the log of a component that has died.
func (w *watch) explain(err error) error {
	name := w.dead()
	if err == nil || name == "" {
		return err
	}
	return fmt.Errorf("%w\n%s has ended; the end of its log %s:\n%s", err, name, w.layout.Log(name), process.Tail(w.layout.Log(name), 15))
}
