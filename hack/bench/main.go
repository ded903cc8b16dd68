// Command bench measures Concertina and prints its figures, one per line: name, value, unit. What it is
// doing meanwhile goes to the standard error output.
//
//	go run ./hack/bench start [-runs N] [-torchrun-runs N]
//	go run ./hack/bench resize [-runs N] [-tuned-runs N] [-torchrun-runs N]
//	go run ./hack/bench reclaim [-times N] [-settle TIME]
//	go run ./hack/bench scale [-part a,b,c] [-nodes N] [-jobs N] [-pods N] [-runs N] [-idle TIME] [-contenders concertina,jobset,training-operator] [-profile FOLDER]
//	go run ./hack/bench rendezvous [-members N,N] [-jobs N] [-job-members N] [-rate N] [-beats TIME] [-storm=false] [-flood=false] [-bare=false] [-profile FOLDER]
//	go run ./hack/bench transfer [-mib N] [-times N] [-memory FOLDER] [-kept FOLDER]
//	go run ./hack/bench churn -data FOLDER [-pause TIME] [-join TIME] [-recovery TIME] [-saved TIME]
//	go run ./hack/bench tune [-seeds N] [-first N]
//	go run ./hack/bench replay -data FOLDER [-noise PART] [-seed N] [-warm-up TIME] [-stragglers PART] [-pause TIME] [-join TIME] [-fleet-config FILE]
//
// All but scale, rendezvous, transfer, churn, tune and replay use the local cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/bench/peers"
	"github.com/concertina-dev/concertina/hack/bench/reclaim"
	"github.com/concertina-dev/concertina/hack/bench/rendezvous"
	"github.com/concertina-dev/concertina/hack/bench/replay"
	"github.com/concertina-dev/concertina/hack/bench/resize"
	"github.com/concertina-dev/concertina/hack/bench/scale"
	"github.com/concertina-dev/concertina/hack/bench/start"
	"github.com/concertina-dev/concertina/hack/bench/transfer"
	"github.com/concertina-dev/concertina/hack/demo/console"
	"github.com/concertina-dev/concertina/hack/demo/kube"
	"github.com/concertina-dev/concertina/hack/demo/platform"
	"github.com/concertina-dev/concertina/hack/images/chroot"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// The jobs of the examples that are measured.
const (
	pytorchJob = "examples/pytorch-digits/job.yaml"
	goJob      = "examples/go-digits/trainingjob.yaml"
)

const usage = `usage: bench start [-runs N] [-torchrun-runs N]
       bench resize [-runs N] [-tuned-runs N] [-torchrun-runs N]
       bench reclaim [-times N] [-settle TIME]
       bench scale [-part a,b,c] [-nodes N] [-jobs N] [-pods N] [-runs N] [-idle TIME] [-contenders concertina,jobset,training-operator] [-profile FOLDER]
       bench rendezvous [-members N,N] [-jobs N] [-job-members N] [-rate N] [-beats TIME] [-storm=false] [-flood=false] [-bare=false] [-profile FOLDER]
       bench peers [-times N] [-torchrun-times N] [-mib N,N] [-contenders ours,ours_shards,ours_shards_files,torchft,torchrun,torchrun_tuned] [-join-timeout TIME] [-heartbeat TIME] [-tick TIME]
       bench footprint [-mib N,N] [-steady TIME] [-times N]
       bench transfer [-mib N] [-times N] [-memory FOLDER] [-kept FOLDER]
       bench churn -data FOLDER [-pause TIME] [-join TIME] [-recovery TIME] [-saved TIME]
       bench tune [-seeds N] [-first N]
       bench replay -data FOLDER [-noise PART] [-seed N] [-warm-up TIME] [-stragglers PART] [-pause TIME] [-join TIME] [-fleet-config FILE]`

