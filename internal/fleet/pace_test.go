package fleet

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/speed"
)

// sizeAt is what a status has of a size on one node.
func sizeAt(workers int32, pace string, steps int64, at time.Time) v1alpha1.SizeSpeed {
	return v1alpha1.SizeSpeed{Workers: ptr.To(workers), Nodes: ptr.To[int32](1), StepsPerSecond: pace, Steps: ptr.To(steps), At: ptr.To(metav1.NewTime(at))}
}

// paced is what the planner is told of a job with such a status.
func paced(t *testing.T, change jobChange) *allocation.Pace {
	t.Helper()
	c := New(optionsOf())
	c.SetJob(jobOf("j", trains, change))
	return seenJob(t, c).Pace
}

func TestWhatThePlannerIsToldOfAPace(t *testing.T) {
	measured := func(sizes ...v1alpha1.SizeSpeed) jobChange {
		return func(j *v1alpha1.TrainingJob) {
			j.Status.Speed.Sizes = sizes
			j.Status.Progress = v1alpha1.ProgressStatus{Step: ptr.To[int64](100), TotalSteps: ptr.To[int64](1000)}
			j.Status.Speed.FirstTotalSteps = ptr.To[int64](1000)
		}
	}
	known := sizeAt(2, "4", 400, start)
	for name, test := range map[string]struct {
		job jobChange
		// tried is 0 where nothing should be told.
		tried      int32
		speed      float64 // with two workers
		done, left float64
	}{
		"nothing measured":         {job: measured()},
		"too little":               {job: measured(sizeAt(2, "4", 19, start))},
		"enough":                   {job: measured(known), tried: 2, speed: 4, done: 100, left: 900},
		"one of two enough":        {job: measured(known, sizeAt(4, "8", 10, start)), tried: 2, speed: 4, done: 100, left: 900},
		"two sizes":                {job: measured(known, sizeAt(4, "8", 800, start)), tried: 4, speed: 4, done: 100, left: 900},
		"from the time to come":    {job: measured(sizeAt(2, "4", 400, start.Add(time.Hour))), tried: 2, speed: 4, done: 100, left: 900},
		"from long ago":            {job: measured(sizeAt(2, "4", 400, start.Add(-1e6*time.Hour))), tried: 2, speed: 4, done: 100, left: 900},
		"no number":                {job: measured(sizeAt(2, "fast", 400, start))},
		"NaN":                      {job: measured(sizeAt(2, "NaN", 400, start))},
		"below nothing":            {job: measured(sizeAt(2, "-4", 400, start))},
		"absurd":                   {job: measured(sizeAt(2, "1e300", 400, start))},
		"no workers":               {job: measured(sizeAt(0, "4", 400, start))},
		"fewer steps than none":    {job: measured(sizeAt(2, "4", -400, start))},
		"and one that can be true": {job: measured(sizeAt(1, "NaN", 400, start), known, sizeAt(8, "-1", 1e9, start)), tried: 2, speed: 4, done: 100, left: 900},
		"no total": {job: func(j *v1alpha1.TrainingJob) {
			measured(known)(j)
			j.Status.Progress.TotalSteps, j.Status.Speed.FirstTotalSteps = nil, nil
		}, tried: 2, speed: 4, done: 100},
		"a total that is doubted": {job: func(j *v1alpha1.TrainingJob) {
			measured(known)(j)
			j.Status.Speed.Doubt = "it grew"
		}, tried: 2, speed: 4, done: 100},
		"one that has grown since it was told": {job: func(j *v1alpha1.TrainingJob) {
			measured(known)(j)
			j.Status.Progress.TotalSteps = ptr.To[int64](2000)
		}, tried: 2, speed: 4, done: 100},
		"one that shrinks": {job: func(j *v1alpha1.TrainingJob) {
			measured(known)(j)
			j.Status.Progress.TotalSteps = ptr.To[int64](500)
		}, tried: 2, speed: 4, done: 100, left: 400},
		"steps below nothing": {job: func(j *v1alpha1.TrainingJob) {
			measured(known)(j)
			j.Status.Progress.Step, j.Status.Progress.TotalSteps = ptr.To[int64](-5), ptr.To[int64](-7)
		}, tried: 2, speed: 4},
	} {
		t.Run(name, func(t *testing.T) {
			pace := paced(t, test.job)
			if pace == nil {
				if test.tried > 0 {
					t.Error("nothing is told")
				}
				return
			}
			if pace.Tried != test.tried || pace.Done != test.done || pace.Left != test.left {
				t.Errorf("tried %d, done %g, left %g: want %d, %g, %g", pace.Tried, pace.Done, pace.Left, test.tried, test.done, test.left)
			}
			if got := pace.Speed.Speed(2, 1); math.Abs(got/test.speed-1) > 0.1 {
				t.Errorf("%g steps a second with two workers, want %g", got, test.speed)
			}
			if most := 20.1 * pace.Speed.Speed(2, 1); pace.Speed.Speed(40, 1) > most {
				t.Errorf("with 20 times as many workers it is more than 20 times as fast")
			}
		})
	}
}

