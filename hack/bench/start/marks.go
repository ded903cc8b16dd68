package start

import (
	"bufio"
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// startMark is what the wrapper of a program prints right before it becomes the program.
const startMark = "bench: the program starts"

// mark is a line of a program's log that means something here. Its time is that of the container
// runtime, which writes it down when the line comes out: it does not matter when we read it.
type mark struct {
	kind markKind
	pod  string
	at   time.Time
}

type markKind int

const (
	started markKind = iota
	asking
	stepped
)

var firstStep = regexp.MustCompile(`^step 1/\d+ `)

// parseMark reads a line of a log with timestamps.
func parseMark(line string) (markKind, time.Time, bool) {
	stamp, text, _ := strings.Cut(line, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return 0, time.Time{}, false
	}
	switch {
	case text == startMark:
		return started, at, true
	case strings.Contains(text, "Starting elastic_operator with launch configs"):
		return asking, at, true
	case firstStep.MatchString(text):
		return stepped, at, true
	}
	return 0, time.Time{}, false
}

// followMarks reads a container's log until it is over or ctx ends, and sends what it finds.
func followMarks(ctx context.Context, core kubernetes.Interface, pod *corev1.Pod, container string, marks chan<- mark) error {
	stream, err := core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, Follow: true, Timestamps: true,
	}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
	}
	defer func() { _ = stream.Close() }()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		kind, at, found := parseMark(lines.Text())
		if !found {
			continue
		}
		select {
		case marks <- mark{kind: kind, pod: pod.Name, at: at}:
		case <-ctx.Done():
			return nil
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return lines.Err()
}