func main() {
	if len(os.Args) == 3 && os.Args[1] == chroot.EnterArg {
		fmt.Fprintln(os.Stderr, "error:", chroot.Enter(os.Args[2]))
		os.Exit(126)
	}
	if played, err := rendezvous.Role(); played {
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// measure is one bench: it makes ready what it needs, and measures.
type measure func(ctx context.Context, c *console.Console) ([]figures.Figure, error)

// onCluster is a bench on the local cluster, with a TrainingJob of an example.
type onCluster func(ctx context.Context, cluster kube.Cluster, job *v1alpha1.TrainingJob, say func(string, ...any)) ([]figures.Figure, error)

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet("bench "+args[0], flag.ContinueOnError)
	var bench measure
	switch args[0] {
	case "start":
		bench = localCluster(startBench(flags), "pytorch-digits", pytorchJob)
	case "resize":
		bench = localCluster(resizeBench(flags), "pytorch-digits", pytorchJob)
	case "reclaim":
		bench = localCluster(reclaimBench(flags), "go-digits", goJob)
	case "scale":
		bench = scaleBench(flags)
	case "rendezvous":
		bench = rendezvousBench(flags)
	case "peers":
		bench = peersBench(flags)
	case "footprint":
		bench = footprintBench(flags)
	case "transfer":
		bench = transferBench(flags)
	case "churn":
		bench = churnBench(flags)
	case "tune":
		bench = tuneBench(flags)
	case "replay":
		bench = replayBench(flags)
	default:
		return errors.New(usage)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New(usage)
	}
	measured, err := bench(ctx, console.New(os.Stderr))
	return errors.Join(err, figures.Print(os.Stdout, measured)) // what was measured before an error counts
}

func transferBench(flags *flag.FlagSet) measure {
	mib := flags.Int("mib", 1024, "how large the state is")
	times := flags.Int("times", 5, "how often each is taken")
	memory := flags.String("memory", "/dev/shm", "a folder in memory, with room for five states")
	kept := flags.String("kept", os.TempDir(), "where the storage is, with room for two")
	return func(ctx context.Context, c *console.Console) ([]figures.Figure, error) {
		return transfer.Bench{MiB: *mib, Times: *times, Memory: *memory, Kept: *kept, Say: c.Logf}.Measure(ctx)
	}
}

func startBench(flags *flag.FlagSet) onCluster {
	runs := flags.Int("runs", 5, "how often a TrainingJob and a tuned torchrun are started")
	torchrunRuns := flags.Int("torchrun-runs", 5, "how often torchrun with its defaults is started, 35 s each")
	return func(ctx context.Context, cluster kube.Cluster, job *v1alpha1.TrainingJob, say func(string, ...any)) ([]figures.Figure, error) {
		return start.Bench{
			Cluster: cluster, Job: job, Plain: []string{"/app/train_plain.py", "--log-every", "1"},
			Runs: *runs, TorchrunRuns: *torchrunRuns, Say: say,
		}.Measure(ctx)
	}
}

func resizeBench(flags *flag.FlagSet) onCluster {
	runs := flags.Int("runs", 10, "how many changes of each kind a TrainingJob goes through")
	tunedRuns := flags.Int("tuned-runs", 10, "the same under a tuned torchrun, 35 s each")
	torchrunRuns := flags.Int("torchrun-runs", 10, "the same under torchrun with its defaults, 90 s each")
	return func(ctx context.Context, cluster kube.Cluster, job *v1alpha1.TrainingJob, say func(string, ...any)) ([]figures.Figure, error) {
		return resize.Bench{
			Cluster: cluster, Job: job, Twin: []string{"/app/train_elastic_torchrun.py"},
			Runs: *runs, TunedRuns: *tunedRuns, TorchrunRuns: *torchrunRuns, Say: say,
		}.Measure(ctx)
	}
}

func reclaimBench(flags *flag.FlagSet) onCluster {
	times := flags.Int("times", 10, "how often each kind is measured")
	settle := flags.Duration("settle", 15*time.Second, "how long others use all devices before the gang comes")
	return func(ctx context.Context, cluster kube.Cluster, job *v1alpha1.TrainingJob, say func(string, ...any)) ([]figures.Figure, error) {
		return reclaim.Bench{Cluster: cluster, Job: job, Times: *times, Settle: *settle, Say: say}.Measure(ctx)
	}
}

func scaleBench(flags *flag.FlagSet) measure {
	parts := flags.String("part", strings.Join(scale.Parts, ","), "what is measured: a the planner, b the operator in a large cluster, c beside others")
	bench := scale.Bench{}
	flags.IntVar(&bench.Nodes, "nodes", 0, "how many nodes there are; 0 for what each part says")
	flags.IntVar(&bench.Jobs, "jobs", 0, "how many jobs there are; 0 for what each part says")
	flags.IntVar(&bench.Pods, "pods", 0, "how many pods there are in parts a and b; 0 for what each part says")
	flags.IntVar(&bench.Runs, "runs", 3, "how often each contender of part c is measured")
	contenders := flags.String("contenders", strings.Join(scale.Contenders, ","), "who takes part in part c")
	flags.StringVar(&bench.Profile, "profile", "", "a folder for CPU profiles of the operator and of its API server in part c")
	flags.DurationVar(&bench.Idle, "idle", time.Minute, "for how long part b watches an operator that has nothing to do")
	return func(ctx context.Context, c *console.Console) ([]figures.Figure, error) {
		p, err := platform.Open(ctx, c)
		if err != nil {
			return nil, err
		}
		warnOfLoad(c)
		bench.Checkout, bench.Cache, bench.Parts, bench.Say = p.Checkout, p.Cache, strings.Split(*parts, ","), c.Logf
		bench.Contenders = strings.Split(*contenders, ",")
		return bench.Measure(ctx)
	}
}

func rendezvousBench(flags *flag.FlagSet) measure {
	bench := rendezvous.Bench{}
	sizes := flags.String("members", "8,64,512,1000,10000", "the sizes of the jobs that are measured by themselves; empty for none")
	flags.IntVar(&bench.Jobs, "jobs", 2000, "how many jobs there are at the same time; 0 to leave that out")
	flags.IntVar(&bench.JobMembers, "job-members", 5, "how many members each of these has")
	flags.IntVar(&bench.Rate, "rate", 500, "how many agents start in a second")
	flags.DurationVar(&bench.Beats, "beats", 20*time.Second, "for how long beats are counted")
	flags.BoolVar(&bench.Storm, "storm", true, "whether the operator is killed")
	flags.BoolVar(&bench.Flood, "flood", true, "whether a member reports as fast as it can while others work")
	flags.BoolVar(&bench.Bare, "bare", true, "whether the beats of the last size are counted once more with nothing behind their connections")
	flags.StringVar(&bench.Profile, "profile", "", "a folder for CPU profiles of the operator, which then ends in its own time instead of being killed")
	return func(ctx context.Context, c *console.Console) ([]figures.Figure, error) {
		var err error
		if bench.Members, err = numbers("-members", *sizes); err != nil {
			return nil, err
		}
		warnOfLoad(c)
		bench.Say = c.Logf
		var printed error
		bench.Tell = func(known ...figures.Figure) { printed = errors.Join(printed, figures.Print(os.Stdout, known)) }
		return nil, errors.Join(bench.Measure(ctx), printed)
	}
}

func peersBench(flags *flag.FlagSet) measure {
	bench := peers.Bench{}
	contenders := flags.String("contenders", strings.Join(peers.Contenders, ","), "who is measured")
	sizes := flags.String("mib", "100,1024", "how much state there is, in MiB, one after the other")
	flags.IntVar(&bench.Times, "times", 10, "how often a member is killed, and one comes")
	flags.IntVar(&bench.TorchrunTimes, "torchrun-times", 10, "the same under torchrun with its defaults, 60 s each")
	flags.DurationVar(&bench.Torchft.JoinTimeout, "join-timeout", 0, "how long torchft's lighthouse waits for more members; 0 for 1 ms for each MiB of the state")
	flags.DurationVar(&bench.Torchft.Heartbeat, "heartbeat", 500*time.Millisecond, "how long a member of torchft may be silent")
	flags.DurationVar(&bench.Torchft.Tick, "tick", 10*time.Millisecond, "how often torchft's lighthouse looks at its quorum")
	return func(ctx context.Context, c *console.Console) ([]figures.Figure, error) {
		warnOfLoad(c)
		bench.Contenders = strings.Split(*contenders, ",")
		return nil, withPeers(ctx, c, &bench, *sizes, func() error { return bench.Measure(ctx) })
	}
}

func footprintBench(flags *flag.FlagSet) measure {
	bench := peers.Bench{}
	sizes := flags.String("mib", "1024", "how much state there is, in MiB, one after the other")
	steady := flags.Duration("steady", time.Minute, "how long nothing changes")
	flags.IntVar(&bench.Times, "times", 1, "how often a member is killed, and one comes, after that")
	return func(ctx context.Context, c *console.Console) ([]figures.Figure, error) {
		return nil, withPeers(ctx, c, &bench, *sizes, func() error { return bench.Footprint(ctx, *steady) })
	}
}

// withPeers measures with the real operator and agents on this machine, with states of these sizes (MiB), and prints what is known as soon as it is.
func withPeers(ctx context.Context, c *console.Console, bench *peers.Bench, sizes string, measure func() error) error {
	p, err := platform.Open(ctx, c)
	if err != nil {
		return err
	}
	if bench.MiB, err = numbers("-mib", sizes); err != nil {
		return err
	}
	bench.Checkout, bench.Cache, bench.Say = p.Checkout, p.Cache, c.Logf
	var printed error
	bench.Tell = func(known ...figures.Figure) { printed = errors.Join(printed, figures.Print(os.Stdout, known)) }
	return errors.Join(measure(), printed)
}

// numbers reads a flag that lists some.
func numbers(flag, list string) (all []int, err error) {
	for _, text := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		all = append(all, n)
	}
	return all, nil
}

