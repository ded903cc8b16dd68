// Package node runs one node: a kubelet with a container runtime, a pod
// subnet and an image store of its own.
package node

import (
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
)

// MaxPods is how many pods a node takes. A node advertises the whole machine's
// cores and memory, so that beside its fake devices this is what fills it.
const MaxPods = 64

// Node is one node of the cluster.
type Node struct {
	Name string
	// Number is its place in the address plan, 1 to network.MaxNodes.
	Number int
	Layout layout.Layout
	// Host is what the node needs to know of the machine.
	Host Host
}

// Host is what a node needs to know of the machine.
type Host struct {
	// Runc is the path of runc, CNI the folder of the network plugins.
	Runc, CNI string
	// RaiseOOM says that this process may not lower a process's OOM score
	// (CAP_SYS_RESOURCE is missing), only raise it.
	RaiseOOM bool
	// Env is the environment of the daemons.
	Env []string
}

// maxName keeps the paths of sockets below the kernel's limit.
const maxName = 20

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// ValidateName says what is wrong with a node's name.
func ValidateName(name string) error {
	if len(name) > maxName || !namePattern.MatchString(name) {
		return fmt.Errorf("%q is no name for a node: use at most %d lower-case letters, digits and dashes, with a letter or digit at both ends",
			name, maxName)
	}
	return nil
}

func (n Node) dir(parts ...string) string {
	return filepath.Join(append([]string{n.Layout.Node(n.Name)}, parts...)...)
}

// Folders of a node. images survives the node's end, so that a node which comes
// back has its images; everything else goes.
func (n Node) images() string       { return n.dir("containerd") }
func (n Node) runtimeState() string { return n.dir("run") }
func (n Node) kubelet() string      { return n.dir("kubelet") }
func (n Node) podLogs() string      { return n.dir("pod-logs") }
func (n Node) cni() string          { return n.dir("cni") }
func (n Node) config() string       { return n.dir("config") }

// Socket is where the node's container runtime listens.
func (n Node) Socket() string { return filepath.Join(n.runtimeState(), "containerd.sock") }

// ContainerdLog and KubeletLog name the logs of the node's daemons.
func (n Node) ContainerdLog() string { return n.Name + "-containerd" }

// KubeletLog names the log of the node's kubelet.
func (n Node) KubeletLog() string { return n.Name + "-kubelet" }

func (n Node) ip() string { return network.NodeIP(n.Number).String() }
