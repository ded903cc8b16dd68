package control

import (
	"fmt"
	"path/filepath"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
	"github.com/concertina-dev/concertina/hack/cluster/internal/pki"
)

func etcdArguments(l layout.Layout) []string {
	client := fmt.Sprintf("http://127.0.0.1:%d", etcdPort)
	peer := fmt.Sprintf("http://127.0.0.1:%d", etcdPeerPort)
	return []string{
		"--name=local",
		"--data-dir=" + l.Etcd(),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=local=" + peer,
		// The data need not outlive a crash of the machine, and waiting for an
		// ordinary disk is what makes a small cluster slow.
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func apiServerArguments(l layout.Layout) []string {
	in := func(name string) string { return filepath.Join(l.PKI(), name) }
	return []string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcdPort),
		"--bind-address=" + network.HostIP.String(),
		"--advertise-address=" + network.HostIP.String(),
		fmt.Sprintf("--secure-port=%d", apiPort),
		"--service-cluster-ip-range=" + network.ServiceRange.String(),
		"--tls-cert-file=" + in(APIServer+".crt"),
		"--tls-private-key-file=" + in(APIServer+".key"),
		"--client-ca-file=" + in(pki.CAFile),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc." + network.ClusterDomain,
		"--service-account-key-file=" + in("service-accounts.pub"),
		"--service-account-signing-key-file=" + in("service-accounts.key"),
		"--kubelet-certificate-authority=" + in(pki.CAFile),
		"--kubelet-client-certificate=" + in("kubelet-client.crt"),
		"--kubelet-client-key=" + in("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--profiling=false",
	}
}

func controllerManagerArguments(l layout.Layout) []string {
	return []string{
		"--kubeconfig=" + kubeconfig(l, ControllerManager),
		"--leader-elect=false",
		"--secure-port=0",
		"--use-service-account-credentials=true",
		"--root-ca-file=" + filepath.Join(l.PKI(), pki.CAFile),
		"--service-account-private-key-file=" + filepath.Join(l.PKI(), "service-accounts.key"),
		// Kubernetes waits 50 s for a silent node. The kubelets here renew their
		// leases every 2 s (see the node package), so that 8 s tell a dead node
		// from a busy one, and nobody waits long for a test of node failure.
		"--node-monitor-period=1s",
		"--node-monitor-grace-period=8s",
		"--kube-api-qps=200",
		"--kube-api-burst=400",
	}
}

func schedulerArguments(l layout.Layout) []string {
	return []string{
		"--kubeconfig=" + kubeconfig(l, Scheduler),
		"--leader-elect=false",
		"--secure-port=0",
	}
}

func coschedulerArguments(l layout.Layout) []string {
	return []string{"--config=" + coschedulingFile(l), "--secure-port=0"}
}

func proxyArguments(l layout.Layout) []string {
	return []string{
		"--kubeconfig=" + kubeconfig(l, Proxy),
		"--proxy-mode=iptables",
		"--bind-address=" + network.HostIP.String(),
		"--cluster-cidr=" + network.PodRange.String(),
		// Node ports answer on the nodes' addresses, never on the machine's own.
		fmt.Sprintf("--nodeport-addresses=%s/24", network.HostIP),
		"--iptables-localhost-nodeports=false",
		"--iptables-min-sync-period=100ms",
		// Connection tracking is the whole machine's and stays as it is.
		"--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0",
		"--healthz-bind-address=",
		"--metrics-bind-address=",
	}
}

func dnsArguments(l layout.Layout) []string { return []string{"-conf", corefile(l)} }
