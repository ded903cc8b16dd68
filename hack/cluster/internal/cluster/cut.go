package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/cluster/internal/kube"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
)

// CutNode takes a node off the network until JoinNode: its pods run on and reach
// only each other. Its kubelet, which shares the machine's network, stands still
// meanwhile, which is the same to the API server. With addresses, only the pods'
// way to those is cut, and the kubelet goes on.
func (c Cluster) CutNode(ctx context.Context, name string, from []netip.Prefix) error {
	return c.withNode(ctx, name, func(r record, _ kube.Client, n nodeRecord) error {
		if n.Down {
			return fmt.Errorf("node %s is dead: `node add %s` brings it back first", name, name)
		}
		n.Cut = true
		if err := c.save(r.with(n)); err != nil {
			return err
		}
		if len(from) == 0 {
			if err := signalKubelet(name, unix.SIGSTOP); err != nil {
				return err
			}
		}
		if err := network.CutOff(ctx, n.Number, from); err != nil {
			return err
		}
		c.Progress("node %s is cut off from %s; `node join %s` takes it back", name, whom(from), name)
		return nil
	})
}

// JoinNode takes a node back that was cut off. It may run again.
func (c Cluster) JoinNode(ctx context.Context, name string) error {
	return c.withNode(ctx, name, func(r record, _ kube.Client, n nodeRecord) error {
		if err := rejoin(ctx, n); err != nil {
			return err
		}
		n.Cut = false
		if err := c.save(r.with(n)); err != nil {
			return err
		}
		c.Progress("node %s is back on the network", name)
		return nil
	})
}

func rejoin(ctx context.Context, n nodeRecord) error {
	return errors.Join(network.Rejoin(ctx, n.Number), signalKubelet(n.Name, unix.SIGCONT))
}

func signalKubelet(name string, sig unix.Signal) error {
	marks, err := marksOf(name)
	if err != nil {
		return err
	}
	var errs []error
	for _, mark := range marks {
		if mark.Component == "kubelet" {
			errs = append(errs, mark.ID.Signal(sig))
		}
	}
	return errors.Join(errs...)
}

func whom(from []netip.Prefix) string {
	if len(from) == 0 {
		return "everybody"
	}
	var words []string
	for _, prefix := range from {
		words = append(words, prefix.String())
	}
	return strings.Join(words, ", ")
}
