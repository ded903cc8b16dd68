package scale

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const page = `# HELP controller_runtime_reconcile_time_seconds Length of time per reconcile
# TYPE controller_runtime_reconcile_time_seconds histogram
controller_runtime_reconcile_time_seconds_bucket{controller="trainingjob",le="0.01"} 90
controller_runtime_reconcile_time_seconds_bucket{controller="trainingjob",le="0.05"} 98
controller_runtime_reconcile_time_seconds_bucket{controller="trainingjob",le="0.1"} 100
controller_runtime_reconcile_time_seconds_bucket{controller="trainingjob",le="+Inf"} 100
controller_runtime_reconcile_time_seconds_bucket{controller="other",le="0.01"} 7
controller_runtime_reconcile_total{controller="trainingjob",result="success"} 98
controller_runtime_reconcile_total{controller="trainingjob",result="error"} 2
controller_runtime_reconcile_total{controller="other",result="success"} 7
leader_election_master_status{name="a \"b\""} 1
go_goroutines 1.2e+01
`

func TestMetrics(t *testing.T) {
	t.Parallel()
	m, err := parseMetrics(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		got  float64
		want float64
	}{
		{"sum by label", m.sum("controller_runtime_reconcile_total", "controller", "trainingjob"), 100},
		{"sum of all", m.sum("controller_runtime_reconcile_total"), 107},
		{"sum of none", m.sum("nothing"), 0},
		{"quoted label", m.sum("leader_election_master_status", "name", `a \"b\"`), 1},
		{"no label", m.sum("go_goroutines"), 12},
		// Half of the two observations above 50 ms, so half of the way to 100 ms.
		{"p99", m.quantile(0.99, "controller_runtime_reconcile_time_seconds", "controller", "trainingjob"), 0.075},
		{"p90", m.quantile(0.90, "controller_runtime_reconcile_time_seconds", "controller", "trainingjob"), 0.01},
		{"beyond the last bound", m.quantile(1, "controller_runtime_reconcile_time_seconds", "controller", "other"), 0.01},
		{"no histogram", m.quantile(0.5, "nothing"), 0},
	} {
		if diff := test.got - test.want; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%s: %v, want %v", test.name, test.got, test.want)
		}
	}
	if _, err := parseMetrics(strings.NewReader("go_goroutines twelve\n")); err == nil {
		t.Error("a value that is no number was read")
	}
}

func TestCountWrites(t *testing.T) {
	t.Parallel()
	line := func(user, verb, resource, subresource, code string) string {
		return `{"verb":"` + verb + `","user":{"username":"` + user + `"},"objectRef":{"resource":"` + resource +
			`","subresource":"` + subresource + `"},"responseStatus":{"code":` + code + "}}\n"
	}
	first := line("a", "create", "pods", "", "201") + line("a", "patch", "pods", "", "200")
	log := first + line("a", "create", "pods", "", "409") + line("a", "create", "pods", "eviction", "201") +
		line("a", "update", "leases", "", "200") + line("b", "patch", "trainingjobs", "status", "200") +
		line("a", "patch", "pods", "", "200") + `{"verb":"crea`
	before, err := countWrites(strings.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	after, err := countWrites(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	got := after["a"].minus(before["a"])
	want := writes{leases: 1, other: 3, kinds: map[string]int{"create pods": 1, "create pods/eviction": 1, "patch pods": 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(writes{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, want := got.String(), "1 create pods, 1 create pods/eviction, 1 patch pods"; got != want {
		t.Errorf("told as %q, want %q", got, want)
	}
	if got, want := after["b"].minus(before["b"]).String(), "1 patch trainingjobs/status"; got != want {
		t.Errorf("told as %q, want %q", got, want)
	}
	if got := (writes{}).String(); got != "none" {
		t.Errorf("nothing is told as %q", got)
	}
}

func TestProcessNumbers(t *testing.T) {
	t.Parallel()
	cpu, err := parseCPU("12 (a) b (c) S 1 12 12 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 1000 0 0")
	if err != nil || cpu != 2*time.Second {
		t.Errorf("processor time %s (%v), want 2s", cpu, err)
	}
	if _, err := parseCPU("12 (a) S 1"); err == nil {
		t.Error("a line that is too short was read")
	}
	now, most, err := parseMemory("Name:\toperator\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
	if err != nil || now != 1<<20 || most != 2<<20 {
		t.Errorf("memory %d and %d (%v), want 1 and 2 MiB", now, most, err)
	}
	if _, _, err := parseMemory("Name:\toperator\n"); err == nil {
		t.Error("a process without memory was read")
	}
}

func gpuPod(uid string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID, pod.Name, pod.Namespace = types.UID(uid), uid, "team"
	pod.Spec.Containers = []corev1.Container{plainContainer("main", 3)}
	return pod
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	p := newPlaces([]corev1.Node{*node(0), *node(1)})
	pinned := gpuPod("pinned")
	pinned.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName(1)}}},
		}}},
	}}
	bound := gpuPod("bound")
	bound.Spec.NodeName = nodeName(0)
	p.hold(bound)
	p.hold(bound) // an event that comes twice takes no room twice
	for _, test := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{pinned, nodeName(1)}, {pinned, ""}, {gpuPod("b"), nodeName(0)}, {gpuPod("c"), nodeName(1)}, {gpuPod("d"), ""},
	} {
		if got := p.find(test.pod); got != test.want {
			t.Errorf("pod %s gets node %q, want %q", test.pod.Name, got, test.want)
		}
	}
	if diff := cmp.Diff([]string{"team/d"}, p.release("bound")); diff != "" {
		t.Errorf("waiting: -want +got:\n%s", diff)
	}
	if got := p.find(gpuPod("d")); got != nodeName(0) {
		t.Errorf("after a release pod d gets node %q", got)
	}
	if !p.start("d") || p.start("d") {
		t.Error("a pod is not set running exactly once")
	}
}

