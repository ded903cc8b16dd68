package fleet

import (
	"context"
	"sync"
	"time"
)

const (
	// Plans lie apart by restFor times what one takes, from leastRest to mostRest: a small cluster gets its
	// answer at once, and a large one spends a twentieth of a processor on it however much happens.
	restFor   = 20
	leastRest = 10 * time.Millisecond
	mostRest  = 250 * time.Millisecond
	// planAnyway is how far they lie apart at most: clocks jump, and what was meant to happen at a time may
	// be due at once.
	planAnyway = time.Minute
)

// Run plans until the context ends: at once when something has changed, a few times a second while
// changes go on, and when the plan says that time alone changes it. It begins once the cluster is known.
func (c *Cluster) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.synced:
	}
	c.begin()
	var deliveries sync.WaitGroup
	deliveries.Go(func() { c.changes.run(ctx) })
	defer deliveries.Wait()
	for {
		began := time.Now()
		next := time.NewTimer(c.PlanNow())
		rest := time.NewTimer(restAfter(time.Since(began)))
		select {
		case <-ctx.Done():
		case <-rest.C:
		}
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-next.C:
		}
		next.Stop()
		rest.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// hearsFor is how long after it began a new leader may not know which worlds can change: agents come back
// one by one. No whole job goes meanwhile for room that others could lend.
const hearsFor = 20 * time.Second

func (c *Cluster) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = c.options.Now()
}

// restAfter is how long nothing is planned after a plan that took so long.
func restAfter(took time.Duration) time.Duration { return min(max(restFor*took, leastRest), mostRest) }

// PlanNow makes a plan and gives each job its grant. It returns after what time there may be another plan
// although nothing has happened.
func (c *Cluster) PlanNow() time.Duration {
	began := time.Now()
	select {
	case <-c.wake: // what has changed by now is looked at
	default:
	}
	c.planning.Lock()
	defer c.planning.Unlock()
	v := c.look()
	plan := c.options.Plan(v.cluster)
	// What has happened since the look counts as if it had happened now: the grant of a job of which something was
	// reported is not known, and the next plan, which follows at once, sees the rest.
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish(v, plan)
	c.metrics.took(time.Since(began))
	v.sooner(plan.Next)
	if v.next.IsZero() {
		return planAnyway
	}
	return min(max(v.next.Sub(v.cluster.Now), leastRest), planAnyway)
}

// look is the snapshot for a plan.
func (c *Cluster) look() *view {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshot()
}

// Synced says that all that is there has been taken in, so that plans can be made.
func (c *Cluster) Synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.synced:
	default:
		close(c.synced)
	}
}
