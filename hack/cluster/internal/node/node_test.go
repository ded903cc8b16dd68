package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
)

func example(t *testing.T) Node {
	t.Helper()
	return Node{
		Name: "node-2", Number: 2,
		Layout: layout.Layout{State: layout.StateDir, Bin: "/cache/bin"},
		Host:   Host{Runc: "/usr/sbin/runc", CNI: "/usr/lib/cni", RaiseOOM: true},
	}
}

func TestValidateName(t *testing.T) {
	for name, valid := range map[string]bool{
		"node-1": true, "a": true, "n2": true, strings.Repeat("n", maxName): true,
		"": false, "-a": false, "a-": false, "Node": false, "a_b": false, "a.b": false, "../x": false,
		strings.Repeat("n", maxName+1): false,
	} {
		if err := ValidateName(name); (err == nil) != valid {
			t.Errorf("ValidateName(%q) = %v, want valid: %t", name, err, valid)
		}
	}
}

func TestSocketsFitTheKernelsLimit(t *testing.T) {
	const limit = 107 // characters of a unix socket's path
	n := example(t)
	n.Name = strings.Repeat("n", maxName)
	for _, path := range []string{
		n.Socket() + ".ttrpc",
		filepath.Join(n.kubelet(), "pod-resources", "kubelet.sock"),
		filepath.Join(n.kubelet(), "plugins_registry", "example.com-reg.sock"),
	} {
		if len(path) > limit {
			t.Errorf("%s is %d characters long, more than %d", path, len(path), limit)
		}
	}
}

func TestContainerdConfig(t *testing.T) {
	n := example(t)
	text, err := n.containerdConfig()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`root = "/var/lib/concertina-cluster/nodes/node-2/containerd"`,
		`address = "/var/lib/concertina-cluster/nodes/node-2/run/containerd.sock"`,
		`sandbox = "localhost/pause:1"`,
		`restrict_oom_score_adj = true`,
		`BinaryName = "/usr/sbin/runc"`,
		`bin_dirs = ["/usr/lib/cni"]`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the configuration lacks %s", want)
		}
	}
	n.Host.RaiseOOM = false
	text, err = n.containerdConfig()
	if err != nil || !strings.Contains(string(text), "restrict_oom_score_adj = false") {
		t.Errorf("a process that may lower OOM scores is kept from it: %v", err)
	}
}

func TestNodesShareNothing(t *testing.T) {
	one, two := example(t), example(t)
	one.Name, one.Number = "node-1", 1
	seen := map[string]bool{}
	for _, n := range []Node{one, two} {
		raw, err := n.networkConfig()
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Name    string
			Plugins []struct {
				Bridge string
				IPAM   struct {
					DataDir string
					Ranges  [][]struct{ Subnet string }
				}
			}
		}
		if err := json.Unmarshal(raw, &config); err != nil {
			t.Fatal(err)
		}
		plugin := config.Plugins[0]
		kubelet := n.kubeletConfig()
		for _, own := range []string{
			config.Name, plugin.Bridge, plugin.IPAM.DataDir, plugin.IPAM.Ranges[0][0].Subnet,
			kubelet["address"].(string), kubelet["podLogsDir"].(string), kubelet["containerRuntimeEndpoint"].(string),
		} {
			if own == "" || seen[own] {
				t.Errorf("%s: %q is empty or shared with another node", n.Name, own)
			}
			seen[own] = true
		}
	}
}

func TestKubeletNeverClearsUp(t *testing.T) {
	config := example(t).kubeletConfig()
	if config["imageGCHighThresholdPercent"] != 100 {
		t.Errorf("imageGCHighThresholdPercent = %v, want 100, which means never", config["imageGCHighThresholdPercent"])
	}
	for signal, threshold := range config["evictionHard"].(map[string]string) {
		if threshold != "0%" {
			t.Errorf("%s evicts at %s", signal, threshold)
		}
	}
}

const mountinfo = `22 1 8:1 / / rw - ext4 /dev/vda rw
90 22 8:1 /a /state/nodes/n1/kubelet rw shared:1 - ext4 /dev/vda rw
91 90 0:40 / /state/nodes/n1/kubelet/pods/x/volumes/with\040blank rw - tmpfs tmpfs rw
92 22 0:41 / /state/nodes/n1-other/run rw - tmpfs tmpfs rw
93 22 0:42 / /state/nodes/n1 rw - tmpfs tmpfs rw
malformed
`

func TestMountsBelow(t *testing.T) {
	want := []string{"/state/nodes/n1/kubelet", "/state/nodes/n1/kubelet/pods/x/volumes/with blank"}
	if diff := cmp.Diff(want, mountsBelow(mountinfo, "/state/nodes/n1")); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

func TestSweep(t *testing.T) {
	n := example(t)
	n.Layout.State = t.TempDir()
	fill := func() {
		for _, dir := range []string{n.images(), n.runtimeState(), n.kubelet(), n.podLogs(), n.cni(), n.config()} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(n.dir())
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return names
	}
	fill()
	if err := n.Sweep(true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"config", "containerd", "kubelet", "pod-logs"}, left()); diff != "" {
		t.Errorf("a node that returns keeps its disk (-want +got):\n%s", diff)
	}
	fill()
	if err := n.Sweep(false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"containerd"}, left()); diff != "" {
		t.Errorf("a node that is gone keeps only its images (-want +got):\n%s", diff)
	}
}

func TestShimSocketsGoWithTheNode(t *testing.T) {
	n := example(t)
	n.Layout.State = t.TempDir()
	socket := filepath.Join(t.TempDir(), "shim")
	task := filepath.Join(n.tasks(), "abc")
	if err := os.MkdirAll(task, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		socket:                                "",
		filepath.Join(task, "bootstrap.json"): `{"address":"unix://` + socket + `"}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"abc"}, n.containers()); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if err := n.Sweep(true); err != nil {
		t.Fatal(err)
	}
	if exists(socket) {
		t.Error("the shim's socket stays behind")
	}
}
