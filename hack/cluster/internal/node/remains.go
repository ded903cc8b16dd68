package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
)

const (
	// cgroupParent is containerd's cgroup for the namespace of Kubernetes.
	cgroupParent = "k8s.io"
	cgroupRoot   = "/sys/fs/cgroup"
	// cniCache is where the CNI library keeps the results of all networks.
	cniCache = "/var/lib/cni/results"
	// containerLinks is where every kubelet puts links to its containers' logs.
	containerLinks = "/var/log/containers"
)

func (n Node) runcState() string { return filepath.Join(n.runtimeState(), "runc") }

// tasks is where containerd keeps a folder for each container that has a shim.
func (n Node) tasks() string {
	return filepath.Join(n.runtimeState(), "containerd", "io.containerd.runtime.v2.task", cgroupParent)
}

// containers lists the ids of the containers that the node has started.
func (n Node) containers() []string {
	var ids []string
	for _, dir := range []string{n.tasks(), filepath.Join(n.runcState(), cgroupParent)} {
		entries, _ := os.ReadDir(dir) // absent when none has run
		for _, entry := range entries {
			if !slices.Contains(ids, entry.Name()) {
				ids = append(ids, entry.Name())
			}
		}
	}
	return ids
}

// KillContainers kills every process in the node's containers. Their shims
// must be dead already, lest they report it.
func (n Node) KillContainers() error {
	ids := n.containers()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var alive []process.ID
		for _, id := range ids {
			alive = append(alive, cgroupProcesses(id)...)
		}
		if len(alive) == 0 {
			break
		}
		// A process may fork between the listing and its death: once more.
		if err := process.Kill(alive); err != nil || time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("node %s: %d processes of its containers do not end", n.Name, len(alive)), err)
		}
	}
	for _, id := range ids {
		removeCgroups(id)
	}
	return nil
}

// cgroupDirs returns a container's cgroup in every hierarchy, v1 or v2.
func cgroupDirs(container string) []string {
	dirs, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", cgroupParent, container))
	if v2 := filepath.Join(cgroupRoot, cgroupParent, container); exists(v2) {
		dirs = append(dirs, v2)
	}
	return dirs
}

func cgroupProcesses(container string) []process.ID {
	var found []process.ID
	for _, dir := range cgroupDirs(container) {
		_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || entry.Name() != "cgroup.procs" {
				return nil
			}
			raw, _ := os.ReadFile(path)
			for _, field := range strings.Fields(string(raw)) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					continue
				}
				if id, err := process.Identify(pid); err == nil && !slices.Contains(found, id) {
					found = append(found, id)
				}
			}
			return nil
		})
	}
	return found
}

// removeCgroups removes the container's cgroups, inner ones first. One that is
// busy for another moment is left to the kernel's next user of that name.
func removeCgroups(container string) {
	for _, dir := range cgroupDirs(container) {
		var inner []string
		_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				inner = append(inner, path)
			}
			return nil
		})
		for _, path := range slices.Backward(inner) {
			_ = unix.Rmdir(path)
		}
		_ = unix.Rmdir(filepath.Dir(dir)) // fails while others use it
	}
}

// Sweep removes what the node's dead processes have left. A node that returns
// to the same cluster keeps its kubelet's folder, as a machine keeps its disk.
func (n Node) Sweep(returns bool) error {
	n.removeShimSockets()
	if err := unmountBelow(n.dir()); err != nil {
		return fmt.Errorf("sweep node %s: %w", n.Name, err)
	}
	gone := []string{n.runtimeState(), n.cni()}
	if !returns {
		gone = append(gone, n.kubelet(), n.podLogs(), n.config())
	}
	results, _ := filepath.Glob(filepath.Join(cniCache, n.networkName()+"-*"))
	for _, path := range append(gone, results...) {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("sweep node %s: %w", n.Name, err)
		}
	}
	if !returns {
		n.removeLogLinks()
	}
	return nil
}

// RemoveImages removes the node's image store; the node must be down.
func (n Node) RemoveImages() error {
	if err := os.RemoveAll(n.dir()); err != nil {
		return fmt.Errorf("remove the images of node %s: %w", n.Name, err)
	}
	return nil
}

// removeShimSockets removes the sockets that the node's shims have put into a
// folder which all containerds of the machine share.
func (n Node) removeShimSockets() {
	files, _ := filepath.Glob(filepath.Join(n.tasks(), "*", "bootstrap.json"))
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var bootstrap struct {
			Address string `json:"address"`
		}
		if err := json.Unmarshal(raw, &bootstrap); err != nil {
			continue
		}
		if path, ok := strings.CutPrefix(bootstrap.Address, "unix://"); ok {
			_ = os.Remove(path)
		}
	}
}

func (n Node) removeLogLinks() {
	entries, _ := os.ReadDir(containerLinks)
	for _, entry := range entries {
		link := filepath.Join(containerLinks, entry.Name())
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, n.podLogs()+"/") {
			_ = os.Remove(link)
		}
	}
}

// unmountBelow takes down every mount below a folder, the newest first.
func unmountBelow(dir string) error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var errs []error
	for _, path := range slices.Backward(mountsBelow(string(raw), dir)) {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		// It went with one that was mounted above it, or lies hidden below another.
		gone := errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT)
		if err != nil && !gone {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// mountsBelow lists the mount points below a folder in the order of mounting.
func mountsBelow(mountinfo, dir string) []string {
	const pointField = 4
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) <= pointField {
			continue
		}
		if path := unescape.Replace(fields[pointField]); strings.HasPrefix(path, dir+"/") {
			found = append(found, path)
		}
	}
	return found
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
