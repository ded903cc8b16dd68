// Package integration runs the controller against a real API server (etcd and kube-apiserver of
// envtest). There is no scheduler, no kubelet, no quota controller and no garbage collector: what
// they would write, the tests write, in kubelet_test.go and where a test says so. There are no agents
// either, so the worlds are played by worlds_test.go, except in the tests of the rendezvous itself.
package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

const root = "../.."

// long are repetitions, which run only when they are asked for: make test-long.
var long = Label("long")

var (
	scheme     = apiruntime.NewScheme()
	restConfig *rest.Config
	// cluster reads and writes as an administrator, without a cache.
	cluster client.Client
	// podGroupsFile defines the kind PodGroup.
	podGroupsFile string
)

func TestIntegration(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(20 * time.Second)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	suite, reporter := GinkgoConfiguration()
	if suite.LabelFilter == "" {
		suite.LabelFilter = "!long"
	}
	RunSpecs(t, "Controller", suite, reporter)
}

// largeNode has room for every job that asks for no node of its own.
const largeNode = "large"

var _ = BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(GinkgoLogr)
	for _, add := range []func(*apiruntime.Scheme) error{
		clientgoscheme.AddToScheme, v1alpha1.AddToScheme, schedv1alpha1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		Expect(add(scheme)).To(Succeed())
	}
	binaries := os.Getenv("KUBEBUILDER_ASSETS")
	if binaries == "" {
		binaries = filepath.Join(root, ".cache", "bin")
	}
	binaries, err := filepath.Abs(binaries)
	Expect(err).NotTo(HaveOccurred())
	// The kind comes from the module whose Go types the product uses.
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/scheduler-plugins").Output()
	Expect(err).NotTo(HaveOccurred())
	podGroupsFile = filepath.Join(strings.TrimSpace(string(module)), "config", "crd", "bases", "scheduling.x-k8s.io_podgroups.yaml")
	environment := &envtest.Environment{
		BinaryAssetsDirectory: binaries,
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases"), podGroupsFile},
		ErrorIfCRDPathMissing: true,
	}
	// Pods get their service account, and with it the right to a token of their own, by admission.
	environment.ControlPlane.GetAPIServer().Configure().Disable("disable-admission-plugins")
	// A start that fails halfway leaves processes too.
	DeferCleanup(environment.Stop)
	restConfig, err = environment.Start()
	Expect(err).NotTo(HaveOccurred(), "etcd and kube-apiserver are built by: go run ./hack/cluster build etcd kube-apiserver")
	// The tests' own requests must not wait for each other.
	restConfig.QPS = -1
	cluster, err = client.New(restConfig, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	createNode(ctx, largeNode, 1000*1000)
})

var _ = AfterSuite(func() {
	Eventually(ourGoroutines).Should(BeEmpty(), "goroutines of the product outlive its managers")
})

// ourGoroutines lists the stacks of goroutines that the product's own code started.
func ourGoroutines() []string {
	buffer := make([]byte, 4<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	var ours []string
	for stack := range strings.SplitSeq(string(buffer), "\n\n") {
		if strings.Contains(stack, "created by github.com/concertina-dev/concertina/internal/") {
			ours = append(ours, stack)
		}
	}
	return ours
}

// newNamespace makes a namespace of its own for a test, with the service account that a controller
// would make. Nothing empties it afterwards: there is no
// garbage collector, and the API server goes away with the suite.
func newNamespace(ctx context.Context, labels ...string) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-", Labels: map[string]string{}}}
	for _, label := range labels {
		name, value, _ := strings.Cut(label, "=")
		namespace.Labels[name] = value
	}
	Expect(cluster.Create(ctx, namespace)).To(Succeed())
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "default"}}
	Expect(cluster.Create(ctx, account)).To(Succeed())
	return namespace.Name
}
