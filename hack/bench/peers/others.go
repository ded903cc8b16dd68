package peers

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/apiserver"
)

// TorchftSettings are those of torchft's lighthouse.
type TorchftSettings struct {
	JoinTimeout, Heartbeat, Tick time.Duration
}

// fleet is a contender whose members are started one after the other by the bench.
type fleet struct {
	place
	title   string
	beside  *member
	first   int
	started int
	env     []string
	// command is that of a member, counted from 1.
	command func(number int) []string
}

func (f *fleet) spares() int { return f.first }

// add starts one more member.
func (f *fleet) add(context.Context) (*member, error) {
	f.started++
	env := append([]string{"MEMBER=" + strconv.Itoa(f.started)}, f.env...)
	return f.start(fmt.Sprintf("%s %d", f.title, f.started), env, f.command(f.started)...)
}

func (f *fleet) stop() error {
	if f.beside == nil {
		return nil
	}
	return f.beside.kill()
}

// startTorchft starts a lighthouse.
func (p place) startTorchft(ctx context.Context, mib int) (*fleet, error) {
	address, err := apiserver.FreeAddress()
	if err != nil {
		return nil, err
	}
	s := p.Torchft
	if s.JoinTimeout == 0 {
		// With less, members that fetch the state are left behind by a quorum of the others, again and again.
		s.JoinTimeout = time.Duration(mib) * time.Millisecond
	}
	p.Say("%s: join_timeout_ms %d, heartbeat_timeout_ms %d, quorum_tick_ms %d", p.torchftVersion(),
		s.JoinTimeout.Milliseconds(), s.Heartbeat.Milliseconds(), s.Tick.Milliseconds())
	lighthouse, err := p.start("lighthouse", nil, "python3", peerLibraries+"/bin/torchft_lighthouse",
		"--bind", address, "--min_replicas", strconv.Itoa(size-1),
		"--join_timeout_ms", strconv.FormatInt(s.JoinTimeout.Milliseconds(), 10),
		"--heartbeat_timeout_ms", strconv.FormatInt(s.Heartbeat.Milliseconds(), 10),
		"--quorum_tick_ms", strconv.FormatInt(s.Tick.Milliseconds(), 10))
	if err != nil {
		return nil, err
	}
	command := append([]string{"python3", source + "/hack/bench/peers/train_torchft.py"}, trainingFlags(mib)...)
	f := &fleet{
		place: p, title: torchft, beside: lighthouse, env: []string{"TORCHFT_LIGHTHOUSE=http://" + address},
		command: func(int) []string { return command },
	}
	return f, f.listens(ctx, address)
}

// torchftVersion is what is installed, such as torchft-0.2.0.
func (p place) torchftVersion() string {
	found, _ := filepath.Glob(filepath.Join(p.libraries, torchft+"-*.dist-info")) // the pattern is well formed
	if len(found) == 0 {
		return torchft
	}
	return strings.TrimSuffix(filepath.Base(found[0]), ".dist-info")
}

// listens waits until the process beside the members does.
func (f *fleet) listens(ctx context.Context, address string) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			return c.Close()
		}
		select {
		case <-f.beside.ended:
			return fmt.Errorf("%s has ended:\n%s", f.beside.name, f.beside.lastLines())
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen: %w\n%s", f.beside.name, ctx.Err(), f.beside.lastLines())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// startTorchrun makes a training under torchrun, whose first member holds the rendezvous. conf are settings of that.
func (p place) startTorchrun(mib int, conf ...string) (*fleet, error) {
	address, err := apiserver.FreeAddress()
	if err != nil {
		return nil, err
	}
	command := func(number int) []string {
		conf := append([]string{fmt.Sprintf("is_host=%t", number == 1)}, conf...)
		return append([]string{
			"python3", "-m", "torch.distributed.run", fmt.Sprintf("--nnodes=%d:%d", size-1, size), "--nproc-per-node=1", "--max-restarts=1000",
			"--local-addr=127.0.0.1", "--rdzv-backend=c10d", "--rdzv-endpoint=" + address, "--rdzv-id=bench", "--rdzv-conf=" + strings.Join(conf, ","),
			source + "/examples/pytorch-digits/train_elastic_torchrun.py", "--checkpoint", p.shared + "/state.pt",
		}, trainingFlags(mib)...)
	}
	// With its shared store, the default, torchrun of PyTorch 2.6 never ends a rendezvous that a member joins later.
	return &fleet{place: p, title: torchrun, first: 1, env: []string{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}, command: command}, nil
}
