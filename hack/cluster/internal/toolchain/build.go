// Package toolchain builds the programs of the local cluster from pinned Go
// modules into the cache folder, each only when it is stale.
package toolchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
)

// Progress receives one line for the person who waits.
type Progress func(format string, args ...any)

// Build makes the named artifacts, or all of them when none is named, as far
// as they are missing or stale. It builds one at a time: the compiler uses all
// cores by itself. An unknown name is an error that lists the known ones.
func Build(ctx context.Context, l layout.Layout, progress Progress, names ...string) error {
	all, err := artifacts(l)
	if err != nil {
		return err
	}
	wanted, err := choose(all, names)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(stampDir(l), 0o755); err != nil {
		return fmt.Errorf("create the folder of binaries: %w", err)
	}
	unlock, err := lock(filepath.Join(stampDir(l), "lock"), progress)
	if err != nil {
		return err
	}
	defer unlock()

	stale, err := staleOnes(l, wanted)
	if err != nil {
		return err
	}
	for i, a := range stale {
		progress("build %d/%d: %s from %s (about %s when nothing is cached)", i+1, len(stale), a.name, a.from, a.cold)
		began := time.Now()
		if err := build(ctx, l, a); err != nil {
			return fmt.Errorf("build %s: %w", a.name, err)
		}
		progress("build %d/%d: %s is ready after %s", i+1, len(stale), a.name, time.Since(began).Round(time.Second))
	}
	return nil
}

func choose(all []artifact, names []string) ([]artifact, error) {
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	var wanted []artifact
	for _, a := range all {
		known = append(known, a.name)
		if slices.Contains(names, a.name) {
			wanted = append(wanted, a)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("nothing named %q is built here: choose from %s", name, strings.Join(known, ", "))
		}
	}
	return wanted, nil
}

func staleOnes(l layout.Layout, wanted []artifact) ([]artifact, error) {
	var stale []artifact
	for _, a := range wanted {
		want, err := a.stamp()
		if err != nil {
			return nil, err
		}
		have, err := os.ReadFile(stampFile(l, a.name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read the stamp of %s: %w", a.name, err)
		}
		_, missing := os.Stat(l.Binary(a.name))
		if missing != nil || string(have) != want {
			stale = append(stale, a)
		}
	}
	return stale, nil
}

// build makes the artifact beside its place and moves it there, so that a
// running program is never overwritten and no half-made one is ever seen.
func build(ctx context.Context, l layout.Layout, a artifact) error {
	stamp, err := a.stamp()
	if err != nil {
		return err
	}
	unfinished := filepath.Join(stampDir(l), a.name+".new")
	defer func() { _ = os.Remove(unfinished) }()
	if err := a.make(ctx, unfinished); err != nil {
		return err
	}
	if err := os.Remove(stampFile(l, a.name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(unfinished, l.Binary(a.name)); err != nil {
		return err
	}
	return os.WriteFile(stampFile(l, a.name), []byte(stamp), 0o644)
}

func stampDir(l layout.Layout) string { return filepath.Join(l.Bin, ".stamps") }

func stampFile(l layout.Layout, name string) string { return filepath.Join(stampDir(l), name) }

// lock holds off a second build into the same folder.
func lock(path string, progress Progress) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the folder of binaries: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		progress("waiting for another build into %s", filepath.Dir(filepath.Dir(path)))
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock the folder of binaries: %w", err)
	}
	return func() { _ = file.Close() }, nil
}
