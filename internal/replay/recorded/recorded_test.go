package recorded

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/replay"
	"github.com/concertina-dev/concertina/internal/replay/traces"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

var morning = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

func after(minutes int) metav1.Time {
	return metav1.NewTime(morning.Add(time.Duration(minutes) * time.Minute))
}

func node(devices string) *corev1.Node {
	return &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		gpu: resource.MustParse(devices), corev1.ResourceCPU: resource.MustParse("64"), "hugepages-1Gi": resource.MustParse("0"),
	}}}
}

func asking(devices string) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{gpu: resource.MustParse(devices)}, Requests: corev1.ResourceList{gpu: resource.MustParse(devices)},
	}}}}
}

// digits has trained with 1 worker at 10 steps a second, and with 4 at 20.
func digits() *v1alpha1.TrainingJob {
	job := &v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "digits", CreationTimestamp: after(10)}}
	job.Spec.Workers.Min, job.Spec.Workers.Max = ptr.To(int32(1)), ptr.To(int32(64))
	job.Spec.Workers.Template.Spec = asking("1")
	job.Status.Progress = v1alpha1.ProgressStatus{Step: ptr.To(int64(600)), TotalSteps: ptr.To(int64(6000))}
	job.Status.Speed.Sizes = []v1alpha1.SizeSpeed{
		{Workers: ptr.To(int32(1)), Nodes: ptr.To(int32(1)), StepsPerSecond: "10", Steps: ptr.To(int64(6000)), At: ptr.To(after(20))},
		{Workers: ptr.To(int32(4)), Nodes: ptr.To(int32(1)), StepsPerSecond: "20", Steps: ptr.To(int64(12000)), At: ptr.To(after(20))},
	}
	return job
}

// other is a pod of something that is no TrainingJob; one that ends at 0 runs.
func other(owner, name string, from, to int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), CreationTimestamp: after(from)}, Spec: asking("2")}
	if kind, of, owned := strings.Cut(owner, "/"); owned {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: of, UID: types.UID(of), Controller: ptr.To(true)}}
	}
	pod.Spec.NodeName = "node-" + name
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, ptr.To(after(from))
	if to > 0 {
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: after(to)}}}}
	}
	return pod
}

func read(t *testing.T, o *Objects, options Options) *Workload {
	t.Helper()
	options.Now, options.Widen = after(30).Time, max(1, options.Widen)
	w, err := New(o, options)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestATrainingJobIsAsItWasMeasured(t *testing.T) {
	w := read(t, &Objects{Nodes: []*corev1.Node{node("8"), node("8")}, Jobs: []*v1alpha1.TrainingJob{digits()}}, Options{})
	if w.Device != string(gpu) || w.Cluster != (replay.Cluster{Nodes: 2, DevicesPerNode: 8}) || len(w.Jobs) != 1 || len(w.Notes) > 0 {
		t.Fatalf("%+v", w)
	}
	job, program := w.Jobs[0], w.Jobs[0].Program.(*replay.Scaling)
	if job.Name != "team/digits" || job.Submitted != 0 || job.Workers != 1 || program.Steps != 6000 || program.Most != 16 {
		t.Errorf("%+v %+v", job, program)
	}
	for workers, want := range map[int]float64{1: 0.1, 4: 0.05} {
		if got := program.StepTime(replay.Placement{workers}); got < 0.9*want || got > 1.1*want {
			t.Errorf("a step with %d takes %g s, measured is %g", workers, got, want)
		}
	}
}

func TestAWorkerWithSeveralDevicesCountsAsSomany(t *testing.T) {
	job := digits()
	job.Spec.Workers.Template.Spec = asking("4")
	w := read(t, &Objects{Nodes: []*corev1.Node{node("8"), node("8")}, Jobs: []*v1alpha1.TrainingJob{job}}, Options{})
	program := w.Jobs[0].Program.(*replay.Scaling)
	if got := program.StepTime(replay.Placement{8, 8}); w.Jobs[0].Workers != 4 || got < 0.045 || got > 0.06 {
		t.Errorf("it asks for %d, and a step on 16 devices takes %g s, with 4 workers measured is 0.05", w.Jobs[0].Workers, got)
	}
}

func TestHowManyStepsThereAre(t *testing.T) {
	for _, test := range []struct {
		name string
		mend func(*v1alpha1.TrainingJob)
		want int64
	}{
		{"as it says", func(*v1alpha1.TrainingJob) {}, 6000},
		{"as many again", func(j *v1alpha1.TrainingJob) { j.Status.Progress.TotalSteps = nil }, 1200},
		{"more than it said", func(j *v1alpha1.TrainingJob) { j.Status.Progress.TotalSteps = ptr.To(int64(500)) }, 1200},
		{"what it has made", func(j *v1alpha1.TrainingJob) { j.Status.CompletionTime = ptr.To(after(20)) }, 600},
		{"no more than can be", func(j *v1alpha1.TrainingJob) { j.Status.Progress.TotalSteps = ptr.To(int64(1) << 62) }, MostSteps},
	} {
		job := digits()
		test.mend(job)
		w := read(t, &Objects{Nodes: []*corev1.Node{node("8")}, Jobs: []*v1alpha1.TrainingJob{job}}, Options{})
		if got := w.Jobs[0].Program.(*replay.Scaling).Steps; got != test.want {
			t.Errorf("%s: %d steps, want %d", test.name, got, test.want)
		}
	}
}

// A pod that was made anew is not a second worker.
func TestWhatElseHoldsDevices(t *testing.T) {
	o := &Objects{Nodes: []*corev1.Node{node("8"), node("8"), node("4")}, Pods: []*corev1.Pod{
		other("Job/llama", "a", 0, 10), other("Job/llama", "b", 0, 5), other("Job/llama", "c", 5, 12),
		other("", "alone", 20, 0), other("ReplicaSet/chat", "d", 0, 0),
	}}
	o.Pods = append(o.Pods, other("", "waits", 25, 0))
	o.Pods[5].Status.StartTime = nil
	ours := other("TrainingJob/digits", "digits-1-0", 0, 0)
	ours.Labels = map[string]string{v1alpha1.LabelJob: "digits"}
	w := read(t, &Objects{Nodes: o.Nodes, Pods: append(o.Pods, ours)}, Options{Widen: 3})
	if w.Cluster != (replay.Cluster{Nodes: 2, DevicesPerNode: 8}) || len(w.Jobs) != 2 {
		t.Fatalf("%+v", w)
	}
	llama, alone := w.Jobs[0], w.Jobs[1]
	if p := llama.Program.(*replay.Scaling); llama.Name != "team/llama" || llama.Workers != 4 || p.Most != 12 || p.Steps != 12*60 {
		t.Errorf("%+v %+v", llama, p)
	} else if got := p.StepTime(replay.Placement{2, 2}); got < 0.95 || got > 1.05 {
		t.Errorf("a second of it takes %g s", got)
	}
	if p := alone.Program.(*replay.Scaling); alone.Submitted != 20*60 || alone.Workers != 2 || p.Steps != 2*10*60 {
		t.Errorf("%+v %+v", alone, p)
	}
	notes := strings.Join(w.Notes, "\n")
	for _, want := range []string{"20 in all", "pods never end: 1", "have not started: 1", "half of it behind them: 1", "3 times their devices at most (--widen): 2"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not say %q:\n%s", want, notes)
		}
	}
}

