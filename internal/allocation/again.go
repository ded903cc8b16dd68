package allocation

import (
	"math"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/speed"
)

// What is known of how a job scales is from when it had other sizes. A program that has become slower since, or just as it grew, looks like
// one that makes nothing of more workers, and would never have more. So where devices stay free that nobody wishes for, it is tried
// again with twice as many: first ten minutes after it was last seen at another size, and after twice as long each time that this was in
// vain. It goes back to what it had then, and where it is of use it goes on at once. Nobody gives anything for that.

// Again is the last time that a job was tried again with more workers. The zero value is for never.
type Again struct {
	// From is how many workers it had before, while it is tried; 0 otherwise.
	From int32
	// At is when that began, or when it ended; Vain how often in a row it was of no use.
	At   time.Time
	Vain int32
	// Back is true once this was of no use, until it has given back what it was tried with. Another operator finds that out anew.
	Back bool
	// Trained is with how many of From it trained, as far as this operator knows: 0 where another one began.
	Trained int32
	// Here is with how many workers it was last seen since, Since when the first plan was that knew: also for this operator only.
	Here  int32
	Since time.Time
}

const (
	// firstAgain is how long a job is at a size until it is tried again with more workers. It doubles mostVain times at most.
	firstAgain, mostVain = 10 * time.Minute, 4
	// perPause is how many times the pause of a job that is at least: two pauses are a fiftieth of its time then.
	perPause = 100
	// looksAgain is for how long it is looked at with more workers, from when it was first seen with them, and half of that its steps
	// have to cover: who is slow for a minute in each new world is not taken for one that is slow there.
	looksAgain = 2 * time.Minute
	// comesAgain is how long newcomers may take to join, who may have to wait for their images; lastsAgain how long all of it lasts at most.
	comesAgain, lastsAgain = 10 * time.Minute, 15 * time.Minute
	// standsAgain is for how long a plan may be made anew before its workers are there.
	standsAgain = time.Minute
	// leastAgain is the part by which it is to have more workers at least: of fewer it could not be told from noise whether they are
	// of use.
	leastAgain = 0.25
	// gainsAgain is the part by which it has to be faster then: a program's pace differs by up to a tenth from world to world, and what is
	// taken for a gain by mistake it keeps.
	gainsAgain = 0.2
)

// wait is how long a job is at a size before it is tried again with more workers.
func (j *Job) wait(vain int32) time.Duration {
	return max(firstAgain<<min(max(vain, 0), mostVain), perPause*min(j.PauseExpected(), time.Hour))
}

// judge finds out what became of a job that is tried again with more workers: it goes back, or keeps what was of use. It is judged by
// those who have joined its world, whoever is still to come: but that they are of no use is said once all are there or have had the time.
func (p *planner) judge(id JobID) {
	in, j, out := &p.c.Jobs[id], &p.jobs[id], &p.out[id]
	a := in.Again
	switch size := p.size(id); {
	case a.From <= 0:
	case a.Back:
		j.back = in.before()
	case size <= a.From:
		end := until(a.At, standsAgain, p.c.Now)
		if p.wake(end); !end.IsZero() {
			break
		}
		vain := a.Vain
		if j.gone == 0 && in.ReclaimedAt.Before(a.At) && in.EvenedAt.Before(a.At) {
			vain = oftener(vain) // nobody came, and nobody needed it either
		}
		out.Again = Again{At: p.c.Now, Vain: vain}
	case p.gangWaitsFor(id):
		j.back, out.Again.Back = in.before(), true
	default:
		looked := p.looked(id)
		came, over := until(a.At, comesAgain, p.c.Now), until(a.At, lastsAgain, p.c.Now)
		p.wake(came)
		p.wake(over)
		here := out.Again.Here
		switch {
		case here > 0 && (looked || over.IsZero()) && in.gained(here):
			out.Again, j.goesOn = Again{}, here == in.World(size)
		case over.IsZero(), came.IsZero() && here == 0, looked && (here >= in.World(size) || came.IsZero()):
			j.back, out.Again.Back, out.Again.Vain = in.before(), true, oftener(a.Vain)
		}
	}
}

// looked says whether a job that is tried again was looked at for long enough with those that have joined, if they are many enough for
// that to be of any meaning. It notes since when.
func (p *planner) looked(id JobID) bool {
	in, last := &p.c.Jobs[id], &p.out[id].Again
	here, at := 0, time.Time{}
	if in.Pace != nil {
		here, at, _ = speed.Here(in.Pace.Seen)
	}
	switch n := int32(min(here, math.MaxInt32)); {
	case !enoughMore(n, in.before()):
		last.Here, last.Since = 0, time.Time{}
		return false
	case n != last.Here:
		last.Here, last.Since = n, p.c.Now
	}
	end := until(last.Since, looksAgain, p.c.Now)
	p.wake(end)
	return end.IsZero() && at.Sub(last.Since) >= looksAgain/2
}

// enoughMore says whether so many workers are so many more than before that it can be told what they are good for.
func enoughMore(workers, from int32) bool {
	return float64(workers)-float64(from) >= leastAgain*float64(from)
}

// oftener is how often it was in vain, once it was so once more.
func oftener(vain int32) int32 { return min(max(vain, 0), mostVain) + 1 }

// before is with how many workers a job trained before it was tried again. It goes back to so many as well, since nobody who trains
// becomes a spare: its spares come back then.
func (j *Job) before() int32 {
	switch {
	case j.Spares <= 0:
		return j.Again.From
	case j.Again.Trained > 0:
		return min(j.Again.Trained, j.Again.From)
	}
	return j.beside(j.Again.From)
}

