package start

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func TestObserverTakesTheLastOfAllWorkers(t *testing.T) {
	t.Parallel()
	pod := func(name, node string, containers ...corev1.ContainerStatus) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{ContainerStatuses: containers},
		}
	}
	up := corev1.ContainerStatus{Name: "trainer", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	sidecar := corev1.ContainerStatus{Name: "sidecar", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	o := &observer{}
	o.begin = noon

	o.pod(pod("a", ""), "trainer", after(0.1))
	if !o.at[bound].IsZero() {
		t.Error("a pod without a node counts as bound")
	}
	o.pod(pod("a", "node-1"), "trainer", after(1))
	o.pod(pod("a", "node-1"), "trainer", after(9))
	if o.complete(bound) {
		t.Error("one of two workers is enough")
	}
	o.pod(pod("b", "node-2"), "trainer", after(2))
	if !o.complete(bound) || !o.at[bound].Equal(after(2)) {
		t.Errorf("bound at %s, want the second worker's 2 s", o.timeline)
	}
	if o.pod(pod("a", "node-1", sidecar), "trainer", after(3)) {
		t.Error("the log can be read although only a sidecar runs")
	}
	if !o.pod(pod("a", "node-1", sidecar, up), "trainer", after(3)) {
		t.Error("the log cannot be read although the trainer runs")
	}
	for _, m := range []mark{{started, "b", after(5)}, {started, "a", after(4)}, {stepped, "b", after(6)}, {stepped, "b", after(8)}} {
		o.mark(m)
	}
	if o.complete(program, step, formed) {
		t.Error("complete without the world")
	}
	o.at[formed] = after(4.5)
	if !o.complete(program, step, formed) {
		t.Error("not complete")
	}
	if got, want := (timeline{at: o.at}).String(), "bound, containers_running, world_formed, program_started, first_step"; got != want {
		t.Errorf("without a begin the timeline is %q, want %q", got, want)
	}
	if got, want := o.String(), "bound 2.00s, containers_running 3.00s, world_formed 4.50s, program_started 5.00s, first_step 6.00s"; got != want {
		t.Errorf("the timeline is %q, want %q", got, want)
	}
}

func TestPhases(t *testing.T) {
	t.Parallel()
	start := func(programStarted, firstStep, worldFormed float64) timeline {
		one := timeline{begin: noon}
		one.at[program], one.at[step] = after(programStarted), after(firstStep)
		if worldFormed > 0 {
			one.at[formed] = after(worldFormed)
		}
		return one
	}
	// One of them has not seen the world: that figure would compare different runs.
	got := phases("start", []timeline{start(1, 3, 0.5), start(2, 6, 0), start(2, 5, 1)})
	want := []figures.Figure{
		{Name: "start_first_step_p50", Value: 5, Unit: "s"}, {Name: "start_first_step_max", Value: 6, Unit: "s"},
		{Name: "start_program_started_p50", Value: 2, Unit: "s"}, {Name: "start_program_started_max", Value: 2, Unit: "s"},
		{Name: "start_program_to_first_step_p50", Value: 3, Unit: "s"}, {Name: "start_program_to_first_step_max", Value: 4, Unit: "s"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestParseMark(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	const stamp = "2026-03-01T12:00:00.123456789Z "
	for _, test := range []struct {
		line string
		kind markKind
		ok   bool
	}{
		{stamp + startMark, started, true},
		{stamp + "I1121 Starting elastic_operator with launch configs:", asking, true},
		{stamp + "step 1/900 loss 2.3", stepped, true},
		{stamp + "step 10/900 loss 2.3", 0, false},
		{stamp + "the first step 1/900 loss", 0, false},
		{"step 1/900 loss 2.3", 0, false},
		{"", 0, false},
	} {
		kind, when, ok := parseMark(test.line)
		if kind != test.kind || ok != test.ok || (ok && !when.Equal(at)) {
			t.Errorf("%q is %d at %s, %v", test.line, kind, when, ok)
		}
	}
}
