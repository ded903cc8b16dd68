// Package framework is what the end-to-end tests stand on: a cluster and the operator in it, jobs
// in one line, a record of what happened to pods, and what to look at after a failure. It knows
// Kubernetes and the API of the product, and nothing of the product's inside.
package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// GPU is the pretended device that the nodes of a test cluster offer.
const GPU = corev1.ResourceName("example.com/gpu")

// Kind says what sort of cluster the tests run against.
type Kind string

// The kinds of clusters.
const (
	// Local is the cluster of hack/cluster on this machine.
	Local Kind = "local"
	// KIND is the cluster of hack/kind.
	KIND Kind = "kind"
	// Existing is whatever the kubeconfig leads to.
	Existing Kind = "existing"
)

// Cluster is the cluster that the tests run against.
type Cluster struct {
	client.WithWatch
	Kind       Kind
	Kubeconfig string
	Config     *rest.Config
	// Clientset serves what a plain client does not: logs, evictions, tokens.
	Clientset kubernetes.Interface
	// Checkout is the root of the source tree, Cache the folder of everything that was built.
	Checkout, Cache string
}

// KindFromEnvironment is the kind that E2E_CLUSTER names, local when it names none.
func KindFromEnvironment() Kind { return Kind(fromEnv("E2E_CLUSTER", string(Local))) }

// Connect finds the cluster that E2E_CLUSTER names (local, kind or existing; default local) by
// KUBECONFIG or where that kind of cluster keeps it.
func Connect(ctx context.Context) (*Cluster, error) {
	c := &Cluster{Kind: KindFromEnvironment(), Kubeconfig: os.Getenv("KUBECONFIG")}
	if !slices.Contains([]Kind{Local, KIND, Existing}, c.Kind) {
		return nil, fmt.Errorf("E2E_CLUSTER is %q: it can be local, kind or existing", c.Kind)
	}
	if err := c.findFolders(ctx); err != nil {
		return nil, err
	}
	if err := c.findKubeconfig(ctx); err != nil {
		return nil, err
	}
	return c, c.dial()
}

func (c *Cluster) findFolders(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the checkout: %w", err)
	}
	c.Checkout = strings.TrimSpace(string(out))
	c.Cache = os.Getenv("CONCERTINA_CACHE")
	if c.Cache == "" {
		c.Cache = filepath.Join(c.Checkout, ".cache")
	}
	return nil
}

// findKubeconfig asks hack/cluster for its own, which is at the end of what `up` prints; a cluster
// that runs is left as it is by that.
func (c *Cluster) findKubeconfig(ctx context.Context) error {
	if c.Kubeconfig != "" {
		return nil
	}
	switch c.Kind {
	case Local:
		if err := c.hackCluster(ctx, "status").Run(); err != nil {
			return errors.New("the local cluster does not run: start it with `make cluster-up`, or run `make test-e2e`, which does")
		}
		out, err := c.hackCluster(ctx, "up").Output()
		if err != nil {
			return fmt.Errorf("ask hack/cluster for its kubeconfig: %w", err)
		}
		c.Kubeconfig = strings.TrimSpace(string(out))
	case KIND:
		c.Kubeconfig = filepath.Join(c.Cache, "kind.kubeconfig")
	case Existing:
		return errors.New("E2E_CLUSTER is existing: say in KUBECONFIG which cluster that is")
	}
	return nil
}

func (c *Cluster) dial() error {
	var err error
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return fmt.Errorf("read kubeconfig %s: %w", c.Kubeconfig, err)
	}
	c.Config.QPS = -1
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1alpha1.AddToScheme, schedv1alpha1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("build the scheme: %w", err)
		}
	}
	if c.WithWatch, err = client.NewWithWatch(c.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("reach the cluster of %s: %w", c.Kubeconfig, err)
	}
	c.Clientset, err = kubernetes.NewForConfig(c.Config)
	return err
}

// hackCluster is a command of the local cluster.
func (c *Cluster) hackCluster(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "./hack/cluster"}, args...)...)
	cmd.Dir = c.Checkout
	return cmd
}

// HackCluster runs a command of the local cluster, such as `node kill node-2`.
func (c *Cluster) HackCluster(ctx context.Context, args ...string) error {
	if out, err := c.hackCluster(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("hack/cluster %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Kubectl runs kubectl and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Cache, "bin", "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// ReadyNodes are the nodes that take pods, by name.
func (c *Cluster) ReadyNodes(ctx context.Context) ([]corev1.Node, error) {
	var list corev1.NodeList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(node corev1.Node) bool {
		ready := slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
			return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
		})
		closed := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
		})
		return !ready || node.Spec.Unschedulable || closed
	}), nil
}
