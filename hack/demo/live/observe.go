package live

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
)

// Observe makes the Model of a job from what the cluster says and what its programs printed.
// Events of other objects than the job and its pods are passed over.
func Observe(job *v1alpha1.TrainingJob, pods []corev1.Pod, events []corev1.Event, log Log, now time.Time) Model {
	status := &job.Status
	m := Model{
		Name:                   job.Name,
		Elapsed:                now.Sub(job.CreationTimestamp.Time),
		Attempt:                value(status.Attempt),
		Conditions:             conditions(status.Conditions),
		Workers:                workers(job, pods),
		Training:               training(status.Progress, log),
		ProgramRestarts:        value(status.Restarts.Program),
		InfrastructureRestarts: value(status.Restarts.Infrastructure),
		Events:                 related(job, pods, events, now),
	}
	if world := status.World; world != nil {
		m.Term, m.Round = value(world.Term), value(world.Round)
	}
	if status.CompletionTime != nil {
		m.Elapsed = status.CompletionTime.Sub(job.CreationTimestamp.Time)
	}
	switch {
	case meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionComplete):
		m.Outcome = Complete
	case meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionFailed):
		m.Outcome = Failed
	}
	return m
}

func conditions(all []metav1.Condition) []Condition {
	var shown []Condition
	add := func(conditionType string, wanted bool) {
		c := meta.FindStatusCondition(all, conditionType)
		switch {
		case c != nil && (wanted || c.Status == metav1.ConditionTrue):
			shown = append(shown, Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		case c == nil && wanted:
			shown = append(shown, Condition{Type: conditionType, Status: metav1.ConditionUnknown})
		}
	}
	for _, conditionType := range order {
		add(conditionType, true)
	}
	for _, conditionType := range onlyTrue {
		add(conditionType, false)
	}
	return shown
}

// workers are those of the current attempt. The record of its world tells their ranks.
func workers(job *v1alpha1.TrainingJob, pods []corev1.Pod) []Worker {
	attempt := value(job.Status.Attempt)
	ranks := map[string]int{}
	if named, of := record.Ranks(job); of == attempt {
		for ordinal, rank := range named {
			ranks[fmt.Sprintf("%s-%d-%d", job.Name, attempt, ordinal)] = int(rank)
		}
	}
	var found []Worker
	for i := range pods {
		pod := &pods[i]
		if pod.Labels[v1alpha1.LabelAttempt] != strconv.Itoa(int(attempt)) {
			continue
		}
		rank, member := ranks[pod.Name]
		if !member {
			rank = -1
		}
		found = append(found, Worker{Name: pod.Name, Rank: rank, Node: pod.Spec.NodeName, State: podState(pod)})
	}
	slices.SortFunc(found, func(a, b Worker) int {
		return cmp.Or(cmp.Compare(uint(a.Rank), uint(b.Rank)), cmp.Compare(a.Name, b.Name))
	})
	return found
}

// podState says in a few words what a pod does.
func podState(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "leaving"
	case pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "":
		return "failed, " + pod.Status.Reason
	case pod.Status.Phase == corev1.PodSucceeded:
		return "done"
	case pod.Spec.NodeName == "":
		return "queued"
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			waiting := status.State.Waiting
			if waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing" && waiting.Reason != "ContainerCreating" {
				return waiting.Reason
			}
		}
	}
	return containerState(pod.Status.ContainerStatuses)
}

// containerState speaks for the containers of a pod together: they have ended when all of them have.
func containerState(statuses []corev1.ContainerStatus) string {
	state := "starting"
	for _, status := range statuses {
		ended := status.State.Terminated
		switch {
		case status.State.Running != nil:
			return "running"
		case ended != nil && ended.ExitCode != 0:
			state = fmt.Sprintf("failed, exit code %d", ended.ExitCode)
		case ended != nil && state == "starting":
			state = "done"
		}
	}
	return state
}

// training prefers what the program printed, which is newer, to what the status says.
func training(progress v1alpha1.ProgressStatus, log Log) Training {
	t := Training{
		Step: value(progress.Step), Total: value(progress.TotalSteps),
		SamplesPerSecond: value(progress.SamplesPerSecond),
		Losses:           log.Losses, Accuracy: log.Accuracy,
	}
	t.Step, t.Total = max(t.Step, log.Step), max(t.Total, log.Total)
	for _, metric := range progress.Metrics {
		number, err := strconv.ParseFloat(metric.Value, 64)
		switch {
		case err != nil:
		case metric.Name == "accuracy" && t.Accuracy == nil:
			t.Accuracy = &number
		case metric.Name == "loss" && len(t.Losses) == 0:
			t.Losses = []Loss{{Step: t.Step, Value: number}}
		}
	}
	return t
}

func related(job *v1alpha1.TrainingJob, pods []corev1.Pod, events []corev1.Event, now time.Time) []Event {
	uids := map[string]bool{string(job.UID): true}
	for i := range pods {
		uids[string(pods[i].UID)] = true
	}
	var shown []Event
	for i := range events {
		event := &events[i]
		about := event.InvolvedObject
		warning := event.Type == corev1.EventTypeWarning
		if !uids[string(about.UID)] || (about.UID != job.UID && !warning) {
			continue
		}
		shown = append(shown, Event{
			Key: string(event.UID), Count: eventCount(event), Age: now.Sub(eventTime(event)),
			Warning: warning, Reason: event.Reason, Message: event.Message,
		})
	}
	slices.SortStableFunc(shown, func(a, b Event) int { return cmp.Compare(b.Age, a.Age) })
	return shown
}

// eventTime is when an event happened last; its two kinds of writers keep that in different fields.
func eventTime(event *corev1.Event) time.Time {
	switch {
	case event.Series != nil && !event.Series.LastObservedTime.IsZero():
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	default:
		return event.CreationTimestamp.Time
	}
}

func eventCount(event *corev1.Event) int32 {
	if event.Series != nil {
		return event.Series.Count
	}
	return max(1, event.Count)
}

func value[T any](pointer *T) T {
	if pointer == nil {
		var zero T
		return zero
	}
	return *pointer
}