// What is measured is news once it says something else than before: another size, or another pace. Of steps that are 5%
// off the mean of a minute of them is 1% off.
func TestNoiseIsNoNews(t *testing.T) {
	dice := rand.New(rand.NewPCG(7, 7))
	var f speed.Fitter
	fit := func(status *v1alpha1.SpeedStatus, now time.Time) *speed.Fitted {
		return f.Look(now, speed.Observations(SizesSeen(status), now), 2)
	}
	now := start
	look := func(pace float64, more ...v1alpha1.SizeSpeed) *speed.Fitted {
		now = now.Add(2 * time.Second)
		text := strconv.FormatFloat(pace, 'g', 6, 64)
		return fit(&v1alpha1.SpeedStatus{Sizes: append([]v1alpha1.SizeSpeed{sizeAt(2, text, 1000, now)}, more...)}, now)
	}
	first := look(4)
	for range 600 {
		if look(4*(1+0.01*dice.NormFloat64())) != first {
			t.Fatalf("noise is news after %s", now.Sub(start))
		}
	}
	more := look(4, sizeAt(4, "5", 1000, now))
	if more == first || more.Tried != 4 {
		t.Error("another size is no news")
	}
	for range 31 {
		more = look(2, sizeAt(4, "5", 1000, now.Add(-time.Hour)))
	}
	if got := more.Model.Speed(2, 1); math.Abs(got-2) > 0.2 {
		t.Errorf("a minute after it became half as fast it is told as %g steps a second, want 2", got)
	}
	if again := fit(&v1alpha1.SpeedStatus{Sizes: []v1alpha1.SizeSpeed{sizeAt(2, "8", 1000, now)}}, now.Add(-time.Hour)); math.Abs(again.Model.Speed(2, 1)-8) > 0.5 {
		t.Errorf("after the clock went back it is told as %g steps a second, want 8", again.Model.Speed(2, 1))
	}
}

// A plan is made anew for a pace that is known now, or for reports that are not believed any more.
func TestAPaceThatIsKnownIsNews(t *testing.T) {
	k := &clock{now: start}
	c := New(k.options(func(o *Options) { o.Plan = (&plans{}).plan }))
	job := jobOf("j", trains)
	c.Report(job, Facts{Elastic: true})
	c.PlanNow()
	number := 1
	tell := func(what string, news bool, change jobChange) {
		t.Helper()
		number++
		job = job.DeepCopy()
		job.ResourceVersion = strconv.Itoa(number)
		change(job)
		c.Report(job, Facts{Elastic: true})
		if known := c.Grant(job.UID).Known; known == news {
			t.Errorf("%s: news is %v, want %v", what, !known, news)
		}
		c.PlanNow()
	}
	tell("a pace", true, func(j *v1alpha1.TrainingJob) { j.Status.Speed.Sizes = []v1alpha1.SizeSpeed{sizeAt(2, "4", 400, start)} })
	tell("a total", true, func(j *v1alpha1.TrainingJob) { j.Status.Progress.TotalSteps = ptr.To[int64](1000) })
	tell("steps", false, func(j *v1alpha1.TrainingJob) { j.Status.Progress.Step = ptr.To[int64](10) })
	tell("the same pace", false, func(j *v1alpha1.TrainingJob) {
		j.Status.Speed.Sizes = []v1alpha1.SizeSpeed{sizeAt(2, "4.01", 500, start)}
	})
	tell("a doubt", true, func(j *v1alpha1.TrainingJob) { j.Status.Speed.Doubt = "it grew" })
}

