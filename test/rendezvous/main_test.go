// Package rendezvous tests the rendezvous against a real API server (etcd and kube-apiserver of
// envtest): its record in a job's status, the tokens of its agents, its authority and its address,
// several leaders at once, and leaders that are killed. The agents are those of rendezvoustest.
package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/identity"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const root = "../.."

var (
	restConfig *rest.Config
	// kubeconfig is the path of a file with the same access.
	kubeconfig string
	// cluster reads and writes as an administrator, without a cache.
	cluster client.Client
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	if os.Getenv(leaderVariable) != "" {
		os.Exit(leadUntilKilled())
	}
	if os.Getenv(shardsVariable) != "" {
		os.Exit(trainInShards())
	}
	if setup := os.Getenv(pytorchVariable); setup != "" {
		os.Exit(enterPyTorch(setup))
	}
	os.Exit(runWithCluster(m))
}

func runWithCluster(m *testing.M) int {
	binaries := os.Getenv("KUBEBUILDER_ASSETS")
	if binaries == "" {
		binaries = filepath.Join(root, ".cache", "bin")
	}
	environment := &envtest.Environment{
		BinaryAssetsDirectory: binaries,
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	// A start that fails halfway leaves processes too.
	defer func() {
		if kubeconfig != "" {
			_ = os.Remove(kubeconfig)
		}
		if built.folder != "" {
			_ = os.RemoveAll(built.folder)
		}
		if err := environment.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop etcd and kube-apiserver:", err)
		}
	}()
	if err := startCluster(environment); err != nil {
		fmt.Fprintln(os.Stderr, "start etcd and kube-apiserver (KUBEBUILDER_ASSETS, or made by: go run ./hack/cluster build):", err)
		return 1
	}
	return m.Run()
}

func startCluster(environment *envtest.Environment) error {
	var err error
	if restConfig, err = environment.Start(); err != nil {
		return err
	}
	restConfig.QPS = -1
	if cluster, err = newClient(restConfig); err != nil {
		return err
	}
	user, err := environment.AddUser(envtest.User{Name: "operator", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return err
	}
	text, err := user.KubeConfig()
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "kubeconfig")
	if err != nil {
		return err
	}
	kubeconfig = file.Name()
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}

func newClient(config *rest.Config) (client.Client, error) {
	scheme := apiruntime.NewScheme()
	for _, add := range []func(*apiruntime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// newNamespace makes a namespace with the service account that a controller would make.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-"}}
	create(t, namespace)
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "default"}})
	return namespace.Name
}

func create(t *testing.T, object client.Object) {
	t.Helper()
	if err := cluster.Create(t.Context(), object); err != nil {
		t.Fatalf("create %T: %v", object, err)
	}
}

// newJob makes a TrainingJob and returns its key.
func newJob(t *testing.T, namespace string) rendezvous.JobKey {
	t.Helper()
	create(t, &v1alpha1.TrainingJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "digits"},
		Spec: v1alpha1.TrainingJobSpec{Workers: v1alpha1.WorkersSpec{
			Min: ptr.To[int32](3), Max: ptr.To[int32](3),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "main", Image: "digits", Command: []string{"/train"},
			}}}},
		}},
	})
	return rendezvous.JobKey{Namespace: namespace, Name: "digits"}
}

func newPod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName: "default", NodeName: "node-a",
			Containers: []corev1.Container{{Name: "main", Image: "digits", Command: []string{"/train"}}},
		},
	}
	create(t, pod)
	return pod
}

// newToken asks the API server for a token of the default service account, bound to a pod or, when
// pod is nil, to nothing.
func newToken(t *testing.T, namespace string, pod *corev1.Pod, audience string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{audience}, ExpirationSeconds: ptr.To[int64](600),
	}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
		}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	if err := cluster.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatalf("create a token: %v", err)
	}
	return request.Status.Token
}

func recorder() record.Status { return record.Status{Live: cluster, Writer: cluster.Status()} }

// durable reads a job's record.
func durable(ctx context.Context, t *testing.T, key rendezvous.JobKey) rendezvous.Record {
	t.Helper()
	job := &v1alpha1.TrainingJob{}
	if err := cluster.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, job); err != nil {
		t.Fatal(err)
	}
	return record.FromStatus(job)
}

func reviewer(t *testing.T) *identity.Reviewer {
	t.Helper()
	r, err := identity.NewReviewer(restConfig)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// patience bounds what is waited for.
const patience = 30 * time.Second