func replayBench(flags *flag.FlagSet) measure {
	bench := replay.Bench{}
	config := flags.String("fleet-config", "", "a file of the operator's settings, as its flag has it (docs/fleet.md); the defaults without one")
	flags.StringVar(&bench.Data, "data", "", "the folder with workloads, programs and published results (docs/replay.md)")
	flags.Float64Var(&bench.Noise, "noise", 0.05, "how far observed speeds are off, as a part of the truth (standard deviation)")
	flags.Uint64Var(&bench.Seed, "seed", 1, "of the noise")
	flags.DurationVar(&bench.WarmUp, "warm-up", 0, "for how long a job is seen at half its pace when it has another size")
	flags.Float64Var(&bench.Stragglers, "stragglers", 0, "at what part of its sizes a job is seen at two thirds of its pace for two minutes")
	flags.DurationVar(&bench.Pause, "pause", 300*time.Millisecond, "how long a job stands still when its world changes, by the operator's own rules")
	flags.DurationVar(&bench.Join, "join", 30*time.Second, "how long a worker takes until it can join, by the operator's own rules")
	return func(_ context.Context, c *console.Console) ([]figures.Figure, error) {
		if bench.Data == "" {
			return nil, errors.New("-data names no folder")
		}
		settings, err := fleet.LoadSettings(*config)
		if err != nil {
			return nil, err
		}
		bench.Settings, bench.Say = settings.Planning(), c.Logf
		return bench.Measure()
	}
}

