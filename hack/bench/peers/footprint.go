package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

const (
	// holders is how many members there are, each on a node of its own, when what they hold is measured.
	holders = 4
	// sampled is how often that is looked at.
	sampled = 50 * time.Millisecond
	// snapshotEvery is often enough that all the snapshots that are kept at once are there within the time that is measured.
	snapshotEvery = 10 * time.Second
	// untilFour is how long it takes until nobody holds a snapshot of the smaller world any more that the job begins with: each member
	// has more of one.
	untilFour = 5 * snapshotEvery
)

// footprint is the most that one member has held at once, in bytes.
type footprint struct {
	// memory is its file system in memory, with what was removed and is still open.
	memory uint64
	// agent is what its agent has of its own, without pages of that file system.
	agent uint64
}

// Footprint measures what snapshots take on each node, and the agent beside them: while nothing changes, for so long, and then
// while a member is killed and another one comes.
func (b Bench) Footprint(ctx context.Context, steady time.Duration) (err error) {
	b.Contenders, b.SnapshotEvery = []string{ours}, snapshotEvery.String()
	p, err := b.place(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.dir)) }()
	for _, mib := range b.MiB {
		if err := p.footprint(ctx, mib, steady); err != nil {
			return fmt.Errorf("what a state of %d MiB takes: %w", mib, err)
		}
	}
	return nil
}

func (p place) footprint(ctx context.Context, mib int, steady time.Duration) (err error) {
	c, err := p.startCluster(ctx, mib, holders, programs[ours]...)
	if err != nil {
		return err
	}
	t := &trial{contender: c, name: ours, size: holders, say: p.Say}
	defer func() { err = errors.Join(err, t.end(), c.stop()) }()
	if err := t.begin(ctx); err != nil {
		return err
	}
	if err := after(ctx, untilFour); err != nil {
		return err
	}
	watched := c.watch()
	p.Say("%d MiB: nothing changes for %s", mib, steady)
	if err := after(ctx, steady); err != nil {
		return err
	}
	p.Tell(watched().figures("", mib)...)
	watched = c.watch()
	_, _, err = t.changes(ctx, max(1, p.Times))
	most := watched()
	if err != nil {
		return err
	}
	p.Tell(most.figures("_changed", mib)...)
	return nil
}

// after waits so long.
func after(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// figures names what was held: of a state of so many MiB, while something went on.
func (f footprint) figures(during string, mib int) []figures.Figure {
	const unit = 1 << 20
	return []figures.Figure{
		{Name: "tmpfs_over_state" + during + suffix(mib), Value: float64(f.memory) / float64(mib*unit), Unit: "ratio"},
		{Name: "agent_overhead" + during + suffix(mib), Value: float64(f.agent) / unit, Unit: "MiB"},
	}
}

// watch looks at all members until it is asked what the most was that one of them held.
func (c *cluster) watch() func() footprint {
	var (
		most   footprint
		over   = make(chan struct{})
		looked sync.WaitGroup
	)
	looked.Go(func() {
		for ticks := time.NewTicker(sampled); ; {
			for _, m := range c.all() {
				now := held(m.cmd.Process.Pid)
				most.memory, most.agent = max(most.memory, now.memory), max(most.agent, now.agent)
			}
			select {
			case <-over:
				ticks.Stop()
				return
			case <-ticks.C:
			}
		}
	})
	return func() footprint {
		close(over)
		looked.Wait()
		return most
	}
}

// held is what the agent of this process, and its file system in memory, take now; nothing once it has ended.
func held(pid int) footprint {
	var f footprint
	var fs unix.Statfs_t
	if err := unix.Statfs(fmt.Sprintf("/proc/%d/root/tmp", pid), &fs); err == nil && fs.Type == unix.TMPFS_MAGIC {
		f.memory = (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
	}
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
		f.agent = resident(string(status))
	}
	return f
}

// resident is the memory of a process without pages that it shares with a file system in memory, from /proc/PID/status, in bytes.
func resident(status string) (bytes uint64) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if name != "RssAnon" && name != "RssFile" {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err == nil {
			bytes += kib << 10
		}
	}
	return bytes
}
