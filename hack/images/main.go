// Command images builds the project's container images without a container engine.
//
//	go run ./hack/images build [NAME…]     write .cache/images/NAME.tar (default: all; frameworks, which is
//	                                       built when it is named, is in .cache/images/apart)
//	go run ./hack/images list              the names and what is in them
//	go run ./hack/images run [-user UID:GID] -- COMMAND…
//	                                       run a command inside the PyTorch image's files,
//	                                       with the checkout's Python mounted over them and
//	                                       the checkout itself at /src
//
// The tars are docker-archives: `ctr image import` and `docker load` read them. Everything
// lies below .cache in the checkout, or where CONCERTINA_CACHE says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/images/archive"
	"github.com/concertina-dev/concertina/hack/images/chroot"
	"github.com/concertina-dev/concertina/hack/images/debianroot"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == chroot.EnterArg {
		fmt.Fprintln(os.Stderr, "images:", chroot.Enter(os.Args[2]))
		os.Exit(126)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	var ended commandEnded
	if errors.As(err, &ended) {
		os.Exit(int(ended))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

const usage = "usage: images build [NAME…] | list | run [-user UID:GID] -- COMMAND…"

func command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	if args[0] == "list" {
		for _, i := range catalog {
			fmt.Fprintf(out, "%-16s %s\n", i.name, i.what)
		}
		return nil
	}
	b, err := newBuilder(out)
	if err != nil {
		return err
	}
	switch args[0] {
	case "build":
		return b.build(ctx, args[1:])
	case "run":
		return b.run(ctx, args[1:])
	}
	return fmt.Errorf("unknown command %q; %s", args[0], usage)
}

func newBuilder(out io.Writer) (builder, error) {
	repo, err := checkout()
	if err != nil {
		return builder{}, err
	}
	cache := os.Getenv("CONCERTINA_CACHE")
	if cache == "" {
		cache = filepath.Join(repo, ".cache")
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return builder{}, err
	}
	return builder{repo: repo, cache: cache, out: out}, nil
}

// checkout finds the directory of go.mod, upwards from where the tool was started.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("no go.mod here or above: run this inside the checkout")
		}
		dir = filepath.Dir(dir)
	}
}

func (b builder) build(ctx context.Context, names []string) error {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	unlock, err := b.lock()
	if err != nil {
		return err
	}
	defer unlock()
	for _, i := range chosen {
		start := time.Now()
		spec, err := i.spec(ctx, b)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.name, err)
		}
		written, err := archive.Write(b.imageFile(i), spec)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.name, err)
		}
		state := "unchanged"
		if written.Changed {
			state = "written"
		}
		fmt.Fprintf(b.out, "%-16s %-9s %7.1f MiB %5.1fs  %s  %s\n", i.name, state,
			float64(written.Size)/(1<<20), time.Since(start).Seconds(), spec.Ref, b.imageFile(i))
	}
	return nil
}

func choose(names []string) ([]image, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(catalog), func(i image) bool { return i.apart }), nil
	}
	var chosen []image
	for _, name := range names {
		found := false
		for _, i := range catalog {
			if i.name == name {
				chosen, found = append(chosen, i), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no image is named %q; `images list` shows the names", name)
		}
	}
	return chosen, nil
}

// lock keeps two builds from writing the same files.
func (b builder) lock() (unlock func(), err error) {
	dir := filepath.Join(b.cache, "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		fmt.Fprintln(b.out, "waiting for another build of images to end")
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	return func() { file.Close() }, nil
}

// run starts a command inside the PyTorch root: no name for its user, nothing writable but
// /tmp, our Python from the checkout. What works here works in a restricted pod.
func (b builder) run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	user := flags.String("user", nobody, "user and group ids, UID:GID")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var uid, gid int
	if _, err := fmt.Sscanf(*user, "%d:%d", &uid, &gid); err != nil || uid < 0 || gid < 0 {
		return fmt.Errorf("-user %q: write two numbers, UID:GID", *user)
	}
	root, err := b.pytorchRoot(ctx)
	if err != nil {
		return err
	}
	cmd, err := chroot.Command(ctx, chroot.Setup{
		Root: root.Dir, UID: uid, GID: gid, Dir: "/app", Args: flags.Args(),
		Env: append(pytorchEnv(), passedOn()...),
		Binds: []chroot.Bind{
			{Source: filepath.Join(b.repo, "python/concertina"), Target: sdkDir(root)},
			{Source: filepath.Join(b.repo, "examples/pytorch-digits"), Target: "/app"},
			{Source: b.repo, Target: "/src"},
			{Source: "/etc/hosts", Target: "/etc/hosts"},
		},
	})
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, b.out, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return commandEnded(exit.ExitCode())
	}
	return err
}

// pytorchRoot does not wait for a build of images when the root is there.
func (b builder) pytorchRoot(ctx context.Context) (debianroot.Root, error) {
	if root, ok := debianroot.Find(b.cache); ok {
		return root, nil
	}
	unlock, err := b.lock()
	if err != nil {
		return debianroot.Root{}, err
	}
	defer unlock()
	return debianroot.Ensure(ctx, b.cache, b.out)
}

// commandEnded is the exit code of the command that run started: it becomes our own, and
// the command has said itself what was wrong.
type commandEnded int

func (c commandEnded) Error() string {
	return fmt.Sprintf("the command ended with exit code %d", int(c))
}

// passedOn are the variables that a training program reads to find its peers.
func passedOn() []string {
	var env []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case strings.HasPrefix(name, "CONCERTINA_"), strings.HasPrefix(name, "PET_"), strings.HasPrefix(name, "GLOO_"),
			name == "RANK", name == "WORLD_SIZE", name == "LOCAL_RANK", name == "LOCAL_WORLD_SIZE",
			name == "MASTER_ADDR", name == "MASTER_PORT":
			env = append(env, variable)
		}
	}
	return env
}
