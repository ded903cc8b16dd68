package allocation

// Tally is what the workers of one job come to. A plan reads it instead of the workers one by one, so whoever
// makes one plan after the other makes it once for as long as they stay as they are. Whom a worker leaves for, and
// whether it is overdue, may change without it.
type Tally struct {
	counts
	// home is where the first worker of the own class is, None when none is anywhere.
	home NodeID
	// apart are those that end, or leave for a reason of their own.
	apart []int32
	// surplus are the others that are not of the own class, holds is what these hold.
	surplus []lendable
	holds   []holding
}

// counts are numbers of workers.
type counts struct {
	// live are the workers that neither end nor leave for a reason of their own, own those among them of the
	// job's own class, bound those that have a node, ownBound those that are both.
	live, own, bound, ownBound int32
	// growth are live workers that are not of the own class, unbound those of them that have no node yet.
	growth, unbound int32
	// marked is true when workers were to leave by the plan in force.
	marked bool
}

// lendable is a worker that its job could give, with what is asked of it again and again side by side.
type lendable struct {
	worker int32
	node   NodeID
	shape  ShapeID
	// marked is true when it leaves already, idle when it is in no world or leaves anyway.
	marked, idle bool
}

// holding is the room of some workers of a shape on a node.
type holding struct {
	node  NodeID
	shape ShapeID
	times int32
}

// TallyOf sums the workers of a job up.
func TallyOf(workers []Worker) *Tally {
	t := &Tally{home: None}
	for w := range workers {
		worker := &workers[w]
		t.marked = t.marked || worker.Marked
		if t.home == None && worker.Own && worker.Bound {
			t.home = worker.Node
		}
		if worker.Ending || worker.Leaving {
			t.apart = append(t.apart, int32(w))
			continue
		}
		t.count(worker)
		if !worker.Own {
			t.surplus = append(t.surplus, worker.lendable(w))
		}
	}
	t.holds = holdsOf(t.surplus)
	return t
}

func (c *counts) count(worker *Worker) {
	c.live++
	if worker.Bound {
		c.bound++
	}
	switch {
	case worker.Own && worker.Bound:
		c.own++
		c.ownBound++
	case worker.Own:
		c.own++
	default:
		c.growth++
		if !worker.Bound {
			c.unbound++
		}
	}
}

func (w *Worker) lendable(index int) lendable {
	return lendable{int32(index), w.Node, w.Shape, w.Marked, w.Marked || !w.World}
}

// holdsOf is what some workers hold.
func holdsOf(some []lendable) []holding {
	var all []holding
	for i := range some {
		all = withHeld(all, &some[i])
	}
	return all
}

// withHeld adds what one more worker holds. Those of a job are often side by side: they are one then.
func withHeld(all []holding, one *lendable) []holding {
	if last := len(all) - 1; last >= 0 && all[last].node == one.node && all[last].shape == one.shape {
		all[last].times++
		return all
	}
	return append(all, holding{one.node, one.shape, 1})
}
