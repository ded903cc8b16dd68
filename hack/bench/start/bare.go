package start

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/hack/bench/contexts"
)

const (
	bareName = "bench-bare"
	// barePort is where rank 0 listens, in a pod of its own.
	barePort = "29500"
)

// bareScript tells the bench the pod's address and gets that of rank 0, which nobody knows before its pod has one; rank 0 gets
// its own at once. Then it becomes the program.
const bareScript = `set -e
exec 3<>"/dev/tcp/$BENCH_HOST/$BENCH_PORT"
echo "$RANK $POD_IP" >&3
read -r MASTER_ADDR <&3
exec 3>&-
export MASTER_ADDR
echo "` + startMark + `"
exec "$@"`

// startBare measures one start of the same program without an operator: in pods that are sent to the API server with a rank each,
// from that moment on. No operator is faster.
func (b Bench) startBare(ctx context.Context) (_ timeline, err error) {
	labels := client.MatchingLabels{plainLabel: bareName}
	remove := func(ctx context.Context) error { return b.removePods(ctx, labels) }
	if err := remove(ctx); err != nil {
		return timeline{}, err
	}
	defer func() { err = errors.Join(err, contexts.Cleared(ctx, clearPatience, remove)) }()
	host, err := b.address(ctx)
	if err != nil {
		return timeline{}, err
	}
	listener, err := net.Listen("tcp4", ":0")
	if err != nil {
		return timeline{}, fmt.Errorf("wait for the pods: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	defer func() { _ = listener.Close() }()
	trainer := &b.Job.Spec.Workers.Template.Spec.Containers[0]
	t := &trial{
		cluster: b.Cluster, namespace: b.Job.Namespace, labels: labels, container: trainer.Name,
		wanted: []point{bound, running, program, step},
	}
	command := append([]string{"/bin/bash", "-c", bareScript, "bash"}, telling(trainer)...)
	t.begin = time.Now()
	err = t.run(ctx, func(ctx context.Context) error {
		port := fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
		for rank := range workers {
			if err := b.makePod(ctx, fmt.Sprintf("%s-%d", bareName, rank), labels, command, port, host, places(rank)...); err != nil {
				return err
			}
		}
		return introduce(ctx, listener)
	})
	return t.timeline, err
}

// places are the variables that say which rank a pod has.
func places(rank int) []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: "RANK", Value: fmt.Sprint(rank)}, {Name: "WORLD_SIZE", Value: fmt.Sprint(workers)}, {Name: "LOCAL_RANK", Value: "0"},
		{Name: "LOCAL_WORLD_SIZE", Value: "1"}, {Name: "MASTER_PORT", Value: barePort},
	}
}

// introduce tells each pod where rank 0 is, as soon as that is known.
func introduce(ctx context.Context, listener net.Listener) error {
	master := ""
	var waiting []net.Conn
	defer func() {
		for _, connection := range waiting {
			_ = connection.Close()
		}
	}()
	for range workers {
		connection, err := listener.Accept()
		if err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("wait for the pods: %w", err))
		}
		waiting = append(waiting, connection)
		stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
		defer stop()
		said, err := bufio.NewReader(connection).ReadString('\n')
		if err != nil {
			return fmt.Errorf("read a pod's address: %w", err)
		}
		if rank, address, _ := strings.Cut(strings.TrimSpace(said), " "); rank == "0" {
			master = address
		}
		for master != "" && len(waiting) > 0 {
			if _, err := fmt.Fprintln(waiting[0], master); err != nil {
				return fmt.Errorf("tell a pod where rank 0 is: %w", err)
			}
			_ = waiting[0].Close()
			waiting = waiting[1:]
		}
	}
	return nil
}
