package cluster

import (
	"context"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/concertina-dev/concertina/hack/cluster/internal/image"
	"github.com/concertina-dev/concertina/hack/cluster/internal/node"
)

// LoadImage gives the images of a docker-archive file to every node, those
// that join later included.
func (c Cluster) LoadImage(ctx context.Context, file string) error {
	archive, err := image.Read(file)
	if err != nil {
		return err
	}
	r, _, unlock, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	stored, err := c.store().Add(archive)
	if err != nil {
		return err
	}
	group, parallel := errgroup.WithContext(ctx)
	for _, n := range r.Nodes {
		if n.Down {
			continue // it gets the image when it comes back
		}
		group.Go(func() error {
			imported, err := c.give(parallel, c.node(node.Host{}, n), stored)
			if err == nil && !imported {
				c.Progress("node %s has %s already", n.Name, names(stored))
			}
			return err
		})
	}
	return group.Wait()
}

// give imports an archive into a node, a few nodes at a time.
func (c Cluster) give(ctx context.Context, n node.Node, archive image.Archive) (imported bool, err error) {
	select {
	case importSlots <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	defer func() { <-importSlots }()
	imported, err = n.Import(ctx, archive)
	if imported {
		c.Progress("node %s has got %s", n.Name, names(archive))
	}
	return imported, err
}

func names(archive image.Archive) string {
	var all []string
	for _, img := range archive.Images {
		all = append(all, img.Tags...)
	}
	return strings.Join(all, ", ")
}
