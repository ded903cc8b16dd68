package allocation

// touched are the nodes whose room has changed, in the order of their last change. There may be as many classes of pods as jobs, and
// room is taken and given back again and again while somebody is looked for who can leave: who is not asked for has nothing to do with
// that, and catches up later on each node that changed meanwhile, once.
type touched struct {
	// times is how many changes there were.
	times  int64
	newest NodeID
	nodes  []touch
}

// touch is the last change of a node, 0 for none, and which nodes changed last before and after that.
type touch struct {
	at            int64
	before, after NodeID
}

func (t *touched) reset(nodes int) {
	t.times, t.newest, t.nodes = 0, None, sized(t.nodes, nodes)
}

// note enters one more change of a node.
func (t *touched) note(n NodeID) {
	t.times++
	one := &t.nodes[n]
	was := one.at
	if one.at = t.times; t.newest == n {
		return
	}
	if was > 0 {
		t.nodes[one.after].before = one.before
		if one.before != None {
			t.nodes[one.before].after = one.after
		}
	}
	if t.newest != None {
		t.nodes[t.newest].after = n
	}
	one.before, one.after = t.newest, None
	t.newest = n
}

// since says whether there is such a node, and it has changed since so many changes.
func (t *touched) since(n NodeID, times int64) bool { return n != None && t.nodes[n].at > times }
