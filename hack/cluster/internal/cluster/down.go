package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
	"github.com/concertina-dev/concertina/hack/cluster/internal/node"
	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
)

// Down ends the cluster and clears away everything of it but the logs and, for
// the next one, the images; with images set those go too. It works the same
// whether the cluster runs, is half started or has crashed, and does nothing
// when there is none.
func (c Cluster) Down(ctx context.Context, images bool) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := c.load()
	if err != nil {
		return err
	}
	if err := c.clear(ctx, r); err != nil {
		return err
	}
	if images {
		for _, dir := range []string{c.Layout.Images(), c.Layout.Nodes()} {
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("remove the images: %w", err)
			}
		}
	}
	c.Progress("the cluster is down")
	return nil
}

// clear removes the cluster in the order in which nothing can grow back. It
// goes by what is there, not by the record, as far as that is possible.
func (c Cluster) clear(ctx context.Context, r record) error {
	if err := killMarked(); err != nil {
		return err
	}
	names, err := c.nodeFolders()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		n := node.Node{Name: name, Layout: c.Layout}
		errs = append(errs, n.KillContainers(), n.Sweep(false))
	}
	if r.Sysctls != nil { // a cluster was started, so there are rules of its own
		errs = append(errs, network.RemoveServiceRules(ctx, r.Chains), network.RestoreSysctls(r.Sysctls))
	}
	errs = append(errs, network.Down(ctx), removeDevicePlugins())
	if err := errors.Join(errs...); err != nil {
		return err // the record stays for another attempt
	}
	for _, path := range []string{
		c.Layout.Etcd(), c.Layout.PKI(), c.Layout.Config(), c.Layout.Kubeconfig(), c.Layout.ClusterFile(),
	} {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove the cluster's state: %w", err)
		}
	}
	return nil
}

// rounds bounds how often killMarked looks for processes that were just being
// started when their parents died.
const rounds = 10

func killMarked() error {
	for range rounds {
		marked, err := process.Marked()
		if err != nil {
			return err
		}
		if len(marked) == 0 {
			return nil
		}
		if err := process.Kill(ids(marked)); err != nil {
			return err
		}
	}
	return errors.New("the cluster's processes do not end: new ones keep appearing")
}

func removeDevicePlugins() error {
	for _, name := range []string{"kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"} {
		if err := os.Remove(filepath.Join(node.DevicePlugins, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the device plugins' socket: %w", err)
		}
	}
	// They go only when they are empty.
	_ = os.Remove(node.DevicePlugins)
	_ = os.Remove(filepath.Dir(node.DevicePlugins))
	return nil
}
