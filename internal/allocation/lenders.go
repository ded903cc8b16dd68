package allocation

import (
	"cmp"
	"slices"
	"time"
)

// lenders are the jobs that have something which helps one class of pods, or one set of quotas.
type lenders struct {
	// all are in the order of who is taken from last.
	all []lender
	// marked are those with workers that leave already, idle those with workers in no world as well; indices.
	marked, idle []int32
	// places are those that could be had on each node when the lenders were found; nil for quotas.
	places []int32
	// queue is memory that searches take turns to use.
	queue []ranked
}

// asLenders are those that somebody has asked for: by the class that they help, by the nodes that this may use, and by the shape whose
// quotas matter.
type asLenders struct {
	byClass []*lenders
	byNodes map[int32]*lenders
	byQuota map[ShapeID]*lenders
}

// lender is a job that could give workers.
type lender struct {
	job JobID
	// workers are those that help; the least missed first once they are sorted, which is when they are asked for. Until then other
	// classes may have the same.
	workers []int32
	sorted  bool
}

// unmeasured is taken for the pause of a job whose world has not changed yet, restart when its programs
// are started anew.
const (
	unmeasured = time.Second
	restart    = time.Minute
)

// inOrder are the workers of a lender, the least missed first.
func (all *lenders) inOrder(l *lender, workers []Worker) []int32 {
	if !l.sorted {
		l.sorted, l.workers = true, slices.Clone(l.workers)
		sortByMissed(workers, l.workers, all.places)
	}
	return l.workers
}

// lendersTo are the jobs with workers on nodes of a class.
func (p *planner) lendersTo(k classID) *lenders {
	for len(p.byClass) <= int(k) {
		p.byClass = append(p.byClass, nil)
	}
	if p.byClass[k] == nil {
		on := p.lendersOn(k)
		p.byClass[k] = &lenders{all: slices.Clone(on.all), marked: on.marked, idle: on.idle, places: slices.Clone(p.reach.of(k).at)}
	}
	return p.byClass[k]
}

// lendersOn are the jobs with workers on the nodes that a class may use. There may be as many classes as jobs, but most of them may use
// the same nodes.
func (p *planner) lendersOn(k classID) *lenders {
	if p.byNodes == nil {
		p.byNodes = map[int32]*lenders{}
	}
	set := p.classes.nodesOf(k)
	if p.byNodes[set] == nil {
		nodes := p.classes.all[k].nodes
		p.byNodes[set] = p.findLenders(p.byRank(), func(l *lendable) bool { return l.node >= 0 && nodes.Has(int(l.node)) })
	}
	return p.byNodes[set]
}

// quotaLenders are the jobs with workers that count against a quota of a shape.
func (p *planner) quotaLenders(s ShapeID) *lenders {
	if p.byQuota == nil {
		p.byQuota = map[ShapeID]*lenders{}
	}
	if p.byQuota[s] == nil {
		quotas := p.c.Shapes[s].Quotas
		var jobs []JobID
		for _, id := range p.byRank() {
			if slices.ContainsFunc(quotas, func(q QuotaID) bool { return p.c.Quotas[q].Namespace == p.c.Jobs[id].Namespace }) {
				jobs = append(jobs, id)
			}
		}
		p.byQuota[s] = p.findLenders(jobs, func(l *lendable) bool {
			return slices.ContainsFunc(p.c.Shapes[l.shape].Quotas, func(q QuotaID) bool { return slices.Contains(quotas, q) })
		})
	}
	return p.byQuota[s]
}

// byRank are the jobs that may give anything, the first in order last.
func (p *planner) byRank() []JobID {
	if p.giving == nil {
		p.giving = []JobID{}
		for _, id := range slices.Backward(p.order) {
			if p.jobs[id].limit > 0 {
				p.giving = append(p.giving, id)
			}
		}
	}
	return p.giving
}

// findLenders lists the workers that help, job by job.
func (p *planner) findLenders(jobs []JobID, helps func(*lendable) bool) *lenders {
	found := &lenders{all: make([]lender, 0, len(jobs))}
	could := 0
	for _, id := range jobs {
		could += len(p.jobs[id].lendables)
	}
	memory := make([]int32, 0, could)
	for _, id := range jobs {
		l := lender{job: id, workers: memory[len(memory):]}
		marked, idle := false, false
		all := p.jobs[id].lendables
		for i := range all {
			if one := &all[i]; helps(one) {
				l.workers = append(l.workers, one.worker)
				marked, idle = marked || one.marked, idle || one.idle
			}
		}
		if len(l.workers) == 0 {
			continue
		}
		memory = memory[:len(memory)+len(l.workers)]
		l.workers = slices.Clip(l.workers)
		if marked {
			found.marked = append(found.marked, int32(len(found.all)))
		}
		if idle {
			found.idle = append(found.idle, int32(len(found.all)))
		}
		found.all = append(found.all, l)
	}
	return found
}

