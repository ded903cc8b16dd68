// Package api checks the TrainingJob's schema against a real API server: what it refuses and with
// which words, what it fills in, what may change when, and how kubectl shows it.
package api

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

const root = "../.."

var (
	// cluster answers requests as an administrator, with objects as the user wrote them.
	cluster client.Client
	// kubeconfig is a file for kubectl.
	kubeconfig string
	binaries   = os.Getenv("KUBEBUILDER_ASSETS")
)

func TestAPI(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "TrainingJob API")
}

var _ = BeforeSuite(func() {
	if binaries == "" {
		binaries = filepath.Join(root, ".cache", "bin")
	}
	var err error
	binaries, err = filepath.Abs(binaries)
	Expect(err).NotTo(HaveOccurred())
	environment := &envtest.Environment{
		BinaryAssetsDirectory: binaries,
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	config, err := environment.Start()
	Expect(err).NotTo(HaveOccurred(), "etcd and kube-apiserver are built by: go run ./hack/cluster build")
	DeferCleanup(environment.Stop)

	scheme := runtime.NewScheme()
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	cluster, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	kubeconfig = filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	Expect(os.WriteFile(kubeconfig, environment.KubeConfig, 0o600)).To(Succeed())
})

// job is the smallest useful TrainingJob, with a name of its own.
func job() *unstructured.Unstructured {
	var object map[string]any
	Expect(yaml.Unmarshal([]byte(`
apiVersion: training.concertina.dev/v1alpha1
kind: TrainingJob
metadata: {namespace: default, generateName: digits-}
spec:
  workers:
    min: 2
    max: 4
    template:
      spec:
        containers:
        - name: main
          image: digits
          command: [python3, train.py]
`), &object)).To(Succeed())
	return &unstructured.Unstructured{Object: object}
}

// set changes one field, named by its path; a nil value removes it.
func set(object *unstructured.Unstructured, value any, path ...string) {
	if value == nil {
		unstructured.RemoveNestedField(object.Object, path...)
		return
	}
	Expect(unstructured.SetNestedField(object.Object, value, path...)).To(Succeed())
}

// create makes the object and removes it when the test ends.
func create(ctx context.Context, object *unstructured.Unstructured) {
	GinkgoHelper()
	Expect(cluster.Create(ctx, object)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		Expect(client.IgnoreNotFound(cluster.Delete(ctx, object))).To(Succeed())
	})
}

// expectRefusal checks that an error is the API server's verdict on the object, in these words.
func expectRefusal(err error, words string) {
	GinkgoHelper()
	Expect(err).To(HaveOccurred())
	Expect(apierrors.IsInvalid(err)).To(BeTrue(), "not a validation error: %v", err)
	Expect(err).To(MatchError(ContainSubstring(words)))
}
