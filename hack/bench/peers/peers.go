// Package peers measures what a training pays when a member is killed and when one comes: Concertina in place, torchft
// and torchrun, with the same model and the same state, one after the other on one machine without a cluster.
//
//	timeline.go  what a change has cost a member that lived through it
//	trial.go     the changes that everybody goes through
//	member.go    a member: its processes, in the files of the PyTorch image
//	cluster.go   Concertina's contender: an API server, and the operator as it ships
//	kubelet.go   scheduler and kubelets of that, which are played
//	others.go    those of torchft and torchrun
//	broadcast.go the least that a growth can take: the state's bytes from one member to all
//	footprint.go what members of ours, and their agents, hold in memory
package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concertina-dev/concertina/hack/bench/apiserver"
	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/images/debianroot"
)

// Contenders are the names of those that are measured, in their order.
var Contenders = []string{ours, oursShards, oursShardsFiles, torchft, torchrun, torchrunTuned}

const (
	ours, torchft = "ours", "torchft"
	// A state in the shards of all ranks comes over links, or from the files of snapshots alone.
	oursShards, oursShardsFiles = "ours_shards", "ours_shards_files"
	torchrun, torchrunTuned     = "torchrun", "torchrun_tuned"
)

const (
	// size is how many members there are, unless one was killed.
	size = 3
	// between is how many steps a world makes before it is changed.
	between = 20
	// stepTime is the least time of a step: processors are idle for most of it, as they are beside accelerators.
	stepTime = 50 * time.Millisecond
	// patience is how long one change may take, a newcomer's start included.
	patience = 3 * time.Minute
)

// Bench measures on this machine, as root; it needs no cluster.
type Bench struct {
	// Checkout is the source tree, Cache the folder of what can be built again.
	Checkout, Cache string
	// Contenders says who is measured.
	Contenders []string
	// MiB are the sizes of the state.
	MiB []int
	// Times is how often a member is killed and one comes; TorchrunTimes the same of torchrun with its defaults.
	Times, TorchrunTimes int
	// Torchft are the settings of torchft.
	Torchft TorchftSettings
	// SnapshotEvery is how often our members take a snapshot into memory; empty for as often as they do by themselves.
	SnapshotEvery string
	// Say tells the person who waits how far it is, Tell what is known already.
	Say  func(format string, args ...any)
	Tell func(known ...figures.Figure)
}

// place is where everything of a run lies.
type place struct {
	Bench
	root debianroot.Root
	// dir is for files of the run, which members see read-only, shared for those that they write.
	dir, shared string
	// libraries is where the peers' own Python packages lie.
	libraries string
}

// Measure measures the chosen contenders. What it starts has ended when it returns, also after an error.
func (b Bench) Measure(ctx context.Context) (err error) {
	for _, name := range b.Contenders {
		if !slices.Contains(Contenders, name) {
			return fmt.Errorf("there is no contender %q: choose from %s", name, strings.Join(Contenders, ", "))
		}
	}
	if b.Times < 1 || b.TorchrunTimes < 1 || len(b.MiB) == 0 || slices.Min(b.MiB) < 1 {
		return errors.New("there is at least one change of each kind, and a state of at least 1 MiB")
	}
	p, err := b.place(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.dir)) }()
	b.Say("%s", differences)
	for _, mib := range b.MiB {
		for _, name := range b.Contenders {
			grown, err := p.measure(ctx, name, mib)
			if err != nil {
				return fmt.Errorf("%s with %d MiB: %w", name, mib, err)
			}
			if name != ours {
				continue
			}
			bare, err := p.broadcast(ctx, mib)
			if err != nil {
				return err
			}
			b.Tell(overBroadcast(mib, grown, bare)...)
		}
	}
	return nil
}

// place makes the folder of a run, with what all members see.
func (b Bench) place(ctx context.Context) (p place, err error) {
	log.SetLogger(logr.Discard())
	p = place{Bench: b}
	var found bool
	if p.root, found = debianroot.Find(b.Cache); !found {
		return p, errors.New("the files of the PyTorch image are missing (built by: go run ./hack/images build pytorch-digits)")
	}
	if p.dir, err = os.MkdirTemp("", "concertina-peers-"); err != nil {
		return p, fmt.Errorf("make a folder: %w", err)
	}
	// Members are of another user, which has no name.
	if err = os.Chmod(p.dir, 0o755); err == nil {
		err = p.prepare(ctx)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(p.dir))
	}
	return p, err
}

