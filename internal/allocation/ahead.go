package allocation

import (
	"slices"
	"time"
)

// Before a whole job ends for a gang it is looked at what the next plan would be once all have left who are to. Who waits before that
// gang may have more of what comes free than it could ask for: by what a whole job leaves beside what lenders leave, or by moves that
// were not possible before. If the gang would not start then, nobody ends for it.

// foreseen is how many times at most a plan is made anew without whole jobs for just those gangs that would not start. Then none end
// for others either that may use nodes of theirs, and at last for nobody.
const foreseen = 3

// lookAnew is for how long the next plans take what was found out for granted. Until all is looked at again none may end for a gang
// though it would start by now.
const lookAnew = 15 * time.Second

// bar says for which gangs no whole job ends: for some, for those that may use nodes of theirs as well where wide, or for none.
type bar struct {
	gangs     []JobID
	wide, all bool
	// since is when that was found out; zero for nothing.
	since time.Time
}

// ahead makes a plan by which no whole job ends in vain, and says for whom none may end because of that.
func (r *Planner) ahead(c *Cluster) (Plan, bar) {
	r.made = 0
	barred := c.foreseen()
	// A plan that has looked at everything would find the same again.
	remembered, again := len(barred.gangs) > 0, barred.since.Add(lookAnew)
	for turn := 0; ; turn++ {
		plan := r.make(c, barred)
		vain := r.inVain(c, &plan)
		if len(vain) == 0 {
			if remembered && (plan.Next.IsZero() || again.Before(plan.Next)) {
				plan.Next = again
			}
			plan.Foresight = Foresight{Wide: barred.wide, All: barred.all, Since: barred.since}
			for _, id := range barred.gangs {
				plan.Decisions[id].InVain = true
			}
			return plan, barred
		}
		if barred.since.IsZero() {
			barred.since = c.Now
		}
		barred.gangs = append(barred.gangs, vain...)
		barred.wide, barred.all = barred.wide || turn >= foreseen, barred.all || turn > foreseen
	}
}

// foreseen is what the last plan has found out, as long as that counts and any of the gangs waits of which it was found out.
func (c *Cluster) foreseen() bar {
	barred := bar{wide: c.Foresight.Wide, all: c.Foresight.All, since: c.Foresight.Since}
	if until(barred.since, lookAnew, c.Now).IsZero() {
		return bar{}
	}
	for id := range c.Jobs {
		if c.Jobs[id].InVain && c.Jobs[id].Name != "" && c.Jobs[id].Stage != Held {
			barred.gangs = append(barred.gangs, JobID(id))
		}
	}
	if len(barred.gangs) == 0 {
		return bar{}
	}
	return barred
}

// make makes one plan.
func (r *Planner) make(c *Cluster, barred bar) Plan {
	defer func() { r.planner = r.planner.memory() }()
	r.made++
	r.planner.barred = barred
	return r.planner.plan(c)
}

// inVain are the gangs for which whole jobs end and that would not start then. Where only the scheduler knows, nothing is foreseen.
func (r *Planner) inVain(c *Cluster, plan *Plan) (all []JobID) {
	var next Plan
	for id := range plan.Decisions {
		d := &plan.Decisions[id]
		if !d.Evict || d.For < 0 || slices.Contains(all, d.For) || c.Jobs[d.For].Gang >= 0 && c.Shapes[c.Jobs[d.For].Gang].Unmodelled != "" {
			continue
		}
		if next.Decisions == nil {
			next = r.make(carriedOut(c, plan), bar{})
		}
		if whom := &next.Decisions[d.For]; !whom.Start && whom.Own == 0 {
			all = append(all, d.For)
		}
	}
	return all
}

// isBarred says whether no whole job ends for a demand.
func (p *planner) isBarred(d *demand) bool {
	return slices.Contains(p.barred.gangs, d.job) || p.barred.wide && overlap(p.classes.all[d.class].nodes, p.barredNodes())
}

// isApart says whether no whole job ends for a demand, though one may for others like it: what it finds says nothing of those.
func (p *planner) isApart(d *demand) bool {
	return !p.barred.wide && slices.Contains(p.barred.gangs, d.job)
}

