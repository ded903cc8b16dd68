// Package completion asks programs for a checkpoint before they are stopped, and finds out when it is
// complete. It knows nothing of worlds.
package completion

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// fixed is how long a program has when nothing says that its checkpoint is complete.
	fixed = 2 * time.Second
	// look is the shortest time between two looks at the files.
	look = 50 * time.Millisecond
	// still is how long a file must not have changed: it exists before all of it is written, unless the
	// program renames it into place.
	still = 250 * time.Millisecond
)

// Request is how a program is asked, and how it answers.
type Request struct {
	// Signal asks; 0 asks nobody.
	Signal syscall.Signal
	// Pattern is a glob of a file that is written, or written anew, when the checkpoint is complete.
	// ** stands for any number of folders, and a relative pattern counts from the working folder of
	// this process. Empty: a program has two seconds.
	Pattern string
	// Timeout bounds the wait.
	Timeout time.Duration
}

// Ask has the signal sent, by a function that returns how many processes got it, and waits. It says
// in words how it went.
func Ask(ctx context.Context, request Request, send func(syscall.Signal) int) string {
	if request.Signal == 0 {
		return "no checkpoint is asked for"
	}
	ctx, cancel := context.WithTimeout(ctx, request.Timeout)
	defer cancel()
	before := find(request.Pattern)
	if send(request.Signal) == 0 {
		return "no process handles the checkpoint signal"
	}
	if request.Pattern == "" {
		wait(ctx, fixed)
		return "the program has had its time for a checkpoint"
	}
	written := sightings{}
	for {
		started := time.Now()
		if name := written.settled(started, before, find(request.Pattern)); name != "" {
			return "the checkpoint is complete: " + name
		}
		// A walk through a large folder must not keep the worker busy.
		if !wait(ctx, max(look, 4*time.Since(started))) {
			return written.unsettled(request.Pattern)
		}
	}
}

// wait is false when the context ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// found are the files that match, with what changes when one is written anew. Times are compared
// with those of the same file system only: its clock may differ from this worker's.
type found map[string]stamp

type stamp struct {
	size int64
	at   time.Time
}

func (s stamp) same(other stamp) bool { return s.size == other.size && s.at.Equal(other.at) }

// sightings are the files that were written since the program was asked, each as it was seen last and
// the time since when it is like that.
type sightings map[string]struct {
	stamp
	since time.Time
}

// settled notes what is found now, and returns a file that was written and does not change any more;
// "" for none.
func (s sightings) settled(at time.Time, before, now found) string {
	for name, stamp := range now {
		if old, ok := before[name]; ok && old.same(stamp) {
			continue
		}
		seen, ok := s[name]
		if ok && seen.same(stamp) && at.Sub(seen.since) >= still {
			return name
		}
		if !ok || !seen.same(stamp) {
			seen.stamp, seen.since = stamp, at
			s[name] = seen
		}
	}
	return ""
}

// unsettled says that the time is over.
func (s sightings) unsettled(pattern string) string {
	for name := range s {
		return name + " was still being written when the time was over: stopping without"
	}
	return "no file that matches " + pattern + " was written in time: stopping without"
}

func find(pattern string) found {
	all := found{}
	if pattern == "" {
		return all
	}
	pattern = path.Clean(filepath.ToSlash(pattern))
	root, rest := split(pattern)
	_ = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			// What cannot be read, or is gone by now, does not match.
			return nil //nolint:nilerr // see above
		}
		relative, err := filepath.Rel(root, name)
		if err != nil || relative == "." {
			return nil //nolint:nilerr // only "." has no relative name
		}
		parts := strings.Split(filepath.ToSlash(relative), "/")
		if entry.IsDir() {
			if !prefix(rest, parts) {
				return fs.SkipDir
			}
			return nil
		}
		if !match(rest, parts) {
			return nil
		}
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			all[name] = stamp{size: info.Size(), at: info.ModTime()}
		}
		return nil
	})
	return all
}

// split cuts a pattern into the folder before its first special character, and the parts after.
func split(pattern string) (root string, rest []string) {
	parts := strings.Split(pattern, "/")
	fixed := 0
	for fixed < len(parts)-1 && !strings.ContainsAny(parts[fixed], `*?[\`) {
		fixed++
	}
	root = strings.Join(parts[:fixed], "/")
	switch {
	case root == "" && strings.HasPrefix(pattern, "/"):
		root = "/"
	case root == "":
		root = "."
	}
	return root, parts[fixed:]
}

// match is true when the parts of a name match those of a pattern.
func match(pattern, name []string) bool {
	for len(pattern) > 0 && pattern[0] != "**" {
		if len(name) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], name[0]); err != nil || !ok {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	if len(pattern) == 0 {
		return len(name) == 0
	}
	for i := range len(name) + 1 {
		if match(pattern[1:], name[i:]) {
			return true
		}
	}
	return false
}

// prefix is true when something below a folder of this name may match.
func prefix(pattern, name []string) bool {
	for len(name) > 0 {
		if len(pattern) == 0 {
			return false
		}
		if pattern[0] == "**" {
			return true
		}
		if ok, err := path.Match(pattern[0], name[0]); err != nil || !ok {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	return len(pattern) > 0
}
