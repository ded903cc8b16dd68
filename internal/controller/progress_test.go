package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestProgressComesAsOftenAsTheClusterCanBear: kubectl get -w of one job moves, and thousands of jobs write no
// more together than a few do.
func TestProgressComesAsOftenAsTheClusterCanBear(t *testing.T) {
	for training, want := range map[int]time.Duration{
		0: 2 * time.Second, 1: 2 * time.Second, 10: 2 * time.Second, 100: 20 * time.Second, 600: 2 * time.Minute, 5000: 2 * time.Minute,
	} {
		if got := progressEvery(training); got != want {
			t.Errorf("%d jobs report every %s, want %s", training, got, want)
		}
	}
	if a, b := jitter("a", time.Minute), jitter("b", time.Minute); a == b || a < 0 || a >= time.Minute || jitter("a", 0) != 0 {
		t.Errorf("jitter is %s and %s", a, b)
	}
}

func TestJobsThatTrainAreCounted(t *testing.T) {
	var all memories
	train := func(uid types.UID, trains bool) { all.update(uid, func(m *Memory) { m.Trains = trains }) }
	all.meet(types.NamespacedName{Name: "a"}, "1")
	all.meet(types.NamespacedName{Name: "b"}, "2")
	train("1", true)
	train("1", true)
	train("2", true)
	if got := all.training(); got != 2 {
		t.Errorf("%d train, want 2", got)
	}
	train("2", false)
	all.part(types.NamespacedName{Name: "a"})
	all.meet(types.NamespacedName{Name: "b"}, "3")
	if got := all.training(); got != 0 {
		t.Errorf("%d train, want none", got)
	}
}
