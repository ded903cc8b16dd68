package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The marks are environment variables. Children inherit them, so that a shim
// which outlives its containerd, and a daemon whose record was never written,
// are still found.
const (
	clusterMark = "CONCERTINA_CLUSTER_PROCESS"
	nodeMark    = "CONCERTINA_CLUSTER_NODE"
)

func marks(spec Spec) []string {
	return []string{clusterMark + "=" + spec.Name, nodeMark + "=" + spec.Node}
}

// Mark is what a process says about itself.
type Mark struct {
	ID ID
	// Component is the daemon that it is or that it descends from.
	Component string
	// Node it belongs to; empty for the control plane.
	Node string
	// Program is the name of the file that it runs.
	Program string
}

// Marked lists the live processes that the cluster's tool started, and those
// that descend from them and keep their environment.
func Marked() ([]Mark, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Mark
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Identified before its environment is read: should the pid change hands
		// in between, the identity is the old one and signals nobody.
		id, err := Identify(pid)
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue
		}
		if mark, ok := readMarks(string(env)); ok {
			mark.ID = id
			exe, _ := os.Readlink(filepath.Join(dir, "exe"))
			// The kernel says so when the file has been replaced by a newer build.
			mark.Program = strings.TrimSuffix(filepath.Base(exe), " (deleted)")
			found = append(found, mark)
		}
	}
	return found, nil
}

func readMarks(environ string) (Mark, bool) {
	var mark Mark
	for entry := range strings.SplitSeq(environ, "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		switch name {
		case clusterMark:
			mark.Component = value
		case nodeMark:
			mark.Node = value
		}
	}
	return mark, mark.Component != ""
}