// The planner is told what it said last of since when a job is short; at first what the operator before wrote, but for what its
// clock had ahead of this one.
func TestSinceWhenAJobIsShort(t *testing.T) {
	for name, test := range map[string]struct{ written, want time.Duration }{
		"nothing":                {0, 0},
		"nine minutes ago":       {-9 * time.Minute, -9 * time.Minute},
		"a clock that was ahead": {time.Hour, time.Nanosecond},
	} {
		k := &clock{now: start}
		said := time.Time{}
		c := New(k.options(func(o *Options) {
			o.Plan = func(*allocation.Cluster) allocation.Plan {
				return allocation.Plan{Decisions: []allocation.Decision{{ShortSince: said, For: allocation.None}}}
			}
		}))
		job := jobOf("j", trains)
		if test.written != 0 {
			job.Status.Speed.ShortSince = ptr.To(metav1.NewTime(start.Add(test.written)))
		}
		c.SetJob(job)
		want := time.Time{}
		if test.want != 0 {
			want = start.Add(test.want.Truncate(time.Second))
		}
		if got := seenJob(t, c).ShortSince; !got.Equal(want) {
			t.Errorf("%s: short since %s, want %s", name, got, want)
		}
		for _, said = range []time.Time{start.Add(-time.Minute), {}, start} {
			c.PlanNow()
			if got := seenJob(t, c).ShortSince; !got.Equal(said) {
				t.Errorf("%s: short since %s, the plan said %s", name, got, said)
			}
			if got := c.Grant(job.UID).ShortSince; !got.Equal(said) {
				t.Errorf("%s: the grant says %s, the plan %s", name, got, said)
			}
		}
	}
}

