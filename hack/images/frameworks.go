package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/concertina-dev/concertina/hack/images/archive"
	"github.com/concertina-dev/concertina/hack/images/chroot"
	"github.com/concertina-dev/concertina/hack/images/debianroot"
)

// checkFrameworks is what their layer must be able to do over PyTorch's: each is imported, and has the packages that it asks
// for. PyTorch's own wishes are Debian's to fulfil, and DeepSpeed has ninja for kernels that cannot be compiled here.
const checkFrameworks = `
import importlib.metadata as metadata
import accelerate, deepspeed, jax, lightning, transformers
from packaging.requirements import Requirement

asked, seen = ["accelerate", "deepspeed", "jax", "lightning", "transformers"], {"torch", "ninja"}
for name in asked:
    for wish in map(Requirement, metadata.requires(name) or ()):
        if wish.name in seen or wish.marker and not wish.marker.evaluate({"extra": ""}):
            continue
        version = metadata.version(wish.name)
        assert wish.specifier.contains(version, prereleases=True), f"{name} asks for {wish}, and {version} is there"
        seen.add(wish.name)
        asked.append(wish.name)
`

// frameworks puts the frameworks over the root of the PyTorch image, whose layer a node that has that image has already, and
// over them the SDK, installed as a wheel, and the examples.
func frameworks(ctx context.Context, b builder) (archive.Spec, error) {
	root, base, err := b.pytorchLayer(ctx)
	if err != nil {
		return archive.Spec{}, err
	}
	middle, err := b.frameworksLayer(ctx, root)
	if err != nil {
		return archive.Spec{}, err
	}
	files, err := b.installedSDK(ctx, root)
	if err != nil {
		return archive.Spec{}, err
	}
	top, err := b.withPrograms(files, "examples/frameworks")
	if err != nil {
		return archive.Spec{}, err
	}
	return archive.Spec{
		Ref: "localhost/frameworks:dev", Layers: []archive.Layer{base, middle, top},
		Env: pytorchEnv(), User: nobody, WorkingDir: "/app",
	}, nil
}

// frameworksLayer is stored like that of the root, of whose Python its byte code is. What it was made of is not kept.
func (b builder) frameworksLayer(ctx context.Context, root debianroot.Root) (archive.Layer, error) {
	source, err := frameworksSource(filepath.Join(b.repo, "hack/frameworks"), root)
	if err != nil {
		return archive.Layer{}, err
	}
	if layer, ok := archive.Stored(b.layerFile("frameworks"), source); ok {
		return layer, nil
	}
	tree, err := os.MkdirTemp(filepath.Join(b.cache, "images"), "frameworks-")
	if err != nil {
		return archive.Layer{}, err
	}
	defer os.RemoveAll(tree)
	// Anybody may look into what a layer is made of, as into the layer.
	if err := os.Chmod(tree, 0o755); err != nil {
		return archive.Layer{}, err
	}
	folder := filepath.Join(tree, packagesDir(root))
	if err := b.installFrameworks(ctx, root, folder); err != nil {
		return archive.Layer{}, fmt.Errorf("install the frameworks: %w", err)
	}
	return archive.FromTree(b.layerFile("frameworks"), tree, source)
}

// frameworksSource identifies what the layer is made of.
func frameworksSource(dir string, root debianroot.Root) (string, error) {
	sum := sha256.New()
	for _, name := range []string{"image.sh", "image.txt", "requirements.txt"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	fmt.Fprintln(sum, root.Stamp)
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func (b builder) installFrameworks(ctx context.Context, root debianroot.Root, folder string) error {
	fmt.Fprintln(b.out, "  frameworks    installing them, 130 MB to download")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	install := exec.CommandContext(ctx, filepath.Join(b.repo, "hack/frameworks/image.sh"), folder, strings.TrimPrefix(root.Python, "python"))
	install.Stderr = b.out
	if err := install.Run(); err != nil {
		return err
	}
	inside := packagesDir(root)
	// Used without a look at the source's time, as that of the root is.
	compile := []string{"-m", "compileall", "-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash", inside}
	if err := b.overRoot(ctx, root, folder, true, compile...); err != nil {
		return fmt.Errorf("compile them: %w", err)
	}
	if err := b.overRoot(ctx, root, folder, false, "-W", "ignore", "-c", checkFrameworks); err != nil {
		return fmt.Errorf("they do not work: %w", err)
	}
	return nil
}

// overRoot runs Python in the root, with a folder in the place of what was installed beside its packages.
func (b builder) overRoot(ctx context.Context, root debianroot.Root, folder string, writable bool, args ...string) error {
	setup := chroot.Setup{
		Root: root.Dir, UID: 65532, GID: 65532, Env: pytorchEnv(), Args: append([]string{"/usr/bin/python3"}, args...),
		Binds: []chroot.Bind{{Source: folder, Target: packagesDir(root), Writable: writable}},
	}
	if writable {
		setup.UID, setup.GID = 0, 0
	}
	cmd, err := chroot.Command(ctx, setup)
	if err != nil {
		return err
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

// installedSDK are the files of the SDK's wheel as pip installs it: torchrun finds its rendezvous by what stands beside them.
func (b builder) installedSDK(ctx context.Context, root debianroot.Root) ([]archive.File, error) {
	home := filepath.Join(b.cache, "images", "sdk")
	if err := os.RemoveAll(home); err != nil {
		return nil, err
	}
	wheels, installed := filepath.Join(home, "wheels"), filepath.Join(home, "installed")
	for _, command := range [][]string{
		{filepath.Join(b.repo, "hack/package/build.sh"), wheels},
		{"bash", "-c", `exec python3 -m pip --quiet --disable-pip-version-check install --root-user-action ignore --no-index --no-deps --no-compile --target "$1" "$0"/*.whl`,
			wheels, installed},
	} {
		if text, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("install the SDK: %w\n%s", err, text)
		}
	}
	var files []archive.File
	err := filepath.WalkDir(installed, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(installed, file)
		files = append(files, archive.File{Path: packagesDir(root) + "/" + name, Source: file})
		return err
	})
	return files, err
}
