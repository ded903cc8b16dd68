package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/concertina-dev/concertina/hack/images/archive"
	"github.com/concertina-dev/concertina/hack/images/debianroot"
)

// nobody is the user of every image: a number, so that a pod with runAsNonRoot accepts it
// and no image needs an /etc/passwd.
const nobody = "65532:65532"

// image is one image that the tool knows how to build.
type image struct {
	name string
	what string
	spec func(ctx context.Context, b builder) (archive.Spec, error)
	// apart is true of one that is built when it is named, and not with all others: it lies in a folder of its own, so that
	// whoever loads all images does not load it either.
	apart bool
}

// catalog lists the images in the order they are built: the quick ones first.
var catalog = []image{
	goImage("operator", "localhost/concertina-operator:dev", "./cmd/operator"),
	goImage("agent", "localhost/concertina-agent:dev", "./cmd/agent"),
	goImage("uploader", "localhost/concertina-uploader:dev", "./cmd/uploader"),
	goImage("go-digits", "localhost/go-digits:dev", "./examples/go-digits"),
	binaryImage("versitygw", "localhost/versitygw:dev", "hack/s3", "github.com/versity/versitygw/cmd/versitygw"),
	{name: "pytorch-digits", what: "PyTorch on Debian, the Python SDK and the digits programs", spec: pytorchDigits},
	{name: "frameworks", what: "the frameworks' examples, over the same PyTorch; built when it is named", spec: frameworks, apart: true},
}

// builder is where images come from and go to.
type builder struct {
	// repo is the checkout, cache the folder for everything that can be made again.
	repo, cache string
	out         io.Writer
}

func (b builder) imageFile(i image) string {
	if i.apart {
		return filepath.Join(b.cache, "images", "apart", i.name+".tar")
	}
	return filepath.Join(b.cache, "images", i.name+".tar")
}

// goImage is an image that holds one static binary and nothing else.
func goImage(name, ref, pkg string) image {
	return binaryImage(name, ref, ".", pkg)
}

// binaryImage is one with a static binary of a package, as a module pins it.
func binaryImage(name, ref, module, pkg string) image {
	spec := func(ctx context.Context, b builder) (archive.Spec, error) {
		binary, err := b.goBinary(ctx, name, module, pkg)
		if err != nil {
			return archive.Spec{}, err
		}
		layer, err := archive.FromFiles([]archive.File{{Path: "/" + name, Source: binary, Executable: true}})
		if err != nil {
			return archive.Spec{}, err
		}
		return archive.Spec{
			Ref: ref, Layers: []archive.Layer{layer}, Entrypoint: []string{"/" + name}, User: nobody, WorkingDir: "/",
		}, nil
	}
	return image{name: name, what: "the static binary of " + pkg, spec: spec}
}

// goBinary builds a package into the cache. Its bytes depend on the source alone: Go's own
// build cache makes this quick, and the image stays untouched when they are the same. What traces are sent with
// brings gRPC along, and that a page of its own, whose templates would keep a third more of the operator: it is left
// out.
func (b builder) goBinary(ctx context.Context, name, module, pkg string) (string, error) {
	file := filepath.Join(b.cache, "images", "bin", name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace",
		"-ldflags", "-s -w -buildid= -X github.com/concertina-dev/concertina/internal/release.version="+cmp.Or(os.Getenv("CONCERTINA_VERSION"), "dev"), "-o", file, pkg)
	cmd.Dir = filepath.Join(b.repo, module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, strings.TrimSpace(string(text)))
	}
	return file, nil
}

// pytorchDigits puts a small layer of our own Python over the Debian root, so that a change
// of the SDK or of an example costs neither the root nor its import anew.
func pytorchDigits(ctx context.Context, b builder) (archive.Spec, error) {
	root, base, err := b.pytorchLayer(ctx)
	if err != nil {
		return archive.Spec{}, err
	}
	files, err := pythonFiles(filepath.Join(b.repo, "python/concertina"), sdkDir(root))
	if err != nil {
		return archive.Spec{}, err
	}
	top, err := b.withPrograms(files, "examples/pytorch-digits")
	if err != nil {
		return archive.Spec{}, err
	}
	return archive.Spec{
		Ref: "localhost/pytorch-digits:dev", Layers: []archive.Layer{base, top},
		Env: pytorchEnv(), User: nobody, WorkingDir: "/app",
	}, nil
}

// withPrograms is a layer of these files, and of the programs of a folder of the repository, in /app.
func (b builder) withPrograms(files []archive.File, folder string) (archive.Layer, error) {
	programs, err := pythonFiles(filepath.Join(b.repo, folder), "/app")
	if err != nil {
		return archive.Layer{}, err
	}
	return archive.FromFiles(append(files, programs...))
}

// pytorchLayer is the Debian root, and the layer of it that is the lowest of each image with PyTorch.
func (b builder) pytorchLayer(ctx context.Context) (debianroot.Root, archive.Layer, error) {
	root, err := debianroot.Ensure(ctx, b.cache, b.out)
	if err != nil {
		return debianroot.Root{}, archive.Layer{}, err
	}
	layer, err := archive.FromTree(b.layerFile("pytorch-root"), root.Dir, root.Stamp)
	return root, layer, err
}

func (b builder) layerFile(name string) string {
	return filepath.Join(b.cache, "images", "layers", name+".tar")
}

// packagesDir is where Debian's Python looks for what was installed beside its packages.
func packagesDir(root debianroot.Root) string {
	return "/usr/local/lib/" + root.Python + "/dist-packages"
}

// sdkDir is where the Python SDK is.
func sdkDir(root debianroot.Root) string { return packagesDir(root) + "/concertina" }

// pytorchEnv is the environment of the PyTorch image. USER keeps programs that ask for the
// name of their user working under an id that has none.
func pytorchEnv() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/tmp", "USER=trainer", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1",
		"USE_LIBUV=0", "OMP_NUM_THREADS=1",
	}
}

// pythonFiles lists the Python files in dir as files of the image below target.
func pythonFiles(dir, target string) ([]archive.File, error) {
	found, err := filepath.Glob(filepath.Join(dir, "*.py"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no Python file in %s", dir)
	}
	files := make([]archive.File, 0, len(found))
	for _, file := range found {
		files = append(files, archive.File{Path: target + "/" + filepath.Base(file), Source: file})
	}
	return files, nil
}
