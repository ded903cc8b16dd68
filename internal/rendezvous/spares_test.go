package rendezvous

import "slices"

// checkSpares checks that a world that follows on another one has as many workers as that where enough are there, spares among them; that
// nobody goes for a spare; and that no more train than there are beside the spares, but those whom no legal size leaves over.
func (f *fleet) checkSpares(l *modelLeader, next Record, plan *plan) {
	m := l.machine
	if next.Parent == 0 || m.world == nil || f.goesAlone(m, plan) {
		return
	}
	before := m.world.record.Workers
	stay, fresh := f.available(m)
	there := int32(len(stay) + len(fresh))
	most := int32(0)
	for _, size := range f.legalSizes() {
		if size <= min(there, before) {
			most = size
		}
	}
	if next.Workers < most {
		f.t.Fatalf("round %d has %d workers after one of %d, and there are %v, and %v who wait", next.Round, next.Workers, before, stay, fresh)
	}
	for _, size := range f.legalSizes() {
		if size >= max(before, f.minimum) && size < next.Workers && there-size <= f.spares {
			f.t.Fatalf("round %d grows from %d to %d workers, and of %d there would be %d spares with %d", next.Round, before, next.Workers, there, f.spares, size)
		}
	}
	in := func(uid string) bool {
		return slices.ContainsFunc(plan.members, func(one Member) bool { return one.UID == uid })
	}
	out := slices.IndexFunc(stay, func(uid string) bool { return !in(uid) })
	if came := slices.IndexFunc(fresh, in); came >= 0 && out >= 0 {
		f.t.Fatalf("round %d has %s, who has waited, and not %s, who has trained", next.Round, fresh[came], stay[out])
	}
}

// goesAlone says whether those with the live state go on without the others, to whom nobody could give it.
func (f *fleet) goesAlone(m *Machine, plan *plan) bool {
	if plan.change != nil {
		return plan.change.unsaved != ""
	}
	return len(plan.broken.failed) > 0 && len(plan.live) == len(plan.members)
}

// legalSizes are the sizes that a world may have, in their order.
func (f *fleet) legalSizes() (sizes []int32) {
	for size := f.minimum; size <= f.target; size++ {
		if f.sizes == nil || slices.Contains(f.sizes, size) {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// available are those of the world of a leader who can be in the next one, and those who wait for one, as the leader has heard it. Who comes in
// has an agent that runs, and a program that waits.
func (f *fleet) available(m *Machine) (stay, fresh []string) {
	for _, uid := range f.uids() {
		mem, p := m.members[uid], f.pods[uid]
		switch {
		case mem == nil || mem.leaving() || mem.want.Lost != "" || mem.isAside() || m.isLeftOut(mem):
		case m.world.ranks.rank(uid) >= 0 && !m.isLost(mem):
			stay = append(stay, uid)
		case m.isStandby(uid, mem) && (!p.dead || mem.connected):
			fresh = append(fresh, uid)
		}
	}
	return stay, fresh
}
