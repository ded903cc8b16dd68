// Package control knows the command lines and configuration of the control
// plane. It starts nothing.
package control

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
	"github.com/concertina-dev/concertina/hack/cluster/internal/pki"
	"github.com/concertina-dev/concertina/hack/cluster/internal/process"
)

// Ports. Only etcd shares an address, 127.0.0.1, with others.
const (
	apiPort      = 6443
	etcdPort     = 27379
	etcdPeerPort = 27380
	// DNSPort is where CoreDNS listens on the host's cluster address.
	DNSPort = 10053
)

// The names of the components, which name their logs too.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Coscheduler       = "coscheduling-scheduler"
	Proxy             = "kube-proxy"
	DNS               = "coredns"
)

// Components lists the control plane in the order in which it starts.
var Components = []string{Etcd, APIServer, ControllerManager, Scheduler, Coscheduler, Proxy, DNS}

// ServerURL is where clients reach the API server.
func ServerURL() string { return fmt.Sprintf("https://%s:%d", network.HostIP, apiPort) }

// LocalPorts are the ports of 127.0.0.1 that the cluster takes.
var LocalPorts = []int{etcdPort, etcdPeerPort}

//go:embed coscheduling.yaml.tmpl
var coschedulingText string

//go:embed Corefile.tmpl
var corefileText string

// masters is the group that may do everything.
const masters = "system:masters"

// Write makes certificates, kubeconfigs and configuration files of the control plane.
func Write(l layout.Layout) error {
	authority, err := pki.Create(l.PKI())
	if err != nil {
		return err
	}
	if err := authority.WriteSigningKey("service-accounts"); err != nil {
		return err
	}
	for _, s := range []pki.Subject{
		{File: APIServer, User: APIServer, Hosts: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc." + network.ClusterDomain, "localhost", "127.0.0.1",
			network.KubernetesIP.String(), network.HostIP.String(),
		}},
		{File: "kubelet-client", User: "kube-apiserver-kubelet-client", Groups: []string{masters}},
	} {
		if err := authority.Issue(s); err != nil {
			return err
		}
	}
	for path, s := range map[string]pki.Subject{
		l.Kubeconfig():                   {File: "admin", User: "admin", Groups: []string{masters}},
		kubeconfig(l, ControllerManager): {File: ControllerManager, User: "system:kube-controller-manager"},
		kubeconfig(l, Scheduler):         {File: Scheduler, User: "system:kube-scheduler"},
		kubeconfig(l, Proxy):             {File: Proxy, User: "system:kube-proxy"},
		// Kubernetes ships no roles for these two.
		kubeconfig(l, Coscheduler): {File: Coscheduler, User: Coscheduler, Groups: []string{masters}},
		kubeconfig(l, DNS):         {File: DNS, User: DNS, Groups: []string{masters}},
	} {
		if err := authority.WriteKubeconfig(path, ServerURL(), s); err != nil {
			return err
		}
	}
	return writeConfigs(l)
}

func writeConfigs(l layout.Layout) error {
	if err := os.MkdirAll(l.Config(), 0o755); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	for file, source := range map[string]string{
		coschedulingFile(l): coschedulingText,
		corefile(l):         corefileText,
	} {
		text, err := render(l, source)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
	}
	return nil
}

func render(l layout.Layout, source string) ([]byte, error) {
	var out bytes.Buffer
	err := template.Must(template.New("").Parse(source)).Execute(&out, map[string]any{
		"CoschedulingKubeconfig": kubeconfig(l, Coscheduler),
		"DNSKubeconfig":          kubeconfig(l, DNS),
		"DNSPort":                DNSPort,
		"HostIP":                 network.HostIP,
		"Domain":                 network.ClusterDomain,
	})
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return out.Bytes(), nil
}

func kubeconfig(l layout.Layout, component string) string {
	return filepath.Join(l.PKI(), component+".kubeconfig")
}

func coschedulingFile(l layout.Layout) string { return filepath.Join(l.Config(), "coscheduling.yaml") }

func corefile(l layout.Layout) string { return filepath.Join(l.Config(), "Corefile") }

// Spec returns how a component other than kube-proxy is started. It panics on
// a name that is not in Components.
func Spec(l layout.Layout, component string, env []string) process.Spec {
	arguments := map[string]func(layout.Layout) []string{
		Etcd:              etcdArguments,
		APIServer:         apiServerArguments,
		ControllerManager: controllerManagerArguments,
		Scheduler:         schedulerArguments,
		Coscheduler:       coschedulerArguments,
		DNS:               dnsArguments,
	}
	return spec(l, component, arguments[component](l), env)
}

// ProxySpec returns how kube-proxy is started. One serves all nodes, since they
// share the machine's packet filter, but it must bear the name of one: it waits
// for that node to appear, and ends when it is deleted.
func ProxySpec(l layout.Layout, node string, env []string) process.Spec {
	return spec(l, Proxy, append(proxyArguments(l), "--hostname-override="+node), env)
}

func spec(l layout.Layout, component string, args, env []string) process.Spec {
	return process.Spec{
		Name: component, Path: l.Binary(component), Args: args, Env: env, Log: l.Log(component), Urgent: true,
	}
}
