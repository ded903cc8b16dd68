package rendezvous

import "slices"

// A round that goes on live from its parent ends it: whoever goes on stands at the barrier, and the parent makes
// no step without them. Until one of them is known to have entered, all of them may have been let go from the
// barrier, out of our sight, and the parent trains on. A world that has made a step shows that they did enter.

// isOver says whether the parent of a round is known to make no further step: somebody has left it, or nobody is
// named who could be in it. w is the world of that round; nil when it became none.
func (m *Machine) isOver(r *Record, w *world) bool {
	if r.Parent == 0 || m.gang.Strategy == Restart {
		return true // where programs are started anew the parent has ended before
	}
	known := true
	for uid, mem := range m.members {
		if m.hasLeft(r, w, uid, mem) {
			return true
		}
		known = known && (mem.want.Ended || mem.joined && mem.report.Round != r.Parent)
	}
	return known
}

// hasLeft says whether a member was in the parent of a round, and makes no further step there.
func (m *Machine) hasLeft(r *Record, w *world, uid string, mem *member) bool {
	in := mem.joined && mem.report.Round == r.Parent
	exited, _ := mem.exited()
	switch {
	case mem.joined && mem.report.Round > r.Parent && mem.report.Before == r.Parent:
		return true
	case in && (mem.report.Out || exited || mem.failed() || mem.want.Ended):
		return true
	case w == nil:
		return false
	default:
		return w.live[uid] && mem.in(r) || mem.want.Ended && slices.Contains(w.before, uid)
	}
}
