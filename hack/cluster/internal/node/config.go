package node

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/hack/cluster/internal/control"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
	"github.com/concertina-dev/concertina/hack/cluster/internal/pki"
	"github.com/concertina-dev/concertina/hack/cluster/internal/toolchain"
)

//go:embed containerd.toml.tmpl
var containerdText string

func (n Node) containerdFile() string   { return filepath.Join(n.config(), "containerd.toml") }
func (n Node) kubeletFile() string      { return filepath.Join(n.config(), "kubelet.yaml") }
func (n Node) kubeconfigFile() string   { return filepath.Join(n.config(), "kubeconfig") }
func (n Node) resolvFile() string       { return filepath.Join(n.config(), "resolv.conf") }
func (n Node) networkDir() string       { return filepath.Join(n.config(), "net.d") }
func (n Node) certificate() string      { return "kubelet-" + n.Name }
func (n Node) networkName() string      { return "concertina-" + n.Name }
func (n Node) inPKI(name string) string { return filepath.Join(n.Layout.PKI(), name) }

// writeConfig writes what does not need the API server's certificates.
func (n Node) writeConfig() error {
	if err := os.MkdirAll(n.networkDir(), 0o755); err != nil {
		return fmt.Errorf("configure node %s: %w", n.Name, err)
	}
	containerd, err := n.containerdConfig()
	if err != nil {
		return err
	}
	network, err := n.networkConfig()
	if err != nil {
		return err
	}
	for path, text := range map[string][]byte{
		n.containerdFile(): containerd,
		filepath.Join(n.networkDir(), "10-concertina.conflist"): network,
	} {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return fmt.Errorf("configure node %s: %w", n.Name, err)
		}
	}
	return nil
}

func (n Node) containerdConfig() ([]byte, error) {
	var out bytes.Buffer
	err := template.Must(template.New("").Parse(containerdText)).Execute(&out, map[string]any{
		"Root": n.images(), "State": filepath.Join(n.runtimeState(), "containerd"), "Socket": n.Socket(),
		"RuncState": n.runcState(), "Runc": n.Host.Runc, "RaiseOOM": n.Host.RaiseOOM,
		"CNIPlugins": n.Host.CNI, "CNIConfig": n.networkDir(), "Pause": toolchain.PauseImage,
	})
	if err != nil {
		return nil, fmt.Errorf("configure the container runtime of node %s: %w", n.Name, err)
	}
	return out.Bytes(), nil
}

// networkConfig hangs the node's pods on a bridge with a subnet of its own.
func (n Node) networkConfig() ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       n.networkName(),
		"plugins": []any{map[string]any{
			"type":             "bridge",
			"bridge":           network.Bridge(n.Number),
			"isDefaultGateway": true,
			// A pod may reach itself through a service.
			"hairpinMode": true,
			"ipam": map[string]any{
				"type":    "host-local",
				"dataDir": n.cni(),
				"ranges":  []any{[]any{map[string]any{"subnet": network.PodSubnet(n.Number).String()}}},
			},
		}},
	}, "", "  ")
}

// writeCredentials gives the kubelet its certificates and its configuration.
func (n Node) writeCredentials() error {
	authority, err := pki.Open(n.Layout.PKI())
	if err != nil {
		return err
	}
	if err := authority.Issue(pki.Subject{File: n.certificate(), User: n.Name, Hosts: []string{n.Name, n.ip()}}); err != nil {
		return err
	}
	err = authority.WriteKubeconfig(n.kubeconfigFile(), control.ServerURL(), pki.Subject{
		File: n.certificate() + "-client", User: "system:node:" + n.Name, Groups: []string{"system:nodes"},
	})
	if err != nil {
		return err
	}
	resolv := fmt.Sprintf("nameserver %s\n", network.DNSIP)
	if err := os.WriteFile(n.resolvFile(), []byte(resolv), 0o644); err != nil {
		return fmt.Errorf("configure node %s: %w", n.Name, err)
	}
	text, err := yaml.Marshal(n.kubeletConfig())
	if err != nil {
		return fmt.Errorf("configure the kubelet of node %s: %w", n.Name, err)
	}
	if err := os.WriteFile(n.kubeletFile(), text, 0o644); err != nil {
		return fmt.Errorf("configure the kubelet of node %s: %w", n.Name, err)
	}
	return nil
}

// kubeletConfig is a KubeletConfiguration of kubelet.config.k8s.io/v1beta1.
func (n Node) kubeletConfig() map[string]any {
	config := map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + n.Socket(),
		"address":                  n.ip(),
		"port":                     10250,
		"healthzPort":              0,
		"tlsCertFile":              n.inPKI(n.certificate() + ".crt"),
		"tlsPrivateKeyFile":        n.inPKI(n.certificate() + ".key"),
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": n.inPKI(pki.CAFile)},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"clusterDomain": network.ClusterDomain,
		"clusterDNS":    []string{network.DNSIP.String()},
		"resolvConf":    n.resolvFile(),
		"podLogsDir":    n.podLogs(),
		"maxPods":       MaxPods,
		// A lease of 8 s is renewed every 2 s; the controller manager takes a node
		// for dead after 8 s of silence.
		"nodeLeaseDurationSeconds":  8,
		"nodeStatusUpdateFrequency": "2s",
		"syncFrequency":             "10s",
		"volumeStatsAggPeriod":      "-1s",
		"serializeImagePulls":       false,
		"kubeAPIQPS":                100,
		"kubeAPIBurst":              200,
		"eventRecordQPS":            0,
		"oomScoreAdj":               0,
		// The packet filter is left to kube-proxy and to the network package.
		"makeIPTablesUtilChains": false,
	}
	for _, more := range []map[string]any{cgroupSettings(), diskSettings()} {
		for name, value := range more {
			config[name] = value
		}
	}
	return config
}

// cgroupSettings let a kubelet run on cgroup v1 and v2 beside others, which all
// see the whole machine as theirs.
func cgroupSettings() map[string]any {
	return map[string]any{
		"failCgroupV1":           false,
		"failSwapOn":             false,
		"cgroupDriver":           "cgroupfs",
		"cgroupsPerQOS":          false,
		"enforceNodeAllocatable": []string{},
	}
}

// diskSettings keep a kubelet from clearing up because the machine's disk,
// which is not its own, fills.
func diskSettings() map[string]any {
	return map[string]any{
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"evictionHard": map[string]string{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
	}
}
