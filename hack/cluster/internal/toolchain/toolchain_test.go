package toolchain

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
)

// written returns an artifact that writes its name and counts how often.
func written(dir, name string, made *[]string, recipe ...string) artifact {
	return artifact{name: name, dir: dir, recipe: recipe, make: func(_ context.Context, to string) error {
		*made = append(*made, name)
		return os.WriteFile(to, []byte(name), 0o600)
	}}
}

func buildStale(t *testing.T, l layout.Layout, all ...artifact) {
	t.Helper()
	if err := os.MkdirAll(stampDir(l), 0o755); err != nil {
		t.Fatal(err)
	}
	stale, err := staleOnes(l, all)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range stale {
		if err := build(t.Context(), l, a); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyStaleArtifactsAreBuilt(t *testing.T) {
	sources := t.TempDir()
	l := layout.Layout{Bin: filepath.Join(t.TempDir(), "bin")}
	write(t, filepath.Join(sources, "go.mod"), "module x")
	write(t, filepath.Join(sources, "go.sum"), "")
	var made []string
	steps := []struct {
		name   string
		change func()
		recipe string
		want   []string
	}{
		{name: "missing", want: []string{"tool"}},
		{name: "unchanged"},
		{name: "sources changed", change: func() { write(t, filepath.Join(sources, "go.sum"), "new") }, want: []string{"tool"}},
		{name: "a test changed", change: func() { write(t, filepath.Join(sources, "x_test.go"), "package x") }},
		{name: "flags changed", recipe: "-s", want: []string{"tool"}},
		{name: "deleted", recipe: "-s", change: func() { _ = os.Remove(l.Binary("tool")) }, want: []string{"tool"}},
	}
	for _, step := range steps {
		if step.change != nil {
			step.change()
		}
		made = nil
		buildStale(t, l, written(sources, "tool", &made, step.recipe))
		if diff := cmp.Diff(step.want, made); diff != "" {
			t.Errorf("%s: built (-want +got):\n%s", step.name, diff)
		}
	}
}

func TestAFailedBuildLeavesTheOldFile(t *testing.T) {
	l := layout.Layout{Bin: filepath.Join(t.TempDir(), "bin")}
	sources := t.TempDir()
	var made []string
	buildStale(t, l, written(sources, "tool", &made))
	broken := written(sources, "tool", &made, "other flags")
	broken.make = func(_ context.Context, to string) error {
		write(t, to, "half")
		return errors.New("does not compile")
	}
	if err := build(t.Context(), l, broken); err == nil {
		t.Fatal("a failed build is no error")
	}
	if text, _ := os.ReadFile(l.Binary("tool")); string(text) != "tool" {
		t.Errorf("the program is %q after a failed build, want the old one", text)
	}
	if left, _ := filepath.Glob(filepath.Join(stampDir(l), "*.new*")); len(left) > 0 {
		t.Errorf("half-made files stay behind: %v", left)
	}
	if stale, err := staleOnes(l, []artifact{broken}); err != nil || len(stale) != 1 {
		t.Errorf("staleOnes = %v, %v: a failed build must be tried again", stale, err)
	}
}

func TestChoose(t *testing.T) {
	all := []artifact{{name: "etcd"}, {name: "kubectl"}, {name: "kubelet"}}
	chosen, err := choose(all, []string{"kubelet", "etcd"})
	if err != nil || len(chosen) != 2 || chosen[0].name != "etcd" {
		t.Errorf("choose = %v, %v, want etcd and kubelet in building order", chosen, err)
	}
	if _, err := choose(all, []string{"etdc"}); err == nil || !strings.Contains(err.Error(), "etcd, kubectl, kubelet") {
		t.Errorf("choose = %v, want an error that lists the known names", err)
	}
}

func TestEveryArtifactIsDescribed(t *testing.T) {
	l, err := layout.Find(".")
	if err != nil {
		t.Fatal(err)
	}
	all, err := artifacts(l)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range all {
		if slices.Contains(names, a.name) {
			t.Errorf("%s is built twice", a.name)
		}
		names = append(names, a.name)
		if a.cold <= 0 || a.from == "" || strings.HasSuffix(a.from, " ") {
			t.Errorf("%s: from %q in %s: source, version or time is missing", a.name, a.from, a.cold)
		}
		if _, err := a.stamp(); err != nil {
			t.Error(err)
		}
	}
}

func TestVersionsFollowReplacements(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), `module x
require (
	k8s.io/kubernetes v1.34.7
	example.com/other v1.0.0
)
replace k8s.io/kubernetes => k8s.io/kubernetes v1.34.4
`)
	versions, err := readVersions(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"k8s.io/kubernetes": "v1.34.4", "example.com/other": "v1.0.0"}
	if diff := cmp.Diff(want, versions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

func TestKubernetesSaysItsVersion(t *testing.T) {
	flags := strings.Join(kubernetesVersion("v1.37.1"), " ")
	for _, want := range []string{"version.gitVersion=v1.37.1", "version.gitMajor=1 ", "version.gitMinor=37"} {
		if !strings.Contains(flags+" ", want) {
			t.Errorf("linker flags %q lack %s", flags, want)
		}
	}
}
