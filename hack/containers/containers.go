// Package containers reaches into the containers of the local cluster: their processes are this
// machine's, so tests and benches can end or stop them as a crash or a fault would.
package containers

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// Process is one process of a container.
type Process struct {
	// PID and Parent are numbers of this machine.
	PID, Parent int
}

// Processes are all processes of a container of a pod, its first one in front. An error means that
// the container does not run, or runs on another machine.
func Processes(pod *corev1.Pod, container string) ([]Process, error) {
	id := containerID(pod, container)
	if id == "" {
		return nil, fmt.Errorf("container %s of pod %s has not been started", container, pod.Name)
	}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, path := range groups {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(id)) {
			continue // it has ended, or belongs to somebody else
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		if parent, ok := parentOf(pid); ok {
			found = append(found, Process{PID: pid, Parent: parent})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no process of container %s of pod %s is on this machine", container, pod.Name)
	}
	first := slices.IndexFunc(found, func(p Process) bool {
		return !slices.ContainsFunc(found, func(other Process) bool { return other.PID == p.Parent })
	})
	found[0], found[first] = found[first], found[0]
	return found, nil
}

// Children are the processes that a container's first process has started: under the agent, the
// training programs.
func Children(pod *corev1.Pod, container string) ([]Process, error) {
	all, err := Processes(pod, container)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all[1:]), func(p Process) bool { return p.Parent != all[0].PID }), nil
}

// Signal sends a signal to every one of them. A process that has ended meanwhile is no error.
func Signal(processes []Process, signal syscall.Signal) error {
	for _, p := range processes {
		if err := syscall.Kill(p.PID, signal); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("send %v to process %d: %w", signal, p.PID, err)
		}
	}
	return nil
}

func containerID(pod *corev1.Pod, container string) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			return id
		}
	}
	return ""
}

// parentOf reads the fourth field of /proc/PID/stat; the second, the command in parentheses, may
// hold anything.
func parentOf(pid int) (int, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}
