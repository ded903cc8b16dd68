package live

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/demo/console"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cluster with one job, whose worker prints one line after the other and completes the
// job with the last.
func world(t *testing.T, lines ...string) (*Source, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "digits", UID: "job"}}
	job.Status.Attempt = new(int32(1))
	worker := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "digits-1-0", UID: "pod",
			Labels: map[string]string{v1alpha1.LabelJob: "digits", v1alpha1.LabelAttempt: "1"},
		},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "trainer"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "trainer", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(job, worker).WithStatusSubresource(job).Build()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/default/pods/digits-1-0/log" || r.URL.Query().Get("follow") != "true" {
			t.Errorf("asked for %s", r.URL)
		}
		for i, line := range lines {
			if i == len(lines)-1 {
				job.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: "Completed"}}
				if err := objects.Status().Update(r.Context(), job); err != nil {
					t.Error(err)
				}
			}
			_, _ = fmt.Fprintln(w, line)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	t.Cleanup(server.Close)
	pods, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return &Source{Objects: objects, Pods: pods, Namespace: "default", Name: "digits"}, objects
}

// consoleTo is a console on a file, which is no terminal.
func consoleTo(t *testing.T) (c *console.Console, printed func() string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return console.New(file), func() string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
}

func TestFollowReadsTheLogToItsEnd(t *testing.T) {
	source, _ := world(t, "starting", strings.Repeat("x", 100_000), "step 90/900 loss 0.5000", "test accuracy 0.9722")
	to, printed := consoleTo(t)
	model, err := Follow(t.Context(), source, to)
	if err != nil {
		t.Fatal(err)
	}
	if model.Outcome != Complete || model.Training.Step != 90 || model.Training.Accuracy == nil || *model.Training.Accuracy != 0.9722 {
		t.Errorf("the last model is %+v", model)
	}
	for _, want := range []string{"worker digits-1-0 is running on node-1", "Complete=True Completed", "test accuracy 97.22%"} {
		if strings.Count(printed(), want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, printed())
		}
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	source, objects := world(t, "step 1/9 loss 1", "test accuracy 1")
	if err := objects.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	to, _ := consoleTo(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Follow(ctx, source, to); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

func TestFollowSaysThatThereIsNoJob(t *testing.T) {
	source, _ := world(t, "")
	source.Name = "letters"
	to, _ := consoleTo(t)
	_, err := Follow(t.Context(), source, to)
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "letters in namespace default") {
		t.Errorf("the error is %v", err)
	}
}
