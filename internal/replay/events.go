package replay

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/allocation"
)

// Events are the operator's own rules: it plans whenever something happens, newcomers start beside the world that
// trains, and a world that changes stands still for a short pause.
type Events struct {
	// Join is how long a worker takes from its pod to its place in a world, and holds its device meanwhile; Pause how
	// long all workers of a job stand still when its world changes.
	Join, Pause time.Duration
	Settings    allocation.Settings
	Sight       Sight
}

// never is later than any event.
const never = time.Duration(math.MaxInt64)

// history is a run by events.
type history struct {
	Events
	operator *operator
	now      time.Duration
	waiting  []*Job
	lives    []*life
	results  map[string]*JobResult
	// churn is how nodes come and go, if they do, news what of that is to come; perNode how many devices they have.
	churn   Churn
	news    []nodeNews
	perNode int
}

// life is a job that was submitted and is not done.
type life struct {
	*Job
	id       allocation.JobID
	epoch    int
	progress float64
	// world is where its members are, empty before the gang has started.
	world Placement
	// ready is when each worker that has yet to join can do so, by ordinal.
	ready map[int32]time.Duration
	// changes is when the change of its world that is under way is over, never for none; leavers are those who go then.
	changes time.Duration
	leavers map[int32]bool
	// ends is when the epoch ends, never while it makes no steps.
	ends time.Duration
	// steps and seconds are how many steps it has made in how much time, watch what was seen of that, and look when
	// more is to be seen.
	steps, seconds float64
	// lost is how many of the steps were made in vain.
	lost   float64
	watch  *watch
	look   time.Duration
	result *JobResult
}

// Run runs jobs until all are done.
func (e Events) Run(jobs []Job, c Cluster) (*Result, error) {
	if err := check(jobs, c); err != nil {
		return nil, err
	}
	h := e.begins(jobs, c)
	for len(h.waiting)+len(h.lives) > 0 {
		at := h.next()
		if at > patience {
			return nil, errEndless
		}
		h.pass(at)
		if h.happen() {
			if err := h.plan(); err != nil {
				return nil, err
			}
		}
	}
	return h.end(jobs, c), nil
}

// begins is a run at its beginning.
func (e Events) begins(jobs []Job, c Cluster) *history {
	h := &history{Events: e, operator: newOperator(c, e.Settings, e.Sight), results: map[string]*JobResult{}, perNode: c.DevicesPerNode}
	for i := range jobs {
		h.waiting = append(h.waiting, &jobs[i])
		result := newJobResult(&jobs[i])
		h.results[jobs[i].Name] = &result
	}
	return h
}

// end is what became of it.
func (h *history) end(jobs []Job, c Cluster) *Result {
	result := &Result{}
	for i := range jobs {
		result.Jobs = append(result.Jobs, *h.results[jobs[i].Name])
	}
	result.summarize(c)
	return result
}

// next is when something happens next.
func (h *history) next() time.Duration {
	at := never
	for _, j := range h.waiting {
		at = min(at, time.Duration(j.Submitted)*time.Second)
	}
	if len(h.news) > 0 {
		at = min(at, h.news[0].At)
	}
	for _, l := range h.lives {
		at = min(at, l.ends, l.changes, l.look)
		if l.changes == never {
			at = min(at, max(l.joins(), h.now))
		}
	}
	if wake := h.operator.next; !wake.IsZero() {
		at = min(at, max(wake.Sub(beginning), h.now))
	}
	return at
}

// joins is when the next worker can join, of a gang that has yet to start when the last of them can; never for none.
func (l *life) joins() time.Duration {
	if len(l.ready) == 0 {
		return never
	}
	times := slices.Collect(maps.Values(l.ready))
	if len(l.world) == 0 {
		return slices.Max(times)
	}
	return slices.Min(times)
}

// pass lets time pass, in which nothing happens.
func (h *history) pass(to time.Duration) {
	seconds := (to - h.now).Seconds()
	for _, l := range h.lives {
		l.result.HeldSeconds += seconds * float64(len(h.operator.job(l.id).Workers))
		if l.ends == never {
			continue
		}
		l.result.StepSeconds += seconds * float64(l.world.Workers())
		l.seconds += seconds
		l.steps += seconds / l.Program.StepTime(l.world)
		if l.ends == to {
			l.progress = l.Program.Until(l.epoch)
		} else {
			l.progress += seconds * speed(l.Program, l.world, l.epoch)
		}
	}
	h.now = to
}

