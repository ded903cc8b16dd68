// Package platform makes this machine ready for a demonstration or a bench: packages, images, the
// local cluster, the operator in it. Every step is skipped as far as its work is done already, so
// that a second run takes seconds.
package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/concertina-dev/concertina/hack/demo/console"
)

const (
	// Nodes and GPUs are the size of the local cluster: nodes, and pretended devices on each.
	Nodes, GPUs = 3, 4
	// Release and Namespace are those of the operator's chart.
	Release, Namespace = "concertina", "concertina-system"

	// interruptPatience is how long a tool may clear up after an interrupt before it is killed.
	interruptPatience = 30 * time.Second
)

// Platform is a checkout on this machine, and the cluster that is made from it.
type Platform struct {
	// Checkout is the root of the source tree.
	Checkout string
	// Cache holds everything that can be made again.
	Cache string
	// Kubeconfig is the administrator's; known once the cluster is up.
	Kubeconfig string

	console *console.Console
	reached Stage
	// example is the image of the training program.
	example string
}

// Stage is how far Prepare has come.
type Stage int

const (
	// Untouched: nothing was started.
	Untouched Stage = iota
	// ClusterStarting: the cluster is being started, or was left half-started.
	ClusterStarting
	// ClusterUp: the cluster runs.
	ClusterUp
)

// Open finds the checkout that the working directory is in.
func Open(ctx context.Context, c *console.Console) (*Platform, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	path, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || path != "github.com/concertina-dev/concertina" {
		return nil, errors.New("this is not a checkout of Concertina: run the command in one")
	}
	cache := os.Getenv("CONCERTINA_CACHE")
	if cache == "" {
		cache = filepath.Join(dir, ".cache")
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return nil, fmt.Errorf("find the folder that CONCERTINA_CACHE names: %w", err)
	}
	return &Platform{Checkout: dir, Cache: cache, console: c}, nil
}

// Reached says how far Prepare has come, for those who have to say what still runs.
func (p *Platform) Reached() Stage { return p.reached }

// Binary is the path of one of the cluster's programs, such as kubectl.
func (p *Platform) Binary(name string) string { return filepath.Join(p.Cache, "bin", name) }

// Relative is a path as one types it in the checkout.
func (p *Platform) Relative(path string) string {
	if short, err := filepath.Rel(p.Checkout, path); err == nil && !strings.HasPrefix(short, "..") {
		return short
	}
	return path
}

// Prepare does everything up to an operator that is ready for jobs of an example, which is named as its
// image: pytorch-digits or go-digits. Without the right to, or outside Linux, it says so before it does
// anything.
func (p *Platform) Prepare(ctx context.Context, example string) error {
	p.example = example
	if os.Geteuid() != 0 {
		return errors.New("the local cluster runs kubelets, which need root: run this as root, for example with sudo")
	}
	if !p.warm() {
		p.console.Print("The first run builds Kubernetes from source, and for PyTorch an image from Debian packages:\n" +
			"about 15 minutes on two cores. Later runs take about a minute.\n\n")
	}
	steps := []console.Step{
		{Title: "Build the tools", Run: p.buildTools},
		{Title: "Check the packages of this machine", Run: p.installPackages},
		{Title: "Build the images", Run: p.buildImages},
		{Title: "Build the cluster's programs", Run: p.buildCluster},
		{Title: fmt.Sprintf("Start a cluster of %d nodes", Nodes), Run: p.startCluster},
		{Title: "Load the images into its nodes", Run: p.loadImages},
		{Title: "Install the operator", Run: p.installOperator},
	}
	for i, step := range steps {
		step.Log = filepath.Join(p.Cache, "demo", fmt.Sprintf("%d.log", i+1))
		if err := p.console.Do(ctx, step); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
	}
	return nil
}

// warm says whether the parts that take long to build are there.
func (p *Platform) warm() bool {
	for _, path := range []string{p.Binary("kubelet"), p.imageFile(p.example)} {
		if _, err := os.Stat(path); err != nil {
			return false
		}
	}
	return true
}

func (p *Platform) tool(name string) string { return filepath.Join(p.Cache, "demo", name) }

func (p *Platform) buildTools(ctx context.Context, out io.Writer) error {
	for _, name := range []string{"cluster", "images"} {
		if err := p.run(ctx, out, "go", "build", "-o", p.tool(name), "./hack/"+name); err != nil {
			return err
		}
	}
	return nil
}

// installPackages leaves apt alone when nothing is missing.
func (p *Platform) installPackages(ctx context.Context, out io.Writer) error {
	list, err := p.output(ctx, out, p.tool("cluster"), "deps")
	if err != nil {
		return err
	}
	missing := missingPackages(strings.Fields(list), func(name string) string {
		status, _ := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", name).Output()
		return string(status)
	})
	if len(missing) == 0 {
		return nil
	}
	_, _ = fmt.Fprintf(out, "missing: %s\n", strings.Join(missing, " "))
	if err := p.run(ctx, out, "make", "deps"); err != nil {
		return fmt.Errorf("%w; install these packages yourself and try again: %s", err, strings.Join(missing, " "))
	}
	return nil
}

func missingPackages(names []string, status func(name string) string) []string {
	var missing []string
	for _, name := range names {
		if status(name) != "installed" {
			missing = append(missing, name)
		}
	}
	return missing
}

func (p *Platform) buildImages(ctx context.Context, out io.Writer) error {
	return p.run(ctx, out, p.tool("images"), append([]string{"build"}, p.images()...)...)
}

func (p *Platform) buildCluster(ctx context.Context, out io.Writer) error {
	return p.run(ctx, out, p.tool("cluster"), "build")
}

func (p *Platform) startCluster(ctx context.Context, out io.Writer) error {
	p.reached = ClusterStarting
	kubeconfig, err := p.output(ctx, out, p.tool("cluster"), "up",
		"--nodes", strconv.Itoa(Nodes), "--gpus", strconv.Itoa(GPUs))
	if err != nil {
		return err
	}
	p.Kubeconfig = strings.TrimSpace(kubeconfig)
	if _, err := os.Stat(p.Kubeconfig); err != nil {
		return fmt.Errorf("the cluster's kubeconfig is not where it should be: %w", err)
	}
	p.reached = ClusterUp
	return nil
}

// FindKubeconfig returns $KUBECONFIG, or that of the local cluster when it runs.
func (p *Platform) FindKubeconfig(ctx context.Context) (string, error) {
	if path := os.Getenv("KUBECONFIG"); path != "" {
		return path, nil
	}
	if err := p.buildTools(ctx, os.Stderr); err != nil {
		return "", err
	}
	status, err := p.output(ctx, os.Stderr, p.tool("cluster"), "status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(status) {
		if path, found := strings.CutPrefix(line, "kubeconfig"); found {
			return strings.TrimSpace(path), nil
		}
	}
	return "", errors.New("the local cluster does not say where its kubeconfig is: set KUBECONFIG")
}

// run starts a command in the checkout. An interrupt of ours reaches the command once, as SIGINT
// to its whole process group, and it gets time to clear up.
func (p *Platform) run(ctx context.Context, out io.Writer, name string, args ...string) error {
	return p.start(ctx, out, out, name, args...)
}

// output is run for a command whose standard output is wanted.
func (p *Platform) output(ctx context.Context, out io.Writer, name string, args ...string) (string, error) {
	var text strings.Builder
	err := p.start(ctx, &text, out, name, args...)
	return text.String(), err
}

func (p *Platform) start(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.Checkout, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = interruptPatience
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", p.Relative(name), strings.Join(args, " "), err)
	}
	return nil
}
