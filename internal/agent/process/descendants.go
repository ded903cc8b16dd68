package process

import (
	"bytes"
	"os"
	"strconv"
)

// maxDepth bounds the walk from a process up to its ancestors.
const maxDepth = 1 << 12

// Descendants are the pids of the children of a process, and of theirs, zombies included.
func Descendants(ancestor int) []int {
	children := childrenOf()
	found := append([]int(nil), children[ancestor]...)
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

// childrenOf are the children of every process that this one can see.
func childrenOf() map[int][]int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return children
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if parent, ok := parentOf(pid); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	return children
}

// IsDescendant is true when a process was started by the ancestor, or by one of its descendants.
func IsDescendant(pid, ancestor int) bool {
	for range maxDepth {
		parent, ok := parentOf(pid)
		if !ok || parent == 0 {
			return false
		}
		if parent == ancestor {
			return true
		}
		pid = parent
	}
	return false
}

// parentOf reads a process's parent; false when the process is not there.
func parentOf(pid int) (int, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// pid (name) state parent …; the name may hold spaces and parentheses.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return parent, err == nil
}
