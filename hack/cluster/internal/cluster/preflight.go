package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/concertina-dev/concertina/hack/cluster/internal/control"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
	"github.com/concertina-dev/concertina/hack/cluster/internal/node"
)

// systemPath is where the machine's own tools are looked for, whatever PATH says.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// needs maps each program of the machine to the Debian package that has it.
var needs = []struct{ program, pack string }{
	{"runc", "runc"},
	{"iptables", "iptables"},
	{"iptables-restore", "iptables"},
	{"ip6tables-restore", "iptables"},
	{"ip", "iproute2"},
}

// cniFolders are where distributions put the network plugins.
var cniFolders = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// remedy tells how to get what is missing.
const remedy = "run `make deps`, or as root `apt-get install -y $(go run ./hack/cluster deps)`"

func mustBeRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("missing: the right to manage containers and networks: run this command as root")
	}
	return nil
}

// inspect says in one line each what the machine lacks; none when it can run nodes.
func inspect() (node.Host, error) {
	if err := mustBeRoot(); err != nil {
		return node.Host{}, err
	}
	if err := os.Setenv("PATH", systemPath+":"+os.Getenv("PATH")); err != nil {
		return node.Host{}, err
	}
	host := node.Host{Env: []string{"PATH=" + systemPath, "HOME=/root"}}
	var missing []string
	for _, need := range needs {
		path, err := exec.LookPath(need.program)
		if err != nil {
			missing = append(missing, fmt.Sprintf("missing: %s (Debian package %s): %s", need.program, need.pack, remedy))
			continue
		}
		if need.program == "runc" {
			host.Runc = path
		}
	}
	for _, dir := range cniFolders {
		if hasAll(dir, "bridge", "host-local") {
			host.CNI = dir
			break
		}
	}
	if host.CNI == "" {
		missing = append(missing, fmt.Sprintf("missing: the CNI plugins bridge and host-local (Debian package containernetworking-plugins): %s", remedy))
	}
	if len(missing) > 0 {
		return node.Host{}, errors.New(strings.Join(missing, "\n"))
	}
	raise, err := lacksSysResource()
	host.RaiseOOM = raise
	return host, err
}

func hasAll(dir string, names ...string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// lacksSysResource reports whether this process may not lower OOM scores.
func lacksSysResource() (bool, error) {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, fmt.Errorf("read this process's capabilities: %w", err)
	}
	effective, err := parseCapabilities(string(raw))
	if err != nil {
		return false, err
	}
	return effective&(1<<unix.CAP_SYS_RESOURCE) == 0, nil
}

// parseCapabilities reads the effective capabilities from /proc/PID/status.
func parseCapabilities(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("read this process's capabilities: %w", err)
			}
			return set, nil
		}
	}
	return 0, errors.New("read this process's capabilities: the kernel shows none")
}

// checkFree says what on the machine stands in the way of a new cluster. It is
// asked after the remains of an earlier one are gone.
func checkFree(ctx context.Context, chains []string) error {
	if err := network.BridgeFilter(ctx); err != nil {
		return err
	}
	interfaces, err := network.Interfaces()
	if err != nil {
		return err
	}
	problems := network.Conflicts(interfaces)
	if network.Serves(chains) {
		problems = append(problems, "this machine carries the packet filter rules of another kube-proxy: "+
			"a second cluster would mix with them; if that one is gone, remove them with `kube-proxy --cleanup`")
	}
	for _, port := range control.LocalPorts {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			problems = append(problems, fmt.Sprintf("port %d of 127.0.0.1, which the cluster's etcd needs, is taken: end the program that uses it", port))
			continue
		}
		_ = listener.Close()
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	return nil
}