// gained says whether a job is so much faster in a world of so many than before it was tried again that it is no noise.
func (j *Job) gained(world int32) bool {
	now, before := speed.PaceWith(j.Pace.Seen, int(world)), speed.PaceWith(j.Pace.Seen, int(j.before()))
	return now > before*(1+gainsAgain)
}

// goesBack is how many workers a job may have at most that goes back, as many as there are otherwise: what it was tried with in vain it
// gives back, but not what is its own for another reason. It is given no more than that meanwhile.
func (p *planner) goesBack(id JobID) int32 {
	if j := &p.jobs[id]; j.back > 0 {
		return max(j.back, j.owed, p.out[id].Needs)
	}
	return math.MaxInt32
}

// isBack ends the trial of a job that has gone back, whether or not more than it had then is its own by now.
func (p *planner) isBack(id JobID) {
	if p.jobs[id].back > 0 && p.jobs[id].live <= p.goesBack(id) {
		p.out[id].Again = Again{At: p.c.Now, Vain: p.out[id].Again.Vain}
	}
}

// tryAgain gives devices that are free once all have what they are to have to jobs that are to be tried again with more workers.
func (p *planner) tryAgain() {
	if !p.paced {
		return
	}
	for _, id := range p.order {
		to := p.againWith(id)
		if to == 0 || p.gangWaitsFor(id) {
			continue
		}
		in, j, from, wish := &p.c.Jobs[id], &p.jobs[id], p.size(id), p.jobs[id].wish
		j.wish = to
		l := &level{p: p, priority: in.Priority, jobs: []JobID{id}, cursor: map[sought]int{}, resold: true}
		l.fill()
		if j.wish = wish; j.added == 0 {
			continue
		}
		if last := &p.out[id].Again; last.From != from {
			*last = Again{From: from, Trained: in.World(from), At: p.c.Now, Vain: last.Vain}
		}
	}
}

// gangWaitsFor says whether a gang waits that might start with what a job is tried with: it may use a node by which that grows, or counts
// against the same quota, and it is not one that would not even fit an empty cluster. Nobody is tried again then.
func (p *planner) gangWaitsFor(id JobID) bool {
	growth := p.c.Jobs[id].Growth
	nodes := p.classes.all[p.growthScope(id)].nodes
	return slices.ContainsFunc(p.order, func(other JobID) bool {
		in := &p.c.Jobs[other]
		if in.Stage != Queued || p.out[other].Start || in.Gang < 0 {
			return false
		}
		k := p.classes.of(in.Gang, scope{})
		if !p.opaque(in.Gang) && p.classes.empty(k) < int64(in.Min) {
			return false
		}
		shares := slices.ContainsFunc(p.c.Shapes[in.Gang].Quotas, func(q QuotaID) bool { return slices.Contains(p.c.Shapes[growth].Quotas, q) })
		for i, word := range p.classes.all[k].nodes {
			shares = shares || i < len(nodes) && word&nodes[i] != 0
		}
		return shares
	})
}

// againWith is with how many workers a job is to be tried again now, 0 for not.
func (p *planner) againWith(id JobID) int32 {
	in, j, last, size := &p.c.Jobs[id], &p.jobs[id], p.out[id].Again, p.size(id)
	anew := last.From > 0 && last.From == size // the plan is
	if !p.mayTryAgain(id) || last.From > 0 && !anew {
		return 0
	}
	here, _, elsewhere := speed.Here(in.Pace.Seen)
	world := int(in.World(size))
	if here != world || elsewhere.IsZero() {
		return 0
	}
	wait := in.wait(last.Vain)
	perNode := int(max(p.classes.perNode(p.growthScope(id)), 1))
	if left := in.Pace.left() / in.Pace.Speed.Speed(world, (world+perNode-1)/perNode); !(left >= wait.Seconds()) {
		return 0 // it is nearly done
	}
	if !j.goesOn && !anew {
		for _, since := range [...]time.Time{elsewhere, last.At} {
			if end := until(since, wait, p.c.Now); !end.IsZero() {
				p.wake(end)
				return 0
			}
		}
	}
	free := min(p.now.of(p.growthScope(id)).beside(in.Avoid), int64(p.now.bounds(in.Growth, p.c.Namespaces[in.Namespace].HeadRoom)))
	to := in.most(int32(min(int64(in.withSpares(int32(min(int64(world)*2, math.MaxInt32)))), int64(size)+max(free, 0), math.MaxInt32)))
	if !enoughMore(in.World(to), in.World(size)) {
		return 0
	}
	return to
}

// mayTryAgain says whether a job may be tried again as far as it itself is concerned: who is in any change is left alone, and so is who
// would lose what its program has not saved.
func (p *planner) mayTryAgain(id JobID) bool {
	in, j := &p.c.Jobs[id], &p.jobs[id]
	if in.Stage != Training || in.Pace == nil || in.Restarts || p.opaque(in.Growth) {
		return false
	}
	changes := j.evicted || j.marked || j.back > 0 || j.gone > 0 || j.added > 0 || j.virtual > 0
	return !changes && p.mayGrow(id) && p.kept(id)
}

// againWords follow on why a job grows, where it is tried again with more workers.
func (p *planner) againWords(id JobID) string {
	if from := p.out[id].Again.From; from > 0 && from == p.size(id)-p.jobs[id].added-p.jobs[id].virtual {
		return ", and it is tried again whether they are of use to it"
	}
	return ""
}
