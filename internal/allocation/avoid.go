package allocation

import (
	"encoding/binary"
	"slices"
)

// A class of pods knows nothing of the nodes that a job avoids: there would be one for each such job, to be kept up to date with
// each pod that comes or goes. Whoever asks for places says which nodes are not to count. What is learnt from others who were
// asked in vain holds for those alone who avoid the same, unless what is avoided made no difference: then it holds for all.

// sought is room of others for a class of pods, beside some nodes.
type sought struct {
	class classID
	// beside numbers the nodes that are avoided, from 1; 0 where they make no difference.
	beside int
}

// anywhere is the same beside no nodes.
func (k sought) anywhere() sought { return sought{class: k.class} }

// growthSought is what a job seeks from others to grow.
func (p *planner) growthSought(id JobID) sought {
	k, avoid := p.growthScope(id), p.c.Jobs[id].Avoid
	if !p.reach.anyAt(k, avoid) {
		return sought{class: k} // nothing that others could give is on those
	}
	if p.jobs[id].beside == 0 {
		p.jobs[id].beside = p.numberAvoided(avoid)
	}
	return sought{k, p.jobs[id].beside}
}

// numberAvoided is one number for all who avoid the same nodes.
func (p *planner) numberAvoided(avoid []NodeID) int {
	var key []byte
	for _, n := range avoid {
		key = binary.AppendVarint(key, int64(n))
	}
	if p.avoided == nil {
		p.avoided = map[string]int{}
	}
	if p.avoided[string(key)] == 0 {
		p.avoided[string(key)] = len(p.avoided) + 1
	}
	return p.avoided[string(key)]
}

// pair is what is sought, and the shape of the pods where quotas matter too.
type pair struct {
	sought
	shape ShapeID
}

// refused says whether it is known that a job has no room to give for so many pods: it will have none later in the same plan.
func (p *planner) refused(k pair, from JobID, steps int32) bool {
	for _, known := range []pair{k, {k.anywhere(), k.shape}} {
		if of := p.refusals[known]; of != nil && of[from] > 0 && steps >= of[from] {
			return true
		}
	}
	return false
}

// refuse notes that. Where there is nothing on nodes that are avoided, and the other one has nothing there, it would have had none
// to give for one that avoids nothing either.
func (p *planner) refuse(k pair, avoid []NodeID, from JobID, steps int32) {
	if k.beside != 0 && !p.soon.anyAt(k.class, avoid) && !slices.ContainsFunc(p.jobs[from].lendables, func(l lendable) bool { return slices.Contains(avoid, l.node) }) {
		k.sought = k.anywhere()
	}
	if p.refusals[k] == nil {
		p.refusals[k] = make([]int32, len(p.c.Jobs))
	}
	p.refusals[k][from] = steps
}