// barredNodes are those that the gangs may use for which no whole job ends.
func (p *planner) barredNodes() Bits {
	if p.barredOn == nil {
		p.barredOn = make(Bits, (len(p.c.Nodes)+63)/64)
		for _, id := range p.barred.gangs {
			for i, word := range p.classes.all[p.classes.of(p.c.Jobs[id].Gang, scope{})].nodes {
				p.barredOn[i] |= word
			}
		}
	}
	return p.barredOn
}

// carriedOut is the cluster once all have left who are to, and those are there who may be made.
func carriedOut(c *Cluster, plan *Plan) *Cluster {
	after := *c
	after.Nodes, after.Quotas, after.Jobs = slices.Clone(c.Nodes), slices.Clone(c.Quotas), slices.Clone(c.Jobs)
	width := len(c.Resources)
	free := make(Amounts, len(c.Nodes)*width)
	for n := range after.Nodes {
		one := &after.Nodes[n]
		row := free[n*width : (n+1)*width]
		copy(row, one.Free)
		one.Free = row
		for i, amount := range one.Coming {
			one.Free[i] += amount
		}
		one.Coming = nil
	}
	for q := range after.Quotas {
		after.Quotas[q].Free = slices.Clone(after.Quotas[q].Free)
	}
	for id := range after.Jobs {
		after.carryOut(JobID(id), &plan.Decisions[id])
	}
	return &after
}

// carryOut does so with one job.
func (c *Cluster) carryOut(id JobID, d *Decision) {
	j := &c.Jobs[id]
	j.Promised = d.Promised
	if d.Evict || len(d.Leave)+len(d.Places) > 0 || slices.ContainsFunc(j.Workers, func(w Worker) bool { return w.hasLeft() || w.Marked }) {
		c.haveLeft(j, d)
	}
	if d.Evict {
		j.Stage, j.Target, j.Members = Held, 0, 0
		return
	}
	if d.Start {
		j.Stage = Starting
	}
	for i, n := range d.Places {
		own := int32(i) < d.Own
		worker := Worker{Node: n, Shape: j.Gang, Own: own, Bound: true, World: j.Stage == Training, For: None, Rank: -1}
		if !own {
			worker.Shape, j.GrewAt = j.Growth, c.Now
		}
		c.give(&worker, -1)
		j.Workers = append(j.Workers, worker)
	}
	if j.Target = d.Count; j.Members > 0 {
		j.Members = j.World(d.Count)
	}
}

// haveLeft takes those out of a job who leave it, and has the others stay.
func (c *Cluster) haveLeft(j *Job, d *Decision) {
	leave := make([]bool, len(j.Workers))
	for _, l := range d.Leave {
		leave[l.Worker] = true
	}
	stay := make([]Worker, 0, len(j.Workers)+len(d.Places))
	for w := range j.Workers {
		worker := &j.Workers[w]
		if leave[w] || worker.hasLeft() || d.Evict && !worker.Overdue {
			c.give(worker, 1)
			continue
		}
		stay = append(stay, *worker)
		if last := &stay[len(stay)-1]; !last.Ending && !last.Leaving {
			last.Marked, last.For, last.Moves = false, None, false // whoever stays is not to leave any more
		}
	}
	j.Workers, j.Tally = stay, nil
}

// hasLeft says whether a worker is gone in any case once all have left who are to: nobody waits for one that is overdue.
func (w *Worker) hasLeft() bool { return (w.Ending || w.Leaving) && !w.Overdue }

// give changes what is free by what a worker holds, so many times.
func (c *Cluster) give(w *Worker, times int64) {
	shape := &c.Shapes[w.Shape]
	if w.Node >= 0 {
		free := c.Nodes[w.Node].Free
		for i, amount := range shape.Request {
			free[i] += amount * times
		}
	}
	for _, q := range shape.Quotas {
		free := c.Quotas[q].Free
		for i, amount := range shape.Demand {
			if i < len(free) && free[i] < Unbounded/2 {
				free[i] += amount * times
			}
		}
	}
}
