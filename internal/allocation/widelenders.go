package allocation

// Whom a class of pods asks for room in vain, all that are like it and ask for more ask in vain as well.

// wideBounds are how many places others could make at most.
type wideBounds struct {
	// taken is how often room was taken for growth: what is left over of that may do for others, together with what somebody else gives.
	taken int
	// bounds has those of each class that stands for others.
	bounds map[int32]*bounds
}

// bounds are how many places there would be at most for one of these classes with all that a job could give, by job and counted from 1;
// 0 where nobody has asked since room was last taken.
type bounds struct {
	taken int
	of    []int32
}

// atMost is how many places there would be at most for any class that one stands for, with all that a job could give.
func (p *planner) atMost(w int32, from JobID) int32 {
	if p.bounds == nil {
		p.bounds = map[int32]*bounds{}
	}
	b := p.bounds[w]
	switch {
	case b == nil:
		b = &bounds{p.taken, make([]int32, len(p.c.Jobs))}
		p.bounds[w] = b
	case b.taken != p.taken:
		b.taken = p.taken
		clear(b.of)
	}
	if b.of[from] == 0 {
		b.of[from] = p.bound(w, from) + 1
	}
	return b.of[from] - 1
}

func (p *planner) bound(w int32, from JobID) int32 {
	soon, reach, width := p.soon.ofWide(w), p.reach.ofWide(w), len(p.c.Resources)
	for _, h := range p.stillHolds(from) {
		if n := h.node; n >= 0 && reach.at[n] > 0 {
			p.glance.add(n, p.c.Shapes[h.shape].Request, int64(h.times))
		}
	}
	places := soon.total
	for i, n := range p.glance.nodes {
		row := p.glance.rows[i*width : (i+1)*width]
		for r := range row {
			row[r] += p.soon.free[int(n)*width+r]
		}
		places += int64(soon.class.times(row) - soon.at[n])
	}
	p.glance.clear()
	return int32(min(places, 1<<30))
}

// wideCursor says how many of the first lenders have nothing for any class that one stands for.
type wideCursor struct {
	wide      int32
	at, taken int
}

// alike is the cursor of those like a class, nil where there are too few.
func (l *level) alike(k classID) *wideCursor {
	w := l.p.classes.wideOf(k)
	if w == 0 {
		return nil
	}
	if l.wide == nil {
		l.wide = map[int32]*wideCursor{}
	}
	if l.wide[w] == nil {
		l.wide[w] = &wideCursor{wide: w}
	}
	c := l.wide[w]
	if c.taken != l.p.taken {
		c.at, c.taken = 0, l.p.taken
	}
	return c
}

func (c *wideCursor) upTo() int {
	if c == nil {
		return 0
	}
	return c.at
}

// pass moves on behind a lender that gives nothing, to whomever it is.
func (c *wideCursor) pass(p *planner, from JobID, at int) {
	if c != nil && c.at == at && (!p.couldGive(from) || !p.jobs[from].young.IsZero() || p.atMost(c.wide, from) == 0) {
		c.at++
	}
}
