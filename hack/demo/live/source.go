package live

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Source reads the state of one job and follows what its programs print. The status is refreshed
// every half minute only; the steps in between come from the logs.
type Source struct {
	// Objects reads TrainingJobs, pods and events.
	Objects client.Reader
	// Pods reads logs.
	Pods kubernetes.Interface
	// Namespace and Name are those of the job.
	Namespace, Name string

	mu        sync.Mutex
	attempt   int32
	log       Log
	following map[types.UID]bool
	readers   sync.WaitGroup
}

// Look reads the job once. The logs of its running workers are followed from then on, until ctx
// ends or they do.
func (s *Source) Look(ctx context.Context) (Model, error) {
	var job v1alpha1.TrainingJob
	if err := s.Objects.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name}, &job); err != nil {
		return Model{}, fmt.Errorf("read TrainingJob %s in namespace %s: %w", s.Name, s.Namespace, err)
	}
	var pods corev1.PodList
	if err := s.Objects.List(ctx, &pods, client.InNamespace(s.Namespace), client.MatchingLabels{v1alpha1.LabelJob: s.Name}); err != nil {
		return Model{}, fmt.Errorf("list the workers of %s: %w", s.Name, err)
	}
	var events corev1.EventList
	if err := s.Objects.List(ctx, &events, client.InNamespace(s.Namespace)); err != nil {
		return Model{}, fmt.Errorf("list the events of namespace %s: %w", s.Namespace, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if attempt := value(job.Status.Attempt); attempt != s.attempt {
		s.attempt, s.log = attempt, Log{}
	}
	for i := range pods.Items {
		s.follow(ctx, &job, &pods.Items[i])
	}
	return Observe(&job, pods.Items, events.Items, s.log, time.Now()), nil
}

// Drain waits until every log that is followed has been read to its end, at most until ctx ends.
func (s *Source) Drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.readers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// follow reads the log of a worker of the current attempt as soon as it has one. A log that broke
// off is read again from its start at the next Look.
func (s *Source) follow(ctx context.Context, job *v1alpha1.TrainingJob, pod *corev1.Pod) {
	container := trainer(job, pod)
	if s.following[pod.UID] || container == "" || pod.Labels[v1alpha1.LabelAttempt] != fmt.Sprint(s.attempt) {
		return
	}
	if s.following == nil {
		s.following = map[types.UID]bool{}
	}
	s.following[pod.UID] = true
	name, uid, attempt := pod.Name, pod.UID, s.attempt
	s.readers.Go(func() {
		err := s.read(ctx, name, container, attempt)
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.following, uid)
		}
	})
}

func (s *Source) read(ctx context.Context, pod, container string, attempt int32) error {
	stream, err := s.Pods.CoreV1().Pods(s.Namespace).GetLogs(pod, &corev1.PodLogOptions{
		Container: container, Follow: true,
	}).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	return eachLine(stream, func(line string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.attempt == attempt {
			s.log = s.log.Read(line)
		}
	})
}

// eachLine calls take for every line; of a line that is too long only the beginning counts.
func eachLine(stream io.Reader, take func(string)) error {
	reader := bufio.NewReader(stream)
	for {
		line, isPrefix, err := reader.ReadLine()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		take(string(line))
		for isPrefix && err == nil {
			_, isPrefix, err = reader.ReadLine()
		}
	}
}

// trainer is the container of a worker that trains, empty until it has started.
func trainer(job *v1alpha1.TrainingJob, pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		named := status.Name == job.Spec.Workers.Container || status.Name == "trainer" || len(pod.Spec.Containers) == 1
		if named && (status.State.Running != nil || status.State.Terminated != nil) {
			return status.Name
		}
	}
	return ""
}
