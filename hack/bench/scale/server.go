package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

const (
	// controllers is the group of those that are measured: they may do everything, and are subject to
	// the API server's fairness like any other client.
	controllers = "bench:controllers"
	// kubeletUser plays scheduler and kubelets.
	kubeletUser = "bench-kubelet"
	// systemNamespace is where the operator runs.
	systemNamespace = "concertina-system"
	// startPatience is how long each step of the start may take on a busy machine.
	startPatience = 2 * time.Minute
	// rendezvousService is the Service that leads agents to the operator.
	rendezvousService = "concertina-rendezvous"
)

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
	s.environment = &envtest.Environment{
		BinaryAssetsDirectory: binaries, CRDDirectoryPaths: definitions, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: startPatience, ControlPlaneStopTimeout: startPatience,
	}
	s.environment.CRDInstallOptions.MaxTime = startPatience
	s.environment.ControlPlane.GetAPIServer().Configure().
		Set("audit-policy-file", policy).
		Set("audit-log-path", s.auditLog()).
		Set("audit-log-mode", "blocking").
		Set("service-cluster-ip-range", "10.96.0.0/16").
		// Nobody is there who would take the taint of a new node away again.
		Set("disable-admission-plugins", "TaintNodesByCondition")
	config, err := s.environment.Start()
	if err != nil {
		return nil, fmt.Errorf("start etcd and kube-apiserver (built by: go run ./hack/cluster build etcd kube-apiserver): %w", err)
	}
	return s, s.prepare(ctx, config)
}

// prepare makes the clients, and what every measurement needs in the cluster.
func (s *server) prepare(ctx context.Context, config *rest.Config) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config.QPS = -1
	var err error
	if s.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if s.core, err = kubernetes.NewForConfig(compact(config)); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	objects := []client.Object{
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "bench-controllers"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: controllers}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: rendezvousService},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "rendezvous", Port: 8443}}},
		},
	}
	for _, object := range objects {
		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// compact has a client speak protobuf, which built-in kinds know.
func compact(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	return config
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
	user, err := s.user(name, controllers)
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
