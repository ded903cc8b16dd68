package framework

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/hack/containers"
)

const (
	// OperatorNamespace is where the operator runs, Release the name of its Helm release.
	OperatorNamespace = "concertina-system"
	Release           = "concertina"
	// RendezvousService is where agents find the operator.
	RendezvousService = Release + "-rendezvous"
)

var operatorLabels = client.MatchingLabels{"app.kubernetes.io/component": "operator", "app.kubernetes.io/instance": Release}

// InstallOperator installs the chart, or brings what is installed up to date with the checkout's
// chart and image, and waits until the operator is ready. Values are further ones of the chart, such as fleet.sharing=ByValue; those
// of an earlier call that are not named are the chart's again.
func (c *Cluster) InstallOperator(ctx context.Context, values ...string) error {
	args := []string{
		"upgrade", "--install", Release, filepath.Join(c.Checkout, "charts", "concertina"),
		"--kubeconfig", c.Kubeconfig, "--namespace", OperatorNamespace, "--create-namespace",
		"--set-string", "image.repository=" + strings.TrimSuffix(Image(OperatorImage), ":"+Tag()),
		"--set-string", "image.tag=" + Tag(),
		"--set-string", "agentImage=" + Image(AgentImage),
		"--set-string", "uploaderImage=" + Image(UploaderImage),
		"--wait", "--timeout", "3m",
	}
	// Under a tag that stays the same a new image would not be noticed otherwise. One digest in two thousand is a number.
	if digest := c.imageDigest("operator"); digest != "" {
		args = append(args, "--set-string", `podAnnotations.concertina\.dev/image=`+digest)
	}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.Cache, "bin", "helm"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install the operator with Helm (built by `go run ./hack/cluster build helm`): %w\n%s", err, out)
	}
	return nil
}

// imageDigest names the content of an image that was built here; empty when it was not.
func (c *Cluster) imageDigest(name string) string {
	file, err := os.Open(filepath.Join(c.Cache, "images", name+".tar"))
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return ""
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// OperatorPods are the pods of the operator that are not being deleted.
func (c *Cluster) OperatorPods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.List(ctx, &list, client.InNamespace(OperatorNamespace), operatorLabels); err != nil {
		return nil, fmt.Errorf("list the operator's pods: %w", err)
	}
	var pods []corev1.Pod
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// KillOperator ends every operator as a crash does. On the local cluster its process gets SIGKILL,
// and the kubelet starts another in the same pod. Elsewhere, and when a kubelet would wait because
// its container has crashed before, the pod is deleted without grace.
func (c *Cluster) KillOperator(ctx context.Context) error {
	pods, err := c.OperatorPods(ctx)
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		return errors.New("no operator runs")
	}
	for i := range pods {
		if err := c.killOperator(ctx, &pods[i]); err != nil {
			return fmt.Errorf("kill the operator in pod %s: %w", pods[i].Name, err)
		}
	}
	return nil
}

func (c *Cluster) killOperator(ctx context.Context, pod *corev1.Pod) error {
	crashed := true
	if c.Kind == Local {
		if err := killContainer(pod); err != nil {
			return err
		}
		crashed = pod.Status.ContainerStatuses[0].RestartCount > 0
	}
	if !crashed {
		return nil
	}
	return client.IgnoreNotFound(c.Delete(ctx, pod, client.GracePeriodSeconds(0)))
}

// killContainer sends SIGKILL to all processes of the pod's only container.
func killContainer(pod *corev1.Pod) error {
	processes, err := containers.Processes(pod, pod.Spec.Containers[0].Name)
	if err != nil {
		return err
	}
	return containers.Signal(processes, syscall.SIGKILL)
}

// UninstallOperator removes the operator; the definition of the TrainingJob stays.
func (c *Cluster) UninstallOperator(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Cache, "bin", "helm"),
		"uninstall", Release, "--kubeconfig", c.Kubeconfig, "--namespace", OperatorNamespace, "--wait")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("uninstall the operator with Helm: %w\n%s", err, out)
	}
	return nil
}
