package peers

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/hack/bench/figures"
	"github.com/concertina-dev/concertina/hack/bench/steps"
)

// made is a member's steps in a round, one every 50 ms from a moment on.
func made(round, from, to uint64, at time.Duration) (t timeline) {
	for step := from; step <= to; step++ {
		begun := time.Unix(0, 0).Add(at)
		at += 50 * time.Millisecond
		t = append(t, steps.Stamp{Round: round, Step: step, Begun: begun, Done: time.Unix(0, 0).Add(at)})
	}
	return t
}

func TestCost(t *testing.T) {
	old := made(1, 1, 30, 0) // its last step is done after 1.5 s
	for name, c := range map[string]struct {
		after timeline
		want  sample
	}{
		"nothing is lost":                     {made(2, 31, 60, 1700*time.Millisecond), sample{pause: 200 * time.Millisecond}},
		"steps are made again":                {made(2, 21, 60, 2500*time.Millisecond), sample{pause: time.Second, lost: 10}},
		"the last step is made again":         {made(2, 30, 60, 1500*time.Millisecond), sample{lost: 1}},
		"another step of the old world":       {slices.Concat(made(1, 31, 31, 1500*time.Millisecond), made(2, 32, 60, 1650*time.Millisecond)), sample{pause: 100 * time.Millisecond}},
		"a world between":                     {slices.Concat(made(2, 31, 33, 1600*time.Millisecond), made(3, 34, 60, 2*time.Second)), sample{pause: 350 * time.Millisecond}},
		"what comes after the world is there": {slices.Concat(made(2, 31, 60, 1600*time.Millisecond), made(3, 31, 60, 9*time.Second)), sample{pause: 100 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			round := c.after[len(c.after)-1].Round
			if name == "what comes after the world is there" {
				round = 2
			}
			if got := slices.Concat(old, c.after).cost(len(old), round); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestAChangeCostsAsMuchAsItCostTheWorst(t *testing.T) {
	got := worst([]sample{{pause: time.Second, lost: 1}, {pause: 3 * time.Second}, {lost: 4}})
	if want := (sample{pause: 3 * time.Second, lost: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestSettled(t *testing.T) {
	old, few, all := made(1, 1, 60, 0), made(2, 61, 61+between-2, 0), made(2, 61, 61+between-1, 0)
	for name, c := range map[string]struct {
		all  []timeline
		want uint64
	}{
		"nobody has made a step":        {[]timeline{nil, nil}, 0},
		"one is in the world before":    {[]timeline{slices.Concat(old, all), old}, 0},
		"one has made too few":          {[]timeline{slices.Concat(old, all), slices.Concat(old, few)}, 0},
		"a newcomer has made too few":   {[]timeline{slices.Concat(old, all), few}, 0},
		"all have trained for a while":  {[]timeline{slices.Concat(old, all), slices.Concat(old, all), all}, 2},
		"all train in the first of all": {[]timeline{old, old}, 1},
	} {
		if got := settled(c.all); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestFiguresOf(t *testing.T) {
	all := []sample{{pause: time.Second, lost: 3}, {pause: 2 * time.Second}, {pause: 9 * time.Second, lost: 20}}
	names := map[string]float64{}
	for _, f := range figuresOf(torchrunTuned, "kill", 1024, all) {
		names[f.Name] = f.Value
	}
	for name, want := range map[string]float64{
		"torchrun_tuned_kill_pause_p50_1gib": 2, "torchrun_tuned_kill_pause_max_1gib": 9, "torchrun_tuned_kill_steps_lost_p50_1gib": 3,
	} {
		if got, there := names[name]; !there || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if found := figuresOf(ours, "grow", 100, nil); len(found) != 0 {
		t.Errorf("of no samples come %+v", found)
	}
	for mib, want := range map[int]string{100: "", 1024: "_1gib", 2048: "_2gib", 64: "_64mib"} {
		if got := suffix(mib); got != want {
			t.Errorf("%d MiB are %q, want %q", mib, got, want)
		}
	}
}

func TestOverBroadcast(t *testing.T) {
	bare, err := broadcasts("[W123] a warning\nbroadcast 0.500000\nbroadcast 0.400000\nbroadcast 9.000000\n")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]float64{}
	for _, f := range overBroadcast(1024, []sample{{pause: time.Second}, {pause: 3 * time.Second}, {pause: time.Second}}, bare) {
		names[f.Name] = f.Value
	}
	for name, want := range map[string]float64{"broadcast_p50_1gib": 0.5, "broadcast_max_1gib": 9, "grow_1gib_over_broadcast": 2} {
		if got, there := names[name]; !there || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if _, err := broadcasts("broadcast soon\n"); err == nil {
		t.Error("what is no number was read as one")
	}
	for _, f := range overBroadcast(100, nil, bare) {
		if f.Name == "grow_over_broadcast" {
			t.Error("of no growth comes a ratio")
		}
	}
}

func TestFamily(t *testing.T) {
	parents := map[int]int{2: 1, 10: 2, 11: 10, 12: 10, 13: 12, 20: 2, 21: 20}
	got := family(10, parents)
	if got[0] != 10 {
		t.Errorf("%d is ended first", got[0])
	}
	slices.Sort(got)
	if want := []int{10, 11, 12, 13}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParentOf(t *testing.T) {
	if got, ok := parentOf("42 (a (b) c) S 7 42 42 0 -1"); !ok || got != 7 {
		t.Errorf("%d, %v", got, ok)
	}
	for _, stat := range []string{"", "42 (sh) S", "42 (sh) S x 1"} {
		if _, ok := parentOf(stat); ok {
			t.Errorf("%q has a parent", stat)
		}
	}
}

func TestAgentRunsWithItsPathsHere(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "digits-1-0", UID: "u"}, Status: corev1.PodStatus{PodIP: "127.0.1.1"}}
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	pod.Spec.Containers = []corev1.Container{{
		Command: []string{"/concertina/bin/agent", "run", "--", "python3", "train.py"},
		Env: []corev1.EnvVar{
			{Name: "CONCERTINA_JOB", Value: "digits"}, {Name: "CONCERTINA_SOCKET", Value: "/concertina/run/agent.sock"},
			{Name: "CONCERTINA_POD_NAME", ValueFrom: field("metadata.name")}, {Name: "CONCERTINA_POD_UID", ValueFrom: field("metadata.uid")},
			{Name: "CONCERTINA_POD_IP", ValueFrom: field("status.podIP")},
		},
	}}
	want := []string{
		"CONCERTINA_JOB=digits", "CONCERTINA_SOCKET=/tmp/run/agent.sock", "CONCERTINA_POD_NAME=digits-1-0", "CONCERTINA_POD_UID=u", "CONCERTINA_POD_IP=127.0.1.1",
	}
	if got := agentEnvironment(pod); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	command := agentCommand(pod)
	want = []string{"/mnt/agent", "run", "--token-file", "/mnt/digits-1-0.token", "--ca-file", "/mnt/digits-1-0.ca", "--", "python3", "train.py"}
	if got := command[len(command)-len(want):]; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMeasureNeedsSomethingToMeasure(t *testing.T) {
	for name, b := range map[string]Bench{
		"an unknown contender": {Contenders: []string{"others"}, MiB: []int{100}, Times: 1, TorchrunTimes: 1},
		"no state":             {Contenders: Contenders, Times: 1, TorchrunTimes: 1},
		"an empty state":       {Contenders: Contenders, MiB: []int{0}, Times: 1, TorchrunTimes: 1},
		"no times":             {Contenders: Contenders, MiB: []int{100}, TorchrunTimes: 1},
		"no times of torchrun": {Contenders: Contenders, MiB: []int{100}, Times: 1},
	} {
		if err := b.Measure(t.Context()); err == nil {
			t.Errorf("%s is measured", name)
		}
	}
}

func TestMemoryOfAnAgent(t *testing.T) {
	const status = "Name:\tagent\nVmHWM:\t 999999 kB\nVmRSS:\t  90000 kB\nRssAnon:\t   20480 kB\nRssFile:\t   10240 kB\nRssShmem:\t   59280 kB\n"
	if got, want := resident(status), uint64(30<<20); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	if got := resident("RssAnon:\tmuch\n"); got != 0 {
		t.Errorf("%d bytes of what is no number", got)
	}
}

func TestWhatIsHeldIsToldOfTheState(t *testing.T) {
	got := footprint{memory: 1536 << 20, agent: 30 << 20}.figures("", 1024)
	want := []figures.Figure{{Name: "tmpfs_over_state_1gib", Value: 1.5, Unit: "ratio"}, {Name: "agent_overhead_1gib", Value: 30, Unit: "MiB"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
