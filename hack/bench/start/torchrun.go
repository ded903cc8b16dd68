package start

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/hack/bench/contexts"
)

const (
	plainLabel   = "concertina.dev/bench"
	torchrunName = "bench-torchrun"
)

// torchrunScript connects to the bench, says its address and waits for the master's, which both
// pods get at the same moment; then it becomes torchrun. LOGLEVEL makes torchrun say when it has
// loaded its libraries, and changes nothing else. Pods do not know each other by host name, which is
// what torchrun would tell the others of rank 0: --local-addr is its option for that.
const torchrunScript = `set -e
exec 3<>"/dev/tcp/$BENCH_HOST/$BENCH_PORT"
echo "$POD_IP" >&3
read -r master <&3
exec 3>&-
echo "` + startMark + `"
LOGLEVEL=INFO exec torchrun --nnodes=2:4 --nproc-per-node=1 --local-addr="$POD_IP" \
  --rdzv-backend=c10d --rdzv-endpoint="$master:29400" --rdzv-id=bench "$@"`

// startTorchrun measures one start under torchrun. The pods run before it begins; it begins when
// the later of the two torchruns is started.
func (b Bench) startTorchrun(ctx context.Context, options ...string) (_ timeline, err error) {
	labels := client.MatchingLabels{plainLabel: torchrunName}
	remove := func(ctx context.Context) error { return b.removePods(ctx, labels) }
	if err := remove(ctx); err != nil {
		return timeline{}, err
	}
	defer func() { err = errors.Join(err, contexts.Cleared(ctx, clearPatience, remove)) }()
	template := &b.Job.Spec.Workers.Template.Spec
	t := &trial{
		cluster: b.Cluster, namespace: b.Job.Namespace, labels: labels, container: template.Containers[0].Name,
		wanted: []point{rendezvous, program, step},
	}
	err = t.run(ctx, func(ctx context.Context) error { return b.shoot(ctx, labels, options) })
	t.begin = t.at[program]
	// These are no part of what is measured here.
	t.at[program], t.at[bound], t.at[running] = time.Time{}, time.Time{}, time.Time{}
	return t.timeline, err
}

// shoot starts the pods, waits until both are there and starts torchrun in them.
func (b Bench) shoot(ctx context.Context, labels client.MatchingLabels, options []string) error {
	host, err := b.address(ctx)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", ":0")
	if err != nil {
		return fmt.Errorf("wait for the pods: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port
	for i := range workers {
		command := append([]string{"/bin/bash", "-c", torchrunScript, "bash"}, append(options, b.Plain...)...)
		if err := b.makePod(ctx, fmt.Sprintf("%s-%d", torchrunName, i), labels, command, fmt.Sprint(port), host); err != nil {
			return err
		}
	}
	return fire(ctx, listener)
}

// fire waits for the addresses of both pods and tells them which of them is the master.
func fire(ctx context.Context, listener net.Listener) error {
	var addresses []string
	var connections []net.Conn
	defer func() {
		for _, connection := range connections {
			_ = connection.Close()
		}
	}()
	for range workers {
		connection, err := listener.Accept()
		if err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("wait for the pods: %w", err))
		}
		connections = append(connections, connection)
		stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
		defer stop()
		address, err := bufio.NewReader(connection).ReadString('\n')
		if err != nil {
			return fmt.Errorf("read a pod's address: %w", err)
		}
		addresses = append(addresses, strings.TrimSpace(address))
	}
	for _, connection := range connections {
		if _, err := fmt.Fprintln(connection, slices.Min(addresses)); err != nil {
			return fmt.Errorf("start torchrun: %w", err)
		}
	}
	return nil
}

// address is where pods reach this machine: that of a node, for all nodes are on it.
func (b Bench) address(ctx context.Context) (string, error) {
	var nodes corev1.NodeList
	if err := b.Cluster.Client.List(ctx, &nodes); err != nil {
		return "", fmt.Errorf("list the nodes: %w", err)
	}
	for _, node := range nodes.Items {
		for _, address := range node.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				return address.Address, nil
			}
		}
	}
	return "", errors.New("no node has an address")
}

// makePod makes a worker of the example without the operator, which finds the bench at a port of a host.
func (b Bench) makePod(
	ctx context.Context, name string, labels client.MatchingLabels, command []string, port, host string, env ...corev1.EnvVar,
) error {
	spec := b.Job.Spec.Workers.Template.Spec.DeepCopy()
	spec.RestartPolicy = corev1.RestartPolicyNever
	spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
	trainer := &spec.Containers[0]
	trainer.Command, trainer.Args = command, nil
	trainer.Env = append(append(trainer.Env, env...),
		corev1.EnvVar{Name: "BENCH_HOST", Value: host}, corev1.EnvVar{Name: "BENCH_PORT", Value: port},
		corev1.EnvVar{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: b.Job.Namespace, Labels: labels}, Spec: *spec}
	if err := b.Cluster.Client.Create(ctx, pod); err != nil {
		return fmt.Errorf("create pod %s: %w", name, err)
	}
	return nil
}

// removePods deletes the pods of a label and waits until they are gone.
func (b Bench) removePods(ctx context.Context, labels client.MatchingLabels) error {
	inNamespace := client.InNamespace(b.Job.Namespace)
	if err := b.Cluster.Client.DeleteAllOf(ctx, &corev1.Pod{}, inNamespace, labels); err != nil {
		return fmt.Errorf("delete the pods of the last start: %w", err)
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, clearPatience, true, func(ctx context.Context) (bool, error) {
		var left corev1.PodList
		err := b.Cluster.Client.List(ctx, &left, inNamespace, labels)
		return len(left.Items) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait until the pods of the last start are gone: %w", err)
	}
	return nil
}
