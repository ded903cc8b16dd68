package reclaim

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/hack/bench/figures"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// write has one rank write an entry.
func (l *ledger) write(seconds float64, round, step uint64, rank int) {
	l.line(fmt.Sprintf("%s ledger round=%d step=%d epoch=0 rank=%d ids=1,2", after(seconds).Format(time.RFC3339Nano), round, step, rank))
}

func TestParseEntry(t *testing.T) {
	t.Parallel()
	const stamp = "2026-03-01T12:00:00.5Z "
	for _, test := range []struct {
		line string
		want entry
		ok   bool
	}{
		{stamp + "ledger round=3 step=40 epoch=2 rank=11 ids=5,6", entry{round: 3, step: 40, rank: 11, at: after(0.5)}, true},
		{stamp + "ledger round=3 step=40 epoch=2 rank=11 ids=", entry{round: 3, step: 40, rank: 11, at: after(0.5)}, true},
		{stamp + "step 1/900 loss 2.3", entry{}, false},
		{"ledger round=3 step=40 epoch=2 rank=11 ids=5,6", entry{}, false},
		{"", entry{}, false},
	} {
		got, ok := parseEntry(test.line)
		if ok != test.ok || (ok && got != test.want) {
			t.Errorf("%q is %+v, %v", test.line, got, ok)
		}
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	l := newLedger()
	for rank := range 2 {
		l.write(float64(rank), 1, 1, rank)
		l.write(5, 1, 7, rank)
	}
	for rank := range 3 {
		l.write(6+float64(rank), 2, 8, rank)
		l.write(9, 2, 9, rank)
	}
	// A worker was lost: the step that its world had begun is made again.
	l.write(10, 3, 9, 0)
	for rank := range 3 {
		l.write(11+float64(rank)/2, 4, 10, rank)
	}
	for _, test := range []struct {
		above uint64
		ranks int
		want  wide
	}{
		{0, 2, wide{1, after(1)}}, {0, 3, wide{2, after(8)}}, {2, 3, wide{4, after(12)}}, {0, 4, wide{}}, {4, 1, wide{}},
	} {
		if found := l.reached(test.above, test.ranks); found != test.want {
			t.Errorf("%d ranks after round %d: %+v", test.ranks, test.above, found)
		}
	}
	for round, want := range map[uint64]int64{1: 0, 2: 0, 3: 1, 4: 0, 5: 0} {
		if got := l.repeated(round); got != want {
			t.Errorf("round %d made %d steps again, want %d", round, got, want)
		}
	}
}

func TestFirstStepsAreThoseOfTheLastPod(t *testing.T) {
	t.Parallel()
	f := firstSteps{}
	for _, line := range []struct {
		pod  string
		at   float64
		text string
	}{
		{"a", 1, "round 1: 4 ranks, 1500 images to train with"}, {"a", 2, "step 1/24 loss 2.3"}, {"a", 9, "step 1/24 loss 2.3"},
		{"b", 3, "step 1/24 loss 2.3"}, {"b", 4, "step 10/24 loss 2.3"},
	} {
		f.line(line.pod, after(line.at).Format(time.RFC3339Nano)+" "+line.text)
	}
	if at, err := f.last(2); err != nil || !at.Equal(after(3)) {
		t.Errorf("the last first step is at %s (%v)", at, err)
	}
	if at, err := f.last(3); err == nil {
		t.Errorf("a third first step came out of nothing, at %s", at)
	}
}

func TestReclaims(t *testing.T) {
	t.Parallel()
	change := func(round int64, reason string, lost *int64) v1alpha1.Resize {
		return v1alpha1.Resize{Round: &round, Reason: reason, StepsLost: lost}
	}
	rounds, lost := reclaims([]v1alpha1.Resize{
		change(2, "CapacityAvailable", ptr.To[int64](1)), change(3, reclaimed, ptr.To[int64](2)),
		change(4, reclaimed, ptr.To[int64](4)), change(5, reclaimed, nil), change(6, "WorkerLost", ptr.To[int64](8)),
	}, 3)
	if diff := cmp.Diff([]uint64{4, 5}, rounds); diff != "" || lost != 4 {
		t.Errorf("%d steps lost in rounds: -want +got:\n%s", lost, diff)
	}
}

func TestFiguresOf(t *testing.T) {
	t.Parallel()
	got := figuresOf(map[string][]sample{
		"idle":    {{firstStep: 2 * time.Second}},
		"reclaim": {{firstStep: 3 * time.Second, lentBack: 10 * time.Second, repeated: 1}, {firstStep: 4 * time.Second, lentBack: 20 * time.Second, lost: 2}},
	})
	want := []figures.Figure{
		{Name: "idle_first_step_p50", Value: 2, Unit: "s"}, {Name: "idle_first_step_max", Value: 2, Unit: "s"},
		{Name: "reclaim_first_step_p50", Value: 3.5, Unit: "s"}, {Name: "reclaim_first_step_max", Value: 4, Unit: "s"},
		{Name: "reclaim_steps_lost", Value: 2, Unit: "steps"}, {Name: "reclaim_steps_made_again", Value: 1, Unit: "steps"},
		{Name: "lent_back_p50", Value: 15, Unit: "s"}, {Name: "lent_back_max", Value: 20, Unit: "s"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestProgramsAreTheExampleWithADevice(t *testing.T) {
	t.Parallel()
	b := Bench{Job: &v1alpha1.TrainingJob{}}
	b.Job.Namespace = "default"
	b.Job.Spec.Workers.Template.Spec.Containers = []corev1.Container{{Name: "trainer", Image: "digits", Command: []string{"/go-digits", "--epochs=30"}}}
	before := b.Job.DeepCopy()
	job := b.program(lowName, 2, 12, endless)
	if diff := cmp.Diff([]string{"/go-digits", endless}, job.Spec.Workers.Template.Spec.Containers[0].Command); diff != "" {
		t.Errorf("command: -want +got:\n%s", diff)
	}
	pod := b.plainPod("high", 3, highClass, shortTraining)
	devices := pod.Spec.Containers[0].Resources.Limits[device]
	if pod.Name != "bench-plain-high-3" || pod.Spec.PriorityClassName != highClass || devices.Value() != 1 || *pod.Spec.TerminationGracePeriodSeconds != grace {
		t.Errorf("plain pod %+v", pod)
	}
	if diff := cmp.Diff(before, b.Job); diff != "" {
		t.Errorf("the example was changed:\n%s", diff)
	}
}
