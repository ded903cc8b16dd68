package controller

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/speed"
)

// pace is a job of which every refresh of the progress is looked at.
type pace struct {
	*life
	pods     []*corev1.Pod
	stepTime time.Duration
	grant    fleet.Grant
	notes    []Note
}

// newPace is a job whose world trains on nodes: one worker on each that is named.
func newPace(t *testing.T, nodes ...string) *pace {
	l := &pace{life: newLife(t), stepTime: time.Second}
	l.on(1, nodes...)
	return l
}

// on is the world of a round.
func (l *pace) on(round uint64, nodes ...string) {
	l.pods, l.world.Members = nil, map[string]rendezvous.MemberObservation{}
	for i, node := range nodes {
		pod := podOf(l.job, value(l.job.Status.Attempt), int32(i), onNode(node))
		l.pods = append(l.pods, pod)
		l.world.Members[string(pod.UID)] = rendezvous.MemberObservation{Joined: true, InWorld: true, WorkerRank: int32(i)}
	}
	l.begin(0, round, rendezvous.Change{Reason: rendezvous.ReasonCapacityAvailable, To: int32(len(nodes))})
	l.job.Status.World.Workers = ptr.To(int32(len(nodes)))
}

// refresh is a refresh of the progress after so many seconds.
func (l *pace) refresh(second int, progress rendezvous.Progress) {
	l.t.Helper()
	progress.StepTime = l.stepTime
	l.world.Progress = progress
	state := &State{Now: start.Add(time.Duration(second) * time.Second), Job: l.job, Pods: l.pods, World: l.world, Memory: l.memory, Grant: l.grant}
	p := &planner{State: state}
	p.plan.Status = *l.job.Status.DeepCopy()
	p.reportProgress()
	if !p.plan.Progress {
		l.t.Fatal("no progress is written")
	}
	l.notes = append(l.notes, p.plan.Notes...)
	l.write(&p.plan.Status)
	l.memory.reported(state)
}

func (l *pace) steps(second int, step uint64) { l.refresh(second, rendezvous.Progress{Step: step}) }

func (l *pace) expect(want ...string) {
	l.t.Helper()
	var got []string
	for _, size := range l.job.Status.Speed.Sizes {
		got = append(got, fmt.Sprintf("%d on %d: %s, %d steps, %s", value(size.Workers), value(size.Nodes), size.StepsPerSecond, value(size.Steps),
			size.At.Sub(start)))
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		l.t.Errorf("status.speed has %q, want %q", got, want)
	}
}

func TestSpeedOfEachSize(t *testing.T) {
	l := newPace(t, "n1", "n1", "n2")
	l.steps(0, 1)
	l.expect() // the first step of a world tells nothing
	l.steps(10, 11)
	l.steps(20, 21)
	l.expect("3 on 2: 1, 20 steps, 20s")
	l.on(2, "n1", "n1", "n2", "n2")
	l.stepTime = 500 * time.Millisecond
	l.steps(30, 25)
	l.steps(40, 45)
	l.expect("3 on 2: 1, 20 steps, 20s", "4 on 2: 2, 20 steps, 40s")
	l.on(3, "n1", "n2", "n3", "n4")
	l.steps(50, 50)
	l.steps(60, 70)
	l.expect("3 on 2: 1, 20 steps, 20s", "4 on 2: 2, 20 steps, 40s", "4 on 4: 2, 20 steps, 1m0s")
	for i, want := range []time.Duration{20 * time.Second, 10 * time.Second, 10 * time.Second} {
		if took := l.job.Status.Speed.Sizes[i].Time; took == nil || took.Duration != want {
			t.Errorf("the steps of size %d took %v, want %s", i+1, took, want)
		}
	}
}

// What an evaluation or a pause takes is no part of a step: the agents say how long those are.
func TestPausesAreNoPartOfSpeed(t *testing.T) {
	l := newPace(t, "n1", "n1")
	l.steps(0, 1)
	l.steps(60, 6)
	l.expect("2 on 1: 1, 5 steps, 1m0s")
}