// The planner is told what it said last of when a job was tried again with more workers; at first what the operator before wrote.
func TestWhenAJobWasTriedAgain(t *testing.T) {
	written := allocation.Again{From: 4, At: start.Add(-time.Minute), Vain: 2}
	for name, test := range map[string]struct {
		status *v1alpha1.TriedAgain
		want   allocation.Again
	}{
		"never":          {nil, allocation.Again{}},
		"it is tried":    {&v1alpha1.TriedAgain{From: ptr.To(written.From), At: ptr.To(metav1.NewTime(written.At)), Vain: ptr.To(written.Vain)}, written},
		"it was once":    {&v1alpha1.TriedAgain{At: ptr.To(metav1.NewTime(written.At))}, allocation.Again{At: written.At}},
		"what cannot be": {&v1alpha1.TriedAgain{From: ptr.To[int32](-4), Vain: ptr.To[int32](-1)}, allocation.Again{}},
	} {
		k := &clock{now: start}
		said := allocation.Again{}
		c := New(k.options(func(o *Options) {
			o.Plan = func(*allocation.Cluster) allocation.Plan {
				return allocation.Plan{Decisions: []allocation.Decision{{Again: said, For: allocation.None}}}
			}
		}))
		job := jobOf("j", trains)
		job.Status.Speed.TriedAgain = test.status
		c.SetJob(job)
		if got := seenJob(t, c).Again; got.From != test.want.From || !got.At.Equal(test.want.At) || got.Vain != test.want.Vain {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
		for _, said = range []allocation.Again{{From: 8, At: start}, {}, {At: start, Vain: 1}} {
			c.PlanNow()
			if got := seenJob(t, c).Again; got != said {
				t.Errorf("%s: %+v, the plan said %+v", name, got, said)
			}
			if got := c.Grant(job.UID).Again; got != said {
				t.Errorf("%s: the grant says %+v, the plan %+v", name, got, said)
			}
		}
	}
}

// The planner is told what it said last of how much work a job has left.
func TestHowMuchWorkTheLastPlanSaw(t *testing.T) {
	k := &clock{now: start}
	said := 0.0
	c := New(k.options(func(o *Options) {
		o.Plan = func(*allocation.Cluster) allocation.Plan {
			return allocation.Plan{Decisions: []allocation.Decision{{Work: said, For: allocation.None}}}
		}
	}))
	c.SetJob(jobOf("j", trains))
	if got := seenJob(t, c).Work; got != 0 {
		t.Errorf("before any plan: %g device-seconds of work", got)
	}
	for _, said = range []float64{512, 256, 0} {
		c.PlanNow()
		if got := seenJob(t, c).Work; got != said {
			t.Errorf("%g device-seconds of work, the plan said %g", got, said)
		}
	}
}

// A change of pace is none of the part of its time that a job makes steps in: what was made before took as long as it took. Where the
// status of an operator before does not say how long, what comes since counts as it was.
func TestAChangeOfPaceIsNoneOfThePartOfItsTime(t *testing.T) {
	for _, part := range []float64{0.95, 0.7} {
		for _, ratio := range []float64{1. / 3, 1, 3} {
			for _, taken := range []bool{true, false} {
				now, steps, held := start, 0.0, time.Duration(0)
				status := &v1alpha1.TrainingJobStatus{}
				for second := 0; second < 4*3600; second += 30 {
					pace := 10.0
					if second >= 3600 {
						pace *= ratio
					}
					now, held = now.Add(30*time.Second), held+30*time.Second
					made := int64(pace * 30 * part)
					steps += float64(made)
					seen := speed.Seen{Workers: 4, Nodes: 1, StepsPerSecond: pace, Steps: made, At: now}
					if taken || second >= 3000 {
						seen.Took = time.Duration(float64(made) / pace * float64(time.Second))
					}
					status.Speed.Sizes = SizesStatus(speed.Add(SizesSeen(&status.Speed), seen))
					status.Progress.Step = ptr.To(int64(steps))
					status.Progress.Goodput = "1.000"
					status.Progress.KeptTime = &metav1.Duration{Duration: held}
					if got := keptPart(status); second >= 1800 && math.Abs(got-part) > 0.05 {
						t.Fatalf("a job that makes steps in %g of its time, and changes its pace by %.2f after an hour: %g after %s", part, ratio, got, held)
					}
				}
			}
		}
	}
}

// The planner is told what part of its time a job makes steps in, as far as that is known: evaluation counts as little as pauses.
func TestWhatPartOfItsTimeAJobMakesStepsIn(t *testing.T) {
	told := func(step int64, kept time.Duration, goodput string) jobChange {
		return func(j *v1alpha1.TrainingJob) {
			j.Status.Speed.Sizes = []v1alpha1.SizeSpeed{sizeAt(2, "4", 400, start), sizeAt(4, "8", 800, start)}
			j.Status.Progress = v1alpha1.ProgressStatus{Step: ptr.To(step), KeptTime: &metav1.Duration{Duration: kept}, Goodput: goodput}
		}
	}
	for name, test := range map[string]struct {
		job  jobChange
		want float64
	}{
		"nothing but steps":    {told(6000, 1000*time.Second, "1.000"), 1},
		"pauses":               {told(6000, 1000*time.Second, "0.500"), 1060. / 2060},
		"evaluation":           {told(6000, 2000*time.Second, "1.000"), 1060. / 2060},
		"in its first minute":  {told(60, 10*time.Second, "0.500"), 70. / 80},
		"more steps than time": {told(6000, 10*time.Second, "1.000"), 1},
		"no steps":             {told(0, time.Hour, "0.500"), 60. / 7260},
		"steps below nothing":  {told(-6000, time.Hour, "1.000"), 0},
		"no goodput":           {told(6000, time.Hour, ""), 0},
		"goodput of nothing":   {told(6000, time.Hour, "0.000"), 0},
		"no number":            {told(6000, time.Hour, "NaN"), 0},
		"a time below nothing": {told(6000, -time.Hour, "0.500"), 0},
	} {
		if got := paced(t, test.job).Kept; math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %g, want %g", name, got, test.want)
		}
	}
}
