package allocation

import (
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/speed"
)

// inVain is a job with some workers on nodes of four devices that was tried again with them, who had fewer before, and made nothing of it.
func inVain(nodes int, from int32, on []NodeID, also ...func(*Job)) (*simulation, JobID) {
	c := newCluster().withNodes(nodes, 4)
	id := c.training("a", 1, int32(4*nodes), on, withPace(&Pace{Speed: linear.pace(1e6, exactly).Speed, Tried: 16, Done: 100, Left: 1e6, Seen: []speed.Seen{
		{Workers: int(from), Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-time.Hour)},
		{Workers: len(on), Nodes: 2, StepsPerSecond: 1, Steps: 100, At: noon},
	}}))
	c.Jobs[id].Pause = time.Second
	c.Jobs[id].Again = Again{From: from, At: noon.Add(-time.Hour), Here: int32(len(on)), Since: noon.Add(-time.Minute * 5)}
	for _, set := range also {
		set(&c.Jobs[id])
	}
	return simulate(c), id
}

// Who was tried again in vain gives back what it was tried with, but not what is its own for another reason: half of its share, or what
// it needs for its deadline. Though it wishes for more it is not given any while it goes back, it is over with that then, and it may be
// tried again.
func TestWhoGoesBackIsGivenNothingMeanwhile(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(*Job)
		back int
	}{
		{"to what it had", func(*Job) {}, 4},
		{"to half of its share", func(j *Job) { j.ShortSince = noon.Add(-2 * time.Hour); j.Pace.Speed = flat.pace(1, exactly).Speed }, 8},
		{"to what it needs", func(j *Job) { j.Deadline = noon.Add(time.Duration(1.2e6 / 6 * float64(time.Second))) }, 6},
	} {
		s, id := inVain(4, 4, []NodeID{0, 0, 0, 0, 1, 1, 1, 1, 2, 2}, test.set)
		s.tick = 5 * time.Second
		least, made := 10, 0
		s.check = func(plan Plan) {
			notToAndFro(t, s.Cluster, plan, id)
			made += len(plan.of(id).Places)
		}
		for range 60 {
			s.step()
			least = min(least, s.counts()[id])
		}
		if least != test.back || made > 12 {
			t.Errorf("%s: of 10 workers it went back to %d, want %d, and %d pods were made in five minutes: %v", test.name, least, test.back, made, s.log)
		}
		if a := s.Jobs[id].Again; a.From != 0 || a.Vain != 1 {
			t.Errorf("%s: it is still tried: %+v", test.name, a)
		}
	}
}

// However many devices another job leaves to one that is tried again just then, and however its workers join, it comes to rest.
func TestARivalThatEndsWhileAJobIsTriedAgain(t *testing.T) {
	for _, rival := range []int32{12, 20} {
		w := watch(uint64(rival), func(int, time.Duration) float64 { return 1 })
		var on []NodeID
		for i := range rival {
			on = append(on, NodeID(15-i/4))
		}
		b := w.training("b", rival, rival, on)
		w.tick = 10 * time.Second
		w.check = func(plan Plan) { notToAndFro(t, w.Cluster, plan, w.id) }
		for w.Jobs[w.id].Again.From == 0 {
			w.watchFor(10 * time.Second)
		}
		w.finish(b)
		w.watchFor(time.Hour)
		if a := w.Jobs[w.id].Again; a.From != 0 || a.At.IsZero() {
			t.Errorf("beside %d workers that end: an hour later it is still tried: %+v, %v", rival, a, w.sizes)
		}
		w.sizes = nil
		if w.watchFor(2 * time.Hour); len(w.sizes) == 0 || len(w.sizes) > 8 {
			t.Errorf("beside %d workers that ended: in two hours it had the worlds %v", rival, w.sizes)
		}
	}
}

// What has joined is judged, whoever is yet to come: one whose image is not to be had does not take the others with it. But that all is in
// vain is said once they have had their time.
func TestThoseWhoHaveJoinedAreJudged(t *testing.T) {
	for _, test := range []struct {
		name  string
		here  int
		pace  float64
		began time.Duration
		want  int32
	}{
		{"all but one, and they are of use", 7, 1.7, 5 * time.Minute, 8},
		{"all but one, and so far they are of none", 7, 1, 5 * time.Minute, 8},
		{"all but one, and they are of none", 7, 1, 10 * time.Minute, 4},
		{"all, and it is faster by no more than worlds differ", 8, 1.19, 5 * time.Minute, 4},
		{"few, and they are of use", 5, 1.22, 5 * time.Minute, 8},
		{"nobody", 4, 1, 5 * time.Minute, 8},
		{"nobody in time", 4, 1, 10 * time.Minute, 4},
	} {
		c := newCluster().withNodes(2, 4)
		id := c.training("a", 1, 8, []NodeID{0, 0, 0, 0, 1, 1, 1, 1}, withPace(&Pace{Speed: flat.pace(1e6, exactly).Speed, Tried: 16, Done: 100, Left: 1e6, Seen: []speed.Seen{
			{Workers: 4, Nodes: 1, StepsPerSecond: 1, Steps: 100, At: noon.Add(-test.began)},
			{Workers: test.here, Nodes: 2, StepsPerSecond: test.pace, Steps: 100, At: noon},
		}}))
		j := &c.Jobs[id]
		j.Pause, j.Again = time.Second, Again{From: 4, At: noon.Add(-test.began)}
		if test.here > 4 {
			j.Again.Here, j.Again.Since = int32(test.here), noon.Add(-2*time.Minute)
		}
		plan := NewPlan(c)
		d := plan.of(id)
		if kept := d.Again.From == 0; d.Count != test.want || kept != (test.pace > 1.2) {
			t.Errorf("%s: it is to have %d, want %d: %+v", test.name, d.Count, test.want, d.Again)
		}
	}
}
