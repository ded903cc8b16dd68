package image

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Fits returns an error that names the room that is missing when a node that keeps its images in dir is about to run out of
// space with this archive: a node holds it packed and unpacked at once for a moment, and what an import left half done is
// told file by file, by a component that does not know how much would do.
func (a Archive) Fits(dir string) error {
	info, err := os.Stat(a.Path)
	if err != nil {
		return fmt.Errorf("read image archive: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look how much room %s has: %w", dir, err)
	}
	return fits(dir, 2*uint64(info.Size()), fs.Bavail*uint64(fs.Bsize))
}

// fits compares what is needed with what is free in dir (both in bytes).
func fits(dir string, need, free uint64) error {
	const mib = 1 << 20
	if free >= need {
		return nil
	}
	return fmt.Errorf("%s has %d MiB of room and needs %d MiB: make room on its file system "+
		"(`go clean -cache` gives back what builds have left, `du -xh --max-depth 2 / | sort -h` finds the rest)", dir, free/mib, (need+mib-1)/mib)
}
