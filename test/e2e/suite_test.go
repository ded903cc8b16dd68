// Package e2e shows on a real cluster, with real kubelets and real training, what the project
// promises. It runs against any kubeconfig:
//
//	E2E_CLUSTER=local     hack/cluster (the default)
//	E2E_CLUSTER=kind      the cluster of hack/kind
//	E2E_CLUSTER=existing  the cluster of KUBECONFIG, with the coscheduling scheduler, nodes that
//	                      offer example.com/gpu, and the images under E2E_REGISTRY and E2E_TAG
//
// `make test-e2e` runs the tests with the label short, `make test-long` those with the label long, and
// `make test-frameworks-cluster` those with the label frameworks; all build and load the images first.
// Every test has a namespace of its own, and checks that nothing of its jobs is left in it.
package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/test/e2e/framework"
)

// Labels of tests.
var (
	short = Label("short")
	long  = Label("long")
)

var cluster *framework.Cluster

func TestEndToEnd(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(90 * time.Second)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	RunSpecs(t, "End to end")
}

var _ = SynchronizedBeforeSuite(func(ctx context.Context) {
	c, err := framework.Connect(ctx)
	Expect(err).NotTo(HaveOccurred())
	// Kubelets report images that were just loaded within seconds.
	Eventually(ctx, c.MissingImages, "30s", "1s").Should(Succeed())
	installed, err := c.OperatorPods(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(c.InstallOperator(ctx)).To(Succeed())
	if len(installed) == 0 {
		DeferCleanup(c.UninstallOperator)
	}
}, func(ctx context.Context) {
	ctrl.SetLogger(GinkgoLogr)
	var err error
	cluster, err = framework.Connect(ctx)
	Expect(err).NotTo(HaveOccurred())
})

// newNamespace makes the namespace of a test. When the test ends its jobs are deleted, and nothing
// of them may be left.
func newNamespace(ctx context.Context, labels ...string) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: map[string]string{"e2e": "concertina"}}}
	for _, label := range labels {
		name, value, _ := strings.Cut(label, "=")
		namespace.Labels[name] = value
	}
	Expect(cluster.Create(ctx, namespace)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		if CurrentSpecReport().Failed() {
			cluster.Dump(ctx, GinkgoWriter, namespace.Name)
		}
		Expect(cluster.DeleteAllOf(ctx, &v1alpha1.TrainingJob{}, client.InNamespace(namespace.Name))).To(Succeed())
		Eventually(leftIn, "60s").WithContext(ctx).WithArguments(namespace.Name).Should(BeEmpty())
		Expect(cluster.Delete(ctx, namespace)).To(Succeed())
	})
	return namespace.Name
}

// roomIsBack waits until what the specs before had has ended. Their namespaces are left to end by themselves, with
// pods that hold room in them.
func roomIsBack(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() ([]string, error) {
		var all corev1.NamespaceList
		err := cluster.List(ctx, &all, client.MatchingLabels{"e2e": "concertina"})
		var ending []string
		for i := range all.Items {
			if all.Items[i].DeletionTimestamp != nil {
				ending = append(ending, all.Items[i].Name)
			}
		}
		return ending, err
	}, "2m").WithContext(ctx).Should(BeEmpty())
}

// leftIn lists what jobs of a namespace have in the cluster, beside themselves.
func leftIn(ctx context.Context, namespace string) ([]string, error) {
	var left []string
	for _, list := range []client.ObjectList{&corev1.PodList{}, &schedv1alpha1.PodGroupList{}} {
		if err := cluster.List(ctx, list, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelJob}); err != nil {
			return nil, err
		}
		kind := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", list), "*v1."), "List")
		for _, object := range objectsOf(list) {
			left = append(left, kind+" "+object.GetName())
		}
	}
	return left, nil
}

func objectsOf(list client.ObjectList) []client.Object {
	var objects []client.Object
	switch list := list.(type) {
	case *corev1.PodList:
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
	case *schedv1alpha1.PodGroupList:
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
	}
	return objects
}