func TestPeersGetGangsOfTheSameSize(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		job   func() (any, error)
		paths map[string]any
	}{
		{func() (any, error) { return jobSet("team", "x", 8) }, map[string]any{"parallelism": int64(8), "completions": int64(8)}},
		{func() (any, error) { return pyTorchJob("team", "x", 8) }, map[string]any{"replicas": int64(7)}},
	} {
		made, err := test.job()
		if err != nil {
			t.Fatal(err)
		}
		object := made.(*unstructured.Unstructured)
		if object.GetName() != "x" || object.GetNamespace() != "team" {
			t.Errorf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
		}
		for field, want := range test.paths {
			if !holds(object.Object, field, want) {
				t.Errorf("%s has no %s of %v", object.GetKind(), field, want)
			}
		}
		if !holds(object.Object, device, "1") {
			t.Errorf("%s asks for no device", object.GetKind())
		}
	}
}

// holds says whether a field with this value is somewhere in an object.
func holds(in any, field string, want any) bool {
	switch in := in.(type) {
	case map[string]any:
		for name, value := range in {
			if name == field && value == want || holds(value, field, want) {
				return true
			}
		}
	case []any:
		for _, value := range in {
			if holds(value, field, want) {
				return true
			}
		}
	}
	return false
}

func TestFiguresOfAContender(t *testing.T) {
	t.Parallel()
	run := func(seconds float64, manager, jobs int) outcome {
		return outcome{
			jobs: 10, took: time.Duration(seconds * float64(time.Second)),
			writes: []writes{{other: manager}, {other: jobs}}, cpu: []time.Duration{time.Second, 2 * time.Second},
			server: 4 * time.Second,
		}
	}
	outcomes := []outcome{run(2, 20, 40), run(10, 30, 90), run(5, 10, 30)}
	got := map[string]float64{}
	for _, f := range figuresOf(contender{figure: "jobset_", users: []string{"a", "b"}}, outcomes) {
		got[f.Name] = f.Value
	}
	want := map[string]float64{
		"jobset_jobs_per_s": 2, "jobset_extra_writes_per_job": 6, "jobset_controller_cpu_s_per_job": 0.3,
		"jobset_apiserver_cpu_s_per_job":    0.4,
		"jobset_alone_extra_writes_per_job": 2, "jobset_alone_controller_cpu_s_per_job": 0.1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestBenchRefusesWhatItCannotMeasure(t *testing.T) {
	t.Parallel()
	for _, b := range []Bench{
		{Parts: []string{"d"}, Runs: 1, Idle: time.Second},
		{Parts: []string{"c"}, Idle: time.Second},
		{Parts: []string{"c"}, Contenders: []string{"nobody"}, Runs: 1, Idle: time.Second},
		{Parts: []string{"b"}, Runs: 1},
		{Parts: []string{"b"}, Runs: 1, Idle: time.Second, Nodes: -1},
	} {
		if _, err := b.Measure(t.Context()); err == nil {
			t.Errorf("%+v was measured", b)
		}
	}
}
