package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/demo/kube"
	"github.com/concertina-dev/concertina/hack/demo/live"
	"github.com/concertina-dev/concertina/hack/demo/platform"
)

const checkout = "../.."

func TestJobsOfTheDemonstration(t *testing.T) {
	t.Parallel()
	for path, name := range map[string]string{example: exampleName, longJob: longName} {
		job, err := kube.ReadJob(filepath.Join(checkout, path))
		if err != nil {
			t.Error(err)
			continue
		}
		if job.Name != name || job.Namespace != "default" || len(job.Spec.Workers.Template.Spec.Containers) != 1 {
			t.Errorf("%s holds job %s in namespace %s", path, job.Name, job.Namespace)
		}
	}
}

func TestReadJobRefusesUnknownFields(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte("spec: {wrokers: {min: 2}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.ReadJob(path); err == nil || !strings.Contains(err.Error(), "wrokers") || !strings.Contains(err.Error(), path) {
		t.Errorf("the error is %v", err)
	}
}

func TestNextNamesWhatIsThere(t *testing.T) {
	t.Parallel()
	p := &platform.Platform{Checkout: "/src", Cache: "/src/.cache", Kubeconfig: "/run/kubeconfig"}
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Name: "digits"}}
	text := next(p, job)
	for _, want := range []string{`export KUBECONFIG=/run/kubeconfig PATH="/src/.cache/bin:$PATH"`, "kubectl describe tj digits "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	for word := range strings.FieldsSeq(text) {
		if path, local := strings.CutPrefix(word, "./"); local || strings.HasPrefix(word, "hack/") {
			if _, err := os.Stat(filepath.Join(checkout, path)); err != nil {
				t.Errorf("the text names %s: %v", word, err)
			}
		}
	}
}

func TestFailureSaysWhy(t *testing.T) {
	t.Parallel()
	p := &platform.Platform{Checkout: "/src", Cache: "/src/.cache", Kubeconfig: "/run/kubeconfig"}
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Name: "digits"}}
	err := failure(p, job, live.Model{Conditions: []live.Condition{
		{Type: v1alpha1.ConditionTraining, Message: "the job has ended"},
		{Type: v1alpha1.ConditionFailed, Reason: "ProgramFailed", Message: "exit code 1: no such file"},
	}})
	want := "TrainingJob digits has failed: ProgramFailed: exit code 1: no such file\n" +
		"  see KUBECONFIG=/run/kubeconfig .cache/bin/kubectl describe tj digits"
	if err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
}
