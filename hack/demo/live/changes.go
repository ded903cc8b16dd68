package live

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Changes says in lines what is new in a Model since an earlier one, for an output that is no
// terminal. Steps make a line each tenth of the training.
func Changes(before, after Model) []string {
	var lines []string
	say := func(format string, args ...any) {
		lines = append(lines, strings.Map(printable, oneLine(fmt.Sprintf(format, args...))))
	}
	if after.Attempt != before.Attempt {
		say("attempt %d", after.Attempt)
	}
	if after.Round > 0 && (after.Round != before.Round || after.Term != before.Term) {
		say("round %d, term %d", after.Round, after.Term)
	}
	for _, c := range after.Conditions {
		if c.Status != metav1.ConditionUnknown && c != sameType(before.Conditions, c.Type) {
			say("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, w := range after.Workers {
		if w != sameName(before.Workers, w.Name) {
			say("worker %s", describe(w))
		}
	}
	if line := trainingChange(before.Training, after.Training); line != "" {
		say("%s", line)
	}
	for _, e := range after.Events {
		if e.Count > seen(before.Events, e.Key) {
			say("event %s: %s", e.Reason, e.Message)
		}
	}
	return lines
}

func describe(w Worker) string {
	line := fmt.Sprintf("%s is %s", w.Name, w.State)
	if w.Node != "" {
		line += " on " + w.Node
	}
	if w.Rank >= 0 {
		line += fmt.Sprintf(" as rank %d", w.Rank)
	}
	return line
}

func trainingChange(before, after Training) string {
	var parts []string
	if tenth(after) != tenth(before) {
		parts = append(parts, fmt.Sprintf("step %d/%d", after.Step, after.Total))
		if loss, known := after.Loss(); known {
			parts = append(parts, fmt.Sprintf("loss %.4f", loss))
		}
	}
	if after.Accuracy != nil && (before.Accuracy == nil || *before.Accuracy != *after.Accuracy) {
		parts = append(parts, fmt.Sprintf("test accuracy %.2f%%", 100**after.Accuracy))
	}
	return strings.Join(parts, " ")
}

// tenth is how many tenths of the training are done.
func tenth(t Training) int64 {
	if t.Total == 0 {
		return 0
	}
	return 10 * t.Step / t.Total
}

func sameType(conditions []Condition, conditionType string) Condition {
	for _, c := range conditions {
		if c.Type == conditionType {
			return c
		}
	}
	return Condition{}
}

func sameName(workers []Worker, name string) Worker {
	for _, w := range workers {
		if w.Name == name {
			return w
		}
	}
	return Worker{}
}

func seen(events []Event, key string) int32 {
	for _, e := range events {
		if e.Key == key {
			return e.Count
		}
	}
	return 0
}
