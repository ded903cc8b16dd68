// Package debianroot builds the root file system of the PyTorch image from Debian packages
// and keeps it, so that only the first build waits for it.
package debianroot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/hack/images/chroot"
)

const (
	suite   = "trixie"
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	// recipe is part of the stamp: raise it when prepare changes in a way that the other
	// parts of the stamp do not show.
	recipe = "1"
)

var packages = []string{"python3-torch", "python3-numpy", "python3-sklearn"}

// mountPoints are empty files and directories that a container runtime, or the tool's run
// command, mounts over. A read-only root could not grow them.
var mountPoints = struct{ dirs, files []string }{
	dirs:  []string{"app", "src", "usr/local/lib/%s/dist-packages/concertina"},
	files: []string{"etc/hostname", "etc/hosts", "etc/resolv.conf"},
}

// check is what every build of the root must be able to do. It runs without write access
// and under a user that has no name.
const check = `
import torch, torch.distributed as dist, torch.distributed.run, numpy.testing
from sklearn.datasets import load_digits
assert dist.is_gloo_available(), "this PyTorch has no gloo"
assert load_digits().data.shape == (1797, 64)
`

// Root is a finished root file system.
type Root struct {
	// Dir holds it, unpacked.
	Dir string
	// Stamp identifies its content.
	Stamp string
	// Python is the interpreter's directory name, for example "python3.13".
	Python string
}

// Find returns the root below cache, and false when it is missing or was made by another recipe.
func Find(cache string) (Root, bool) {
	root := Root{Dir: filepath.Join(cache, "pytorch-root"), Stamp: stamp()}
	text, err := os.ReadFile(stampFile(root.Dir))
	if err != nil || string(text) != root.Stamp {
		return Root{}, false
	}
	root.Python, err = pythonName(root.Dir)
	return root, err == nil
}

// Ensure returns the root below cache, building it first if Find does not. A first build
// downloads about 240 MB and takes minutes; what it does is told on out.
func Ensure(ctx context.Context, cache string, out io.Writer) (Root, error) {
	if root, ok := Find(cache); ok {
		return root, nil
	}
	dir := filepath.Join(cache, "pytorch-root")
	if err := build(ctx, cache, dir, out); err != nil {
		return Root{}, fmt.Errorf("build the PyTorch root: %w", err)
	}
	if err := os.WriteFile(stampFile(dir), []byte(stamp()), 0o644); err != nil {
		return Root{}, err
	}
	root, ok := Find(cache)
	if !ok {
		return Root{}, fmt.Errorf("the PyTorch root in %s is not what was built", dir)
	}
	return root, nil
}

func stampFile(dir string) string { return dir + ".stamp" }

func stamp() string {
	sum := sha256.New()
	fmt.Fprintln(sum, recipe, suite, runtime.GOARCH, packages, unneeded, keptTests, mountPoints)
	for _, p := range torchPatches {
		fmt.Fprintf(sum, "%q %q %q\n", p.file, p.old, p.new)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func build(ctx context.Context, cache, dir string, out io.Writer) error {
	mirror, err := requirements()
	if err != nil {
		return err
	}
	partial := dir + ".partial"
	for _, old := range []string{partial, dir} {
		if err := remove(old); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(cache, "debs"), 0o755); err != nil {
		return err
	}
	logFile := dir + ".log"
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	p := newProgress(out, log, time.Now)
	p.say("installing " + strings.Join(packages, ", ") + " from Debian " + suite + ", log in " + logFile)
	if err := debootstrap(ctx, filepath.Join(cache, "debs"), partial, mirror, p); err != nil {
		return fmt.Errorf("debootstrap: %w; the end of %s:\n%s", err, logFile, tail(logFile, 15))
	}
	if err := prepare(ctx, partial, p); err != nil {
		return err
	}
	if err := os.Rename(partial, dir); err != nil {
		return err
	}
	p.say("done")
	return nil
}

// requirements says in one line what is missing, and finds the archive to install from.
func requirements() (mirror string, err error) {
	if os.Geteuid() != 0 {
		return "", errors.New("debootstrap needs root: run this as root")
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		return "", errors.New("debootstrap is missing: run `make deps` or `apt-get install -y debootstrap`")
	}
	if _, err := os.Stat(keyring); err != nil {
		return "", errors.New("the Debian archive keys are missing: run `apt-get install -y debian-archive-keyring`")
	}
	if mirror := os.Getenv("CONCERTINA_DEBIAN_MIRROR"); mirror != "" {
		return mirror, nil
	}
	codename, err := Codename("/etc/os-release")
	if err != nil {
		return "", err
	}
	return Mirror("/etc/apt", codename)
}

func debootstrap(ctx context.Context, debs, dir, mirror string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--keyring="+keyring,
		"--cache-dir="+debs, "--include="+strings.Join(packages, ","), suite, dir, mirror)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(foreign(os.Environ()), aptProxy(ctx)...)
	return cmd.Run()
}

// foreign leaves out what is meant for this machine's Python: packages compile themselves while they are installed, and a
// folder for byte code that exists here alone would be made inside the root, for nobody.
func foreign(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(variable string) bool { return strings.HasPrefix(variable, "PYTHON") })
}