func churnBench(flags *flag.FlagSet) measure {
	bench := replay.Churn{}
	flags.StringVar(&bench.Data, "data", "", "the folder with the recorded nodes (docs/replay.md)")
	flags.DurationVar(&bench.Pause, "pause", 300*time.Millisecond, "how long a job stands still when its world changes as planned")
	flags.DurationVar(&bench.Join, "join", 30*time.Second, "how long a worker takes until it can join, or a program to start")
	flags.DurationVar(&bench.Recovery, "recovery", 6*time.Second, "how long a job stands still when nodes go without notice")
	flags.DurationVar(&bench.Saved, "saved", 5*time.Minute, "how often programs save what they go on from")
	return func(_ context.Context, c *console.Console) ([]figures.Figure, error) {
		if bench.Data == "" {
			return nil, errors.New("-data names no folder")
		}
		settings, err := fleet.LoadSettings("")
		if err != nil {
			return nil, err
		}
		bench.Settings, bench.Say = settings.Planning(), c.Logf
		return bench.Measure()
	}
}

func tuneBench(flags *flag.FlagSet) measure {
	tune := replay.Tune{Pause: 300 * time.Millisecond, Join: 30 * time.Second, Noise: 0.05}
	flags.Uint64Var(&tune.Seeds, "seeds", 2, "how many workloads are drawn at each load")
	flags.Uint64Var(&tune.First, "first", 1, "the first seed")
	return func(_ context.Context, c *console.Console) ([]figures.Figure, error) {
		settings, err := fleet.LoadSettings("")
		if err != nil {
			return nil, err
		}
		tune.Settings, tune.Say = settings.Planning(), c.Logf
		return nil, tune.Run(os.Stdout)
	}
}

// localCluster makes the machine ready for a bench on the local cluster: the operator in it, the image of
// an example, and that example's job.
func localCluster(bench onCluster, image, file string) measure {
	return func(ctx context.Context, c *console.Console) ([]figures.Figure, error) {
		p, err := platform.Open(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := p.Prepare(ctx, image); err != nil {
			return nil, err
		}
		cluster, err := kube.Connect(p.Kubeconfig)
		if err != nil {
			return nil, err
		}
		job, err := kube.ReadJob(filepath.Join(p.Checkout, file))
		if err != nil {
			return nil, err
		}
		warnOfLoad(c)
		return bench(ctx, cluster, job, c.Logf)
	}
}

// warnOfLoad says when others use the machine too: the figures are then theirs as well.
func warnOfLoad(c *console.Console) {
	text, err := os.ReadFile("/proc/loadavg")
	var load float64
	if _, scanned := fmt.Sscan(string(text), &load); err == nil && scanned == nil && load > float64(runtime.NumCPU())/2 {
		c.Logf("the machine is busy (load %.1f on %d cores): expect figures that are too high", load, runtime.NumCPU())
	}
}