// The speed outlives the operator, and what it has not seen itself it does not count.
func TestSpeedOutlivesTheOperator(t *testing.T) {
	l := newPace(t, "n1", "n1")
	l.steps(0, 1)
	l.steps(10, 11)
	l.forget(20)
	l.steps(30, 31)
	l.expect("2 on 1: 1, 10 steps, 10s")
	l.steps(40, 41)
	l.expect("2 on 1: 1, 20 steps, 40s")
}

// A world that made steps again after a recovery was as fast as that all the same; steps that seem to go back count for
// nothing.
func TestSpeedAfterARecovery(t *testing.T) {
	l := newPace(t, "n1", "n1")
	l.steps(0, 1)
	l.steps(10, 11)
	l.on(2, "n1", "n2")
	l.steps(20, 5)
	l.steps(21, 4)
	l.steps(30, 13)
	l.expect("2 on 1: 1, 10 steps, 10s", "2 on 2: 1, 9 steps, 30s")
}

func TestSpeedThatIsNotKnown(t *testing.T) {
	for name, spoil := range map[string]func(*pace){
		"nobody says how long a step takes": func(l *pace) { l.stepTime = 0 },
		"it takes less than no time":        func(l *pace) { l.stepTime = -time.Second },
		"it takes no time":                  func(l *pace) { l.stepTime = time.Nanosecond },
		"it took longer than there was":     func(l *pace) { l.stepTime = 5 * time.Second },
		"a worker without a node":           func(l *pace) { l.pods[1].Spec.NodeName = "" },
		"a worker whose pod is gone":        func(l *pace) { l.pods = l.pods[:1] },
		"the record is of another world":    func(l *pace) { l.job.Status.World.Round = ptr.To[int64](7) },
		"a worker that nobody has heard": func(l *pace) {
			l.world.Members[string(l.pods[1].UID)] = rendezvous.MemberObservation{WorkerRank: 1}
		},
	} {
		l := newPace(t, "n1", "n1")
		l.steps(0, 1)
		spoil(l)
		l.steps(10, 11)
		if sizes := l.job.Status.Speed.Sizes; len(sizes) > 0 {
			t.Errorf("%s: %+v", name, sizes)
		}
	}
}

// While somebody is named who keeps the others waiting, steps say nothing of the size, and what began to change there is taken
// back.
func TestStragglersAreNoMatterOfSize(t *testing.T) {
	l := newPace(t, "n1", "n1")
	l.steps(0, 1)
	l.steps(100, 101)
	l.stepTime = 2 * time.Second
	l.steps(120, 111)
	if size := l.job.Status.Speed.Sizes[0]; size.StepsPerSecond == "1" || size.SettledStepsPerSecond != "1" {
		t.Fatalf("status.speed has %+v", size)
	}
	l.world.Stragglers = []rendezvous.Straggler{{Name: "digits-1-1", Node: "n1", Rank: 1, Own: 2 * time.Second, Median: time.Second, Since: start}}
	l.steps(140, 121)
	l.steps(160, 131)
	l.expect("2 on 1: 1, 110 steps, 2m0s")
}

// What somebody wrote into the status that cannot be does not stay there, and keeps nothing from being written.
func TestSpeedThatSomebodyWrote(t *testing.T) {
	l := newPace(t, "n1", "n1")
	for _, text := range []string{"fast", "NaN", "-1", "1e400", ""} {
		l.job.Status.Speed.Sizes = append(l.job.Status.Speed.Sizes, v1alpha1.SizeSpeed{
			Workers: ptr.To(int32(len(l.job.Status.Speed.Sizes))), Nodes: ptr.To[int32](1), StepsPerSecond: text, Steps: ptr.To[int64](100)})
	}
	l.steps(0, 1)
	l.steps(10, 11)
	l.expect("2 on 1: 1, 10 steps, 10s")
}

