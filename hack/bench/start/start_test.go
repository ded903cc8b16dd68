package start

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMeasuredJobSaysWhenItsProgramStarts(t *testing.T) {
	t.Parallel()
	example := &v1alpha1.TrainingJob{}
	example.Name = "digits"
	example.Spec.Workers.Min, example.Spec.Workers.Max = ptr.To[int32](1), ptr.To[int32](8)
	example.Spec.Workers.Sizes = []int32{1, 8}
	example.Spec.Workers.Template.Spec.Containers = []corev1.Container{{Command: []string{"echo", "an argument"}, Args: []string{"$HOME", "last"}}}
	before := example.DeepCopy()

	job := measured(example)

	if diff := cmp.Diff(before, example); diff != "" {
		t.Errorf("the example was changed:\n%s", diff)
	}
	if *job.Spec.Workers.Min != 2 || *job.Spec.Workers.Max != 2 || job.Spec.Workers.Sizes != nil || job.Name == example.Name {
		t.Errorf("workers %+v of job %s", job.Spec.Workers, job.Name)
	}
	container := job.Spec.Workers.Template.Spec.Containers[0]
	out, err := exec.Command(container.Command[0], container.Command[1:]...).Output()
	if want := startMark + "\nan argument $HOME last --log-every 1\n"; err != nil || string(out) != want {
		t.Errorf("the program prints %q, want %q (%v)", out, want, err)
	}
}

func TestFireTellsBothWhoTheMasterIs(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	answers := make(chan string, 2)
	for _, address := range []string{"10.244.2.5", "10.244.1.9"} {
		go func() { answers <- say(listener.Addr().String(), address) }()
	}
	if err := fire(t.Context(), listener); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if answer := <-answers; answer != "10.244.1.9\n" {
			t.Errorf("a pod was told %q", answer)
		}
	}
}

func say(to, what string) string {
	connection, err := net.Dial("tcp4", to)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = connection.Close() }()
	_, _ = fmt.Fprintln(connection, what)
	answer, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return answer
}

func TestWayLeavesOutTheFirst(t *testing.T) {
	t.Parallel()
	count := 0
	w := way{runs: 3, once: func() (timeline, error) {
		count++
		return timeline{begin: time.Unix(int64(count), 0)}, nil
	}}
	for run := range 6 {
		if err := w.measure(run, func(string, ...any) {}); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.measured) != 3 || count != 4 || w.measured[0].begin != time.Unix(2, 0) {
		t.Errorf("%d starts, %d of them count: %v", count, len(w.measured), w.measured)
	}
}

func TestWaySaysWhichRunFailed(t *testing.T) {
	t.Parallel()
	broken := errors.New("no room")
	w := way{title: "torchrun", runs: 3, once: func() (timeline, error) { return timeline{}, broken }}
	if err := w.measure(2, t.Logf); !errors.Is(err, broken) || !strings.Contains(err.Error(), "torchrun, run 2 of 3") {
		t.Errorf("the error is %v", err)
	}
}

func TestMeasureNeedsRuns(t *testing.T) {
	t.Parallel()
	if _, err := (Bench{Runs: 5}).Measure(context.Background()); err == nil {
		t.Error("no run of torchrun is enough")
	}
}
