package controller

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/internal/fleet"
)

func TestVersionsThatAreOlder(t *testing.T) {
	for _, c := range []struct {
		version, than string
		want          bool
	}{
		{"9", "10", true}, {"10", "10", false}, {"11", "10", false}, {"10", "", false}, {"abc", "10", false},
	} {
		if got := older(c.version, c.than); got != c.want {
			t.Errorf("%q older than %q: %v", c.version, c.than, got)
		}
	}
}

func TestLooksInVainComeLessAndLessOften(t *testing.T) {
	var all memories
	var got []time.Duration
	for range 10 {
		got = append(got, all.again("job"))
	}
	for i := 1; i < len(got); i++ {
		if want := min(2*got[i-1], time.Second); got[i] != want {
			t.Fatalf("pauses %v", got)
		}
	}
	if got[0] != 5*time.Millisecond || all.again("other") != 5*time.Millisecond {
		t.Errorf("pauses begin with %s", got[0])
	}
	all.update("job", func(m *Memory) { m.Own.wrote("", start) })
	if pause := all.again("job"); pause != 5*time.Millisecond {
		t.Errorf("after a look that was carried out the pause is %s", pause)
	}
}

func markFor(job string) fleet.Mark { return fleet.Mark{Reason: fleet.Reclaimed, For: job, At: start} }

// A cache that lags shows pods without the marks that were just written, or with those that were taken away.
func TestMarksAreSeenAsTheyWereWritten(t *testing.T) {
	pods := func() []*corev1.Pod {
		var all []*corev1.Pod
		for uid, mark := range map[types.UID]string{"new": "", "lifted": "team/old", "seen": "team/theirs", "other": ""} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: "10"}}
			if mark != "" {
				markFor(mark).Put(pod)
			}
			all = append(all, pod)
		}
		return all
	}
	own := OwnMemory{}
	own.marked("new", ownMark{version: "11", mark: markFor("team/mark")})
	own.marked("lifted", ownMark{version: "12"})
	own.marked("seen", ownMark{version: "10", mark: markFor("team/mine")})
	own.marked("gone", ownMark{version: "12", mark: markFor("team/mark")})
	shown := pods()
	left := own.showMarks(shown)
	for _, pod := range shown {
		want := map[types.UID]string{"new": "team/mark", "seen": "team/theirs"}[pod.UID]
		if got, _ := fleet.MarkOf(pod); got.For != want {
			t.Errorf("pod %s is marked for %q, not for %q", pod.UID, got.For, want)
		}
	}
	if _, kept := left["gone"]; len(left) != 3 || kept {
		t.Errorf("remembered are %v", left)
	}
}

func TestPodsThatWereMadeAreWaitedFor(t *testing.T) {
	pod := func(uid string) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}} }
	var own OwnMemory
	own.made([]*corev1.Pod{pod("a"), pod(""), pod("b")}, start) // the second one was refused
	for _, test := range []struct {
		name  string
		shown []*corev1.Pod
		now   time.Time
		want  []types.UID
	}{
		{"none is shown", nil, start, []types.UID{"a", "b"}},
		{"one is shown, and one of another", []*corev1.Pod{pod("a"), pod("c")}, start, []types.UID{"b"}},
		{"all are shown", []*corev1.Pod{pod("b"), pod("a")}, start, nil},
		{"it takes too long: it was deleted again", nil, start.Add(cachePatience), nil},
		{"the clock was set back", nil, start.Add(-time.Hour), nil},
	} {
		if got := slices.Sorted(maps.Keys(own.unseen(test.shown, test.now))); !slices.Equal(got, test.want) {
			t.Errorf("%s: waits for %v, want %v", test.name, got, test.want)
		}
	}
	own.Made = own.unseen([]*corev1.Pod{pod("a")}, start)
	own.made([]*corev1.Pod{pod("d")}, start.Add(time.Millisecond))
	if got := slices.Sorted(maps.Keys(own.unseen(nil, start.Add(time.Millisecond)))); !slices.Equal(got, []types.UID{"b", "d"}) {
		t.Errorf("after another was made it waits for %v", got)
	}
}

func TestAnAttemptIsUntouchedForAMoment(t *testing.T) {
	for _, test := range []struct {
		name           string
		decided, began int32
		now            time.Time
		want           bool
	}{
		{"just decided", 2, 1, start.Add(time.Millisecond), true},
		{"decided by another leader", 1, 1, start.Add(time.Millisecond), false},
		{"begun", 2, 2, start.Add(time.Millisecond), false},
		{"decided long ago: others may lead since", 2, 1, start.Add(cachePatience), false},
		{"the clock was set back", 2, 1, start.Add(-time.Second), false},
	} {
		own := OwnMemory{Decided: test.decided, Began: test.began, WrittenAt: start}
		if got := own.justDecided(2, test.now); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