func TestTotalsThatAreNotBelieved(t *testing.T) {
	type told struct{ step, total uint64 }
	for name, tc := range map[string]struct {
		told  []told
		doubt string
	}{
		"no total":                 {[]told{{1, 0}, {50, 0}}, ""},
		"the same total":           {[]told{{1, 100}, {50, 100}, {114, 100}}, ""},
		"one that is told later":   {[]told{{1, 0}, {50, 100}}, ""},
		"a little more":            {[]told{{1, 100}, {50, 109}}, ""},
		"one that shrinks":         {[]told{{1, 100}, {50, 60}}, ""},
		"nearly done for ever":     {[]told{{1, 1e9}, {100, 101}, {200, 201}}, "has 101 steps, and after 200 of them that it has 201"},
		"much more":                {[]told{{1, 100}, {50, 200}}, "has 100 steps, and after 50 of them that it has 200"},
		"more, and then as before": {[]told{{1, 100}, {50, 200}, {60, 100}}, "has 100 steps, and after 50 of them that it has 200"},
		"many more than all":       {[]told{{1, 100}, {116, 100}}, "has 100 steps, and after 116 of them that it has 100"},
		"one step beyond all, of which an agent says no total": {[]told{{1, 100}, {101, 0}}, ""},
		"many more than all, of which it says none":            {[]told{{1, 100}, {101, 0}, {116, 0}}, "has 100 steps, and has made 116"},
		"as many as can be": {[]told{{1, 100}, {50, math.MaxInt64}}, "and after 50 of them that it has 9223372036854775807"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newPace(t, "n1", "n1")
			for i, one := range tc.told {
				l.forget(i * 10) // each is another operator
				l.refresh(i*10, rendezvous.Progress{Step: one.step, TotalSteps: one.total})
			}
			doubt := l.job.Status.Speed.Doubt
			if !strings.Contains(doubt, tc.doubt) || tc.doubt == "" && doubt != "" {
				t.Errorf("the doubt is %q, want %q", doubt, tc.doubt)
			}
			if told := len(l.notes); tc.doubt == "" && told > 0 || tc.doubt != "" && (told != 1 || l.notes[0].Reason != v1alpha1.EventTotalDoubted) {
				t.Errorf("it is told as %+v", l.notes)
			}
		})
	}
}

// However many jobs train, and so however seldom each tells how far it has come: a world that makes steps for some seconds is measured,
// once, before it grows; and those that are measured write no more than others.
func TestEveryWorldIsMeasured(t *testing.T) {
	for _, test := range []struct {
		name      string
		step      time.Duration
		total     uint64
		straggles bool
		measured  int // after so many seconds of steps at the latest, 0 for not at all
		most      int // reports in ten minutes
	}{
		{"steps of a fifth of a second", 200 * time.Millisecond, 0, false, 10, 6},
		{"and it is known how many there will be", 200 * time.Millisecond, 1e6, false, 10, 8},
		{"steps of eight seconds", 8 * time.Second, 0, false, 21, 6},
		{"a worker that keeps others waiting", time.Second, 0, true, 0, 9},
	} {
		l := newPace(t, "n1", "n1")
		l.stepTime = test.step
		if test.straggles {
			l.job.Status.Stragglers = []v1alpha1.Straggler{{}}
		}
		const before = 3 // seconds until the first step begins
		reports, measured, idle, next := 0, 0, 0, 0.0
		for second := 0; second < 600; second++ {
			if float64(second) < next && second != before+int(test.step.Seconds()+0.999) {
				continue
			}
			l.world.Progress = rendezvous.Progress{TotalSteps: test.total, StepTime: test.step}
			if trained := time.Duration(second-before) * time.Second; trained > 0 {
				l.world.Progress.Step = uint64(trained / test.step)
			}
			if l.world.Progress.Step < 2 {
				l.world.Progress.StepTime = 0
			}
			state := &State{
				Now: start.Add(time.Duration(second) * time.Second), Job: l.job, Pods: l.pods, World: l.world, Memory: l.memory, Training: 1000,
			}
			p := &planner{State: state}
			p.plan.Status = *l.job.Status.DeepCopy()
			p.refreshProgress()
			if next = float64(second) + p.plan.After.Seconds(); p.plan.After <= 0 {
				t.Fatalf("%s: nobody looks again after %d s", test.name, second)
			}
			if !p.plan.Progress {
				if measured > 0 {
					idle++
				}
				continue
			}
			reports++
			if test.straggles {
				p.plan.Status.Stragglers = l.job.Status.Stragglers
			}
			l.write(&p.plan.Status)
			l.memory.reported(state)
			if seen := speed.Observations(fleet.SizesSeen(&l.job.Status.Speed), state.Now); len(seen) > 0 && measured == 0 {
				measured = second - before
			}
		}
		if (measured == 0) != (test.measured == 0) || measured > test.measured || reports > test.most {
			t.Errorf("%s: it was measured after %d s, and reported %d times", test.name, measured, reports)
		}
		if idle > 2 {
			t.Errorf("%s: it was looked at %d times for nothing after it was measured", test.name, idle)
		}
	}
}

