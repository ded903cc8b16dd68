package live

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func TestObserve(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(secondsAgo int) metav1.Time {
		return metav1.NewTime(now.Add(-time.Duration(secondsAgo) * time.Second))
	}
	made := rendezvous.Record{Workers: 2}
	made.Name([]rendezvous.NamedMember{{Ordinal: 2, Node: "n"}, {Ordinal: 3, Node: "n"}})
	job := &v1alpha1.TrainingJob{
		ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "job", CreationTimestamp: at(60)},
		Status: v1alpha1.TrainingJobStatus{
			Attempt: new(int32(2)),
			World:   &v1alpha1.WorldStatus{Term: new(int64(3)), Round: new(int64(4)), Attempt: new(int32(2)), Workers: new(int32(2)), Members: made.Members},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionSuspended, Status: metav1.ConditionFalse, Reason: "Resumed"},
				{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionTrue, Reason: "WorldFormed", Message: "trains"},
			},
			Progress: v1alpha1.ProgressStatus{
				Step: new(int64(10)), TotalSteps: new(int64(900)), SamplesPerSecond: new(int64(7)),
				Metrics: []v1alpha1.Metric{{Name: "accuracy", Value: "0.5"}, {Name: "loss", Value: "1.5"}},
			},
		},
	}
	pod := func(name, attempt string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), Labels: map[string]string{v1alpha1.LabelAttempt: attempt},
		}}
	}
	event := func(uid, about, kind string, secondsAgo int) corev1.Event {
		return corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{UID: types.UID(uid)},
			InvolvedObject: corev1.ObjectReference{UID: types.UID(about)}, Type: kind,
			EventTime: metav1.NewMicroTime(at(secondsAgo).Time),
		}
	}
	events := []corev1.Event{
		event("newer", "job", corev1.EventTypeNormal, 5), event("older", "job", corev1.EventTypeNormal, 50),
		event("pod warning", "d-2-3", corev1.EventTypeWarning, 7), event("pod chatter", "d-2-3", corev1.EventTypeNormal, 6),
		event("foreign", "else", corev1.EventTypeWarning, 1),
	}
	pods := []corev1.Pod{pod("d-2-4", "2"), pod("d-1-0", "1"), pod("d-2-3", "2"), pod("d-2-2", "2")}
	log := Log{Step: 40, Total: 900, Losses: []Loss{{Step: 40, Value: 0.7}}}

	got := Observe(job, pods, events, log, now)

	want := Model{
		Name: "d", Elapsed: time.Minute, Attempt: 2, Term: 3, Round: 4,
		Conditions: []Condition{
			{Type: v1alpha1.ConditionAdmitted, Status: metav1.ConditionUnknown},
			{Type: v1alpha1.ConditionGangScheduled, Status: metav1.ConditionUnknown},
			{Type: v1alpha1.ConditionTraining, Status: metav1.ConditionTrue, Reason: "WorldFormed", Message: "trains"},
		},
		Workers: []Worker{
			{Name: "d-2-2", Rank: 0, State: "queued"}, {Name: "d-2-3", Rank: 1, State: "queued"}, {Name: "d-2-4", Rank: -1, State: "queued"},
		},
		Training: Training{Step: 40, Total: 900, Losses: log.Losses, Accuracy: new(0.5), SamplesPerSecond: 7},
		Events: []Event{
			{Key: "older", Count: 1, Age: 50 * time.Second}, {Key: "pod warning", Count: 1, Age: 7 * time.Second, Warning: true},
			{Key: "newer", Count: 1, Age: 5 * time.Second},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestObserveOutcome(t *testing.T) {
	t.Parallel()
	for conditionType, want := range map[string]Outcome{
		v1alpha1.ConditionComplete: Complete, v1alpha1.ConditionFailed: Failed, v1alpha1.ConditionTraining: Open,
	} {
		job := &v1alpha1.TrainingJob{}
		job.Status.Conditions = []metav1.Condition{{Type: conditionType, Status: metav1.ConditionTrue}}
		if got := Observe(job, nil, nil, Log{}, time.Now()).Outcome; got != want {
			t.Errorf("with %s the outcome is %d, want %d", conditionType, got, want)
		}
	}
}

func TestLogRead(t *testing.T) {
	t.Parallel()
	var log Log
	for _, line := range []string{
		"starting", "step 20/900 loss 1.2500", "step 40/900 loss nan", "step 60/900", "step 99999999999999999999/1 loss 1",
		"step 20/900 loss 1.2500", "step 80/900 loss 0.5 more", "test accuracy 7", "test accuracy 0.9722",
	} {
		log = log.Read(line)
	}
	want := Log{Step: 80, Total: 900, Losses: []Loss{{20, 1.25}, {80, 0.5}}, Accuracy: new(0.9722)}
	if diff := cmp.Diff(want, log); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
