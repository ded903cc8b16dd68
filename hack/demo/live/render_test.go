package live

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func startingModel() Model {
	return Model{
		Name: "digits", Elapsed: 2 * time.Second, Attempt: 1,
		Conditions: []Condition{
			{Type: "Admitted", Status: metav1.ConditionTrue, Reason: "Admitted", Message: "nothing stands in the way of the job's pods"},
			{Type: "GangScheduled", Status: metav1.ConditionFalse, Reason: "WaitingForRoom", Message: "0/3 nodes are available: 2 workers want 5 example.com/gpu each and no node has more than 4, so the gang waits until a node that is large enough joins the cluster or the template asks for less; nothing was started and nothing is held meanwhile"},
			{Type: "Training", Status: metav1.ConditionUnknown},
		},
		Workers: []Worker{{Name: "digits-1-0", Rank: -1, State: "queued"}, {Name: "digits-1-1", Rank: -1, State: "queued"}},
		Events:  []Event{{Key: "a", Count: 1, Age: time.Second, Reason: "GangCreated", Message: "attempt 1: 2 workers are to start together (PodGroup digits-1)"}},
	}
}

func trainingModel() Model {
	m := startingModel()
	m.Elapsed, m.Term, m.Round = 75*time.Second, 1, 1
	m.Conditions[1] = Condition{Type: "GangScheduled", Status: metav1.ConditionTrue, Reason: "Scheduled", Message: "all 2 workers have a node"}
	m.Conditions[2] = Condition{Type: "Training", Status: metav1.ConditionTrue, Reason: "WorldFormed", Message: "round 1: 2 workers train as 2 ranks"}
	m.Workers = []Worker{
		{Name: "digits-1-1", Rank: 0, Node: "node-2", State: "running"},
		{Name: "digits-1-0", Rank: 1, Node: "node-1", State: "running"},
	}
	m.Training = Training{Step: 450, Total: 900, SamplesPerSecond: 3120}
	for i, loss := range []float64{2.3, 1.1, 0.5, 0.25, 0.12, 0.06, 0.03, 0.016, 0.008} {
		m.Training.Losses = append(m.Training.Losses, Loss{Step: int64(50 * (i + 1)), Value: loss})
	}
	m.Events = append(m.Events,
		Event{Key: "b", Count: 1, Age: 70 * time.Second, Warning: true, Reason: "FailedScheduling", Message: "no room\nyet \x1b[31mred"},
		Event{Key: "c", Count: 1, Age: 65 * time.Second, Reason: "WorldFormed", Message: "round 1: 2 workers train as 2 ranks"})
	return m
}

func completeModel() Model {
	m := trainingModel()
	accuracy := 0.9722
	m.Outcome, m.Training.Step, m.Training.Accuracy = Complete, 900, &accuracy
	m.ProgramRestarts, m.InfrastructureRestarts = 1, 2
	m.Conditions = append(m.Conditions, Condition{Type: "Complete", Status: metav1.ConditionTrue, Reason: "Completed", Message: "all 2 workers ended with exit code 0"})
	return m
}

func failedModel() Model {
	m := startingModel()
	m.Outcome = Failed
	m.Conditions = append(m.Conditions, Condition{Type: "Failed", Status: metav1.ConditionTrue, Reason: "ProgramFailed", Message: "exit code 1"})
	return m
}

func TestRender(t *testing.T) {
	t.Parallel()
	wide := Look{Columns: 100, Rows: 40}
	for name, test := range map[string]struct {
		model Model
		look  Look
	}{
		"empty":    {Model{Name: "digits"}, wide},
		"starting": {startingModel(), wide},
		"training": {trainingModel(), wide},
		"complete": {completeModel(), wide},
		"failed":   {failedModel(), wide},
		"narrow":   {trainingModel(), Look{Columns: 44, Rows: 40}},
		"low":      {trainingModel(), Look{Columns: 100, Rows: 19}},
		"tiny":     {completeModel(), Look{Columns: 1, Rows: 1}},
		"colour":   {failedModel(), Look{Columns: 100, Rows: 40, Colour: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compareGolden(t, name, Render(test.model, test.look)+"\n")
		})
	}
}

// A terminal that is smaller than the text scrolls, and what is painted over is then another text.
func TestRenderFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for columns := 40; columns < 130; columns += 7 {
		for rows := 10; rows < 40; rows += 3 {
			for _, model := range []Model{startingModel(), trainingModel(), completeModel(), failedModel()} {
				lines := strings.Split(Render(model, Look{Columns: columns, Rows: rows}), "\n")
				if len(lines) >= rows {
					t.Errorf("%d lines in %d rows", len(lines), rows)
				}
				for _, line := range lines {
					if width := len([]rune(line)); width >= columns {
						t.Errorf("a line of %d in %d columns: %q", width, columns, line)
					}
				}
			}
		}
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	var lines []string
	before := Model{}
	for _, m := range []Model{startingModel(), startingModel(), trainingModel(), completeModel()} {
		lines = append(lines, Changes(before, m)...)
		lines = append(lines, "--")
		before = m
	}
	compareGolden(t, "changes", strings.Join(lines, "\n")+"\n")
}

func TestChangesOfStepsAreFew(t *testing.T) {
	t.Parallel()
	count := 0
	before := Model{Training: Training{Total: 900}}
	for step := range int64(900) {
		after := Model{Training: Training{Step: step + 1, Total: 900}}
		count += len(Changes(before, after))
		before = after
	}
	if count != 10 {
		t.Errorf("900 steps made %d lines, want 10", count)
	}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./hack/demo/live -update writes the golden files)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("not what %s has (-want +got):\n%s", path, diff)
	}
}

func TestPodState(t *testing.T) {
	t.Parallel()
	waiting := func(reason string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
	bound := corev1.PodSpec{NodeName: "node-1"}
	ended := func(code int32) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
	}
	running := []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	status := func(phase corev1.PodPhase, containers []corev1.ContainerStatus) corev1.Pod {
		return corev1.Pod{Spec: bound, Status: corev1.PodStatus{Phase: phase, ContainerStatuses: containers}}
	}
	for _, test := range []struct {
		want string
		pod  corev1.Pod
	}{
		{"queued", corev1.Pod{}},
		{"leaving", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}, Spec: bound}},
		{"starting", status(corev1.PodPending, waiting("PodInitializing"))},
		{"ErrImageNeverPull", corev1.Pod{Spec: bound, Status: corev1.PodStatus{InitContainerStatuses: waiting("ErrImageNeverPull")}}},
		{"running", status(corev1.PodRunning, running)},
		{"running", status(corev1.PodRunning, append(ended(1), running...))},
		{"done", status(corev1.PodRunning, ended(0))},
		{"done", status(corev1.PodSucceeded, ended(0))},
		{"failed, exit code 3", status(corev1.PodRunning, append(ended(3), ended(0)...))},
		{"failed, exit code 3", status(corev1.PodFailed, ended(3))},
		{"failed, OutOfcpu", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}}},
	} {
		if got := podState(&test.pod); got != test.want {
			t.Errorf("podState is %q, want %q", got, test.want)
		}
	}
}
