package toolchain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
)

// PodGroupCRD is the file with the definition of the PodGroup kind that the
// coscheduling scheduler reads.
const PodGroupCRD = "podgroups.yaml"

// artifact is one file of the binaries' folder and how to make it.
type artifact struct {
	name string
	// from names the source and its version for the reader.
	from string
	cold time.Duration
	// recipe is everything beside the files below dir that decides the result.
	recipe []string
	// dir holds the sources that belong to the artifact.
	dir  string
	make func(ctx context.Context, to string) error
}

// artifacts lists all that the cluster needs, in building order.
func artifacts(l layout.Layout) ([]artifact, error) {
	var all []artifact
	for _, f := range families {
		dir := filepath.Join(l.Modules(), f.dir)
		versions, err := readVersions(dir)
		if err != nil {
			return nil, err
		}
		version := versions[f.module]
		for _, p := range f.programs {
			all = append(all, programArtifact(f, p, dir, version))
		}
	}
	crd, err := podGroupArtifact(filepath.Join(l.Modules(), "coscheduling"))
	if err != nil {
		return nil, err
	}
	return append(all, crd, pauseArtifact(filepath.Join(l.Checkout, "hack", "cluster", "pause"))), nil
}

func programArtifact(f family, p program, dir, version string) artifact {
	linker := []string{"-s", "-w"}
	if f.flags != nil {
		linker = append(linker, f.flags(version)...)
	}
	args := []string{"-mod=readonly", "-ldflags", strings.Join(linker, " ")}
	if f.tags != "" {
		args = append(args, "-tags", f.tags)
	}
	return artifact{
		name: p.name, from: f.module + " " + version, cold: p.cold, dir: dir,
		recipe: append(slices.Clone(args), p.pkg),
		make: func(ctx context.Context, to string) error {
			return goBuild(ctx, dir, to, p.pkg, args...)
		},
	}
}

func podGroupArtifact(dir string) (artifact, error) {
	const module, path = "sigs.k8s.io/scheduler-plugins", "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml"
	versions, err := readVersions(dir)
	if err != nil {
		return artifact{}, err
	}
	return artifact{
		name: PodGroupCRD, from: module + " " + versions[module], cold: time.Second, dir: dir,
		recipe: []string{path},
		make: func(ctx context.Context, to string) error {
			// Asked for by itself, the definition may be all that is needed of the module so far.
			out, err := goCommand(ctx, dir, "mod", "download", "-json", module).Output()
			if err != nil {
				return fmt.Errorf("download module %s: %w", module, err)
			}
			var downloaded struct{ Dir string }
			if err := json.Unmarshal(out, &downloaded); err != nil {
				return fmt.Errorf("download module %s: %w", module, err)
			}
			text, err := os.ReadFile(filepath.Join(downloaded.Dir, path))
			if err != nil {
				return fmt.Errorf("read the PodGroup definition: %w", err)
			}
			return os.WriteFile(to, text, 0o644)
		},
	}, nil
}

// readVersions returns the versions of the modules that a go.mod requires, as
// its replacements have them.
func readVersions(dir string) (map[string]string, error) {
	path := filepath.Join(dir, "go.mod")
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the pinned versions: %w", err)
	}
	mod, err := modfile.Parse(path, raw, nil)
	if err != nil {
		return nil, fmt.Errorf("read the pinned versions: %w", err)
	}
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Mod.Path] = r.Mod.Version
	}
	for _, r := range mod.Replace {
		if _, required := versions[r.Old.Path]; required && r.New.Version != "" {
			versions[r.Old.Path] = r.New.Version
		}
	}
	return versions, nil
}

// stamp returns a digest of everything that decides how the artifact turns out.
func (a artifact) stamp() (string, error) {
	sum := sha256.New()
	for _, part := range append([]string{runtime.Version(), runtime.GOOS, runtime.GOARCH}, a.recipe...) {
		_, _ = fmt.Fprintf(sum, "%q\n", part)
	}
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return "", fmt.Errorf("read the sources of %s: %w", a.name, err)
	}
	for _, entry := range entries {
		if entry.IsDir() || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(a.dir, entry.Name()))
		if err != nil {
			return "", fmt.Errorf("read the sources of %s: %w", a.name, err)
		}
		_, _ = fmt.Fprintf(sum, "%q %d\n%s", entry.Name(), len(text), text)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// goBuild builds one package as a static program without debug information.
func goBuild(ctx context.Context, dir, to, pkg string, args ...string) error {
	args = append([]string{"build", "-trimpath", "-buildvcs=false", "-o", to}, args...)
	cmd := goCommand(ctx, dir, append(args, pkg)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build %s in %s: %w", pkg, dir, err)
	}
	return nil
}

func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"CGO_ENABLED=0", "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	return cmd
}