// happen lets happen what is due, and says whether the planner is to look at it.
func (h *history) happen() bool {
	news := false
	if wake := h.operator.next; !wake.IsZero() && wake.Sub(beginning) <= h.now {
		news = true
	}
	news = h.nodesChange() || news
	var waiting []*Job
	for _, j := range h.waiting {
		if time.Duration(j.Submitted)*time.Second > h.now {
			waiting = append(waiting, j)
			continue
		}
		h.lives = append(h.lives, &life{
			Job: j, id: h.operator.submit(j), ready: map[int32]time.Duration{}, changes: never, ends: never, result: h.results[j.Name],
			watch: h.Sight.watch(j), look: never,
		})
		news = true
	}
	h.waiting = waiting
	var lives []*life
	for _, l := range h.lives {
		switch {
		case l.ends == h.now && h.epochs(l):
			news = true
			continue
		case l.changes == h.now:
			h.change(l)
			news = true
		case h.begin(l):
			news = true
		}
		if l.look <= h.now {
			l.look, news = never, true
		}
		lives = append(lives, l)
	}
	h.lives = lives
	return news
}

// epochs lets epochs end that end now, and says whether the job is done.
func (h *history) epochs(l *life) bool {
	for l.ends == h.now {
		l.progress = l.Program.Until(l.epoch)
		if l.epoch++; l.epoch == l.Program.Epochs() {
			l.result.complete(h.now.Seconds())
			h.operator.finish(l.id)
			return true
		}
		l.step(h.now)
	}
	return false
}

// step has a job make steps from now on.
func (l *life) step(now time.Duration) {
	left := (l.Program.Until(l.epoch) - l.progress) / speed(l.Program, l.world, l.epoch)
	l.ends = never - 1
	if nanoseconds := math.Ceil(max(0, left) * float64(time.Second)); nanoseconds < float64(patience) {
		l.ends = now + time.Duration(nanoseconds)
	}
}

// begin starts the gang of a job that is there, or a change of its world where workers are ready to join or have to
// leave.
func (h *history) begin(l *life) bool {
	j := h.operator.job(l.id)
	if l.changes != never {
		return false
	}
	joiners, all := 0, true
	for i := range j.Workers {
		w := &j.Workers[i]
		switch {
		case w.World && (w.Marked || w.Leaving && h.stays(l)):
			l.leavers[w.Ordinal] = true
		case !w.World && !w.Marked && l.ready[w.Ordinal] <= h.now:
			joiners++
		case !w.World:
			all = false
		}
	}
	switch {
	case len(l.world) == 0:
		if joiners == 0 || !all {
			return false
		}
		h.change(l)
	case len(l.leavers) > 0 || joiners > 0:
		l.changes, l.ends = h.now+h.Pause, never
		j.Armed = len(l.leavers) > 0
	default:
		return false
	}
	return true
}

// stays says whether a world would have a member if those left who are about to lose their node.
func (h *history) stays(l *life) bool {
	return slices.ContainsFunc(h.operator.job(l.id).Workers, func(w allocation.Worker) bool {
		return !w.Marked && !w.Leaving && (w.World || l.ready[w.Ordinal] <= h.now)
	})
}

// change makes the world of those that stay and those that are ready.
func (h *history) change(l *life) {
	l.watch.look(h.now, l.world, l.steps, l.seconds)
	h.operator.remove(l.id, func(w *allocation.Worker) bool { return l.leavers[w.Ordinal] })
	h.operator.join(l.id, func(w *allocation.Worker) bool {
		joins := w.World || !w.Marked && l.ready[w.Ordinal] <= h.now
		if joins {
			delete(l.ready, w.Ordinal)
		}
		return joins
	})
	j := h.operator.job(l.id)
	j.Armed = false
	if j.Began = beginning.Add(h.now); len(l.world) > 0 { // it is watched in its first world for a while
		j.Pause, j.Began = h.Pause, time.Time{}
	}
	nodes := h.operator.members(l.id)
	if len(nodes) == 0 { // those who were to stay are lost
		h.regroup(l)
		return
	}
	l.world, l.leavers, l.changes = placementOn(nodes), map[int32]bool{}, never
	l.result.changed(h.now.Seconds(), len(nodes), h.operator.why[l.id])
	l.step(h.now)
	l.look = l.watch.change(h.now, l.world)
}

// plan has the operator plan until nothing more changes at this time.
func (h *history) plan() error {
	for _, l := range h.lives {
		l.watch.look(h.now, l.world, l.steps, l.seconds)
		h.operator.job(l.id).Pace = l.watch.pace(h.now)
	}
	for range mostPlans {
		if !h.operator.plan(h.now) {
			return nil
		}
		for _, l := range h.lives {
			h.see(l)
			h.begin(l)
		}
	}
	return restless(h.now)
}

// see lets workers that are new start, and those that are in no world and have to leave be gone.
func (h *history) see(l *life) {
	h.operator.remove(l.id, func(w *allocation.Worker) bool {
		gone := !w.World && (w.Marked || w.Leaving)
		if gone {
			delete(l.ready, w.Ordinal)
		}
		return gone
	})
	for _, w := range h.operator.job(l.id).Workers {
		if _, known := l.ready[w.Ordinal]; !w.World && !known {
			l.ready[w.Ordinal] = h.now + h.Join
		}
	}
}