// Since when a job is short is written with its progress, for the next operator; what no plan says now stays.
func TestSinceWhenAJobIsShortOutlivesTheOperator(t *testing.T) {
	l := newPace(t, "n1", "n1")
	for i, test := range []struct {
		grant fleet.Grant
		want  time.Time
	}{
		{fleet.Grant{Known: true}, time.Time{}},
		{fleet.Grant{Known: true, ShortSince: start}, start},
		{fleet.Grant{}, start},
		{fleet.Grant{Known: true}, time.Time{}},
	} {
		l.grant = test.grant
		l.steps(10*i, uint64(10*i+1))
		since := l.job.Status.Speed.ShortSince
		if (since == nil) != test.want.IsZero() || since != nil && !since.Time.Equal(test.want) {
			t.Errorf("refresh %d: short since %s, want %s", i, since, test.want)
		}
	}
}

// So is when it was tried again with more workers.
func TestTriedAgainOutlivesTheOperator(t *testing.T) {
	l := newPace(t, "n1", "n1")
	for i, test := range []struct {
		grant fleet.Grant
		want  allocation.Again
	}{
		{fleet.Grant{Known: true}, allocation.Again{}},
		{fleet.Grant{Known: true, Again: allocation.Again{From: 2, At: start, Vain: 1}}, allocation.Again{From: 2, At: start, Vain: 1}},
		{fleet.Grant{}, allocation.Again{From: 2, At: start, Vain: 1}},
		{fleet.Grant{Known: true, Again: allocation.Again{At: start}}, allocation.Again{At: start}},
		{fleet.Grant{Known: true}, allocation.Again{}},
	} {
		l.grant = test.grant
		l.steps(10*i, uint64(10*i+1))
		var got allocation.Again
		if wrote := l.job.Status.Speed.TriedAgain; wrote != nil {
			got = allocation.Again{From: value(wrote.From), At: wrote.At.UTC(), Vain: value(wrote.Vain)}
		}
		if got != test.want {
			t.Errorf("refresh %d: %+v, want %+v", i, got, test.want)
		}
	}
}

// It is written with the number of workers that it is tried with, before any of them is made, and not only with the next progress.
func TestTriedAgainIsWrittenWithTheTarget(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	giveRoom(state, 1)
	state.Grant.Again = allocation.Again{From: 2, At: now, Vain: 3}
	plan := look(state)
	expectTarget(t, plan, 3)
	if got := plan.Status.Speed.TriedAgain; got == nil || value(got.From) != 2 || value(got.Vain) != 3 || !got.At.Time.Equal(now) {
		t.Errorf("it is tried again with 3 workers, and this is written: %+v", got)
	}
}
