package toolchain

import (
	"strings"
	"time"
)

// family is a Go module under hack/cluster/binaries and the programs built from it.
type family struct {
	// dir is the module's folder.
	dir string
	// module is the one whose version counts.
	module string
	tags   string
	// flags returns linker flags for a version such as v1.2.3.
	flags func(version string) []string
	// programs in the order in which they are built.
	programs []program
}

type program struct {
	name, pkg string
	// cold is how long the build takes on two cores when nothing is cached,
	// given that the programs before it are built.
	cold time.Duration
}

// families lists etcd, kube-apiserver and kubectl first: integration tests need
// no more than those.
var families = []family{
	{
		dir: "etcd", module: "go.etcd.io/etcd/server/v3",
		programs: []program{{"etcd", "go.etcd.io/etcd/server/v3", 40 * time.Second}},
	},
	{
		dir: "kubernetes", module: "k8s.io/kubernetes", flags: kubernetesVersion,
		programs: []program{
			{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", 4 * time.Minute},
			{"kubectl", "k8s.io/kubernetes/cmd/kubectl", 20 * time.Second},
			{"kubelet", "k8s.io/kubernetes/cmd/kubelet", 2 * time.Minute},
			{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", 50 * time.Second},
			{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", 10 * time.Second},
			{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", 10 * time.Second},
		},
	},
	{
		dir: "containerd", module: "github.com/containerd/containerd/v2",
		tags: "no_btrfs no_devmapper no_zfs",
		flags: func(version string) []string {
			return []string{"-X", "github.com/containerd/containerd/v2/version.Version=" + version}
		},
		programs: []program{
			{"containerd", "github.com/containerd/containerd/v2/cmd/containerd", 50 * time.Second},
			{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", 10 * time.Second},
			{"ctr", "github.com/containerd/containerd/v2/cmd/ctr", 10 * time.Second},
		},
	},
	{
		dir: "coscheduling", module: "k8s.io/kubernetes", flags: kubernetesVersion,
		programs: []program{{"coscheduling-scheduler", ".", 160 * time.Second}},
	},
	{
		dir: "coredns", module: "github.com/coredns/coredns",
		programs: []program{{"coredns", "github.com/coredns/coredns", 80 * time.Second}},
	},
	{
		dir: "helm", module: "helm.sh/helm/v4",
		flags: func(version string) []string {
			return []string{"-X", "helm.sh/helm/v4/internal/version.version=" + version}
		},
		programs: []program{{"helm", "helm.sh/helm/v4/cmd/helm", 80 * time.Second}},
	},
}

// kubernetesVersion makes a component say its version: clients judge by it
// what the server can do.
func kubernetesVersion(version string) []string {
	const pkg = "k8s.io/component-base/version"
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return []string{
		"-X", pkg + ".gitVersion=" + version,
		"-X", pkg + ".gitMajor=" + major,
		"-X", pkg + ".gitMinor=" + minor,
	}
}
