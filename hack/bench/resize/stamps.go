package resize

import (
	"bufio"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/concertina-dev/concertina/hack/bench/steps"
)

// world is what the ranks of one round have said.
type world struct {
	// firstBegun is when each rank began its first step, lastDone when it had done its last.
	firstBegun, lastDone map[int]time.Time
	first, last          uint64
}

// ranks is how many have made a step.
func (w *world) ranks() int { return len(w.firstBegun) }

// stamps collects what programs print.
type stamps struct {
	mu     sync.Mutex
	worlds map[uint64]*world
	more   chan struct{}
}

func newStamps() *stamps {
	return &stamps{worlds: map[uint64]*world{}, more: make(chan struct{})}
}

func (s *stamps) add(t steps.Stamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.worlds[t.Round]
	if w == nil {
		w = &world{firstBegun: map[int]time.Time{}, lastDone: map[int]time.Time{}, first: t.Step}
		s.worlds[t.Round] = w
	}
	if at, known := w.firstBegun[t.Rank]; !known || t.Begun.Before(at) {
		w.firstBegun[t.Rank] = t.Begun
	}
	if t.Done.After(w.lastDone[t.Rank]) {
		w.lastDone[t.Rank] = t.Done
	}
	w.first, w.last = min(w.first, t.Step), max(w.last, t.Step)
	close(s.more)
	s.more = make(chan struct{})
}

// await waits until a round above one has steps of so many ranks, and returns its number.
func (s *stamps) await(ctx context.Context, above uint64, ranks int) (uint64, error) {
	for {
		s.mu.Lock()
		more, found, most := s.more, uint64(0), 0
		for round, w := range s.worlds {
			if round <= above {
				continue
			}
			most = max(most, w.ranks())
			if w.ranks() == ranks && (found == 0 || round < found) {
				found = round
			}
		}
		s.mu.Unlock()
		if found > 0 {
			return found, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0, fmt.Errorf("no world of %d ranks made a step after round %d (at most %d did): %w", ranks, above, most, ctx.Err())
		}
	}
}

// pause is the wall time from the end of the last step of one world, whoever made it, to the moment at
// which the slowest rank of another began its first.
func (s *stamps) pause(from, to uint64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var longest time.Duration
	old, next := s.worlds[from], s.worlds[to]
	var end time.Time
	for _, at := range old.lastDone {
		if at.After(end) {
			end = at
		}
	}
	for _, begun := range next.firstBegun {
		longest = max(longest, begun.Sub(end))
	}
	return longest
}

// lost is how many steps of the older world the newer made again.
func (s *stamps) lost(from, to uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, next := s.worlds[from], s.worlds[to]
	if next.first > old.last {
		return 0
	}
	return old.last - next.first + 1
}

// follow reads the log of a pod's container until it is over or ctx ends.
func (s *stamps) follow(ctx context.Context, core kubernetes.Interface, pod *corev1.Pod, container string) error {
	stream, err := core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, Follow: true,
	}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
	}
	defer func() { _ = stream.Close() }()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if t, ok := steps.Parse(lines.Text()); ok {
			s.add(t)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return lines.Err()
}

// steps waits until a round has made so many, or another has followed it: a worker in the place of one
// that was lost may be there soon.
func (s *stamps) steps(ctx context.Context, round uint64, count uint64) error {
	for {
		s.mu.Lock()
		more, w, over := s.more, s.worlds[round], false
		for other := range s.worlds {
			over = over || other > round
		}
		done := w.last - w.first + 1
		s.mu.Unlock()
		if done >= count || over {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("round %d made %d of %d steps: %w", round, done, count, ctx.Err())
		}
	}
}
