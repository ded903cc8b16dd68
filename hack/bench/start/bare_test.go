package start

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Rank 0 waits for nobody, and others for its address alone.
func TestPodsLearnWhereRank0Is(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			listener, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			introduced := make(chan error, 1)
			go func() { introduced <- introduce(ctx, listener) }()
			connections := map[int]net.Conn{}
			for _, rank := range order {
				connection, err := net.Dial("tcp4", listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = connection.Close() }()
				connections[rank] = connection
				if _, err := fmt.Fprintf(connection, "%d 10.0.0.%d\n", rank, rank); err != nil {
					t.Fatal(err)
				}
				if rank == 0 { // whether the other one is there or not
					for told := range connections {
						if said, err := bufio.NewReader(connections[told]).ReadString('\n'); err != nil || said != "10.0.0.0\n" {
							t.Errorf("rank %d is told %q, %v", told, said, err)
						}
					}
				}
			}
			if last := order[1]; last != 0 {
				if said, err := bufio.NewReader(connections[last]).ReadString('\n'); err != nil || said != "10.0.0.0\n" {
					t.Errorf("rank %d is told %q, %v", last, said, err)
				}
			}
			if err := <-introduced; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPodsThatDoNotComeAreNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	cancel()
	if err := introduce(ctx, listener); err == nil {
		t.Error("nobody came, and all is well")
	}
}

// All ways but torchrun's run the same program, which prints every step.
func TestTheProgramIsTheSame(t *testing.T) {
	t.Parallel()
	job := &v1alpha1.TrainingJob{}
	job.Spec.Workers.Template.Spec.Containers = []corev1.Container{{Command: []string{"python3"}, Args: []string{"train.py"}}}
	command := measured(job).Spec.Workers.Template.Spec.Containers[0].Command
	if got, want := fmt.Sprint(command[3:]), "[python3 train.py --log-every 1]"; got != want {
		t.Errorf("the job runs %s, want %s", got, want)
	}
	if got := telling(&job.Spec.Workers.Template.Spec.Containers[0]); fmt.Sprint(got) != fmt.Sprint(command[3:]) {
		t.Errorf("by hand %s, want %s", got, command[3:])
	}
}
