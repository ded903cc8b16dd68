package rendezvous

import (
	"fmt"
	"slices"
	"strings"

	"github.com/concertina-dev/concertina/internal/share"
)

// A checkpoint of a state in shards is brought back by all members, each the shards that its rank is to have: nobody needs room for
// all of them, and all read at once. One member looks first, brings what is in no shard, and says what there is.

// mostRefused is how many checkpoints are tried that turn out not to be whole once their shards are brought.
const mostRefused = 8

// portion is what one member brings of a checkpoint, by the order of this number.
type portion struct {
	number uint64
	parts  []Snapshot
	done   bool
}

// divide begins to have the rest of a checkpoint brought, of which the member that has looked has some; false when what it says
// that there is makes no whole state.
func (m *Machine) divide(mem *member) bool {
	r, said := m.restoring, &mem.report
	if !r.find(mem, said.Restored.Snapshot, said.RestoredOf) {
		return false
	}
	has := slices.DeleteFunc(slices.Clone(r.parts), func(part Snapshot) bool { return !slices.Contains(said.RestoredParts, part) })
	r.place, r.portions = said.Restored.Path, map[string]*portion{r.who: {number: r.number, parts: has, done: true}}
	r.refusedNow = said.Restored.Refused
	m.hearBrought()
	return true
}

// deal has each part brought that nobody brings, or has: by the member whose rank is likely to be that of the shard.
func (m *Machine) deal(p *plan) {
	r := m.restoring
	var able []string
	for _, uid := range assignRanks(nil, p.members) {
		if m.members[uid].usable() && r.failed[uid] == "" {
			able = append(able, uid)
		}
	}
	missing := slices.Clone(r.parts)
	for uid, of := range r.portions {
		if mem := m.members[uid]; mem == nil || !mem.usable() || r.failed[uid] != "" {
			delete(r.portions, uid)
			continue
		}
		missing = slices.DeleteFunc(missing, func(part Snapshot) bool { return slices.Contains(of.parts, part) })
	}
	if len(missing) > 0 && len(able) == 0 {
		m.fail("no worker could bring the job's checkpoint back: " + r.failed[sortedKeys(r.failed)[0]])
		return
	}
	more := map[string][]Snapshot{}
	for _, part := range missing {
		at := 0
		if key, _ := share.Parse(part.Part); key.Shard {
			at = key.Index * len(able) / key.Of
		}
		more[able[at]] = append(more[able[at]], part)
	}
	for _, uid := range sortedKeys(more) {
		if r.portions[uid] == nil {
			r.portions[uid] = &portion{}
		}
		of := r.portions[uid]
		m.restores++
		of.number, of.parts, of.done = m.term*numbersPerTerm+m.restores, append(of.parts, more[uid]...), false
		m.out.Tell = append(m.out.Tell, uid)
	}
}

// hearPortion takes note of what has come of a member's portion.
func (m *Machine) hearPortion(mem *member) {
	r, uid, said := m.restoring, mem.want.UID, &mem.report.Restored
	of := r.portions[uid]
	if of == nil || of.done || said.Number != of.number {
		return
	}
	lacks := func(part Snapshot) bool { return !slices.Contains(mem.report.RestoredParts, part) }
	switch {
	case said.Error != "":
		r.failed[uid] = said.Error
	case !said.Found:
		m.refuse(mem)
	case slices.ContainsFunc(of.parts, lacks):
		r.failed[uid] = "checkpoint " + r.place + " came without some of its parts"
	default:
		of.done = true
		m.hearBrought()
	}
}

// hearBrought notes when all is there.
func (m *Machine) hearBrought() {
	r := m.restoring
	missing := slices.Clone(r.parts)
	for _, of := range r.portions {
		if of.done {
			missing = slices.DeleteFunc(missing, func(part Snapshot) bool { return slices.Contains(of.parts, part) })
		}
	}
	if len(missing) == 0 {
		m.brought(r.place, r.refusedNow)
	}
}

// refuse has another checkpoint looked for: of this one a member has found that it cannot be used, or is there no more.
func (m *Machine) refuse(by *member) {
	r := m.restoring
	why := by.report.Restored.Refused
	if why == "" {
		why = fmt.Sprintf("checkpoint %s: it is there no more", r.place)
	}
	m.note(notedDoubted, "%s: %s", by.want.Name, brief(why))
	r.without, r.refused = append(r.without, r.place), append(r.refused, why)
	r.place, r.portions, r.found, r.parts = "", nil, nil, nil
	if len(r.without) == mostRefused {
		m.fail(fmt.Sprintf("%d checkpoints one after another cannot be used: %s", len(r.without), brief(strings.Join(r.refused, "; "))))
		return
	}
	if r.failed[r.who] == "" {
		m.orderRestore()
	}
}

// keptBrought says whether those who have brought what the world is to begin with are there.
func (m *Machine) keptBrought() bool {
	r := m.restoring
	for uid := range r.portions {
		if mem := m.members[uid]; mem == nil || !mem.usable() {
			return false
		}
	}
	return len(r.portions) > 0 || m.members[r.who] != nil && m.members[r.who].usable()
}

// bringing are those who bring something, or look.
func (r *restoring) bringing() (uids []string) {
	if r.place == "" {
		return []string{r.who}
	}
	for _, uid := range sortedKeys(r.portions) {
		if !r.portions[uid].done {
			uids = append(uids, uid)
		}
	}
	return uids
}

func (m *Machine) restoreFor(uid string) *restore {
	r := m.restoring
	switch {
	case r == nil || r.over:
		return nil
	case r.place != "":
		if of := r.portions[uid]; of != nil && !of.done {
			return &restore{Number: of.number, Path: r.place, Parts: of.parts}
		}
	case r.who == uid:
		return &restore{Number: r.number, Path: r.paths[0], Apart: true, Without: r.without}
	}
	return nil
}