// aptProxy hands apt's own proxy setting on, because debootstrap does not read it.
func aptProxy(ctx context.Context) []string {
	if os.Getenv("http_proxy") != "" {
		return nil
	}
	text, err := exec.CommandContext(ctx, "apt-config", "shell", "PROXY", "Acquire::http::Proxy").Output()
	if err != nil {
		return nil
	}
	value, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "PROXY=")
	if !ok {
		return nil
	}
	return []string{"http_proxy=" + strings.Trim(value, "'")}
}

// prepare makes a plain Debian root fit for an image.
func prepare(ctx context.Context, dir string, p *progress) error {
	p.say("removing what an image does not need")
	if err := trim(dir); err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	if err := apply(dir, torchPatches); err != nil {
		return err
	}
	python, err := pythonName(dir)
	if err != nil {
		return err
	}
	if err := makeMountPoints(dir, python); err != nil {
		return err
	}
	p.say("compiling Python files")
	if err := compile(ctx, dir, python, p.log); err != nil {
		return fmt.Errorf("compile Python files: %w", err)
	}
	p.say("checking that PyTorch and scikit-learn work")
	return verify(ctx, dir)
}

// compile writes byte code that is used without a look at the source's time: layers change
// the times, and a pod that cannot write would compile all of PyTorch at every start.
func compile(ctx context.Context, dir, python string, log io.Writer) error {
	cmd, err := chroot.Command(ctx, chroot.Setup{
		Root: dir, Writable: true, Env: environment(),
		Args: []string{"/usr/bin/python3", "-m", "compileall", "-q", "-f", "-j", "0",
			"--invalidation-mode", "unchecked-hash", "/usr/lib/" + python, "/usr/lib/python3"},
	})
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	return cmd.Run()
}

func verify(ctx context.Context, dir string) error {
	cmd, err := chroot.Command(ctx, chroot.Setup{
		Root: dir, UID: 65532, GID: 65532, Env: environment(),
		Args: []string{"/usr/bin/python3", "-c", check},
	})
	if err != nil {
		return err
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the finished root does not work: %w\n%s", err, text)
	}
	return nil
}

func environment() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "LANG=C.UTF-8", "USE_LIBUV=0"}
}

func makeMountPoints(dir, python string) error {
	for _, d := range mountPoints.dirs {
		if strings.Contains(d, "%s") {
			d = fmt.Sprintf(d, python)
		}
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, f := range mountPoints.files {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, f), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func pythonName(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "usr/lib/python3.*"))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s holds %d Python versions, expected one", dir, len(found))
	}
	return filepath.Base(found[0]), nil
}

func remove(dir string) error {
	if err := chroot.UnmountBelow(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// tail returns the last n lines of a file, or why it cannot be read.
func tail(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
