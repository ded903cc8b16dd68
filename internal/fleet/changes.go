package fleet

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// changes are names that wait to be taken, each once: none is lost, however slow the reader, and there
// are never more of them than jobs.
type changes struct {
	mu    sync.Mutex
	names map[types.NamespacedName]bool
	order []types.NamespacedName
	more  chan struct{}
	out   chan types.NamespacedName
}

func newChanges() *changes {
	return &changes{names: map[types.NamespacedName]bool{}, more: make(chan struct{}, 1), out: make(chan types.NamespacedName)}
}

// Changed implements Fleet.
func (c *Cluster) Changed() <-chan types.NamespacedName { return c.changes.out }

func (c *changes) add(name types.NamespacedName) {
	c.mu.Lock()
	if !c.names[name] {
		c.names[name] = true
		c.order = append(c.order, name)
	}
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// take returns the name that has waited longest. From then on it may be added again.
func (c *changes) take() (types.NamespacedName, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.order) == 0 {
		c.order = nil
		return types.NamespacedName{}, false
	}
	name := c.order[0]
	c.order = c.order[1:]
	delete(c.names, name)
	return name, true
}

// run delivers until the context ends.
func (c *changes) run(ctx context.Context) {
	for {
		name, some := c.take()
		if !some {
			select {
			case <-ctx.Done():
				return
			case <-c.more:
			}
			continue
		}
		select {
		case <-ctx.Done():
			c.add(name)
			return
		case c.out <- name:
		}
	}
}