// prepare makes what all members see.
func (p *place) prepare(ctx context.Context) error {
	hosts := "127.0.0.1 localhost\n127.0.0.1 " + apiserver.RendezvousService + "." + apiserver.SystemNamespace + ".svc\n"
	if name, err := os.Hostname(); err == nil {
		hosts += "127.0.0.1 " + name + "\n"
	}
	if err := os.WriteFile(p.path("hosts"), []byte(hosts), 0o644); err != nil {
		return fmt.Errorf("write the names of hosts: %w", err)
	}
	p.libraries = p.path("none")
	if !slices.Contains(p.Contenders, torchft) {
		return os.Mkdir(p.libraries, 0o755)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.Checkout, "hack", "bench", "peers", "install.sh"), strings.TrimPrefix(p.root.Python, "python"))
	cmd.Env, cmd.Stderr = append(os.Environ(), "CONCERTINA_CACHE="+p.Cache), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("install torchft: %w", err)
	}
	p.libraries = strings.TrimSpace(string(out))
	return nil
}

// differences is what is not as it would be in a cluster, and not the same for all.
const differences = `what is simulated, and what differs between those that are measured:
- all members share this machine's processors and memory; their network is the loopback
- ours: API server, operator, agents and programs are real; scheduler and kubelet are played, nodes are objects without
  a machine. That a member has died is told by the played kubelet after 1 s, as a real one may. Settings are shipped defaults.
- torchft: one lighthouse, members without a launcher, nobody who replaces them; tuned as is printed with its figures, on
  the image's PyTorch, which it asks to be newer: train_torchft.py says what that takes.
- torchrun: members start again from a file in this machine's memory, saved every 50 steps. The member that holds the
  rendezvous is never killed: torchrun does not survive that.
- a member that comes is started by the bench, which waits for it: its start is no part of a pause`

// measure takes one contender through its changes, and returns what members that came have cost.
func (p place) measure(ctx context.Context, name string, mib int) (grown []sample, err error) {
	if p.shared, err = os.MkdirTemp("/dev/shm", "concertina-peers-"); err != nil {
		return nil, fmt.Errorf("make a folder in memory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.shared)) }()
	if err := os.Chmod(p.shared, 0o777); err != nil {
		return nil, err
	}
	c, times, err := p.contender(ctx, name, mib)
	if err != nil {
		return nil, err
	}
	t := &trial{contender: c, name: name, size: size, say: p.Say}
	defer func() { err = errors.Join(err, t.end(), c.stop()) }()
	killed, grown, err := t.run(ctx, times)
	p.Tell(append(figuresOf(name, "kill", mib, killed), figuresOf(name, "grow", mib, grown)...)...)
	return grown, err
}

// contender starts what a contender has beside its members, and says how often it is measured.
func (p place) contender(ctx context.Context, name string, mib int) (contender, int, error) {
	switch name {
	case ours, oursShards, oursShardsFiles:
		c, err := p.startCluster(ctx, mib, size, programs[name]...)
		return c, p.Times, err
	case torchft:
		c, err := p.startTorchft(ctx, mib)
		return c, p.Times, err
	case torchrunTuned:
		c, err := p.startTorchrun(mib, "last_call_timeout=1")
		return c, p.Times, err
	}
	c, err := p.startTorchrun(mib)
	return c, p.TorchrunTimes, err
}

// figuresOf are the figures of one kind of change.
func figuresOf(name, kind string, mib int, all []sample) []figures.Figure {
	var pauses []time.Duration
	var lost []time.Duration // as the median takes them
	for _, s := range all {
		pauses, lost = append(pauses, s.pause), append(lost, time.Duration(s.lost))
	}
	found := figures.Durations(name+"_"+kind+"_pause", pauses)
	if len(all) > 0 {
		found = append(found, figures.Figure{Name: name + "_" + kind + "_steps_lost_p50", Value: float64(figures.Median(lost)), Unit: "steps"})
	}
	for i := range found {
		found[i].Name += suffix(mib)
	}
	return found
}

// suffix tells the figures of a larger state from those of 100 MiB.
func suffix(mib int) string {
	switch {
	case mib == 100:
		return ""
	case mib%1024 == 0:
		return fmt.Sprintf("_%dgib", mib/1024)
	}
	return fmt.Sprintf("_%dmib", mib)
}

// path is where a file of the run lies.
func (p place) path(name string) string { return filepath.Join(p.dir, name) }
