// Package apiserver has what benches share that measure the operator beside a real API server, and no cluster.
package apiserver

import (
	"context"
	"fmt"
	"net"
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
	// Controllers is the group of those that are measured: they may do everything, and are subject to
	// the API server's fairness like any other client.
	Controllers = "bench:controllers"
	// SystemNamespace is where the operator runs.
	SystemNamespace = "concertina-system"
	// RendezvousService is the Service that leads agents to the operator.
	RendezvousService = "concertina-rendezvous"
	// startPatience is how long each step of the start may take on a busy machine.
	startPatience = 2 * time.Minute
)

// Environment is an etcd and a kube-apiserver to be started on free ports of 127.0.0.1, with programs from a folder, and with
// these kinds in addition to the built-in ones.
func Environment(binaries string, definitions ...string) *envtest.Environment {
	environment := &envtest.Environment{
		BinaryAssetsDirectory: binaries, CRDDirectoryPaths: definitions, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: startPatience, ControlPlaneStopTimeout: startPatience,
	}
	environment.CRDInstallOptions.MaxTime = startPatience
	// Nobody is there who would take the taint of a new node away again.
	environment.ControlPlane.GetAPIServer().Configure().Set("disable-admission-plugins", "TaintNodesByCondition")
	return environment
}

// Furnish makes what the operator finds in a cluster, and an administrator's clients: core speaks in the compact encoding.
func Furnish(ctx context.Context, config *rest.Config) (admin client.Client, core kubernetes.Interface, err error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, nil, err
		}
	}
	config.QPS = -1
	if admin, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return nil, nil, fmt.Errorf("make a client: %w", err)
	}
	if core, err = kubernetes.NewForConfig(Compact(config)); err != nil {
		return nil, nil, fmt.Errorf("make a client: %w", err)
	}
	return admin, core, Create(ctx, admin,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "bench-controllers"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: Controllers}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: SystemNamespace}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: RendezvousService},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "rendezvous", Port: 8443}}},
		},
	)
}

// Create makes objects, one after the other.
func Create(ctx context.Context, admin client.Client, objects ...client.Object) error {
	for _, object := range objects {
		if err := admin.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// Compact has a client speak protobuf, which built-in kinds know.
func Compact(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	return config
}

// FreeAddress is an address of 127.0.0.1 on which nobody listens now.
func FreeAddress() (string, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}
