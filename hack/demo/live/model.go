// Package live shows a TrainingJob while it runs: what is known of it becomes a Model (observe),
// a Model becomes text (render), and a Model and the one before it become lines for a log
// (changes). All of these are pure; follow does the input and output around them.
package live

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Model is what the view knows of one job.
type Model struct {
	// Name is the job's name.
	Name string
	// Elapsed is the time since the job was created, or its whole life when it has ended.
	Elapsed time.Duration
	// Attempt, Term and Round are 0 while there is none.
	Attempt     int32
	Term, Round int64
	// Conditions are those worth showing, in the order in which a job reaches them.
	Conditions []Condition
	// Workers are the pods of the current attempt by rank, those without one last.
	Workers []Worker
	// Training is how far the program is.
	Training Training
	// Restarts are counted by cause.
	ProgramRestarts, InfrastructureRestarts int32
	// Events are oldest first.
	Events []Event
	// Outcome says whether the job has ended.
	Outcome Outcome
}

// Outcome is how a job ended.
type Outcome int

const (
	// Open: it has not ended.
	Open Outcome = iota
	// Complete: every process ended with exit code 0.
	Complete
	// Failed: it ended without success.
	Failed
)

// Condition is one condition of the job.
type Condition struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// Worker is one pod.
type Worker struct {
	Name string
	// Rank is the worker rank in the current world, -1 for none.
	Rank int
	// Node is empty while the pod has none.
	Node string
	// State is what the pod does, in a few words.
	State string
}

// Training is what the program has told.
type Training struct {
	// Step and Total count optimizer updates; 0 while unknown.
	Step, Total int64
	// Losses are the losses seen so far in the order of their steps.
	Losses []Loss
	// Accuracy is the accuracy on the test set, from 0 to 1; nil while unknown.
	Accuracy *float64
	// SamplesPerSecond is 0 while unknown.
	SamplesPerSecond int64
}

// Loss is the loss of one step.
type Loss struct {
	Step  int64
	Value float64
}

// Loss is the newest loss, and false when there is none.
func (t Training) Loss() (float64, bool) {
	if len(t.Losses) == 0 {
		return 0, false
	}
	return t.Losses[len(t.Losses)-1].Value, true
}

// Event is something that the operator or the cluster has to say about the job.
type Event struct {
	// Key tells events apart; a repeated event has the same key and a higher count.
	Key     string
	Count   int32
	Age     time.Duration
	Warning bool
	Reason  string
	Message string
}

// order is that of a job's life; those of the second list are shown only when they are true.
var (
	order    = []string{v1alpha1.ConditionAdmitted, v1alpha1.ConditionGangScheduled, v1alpha1.ConditionTraining}
	onlyTrue = []string{v1alpha1.ConditionSuspended, v1alpha1.ConditionComplete, v1alpha1.ConditionFailed}
)
