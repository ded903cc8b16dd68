package rendezvous

import (
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// A snapshot is made by several members together where it can be: all of them have the state, and each writes a share of
// it. So a snapshot while the world stands takes as much less time as there are members, and whoever loads it gets it from
// all of them at once. Where that comes to nothing a single one writes all of it.

// defaultCopies is on how many nodes each share is where the gang does not say.
const defaultCopies = 2

// stagings are what the members of a recorded world write as they train, by rank; nil where writers write all of it: the agents have
// to know parts, and one alone has nobody to share with.
func (m *Machine) stagings(uids []string, record *Record) []Staging {
	if m.gang.Strategy != InPlace || len(uids) < 2 {
		return nil
	}
	places := make([]share.Place, len(uids))
	racks := unpackRacks(record.Racks, int32(len(uids)))
	for rank, uid := range uids {
		mem := m.members[uid]
		if mem == nil || !mem.parts {
			return nil
		}
		places[rank].Node = mem.want.Node
		switch {
		case racks != nil:
			places[rank].Rack = racks[rank]
		case record.Members == "":
			places[rank].Rack = mem.want.Rack // the record says nothing of its members, so they are taken to be where they were
		}
	}
	of, shares := share.Assign(places, m.copiesAsked())
	all := make([]Staging, len(uids))
	for rank := range all {
		if len(shares[rank]) > 0 {
			all[rank] = Staging{of, shares[rank]}
		}
	}
	return all
}

// stages says whether the member of a rank writes its part of a state in so many shares as the world trains.
func (m *Machine) stages(rank, of int) bool {
	w := m.world
	staging := w.staging
	if staging == nil && w.adopted && of > 0 {
		if w.staged == nil {
			w.staged = m.stagings(w.ranks.uids, &w.record) // as far as it is known who they are
		}
		staging = w.staged
	}
	return staging != nil && of > 0 && staging[rank].Of == of
}

// group are members that write a snapshot together: the first share is of the first. nil is nobody.
type group struct {
	uids []string
	// said are the errors that they had reported when they were asked.
	said    map[string]string
	askedAt time.Time
	// by is when it has taken too long, so that a single member has the rest of the time that a snapshot may take.
	by time.Time
}

// group makes one of those that know parts, at most as many as there may be shares, for a snapshot that is late then; nil
// when they are less than two. Whose session has just dropped is one of them: what differs by its rank nobody else can write.
func (m *Machine) group(now, late time.Time, uids []string) *group {
	if m.anyOlder(m.isLeftOut) {
		return nil
	}
	g := &group{said: map[string]string{}, askedAt: now, by: now.Add(min(m.gang.BarrierTimeout, late.Sub(now)) / 2)}
	for _, uid := range uids {
		if mem := m.members[uid]; mem != nil && mem.parts && (m.isThere(mem) || m.isAwaited(now, mem)) && len(g.uids) < share.Most {
			g.uids, g.said[uid] = append(g.uids, uid), mem.report.SnapshotError
		}
	}
	if len(g.uids) < 2 {
		return nil
	}
	return g
}

// has says whether a member is in the group.
func (g *group) has(uid string) bool { return g != nil && slices.Contains(g.uids, uid) }

// stagingOf is what a member of the group writes.
func (g *group) stagingOf(uid string) *Staging {
	if !g.has(uid) {
		return nil
	}
	return &Staging{Of: len(g.uids), Shares: []int{slices.Index(g.uids, uid)}}
}

// failing says why nothing comes of the group, and notes whose fault that is; empty while something may.
func (m *Machine) failing(now time.Time, g *group) string {
	for _, uid := range g.uids {
		mem := m.members[uid]
		if mem == nil || m.isLost(mem) {
			return "one of those who were to write it together is lost"
		}
		if said := mem.report.SnapshotError; said != "" && (said != g.said[uid] || now.Sub(g.askedAt) >= errorGrace*m.beat()) {
			m.failedSaves[uid] = now
			return mem.want.Name + ": " + said
		}
	}
	if !now.Before(g.by) {
		return "it did not come in time"
	}
	return ""
}