// sortByMissed puts those first whom their job misses least; of those that it misses alike, the ones on nodes
// where most places can be had, node by node.
func sortByMissed(workers []Worker, some []int32, places []int32) {
	slices.SortFunc(some, func(a, b int32) int {
		x, y := &workers[a], &workers[b]
		if places != nil && x.Own == y.Own && x.World && y.World && x.Marked == y.Marked && x.Node != y.Node && x.Node >= 0 && y.Node >= 0 {
			return cmp.Or(cmp.Compare(places[y.Node], places[x.Node]), cmp.Compare(x.Node, y.Node))
		}
		return missed(x, y)
	})
}

// missed orders workers of one job by how little it misses them.
func missed(a, b *Worker) int {
	for _, less := range [...][2]bool{
		{!a.Own, !b.Own}, {a.Marked, b.Marked}, {!a.Bound, !b.Bound}, {!a.World, !b.World}, {a.Rank != 0, b.Rank != 0},
	} {
		if less[0] != less[1] {
			if less[0] {
				return -1
			}
			return 1
		}
	}
	return cmp.Or(cmp.Compare(b.Rank, a.Rank), cmp.Compare(b.Ordinal, a.Ordinal))
}

// ranked is a lender with what taking from it costs.
type ranked struct {
	cost time.Duration
	// at is its index.
	at    int32
	young bool
}

// queue is a heap of lenders, the one that loses least first.
type queue struct {
	lenders []lender
	heap    []ranked
}

// rank orders lenders by the work that is lost for each place that helps.
func (s *search) rank(all *lenders) *queue {
	q := queue{all.all, all.queue[:0]}
	for i := range all.all {
		l := &all.all[i]
		if j := &s.p.jobs[l.job]; j.gone < j.limit && !j.evicted {
			q.heap = append(q.heap, ranked{s.cost(l), int32(i), !j.young.IsZero()})
		}
	}
	all.queue = q.heap
	for i := len(q.heap)/2 - 1; i >= 0; i-- {
		q.down(i)
	}
	return &q
}

// cost is what all workers of a lender lose by the pause, for each place that it could give: a worker with
// many devices may give several.
func (s *search) cost(l *lender) time.Duration {
	in, j := &s.p.c.Jobs[l.job], &s.p.jobs[l.job]
	if j.paused || j.lends {
		return 0
	}
	pause := in.Pause
	if pause <= 0 {
		pause = unmeasured
		if in.Restarts {
			pause = restart
		}
	}
	needs, each := s.p.devices(s.job), s.p.devices(l.job)
	wanted := int64(max(s.places, 1)) * needs
	helps := min(s.helpers(l, min(int64(j.limit-j.gone), wanted/each+1))*each, wanted)
	return pause * time.Duration(j.live) * time.Duration(needs) / time.Duration(max(helps, 1))
}

// helpers is how many workers of a lender are where a place is of use, or count against a quota that matters; no more of them are
// counted than so many.
func (s *search) helpers(l *lender, most int64) int64 {
	if !s.placed || len(s.avoid) == 0 {
		return min(int64(len(l.workers)), most)
	}
	found := int64(0)
	for _, w := range l.workers {
		if found >= most {
			break
		}
		if !slices.Contains(s.avoid, s.p.c.Jobs[l.job].Workers[w].Node) {
			found++
		}
	}
	return found
}

// pop takes the first lender out, nil when there is none.
func (q *queue) pop() *lender {
	if len(q.heap) == 0 {
		return nil
	}
	first, last := &q.lenders[q.heap[0].at], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap = q.heap[:last]
	q.down(0)
	return first
}

func (q *queue) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q.heap); child++ {
			if q.heap[child].before(&q.heap[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}

func (r *ranked) before(other *ranked) bool {
	switch {
	case r.young != other.young:
		return other.young
	case r.cost != other.cost:
		return r.cost < other.cost
	}
	return r.at < other.at
}
