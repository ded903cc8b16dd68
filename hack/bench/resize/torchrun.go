package resize

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/hack/bench/contexts"
)

const (
	torchrunLabel = "concertina.dev/bench"
	torchrunName  = "bench-torchrun"
	// sharedState is where the pods find their checkpoint: all nodes are on this machine.
	sharedState = "/tmp/concertina-bench-state"
)

// torchrunScript becomes torchrun. Pods do not know each other by host name, which is what torchrun
// would tell the others of rank 0: --local-addr is its option for that. The first pod is the endpoint.
const torchrunScript = `exec torchrun --nnodes=2:3 --nproc-per-node=1 --max-restarts=1000 --local-addr="$POD_IP" \
  --rdzv-backend=c10d --rdzv-endpoint="${MASTER:-$POD_IP}:29400" --rdzv-id=bench "$@"`

// measureTorchrun takes one training under torchrun through growing and losing a member. The member
// that holds the rendezvous is never lost: stock torchrun does not survive that.
func (b Bench) measureTorchrun(ctx context.Context, runs int, options ...string) (_ samples, err error) {
	labels := client.MatchingLabels{torchrunLabel: torchrunName}
	template := &b.Job.Spec.Workers.Template.Spec
	t := newTrial(b, b.Job.Namespace, labels, template.Containers[0].Name)
	remove := func(ctx context.Context) error {
		// The nodes share this machine's files, so what they kept is removed from here.
		return errors.Join(t.removePods(ctx), os.RemoveAll(sharedState))
	}
	if err := remove(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, contexts.Cleared(ctx, clearPatience, remove)) }()
	args := append(append(append([]string{}, options...), b.Twin...), trainingFlags()...)
	args = append(args, "--checkpoint", sharedState+"/state.pt")
	number := 0
	add := func(ctx context.Context, master string) (*corev1.Pod, error) {
		pod := torchrunPod(template, number, args, master)
		pod.Namespace, pod.Labels = t.namespace, labels
		number++
		return pod, b.Cluster.Client.Create(ctx, pod)
	}
	title := strings.Join(append([]string{"torchrun"}, options...), " ")
	first, err := add(ctx, "")
	if err != nil {
		return nil, err
	}
	t.spared = first.Name
	address, err := t.addressOf(ctx, first.Name)
	if err != nil {
		return nil, err
	}
	if _, err := add(ctx, address); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	t.open(ctx)
	if err := t.settle(ctx, 0, small); err != nil {
		return nil, fmt.Errorf("%s: %w", title, err)
	}
	kinds := samples{}
	for run := range runs {
		for _, c := range []struct {
			kind  string
			ranks int
			cause func(context.Context) error
		}{
			{"grow", large, func(ctx context.Context) error { _, err := add(ctx, address); return err }},
			{"recovery", small, t.lose},
		} {
			s, err := t.change(ctx, c.ranks, c.cause)
			if err != nil {
				return nil, fmt.Errorf("%s, run %d of %d, %s: %w", title, run+1, runs, c.kind, err)
			}
			kinds[c.kind] = append(kinds[c.kind], s)
			b.Say("%s, run %d of %d, %s: %.3f s, %d steps lost", title, run+1, runs, c.kind, s.pause.Seconds(), s.lost)
		}
	}
	return kinds, nil
}

// lose kills everything in one pod, as the loss of its node would. A pod that is deleted instead has time
// to close the rendezvous for everybody.
func (t *trial) lose(ctx context.Context) error { return t.strike(ctx, syscall.SIGKILL, true) }

// addressOf waits for a pod's address.
func (t *trial) addressOf(ctx context.Context, name string) (string, error) {
	var address string
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		pod := &corev1.Pod{}
		if err := t.Cluster.Client.Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: name}, pod); err != nil {
			return false, err
		}
		address = pod.Status.PodIP
		return address != "", nil
	})
	if err != nil {
		return "", fmt.Errorf("wait for the address of pod %s: %w", name, err)
	}
	return address, nil
}

// torchrunPod is a worker of the example without the operator.
func torchrunPod(template *corev1.PodSpec, number int, args []string, master string) *corev1.Pod {
	spec := template.DeepCopy()
	spec.RestartPolicy = corev1.RestartPolicyNever
	spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "state", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: sharedState, Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}})
	trainer := &spec.Containers[0]
	// A folder of the node belongs to root, and the image has a user of its own.
	spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0)}
	trainer.SecurityContext = nil
	trainer.Command = append([]string{"/bin/bash", "-c", torchrunScript, "bash"}, args...)
	trainer.Args = nil
	trainer.VolumeMounts = append(trainer.VolumeMounts, corev1.VolumeMount{Name: "state", MountPath: sharedState})
	trainer.Env = append(trainer.Env,
		// With its shared store, the default, torchrun of PyTorch 2.6 never ends a rendezvous that a member
		// joins later: the newcomer waits for an address that the others keep to themselves.
		corev1.EnvVar{Name: "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", Value: "1"},
		corev1.EnvVar{Name: "MASTER", Value: master},
		corev1.EnvVar{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}})
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", torchrunName, number)}, Spec: *spec}
}

// removePods deletes the pods of torchrun and waits until they are gone.
func (t *trial) removePods(ctx context.Context) error {
	if err := t.Cluster.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(t.namespace), t.labels, client.GracePeriodSeconds(0)); err != nil {
		return fmt.Errorf("delete the pods of torchrun: %w", err)
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, clearPatience, true, func(ctx context.Context) (bool, error) {
		pods, err := t.pods(ctx)
		return len(pods) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait until the pods of torchrun are gone: %w", err)
	}
	return nil
}