func TestClustersThatAreNoWorkload(t *testing.T) {
	two := node("8")
	two.Status.Allocatable["amd.com/gpu"] = resource.MustParse("8")
	for _, test := range []struct {
		name   string
		o      Objects
		device string
		want   string
	}{
		{"nothing", Objects{}, "", "no node has a device"},
		{"two devices", Objects{Nodes: []*corev1.Node{two}}, "", "amd.com/gpu, nvidia.com/gpu: say with --device"},
		{"another one", Objects{Nodes: []*corev1.Node{two}}, "tpu", "no node has tpu"},
		{"no jobs", Objects{Nodes: []*corev1.Node{two}, Pods: []*corev1.Pod{other("ReplicaSet/chat", "d", 0, 0)}}, string(gpu), "no job that has trained"},
		{"too large", Objects{Nodes: []*corev1.Node{node("1")}, Pods: []*corev1.Pod{other("", "d", 0, 0)}}, "", "more than the 1 devices"},
	} {
		if _, err := New(&test.o, Options{Device: test.device, Widen: 1, Now: after(30).Time}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want %q", test.name, err, test.want)
		}
	}
}

// What is written is read as it was, and can be run.
func TestAWorkloadIsWrittenAndRead(t *testing.T) {
	job := digits()
	job.Spec.Deadline = ptr.To(after(70))
	w := read(t, &Objects{Nodes: []*corev1.Node{node("8"), node("8")}, Jobs: []*v1alpha1.TrainingJob{job}, Pods: []*corev1.Pod{other("Job/llama", "a", 0, 10)}}, Options{Nodes: 3})
	var out bytes.Buffer
	if err := traces.Write(&out, w.Jobs); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "jobs.csv")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := traces.Workload(file, "")
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	same := func(a, b replay.Job) bool {
		return a.Name == b.Name && a.Submitted == b.Submitted && a.Deadline == b.Deadline && a.Workers == b.Workers &&
			*a.Program.(*replay.Scaling) == *b.Program.(*replay.Scaling)
	}
	if !slices.EqualFunc(w.Jobs, again, same) {
		t.Errorf("read is %+v, written was\n%s", again, out.String())
	}
	if again[1].Deadline != 70*60 || w.Cluster.Nodes != 3 {
		t.Errorf("the deadline is %d s after the first submission, on %d nodes", again[1].Deadline, w.Cluster.Nodes)
	}
	result, err := replay.Events{Join: time.Second, Pause: time.Second}.Run(again, w.Cluster)
	if err != nil || len(result.Jobs) != 2 {
		t.Errorf("%v: %+v", err, result)
	}
}
