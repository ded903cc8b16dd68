package console

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// speed is how fast a job is, what a worker more or less would make of that, and what it costs: as far as it was measured.
func (l *Look) speed(j *job) []string {
	if j.in.Pace == nil || j.in.Stage != allocation.Training || j.trains() == 0 {
		return nil
	}
	workers := int(j.trains())
	nodes := j.nodes()
	now := j.in.Pace.Speed.Speed(workers, nodes)
	all := []string{fmt.Sprintf("With %s on %s it makes about %s steps per second, by what was measured %s.",
		count(workers, "worker"), count(nodes, "node"), rate(now), l.measuredAt(j))}
	left, told := l.left(j)
	all = append(all, told...)
	for _, other := range j.neighbours() {
		all = append(all, would(j.in.Pace, int(other), nodes, now, left))
	}
	return append(all, l.price(j)...)
}

// nodes is on how many nodes its workers are, at least 1.
func (j *job) nodes() int {
	on := map[string]bool{}
	for _, pod := range j.pods {
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" {
			on[pod.Spec.NodeName] = true
		}
	}
	return max(1, min(len(on), int(j.trains())))
}

// neighbours are with how many workers it trains at the legal sizes next to that which it has at which more or fewer train, the larger one
// first: a spare more or less makes it no faster.
func (j *job) neighbours() (all []int32) {
	now, larger, smaller := j.trains(), int32(0), int32(0)
	look := func(n int32) {
		switch world := j.in.World(n); {
		case n < j.in.Min || n > j.in.Max || world == now:
		case world < now:
			smaller = max(smaller, world)
		case larger == 0 || world < larger:
			larger = world
		}
	}
	if len(j.in.Sizes) > 0 {
		for _, size := range j.in.Sizes {
			look(size)
		}
	} else {
		for n := j.in.Min; n <= j.in.Max; n++ {
			look(n)
		}
	}
	for _, world := range [...]int32{larger, smaller} {
		if world > 0 {
			all = append(all, world)
		}
	}
	return all
}

// would says what another size would give, on as many nodes.
func would(pace *allocation.Pace, workers, nodes int, now, left float64) string {
	other := pace.Speed.Speed(workers, min(nodes, workers))
	text := fmt.Sprintf("With %s on as many nodes it would make as many", count(workers, "worker"))
	if percent := math.Round(100 * (other/now - 1)); percent != 0 {
		text = fmt.Sprintf("With %s on as many nodes it would make about %s (%+.0f%%)", count(workers, "worker"), rate(other), percent)
	}
	if left > 0 {
		gain := seconds(left/now) - seconds(left/other)
		switch {
		case gain >= time.Second:
			text += fmt.Sprintf(", and end %s earlier", span(gain))
		case gain <= -time.Second:
			text += fmt.Sprintf(", and end %s later", span(-gain))
		}
	}
	if int32(workers) > pace.Tried {
		text += "; it was not seen with so many yet"
	}
	return text + "."
}

// left is how many steps are left, 0 where nobody knows, and what there is to say of it.
func (l *Look) left(j *job) (float64, []string) {
	left := j.in.Pace.Left
	switch doubt := j.object.Status.Speed.Doubt; {
	case left > 0:
		now := j.in.Pace.Speed.Speed(int(j.trains()), j.nodes())
		return left, []string{fmt.Sprintf("%s are left, which takes %s at this size.", count(int64(left), "step"), span(seconds(left/now)))}
	case doubt != "":
		return 0, []string{fmt.Sprintf("How many steps are left is not believed: %s. About as many as were made are expected.", doubt)}
	default:
		return 0, []string{"Its program does not say how many steps are left: about as many as were made are expected."}
	}
}

// price is what a worker costs it beside others, and a change.
func (l *Look) price(j *job) []string {
	var all []string
	pauses := "as is usual, since none was measured"
	if j.in.Pause > 0 {
		pauses = "as measured"
	}
	if d := j.decision; d != nil && d.Wish > 0 {
		text := fmt.Sprintf("By what workers are worth it is to have at most %d now: ", d.Wish)
		if d.Price > 0 {
			text += fmt.Sprintf("for the jobs behind it each device counts as %.0f%% more of the time that is left.", 100*d.Price)
		} else {
			text += "no job is behind it, so that they cost it nothing."
		}
		all = append(all, text)
	}
	text := fmt.Sprintf("A change of its size costs it a pause of %s (%s)", pause(j.in.PauseExpected()), pauses)
	if l.cluster.Settings.ByValue {
		return append(all, text+", and has to save a tenth of the time that is left.")
	}
	return append(all, text+". How fast jobs are does not count for who has how many workers here.")
}

// measuredAt says at how many sizes and when a job was last measured.
func (l *Look) measuredAt(j *job) string {
	var last time.Time
	seen := fleet.SizesSeen(&j.object.Status.Speed)
	for i := range seen {
		if seen[i].At.After(last) {
			last = seen[i].At
		}
	}
	return fmt.Sprintf("at %s, last %s ago", count(len(seen), "size"), span(l.now.Sub(last)))
}

// rate is a number of steps per second, to three digits.
func rate(perSecond float64) string { return strconv.FormatFloat(perSecond, 'g', 3, 64) }

// seconds is a time, at most what a time can be.
func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), math.MaxInt64/2))
}
