package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// A checkpoint of a state in shards is brought back by all members, each the shards that its rank is to have: nobody needs room for
// all of them, and all read at once. One member looks first, brings what is in no shard, and says what there is.

// mostRefused is how many checkpoints are tried that turn out not to be whole once their shards are brought.
const mostRefused = 8

// stuckTime is how long a member may say that it has no answer from the storage before another one brings its portion. Agents try
// several times before they say so.
const stuckTime = 30 * time.Second

// mostVain is how many portions are given to others without anybody having brought one since: where nobody gets through, nobody is to
// be left with the shards of all.
const mostVain = 3

// portion is what one member brings of a checkpoint, by the order of this number.
type portion struct {
	number uint64
	parts  []Snapshot
	done   bool
	// stuck is since when the member says that it has no answer; brought is how many portions others had brought by then.
	stuck   time.Time
	brought int
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
	r.refusedNow, r.muteSince = said.Restored.Refused, time.Time{}
	m.hearBrought()
	return true
}

// deal has each part brought that nobody brings, or has: by the member whose rank is likely to be that of the shard, of those that have
// nothing to do. What a member is bringing it would have to begin anew.
func (m *Machine) deal(now time.Time, p *plan) {
	r := m.restoring
	m.giveWay(now, p)
	for uid := range r.portions {
		if !m.brings(uid) {
			delete(r.portions, uid)
		}
	}
	missing := m.notBrought()
	if len(missing) == 0 {
		m.hearBrought()
		return
	}
	for _, of := range r.portions {
		missing = slices.DeleteFunc(missing, func(part Snapshot) bool { return slices.Contains(of.parts, part) })
	}
	able := m.ableToBring(p)
	if len(able) == 0 {
		if failed := sortedKeys(r.failed); len(failed) > 0 {
			m.failRestore("no worker could bring the job's checkpoint back: %s", r.failed[failed[0]])
		}
		return
	}
	free := slices.DeleteFunc(slices.Clone(able), func(uid string) bool { return !r.free(uid) })
	most := 2 + len(r.parts)/len(able) // the others are about to have nothing to do, too
	more := map[string][]Snapshot{}
	for _, part := range missing {
		at := 0
		if key, _ := share.Parse(part.Part); key.Shard {
			at = key.Index * len(free) / key.Of
		}
		if len(free) > 0 && len(more[free[at]]) < most {
			more[free[at]] = append(more[free[at]], part)
		}
	}
	for _, uid := range sortedKeys(more) {
		if r.portions[uid] == nil {
			r.portions[uid] = &portion{}
		}
		of := r.portions[uid]
		m.restores++
		of.number, of.parts, of.done, of.stuck = m.term*numbersPerTerm+m.restores, append(of.parts, more[uid]...), false, time.Time{}
		m.out.Tell = append(m.out.Tell, uid)
		m.maySucceed(uid)
	}
}

// maySucceed notes that somebody is at it who says of nothing that it goes wrong: that is waited for, as long as not too many have had no
// answer one after another. Where members have a state as well nobody is waited for anew before something has come.
func (m *Machine) maySucceed(uid string) {
	if r := m.restoring; !r.later && m.members[uid].report.UploadError == "" && r.vain < mostVain && r.gaveWay <= mostVain {
		r.muteSince = time.Time{}
	}
}

// brings says whether a member can bring something, and what it has brought can be had.
func (m *Machine) brings(uid string) bool {
	mem := m.members[uid]
	return mem != nil && mem.usable() && m.restoring.failed[uid] == "" && (m.world == nil || !mem.isAside() && !m.mayEnd(mem))
}

// notBrought are the parts that nobody has yet. In a world some may have had theirs all the time.
func (m *Machine) notBrought() (missing []Snapshot) {
	r := m.restoring
	var here catalogue
	if m.world != nil {
		left, _ := m.keepers()
		here = m.catalogueOf(left)
	}
	for _, part := range r.parts {
		had := here.has(part)
		for _, of := range r.portions {
			had = had || of.done && slices.Contains(of.parts, part)
		}
		if !had {
			missing = append(missing, part)
		}
	}
	return missing
}

// free says whether a member brings nothing at the moment.
func (r *restoring) free(uid string) bool { return r.portions[uid] == nil || r.portions[uid].done }

// ableToBring are the members that can bring something, by the ranks that they are likely to have. Who has no answer from the storage is
// one of them where nobody else is.
func (m *Machine) ableToBring(p *plan) (able []string) {
	r := m.restoring
	for _, uid := range assignRanks(nil, p.members) {
		if m.brings(uid) && !r.stuck[uid] {
			able = append(able, uid)
		}
	}
	if len(able) == 0 && len(r.stuck) > 0 {
		clear(r.stuck)
		return m.ableToBring(p)
	}
	return able
}

// giveWay takes their portions from those who have had no answer from the storage for a while, where somebody is there who brings nothing.
func (m *Machine) giveWay(now time.Time, p *plan) {
	r := m.restoring
	for uid := range r.stuck {
		if mem := m.members[uid]; mem == nil || mem.report.UploadError == "" {
			delete(r.stuck, uid)
		}
	}
	for _, uid := range sortedKeys(r.portions) {
		mem, of := m.members[uid], r.portions[uid]
		switch {
		case of.done || mem == nil:
			continue
		case mem.report.UploadError == "":
			of.stuck = time.Time{}
			continue
		case of.stuck.IsZero():
			of.stuck, of.brought = now, r.brought
			continue
		case now.Before(of.stuck.Add(stuckTime)), r.brought == of.brought && r.vain == mostVain,
			!slices.ContainsFunc(m.ableToBring(p), r.free):
			continue
		case r.brought == of.brought:
			r.vain++
		}
		delete(r.portions, uid)
		r.stuck[uid] = true
		m.note(notedDoubted, "%s has had no answer from the storage for %s, others bring its shards: %s", mem.want.Name, stuckTime, brief(mem.report.UploadError))
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
	case !said.Found && said.Path == "" && said.Refused == "":
		r.failed[uid] = "its agent has not found checkpoint " + r.place + ", and may be of a version that brings no shards"
	case !said.Found:
		m.refuse(mem)
	case slices.ContainsFunc(of.parts, lacks):
		r.failed[uid] = "checkpoint " + r.place + " came without some of its parts"
	default:
		of.done, r.vain, r.muteSince = true, 0, time.Time{}
		r.brought++
		m.hearBrought()
	}
}

// hearBrought notes when all is there.
func (m *Machine) hearBrought() {
	if r := m.restoring; len(m.notBrought()) == 0 {
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
	m.lookFurther(r.place, why)
}

// lookFurther has another checkpoint looked for than the one at a path.
func (m *Machine) lookFurther(path, why string) {
	r := m.restoring
	r.without, r.refused = append(r.without, path), append(r.refused, why)
	r.place, r.portions, r.found, r.parts = "", nil, nil, nil
	if len(r.without) >= mostRefused {
		m.failRestore("%d checkpoints one after another cannot be used: %s", len(r.without), brief(strings.Join(r.refused, "; ")))
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

// bringing are those who bring something, or look, and those who could not.
func (r *restoring) bringing() (uids []string) {
	return append(r.asked(), sortedKeys(r.stuck)...)
}

// asked are those who bring something, or look.
func (r *restoring) asked() (uids []string) {
	if r.place == "" {
		uids = append(uids, r.who)
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
	case !m.awaitsRestore():
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
