package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/concertina-dev/concertina/hack/bench/apiserver"
)

// kubeletUser plays scheduler and kubelets.
const kubeletUser = "bench-kubelet"

// auditPolicy writes down who changes what. The bench's own requests are not of interest.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [admin, ` + kubeletUser + `]
- level: None
  verbs: [get, list, watch]
- level: Metadata
`

// server is an API server with its etcd, made for one measurement.
type server struct {
	environment *envtest.Environment
	// dir is for files of the measurement; it goes with the server.
	dir string
	// client reads and writes as an administrator, core does so in the compact encoding.
	client client.Client
	core   kubernetes.Interface
	// operator are the addresses that the operator serves at, once it has been started.
	operator []string
}

// startServer starts etcd and kube-apiserver on free ports of 127.0.0.1, with these kinds in addition to
// the built-in ones.
func startServer(ctx context.Context, binaries string, definitions ...string) (_ *server, err error) {
	dir, err := os.MkdirTemp("", "concertina-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the API server: %w", err)
	}
	s := &server{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("write the audit policy: %w", err)
	}
	s.environment = apiserver.Environment(binaries, definitions...)
	s.environment.ControlPlane.GetAPIServer().Configure().
		Set("audit-policy-file", policy).
		Set("audit-log-path", s.auditLog()).
		Set("audit-log-mode", "blocking").
		Set("service-cluster-ip-range", "10.96.0.0/16")
	config, err := s.environment.Start()
	if err != nil {
		return nil, fmt.Errorf("start etcd and kube-apiserver (built by: go run ./hack/cluster build etcd kube-apiserver): %w", err)
	}
	s.client, s.core, err = apiserver.Furnish(ctx, config)
	return s, err
}

// user makes a client certificate for somebody.
func (s *server) user(name, group string) (*envtest.AuthenticatedUser, error) {
	user, err := s.environment.AddUser(envtest.User{Name: name, Groups: []string{group}}, &rest.Config{QPS: -1})
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %s: %w", name, err)
	}
	return user, nil
}

// kubeconfig writes a kubeconfig for one of those that are measured, whose writes the audit log knows by
// this name.
func (s *server) kubeconfig(name string) (string, error) {
	user, err := s.user(name, apiserver.Controllers)
	if err != nil {
		return "", err
	}
	text, err := user.KubeConfig()
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", name, err)
	}
	path := filepath.Join(s.dir, name+".kubeconfig")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", name, err)
	}
	return path, nil
}

func (s *server) auditLog() string { return filepath.Join(s.dir, "audit.log") }

// stop ends both processes and removes what they have written.
func (s *server) stop() error {
	var errs []error
	if s.environment != nil {
		errs = append(errs, s.environment.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// team makes a namespace with the service account that a controller would make.
func (s *server) team(ctx context.Context, name string) error {
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}},
	} {
		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	return nil
}
