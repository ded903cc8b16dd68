package rendezvous

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// restoring is how the first world of an attempt comes by the state that it begins with: one member brings a checkpoint
// back from the storage, and the others get it from that one; a state in shards all members bring back (portions.go). So does a world
// that follows on one of which nobody has a state any more (missing.go).
type restoring struct {
	// of is the broken world that it is for, nil for the first one; aim is the newest checkpoint that was known of then, and vainly why
	// none can be had.
	of     *recovery
	aim    Durable
	vainly string
	// later is true where members have a state as well, after the step than: what is brought is to be later.
	later bool
	than  uint64
	// paths are where to look, in this order.
	paths []string
	// who was asked, with which number; empty for nobody yet.
	who    string
	number uint64
	// failed says of the members that could not why.
	failed map[string]string
	// over is true once it is known what the world begins with: found, or nothing.
	over  bool
	found *Snapshot
	// parts are what it is made of; nil for one that is one file.
	parts []Snapshot
	// place is where the checkpoint is whose parts members bring, each its portion; empty while there is none. refusedNow is what the
	// member says that has found it of newer ones.
	place      string
	portions   map[string]*portion
	refusedNow string
	// stuck are those who had no answer from the storage, and gave way. brought counts the portions that were brought, vain those that
	// were given to others since the last one was.
	stuck         map[string]bool
	brought, vain int
	// gaveWay counts those who looked, and gave way; lookStuck is since when the one who looks says that it has no answer.
	gaveWay   int
	lookStuck time.Time
	// muteSince is since when nobody has had an answer, zero while somebody has; busySince since when somebody says nothing else.
	muteSince, busySince time.Time
	// without are the paths of those that members have found unusable once they brought their parts, refused is why.
	without, refused []string
	// known is what was durable when it began.
	known Durable
	// told says what the attempt begins with; empty for nothing.
	told string
}

// failedUpload is when, and why, a member could not make a snapshot durable.
type failedUpload struct {
	at  time.Time
	why string
}

// numbersPerTerm tells the restores of one leader from those of another.
const numbersPerTerm = 1 << 20

// bringBack gives the first world of an attempt the state that it begins with; false while that is not known yet.
func (m *Machine) bringBack(now time.Time, p *plan) bool {
	s := m.gang.Storage
	if s == nil || m.gang.Strategy == Restart || !s.Own && (s.From == "" || s.Known > 0) {
		return true // there is nowhere to look
	}
	if r := m.restoring; r != nil && (r.of != nil || r.over && m.durable != r.known &&
		(r.found == nil || newerSnapshot(m.durable.Snapshot, Durable{*r.found, m.durable.Path}))) {
		m.restoring = nil // the attempt has come further since
	}
	if m.restoring == nil {
		m.restoring = m.newRestoring()
		if s.Own {
			m.restoring.paths = append(m.restoring.paths, "")
		}
		if s.From != "" && s.Known == 0 {
			m.restoring.paths = append(m.restoring.paths, s.From)
		}
		m.takeOver(p)
	}
	r := m.restoring
	if r.over && (r.found == nil || m.keptBrought()) {
		if r.found != nil {
			p.snapshot, p.fromStep = r.found, r.found.Step
		}
		return true
	}
	r.over = false
	m.askForRestore(now, p)
	return false
}

func (m *Machine) newRestoring(paths ...string) *restoring {
	return &restoring{paths: paths, failed: map[string]string{}, stuck: map[string]bool{}, known: m.durable, told: m.restored()}
}

// takeOver goes on from where an earlier leader has come to, as its members say: one may have brought the checkpoint by now.
func (m *Machine) takeOver(p *plan) {
	for _, member := range slices.SortedFunc(slices.Values(p.members), byOrdinal) {
		m.hearRestored(m.members[member.UID])
	}
}

func byOrdinal(a, b Member) int { return cmp.Compare(a.Ordinal, b.Ordinal) }

// countsToo says whether what has come of another order than the newest counts as well: it is of an earlier leader, or of a member that
// was away meanwhile. That is so as long as the attempt has had no round: the storage has had nothing newer since.
func (m *Machine) countsToo(mem *member) bool {
	r, said, s := m.restoring, &mem.report.Restored, m.gang.Storage
	if said.Number == 0 || said.Error != "" || m.base.Attempt == m.gang.Attempt && m.base.Round > 0 || !mem.usable() {
		return false
	}
	switch {
	case !said.Found:
		// Where shards of one were asked for, that one is not there any more.
		return r.who == "" && len(r.paths) > 1 && said.Refused == "" && said.Path == "" // nothing of its own, as nobody goes on without another's
	case said.Snapshot.Round > 0:
		return r.paths[0] == "" && said.Snapshot.Step >= s.Known
	}
	return s.From != "" && s.Known == 0 && strings.HasPrefix(said.Path+"/", strings.Trim(s.From, "/")+"/")
}

// askForRestore has a member look for a checkpoint, unless one does.
func (m *Machine) askForRestore(now time.Time, p *plan) {
	r := m.restoring
	if r.place != "" {
		m.deal(now, p)
		return
	}
	candidates := slices.SortedFunc(slices.Values(p.members), byOrdinal)
	at := slices.IndexFunc(candidates, func(c Member) bool { return c.UID == r.who })
	if (at >= 0 || m.world == nil) && m.mayLook(r.who) && !m.looksInVain(now, candidates) {
		return
	}
	r.who, r.lookStuck = "", time.Time{}
	for i := range candidates {
		if uid := candidates[(at+1+i)%len(candidates)].UID; m.mayLook(uid) {
			r.who = uid
			delete(r.stuck, uid)
			m.orderRestore()
			m.maySucceed(uid)
			return
		}
	}
	if !slices.ContainsFunc(candidates, func(c Member) bool { return r.failed[c.UID] == "" }) {
		m.failRestore("no worker could bring the job's checkpoint back: %s", r.failed[candidates[0].UID])
	}
}

// mayLook says whether a member can be asked for the checkpoint. What one brings that was lost counts only where the others have nothing.
func (m *Machine) mayLook(uid string) bool {
	r, mem := m.restoring, m.members[uid]
	return mem != nil && mem.usable() && r.failed[uid] == "" && (!r.later || !m.mayEnd(mem))
}

// mostDoubled is how often the time doubles that those who look have for it.
const mostDoubled = 5

// looksInVain says whether who looks gives way to the next, since it has had no answer for a while. Once all have, each has twice as long:
// what takes long may have had an error in the beginning.
func (m *Machine) looksInVain(now time.Time, candidates []Member) bool {
	r, mem := m.restoring, m.members[m.restoring.who]
	switch why := mem.report.UploadError; {
	case why == "":
		r.lookStuck = time.Time{}
		return false
	case r.lookStuck.IsZero():
		r.lookStuck = now
		return false
	case now.Before(r.lookStuck.Add(stuckTime << min(r.gaveWay/len(candidates), mostDoubled))),
		!slices.ContainsFunc(candidates, func(c Member) bool { return c.UID != r.who && m.mayLook(c.UID) }):
		return false
	default:
		m.note(notedDoubted, "%s has had no answer from the storage for %s, another one looks for the checkpoint: %s",
			mem.want.Name, now.Sub(r.lookStuck), brief(why))
	}
	r.stuck[r.who] = true
	r.gaveWay++
	return true
}

// orderRestore gives the member that looks its next order.
func (m *Machine) orderRestore() {
	m.restores++
	m.restoring.number = m.term*numbersPerTerm + m.restores
	m.out.Tell = append(m.out.Tell, m.restoring.who)
}

// storage is what a report says of the storage.
func (r *Report) storage() (said struct {
	durable     Durable
	restored    Restored
	uploadError string
	trouble     string
}) {
	said.durable, said.restored, said.uploadError, said.trouble = r.Durable, r.Restored, r.UploadError, r.SnapshotTrouble
	return said
}

// hearStorage takes note of what a member says of the storage.
func (m *Machine) hearStorage(now time.Time, mem *member) {
	m.look, m.out.Changed = true, true
	if u := m.uploading; u != nil && u.has(mem.want.UID) && mem.report.UploadError != "" {
		m.failedUploads[mem.want.UID] = failedUpload{now, mem.report.UploadError}
	}
	if d := mem.report.Durable; d.Path != "" && newerSnapshot(d.Snapshot, m.durable) && !m.hidesKnown(&d) {
		m.durable = d
		m.uploadsWork(mem.want.UID)
		if u := m.uploading; u != nil && u.snapshot == d.Snapshot {
			m.uploadTook = now.Sub(u.since)
		}
		m.note(notedDurable, "the snapshot of round %d, step %d is durable: %s", d.Snapshot.Round, d.Snapshot.Step, d.Path)
	}
	m.bringNewer()
	m.hearRestored(mem)
}

// dropRestore ends a restore that is under way: there is a world that goes on, and nobody is to begin with what is brought.
func (m *Machine) dropRestore() {
	if m.restoring != nil && !m.restoring.over {
		m.restoring = nil
	}
}

// awaitsRestore says whether the first world, or the one that follows on a broken one, waits for what is being brought.
func (m *Machine) awaitsRestore() bool {
	r := m.restoring
	return r != nil && !r.over && m.gang.Storage != nil && r.of == m.broken && (r.of == nil) == (m.world == nil)
}

// hearRestored takes note of what has come of a restore.
func (m *Machine) hearRestored(mem *member) {
	r, said := m.restoring, &mem.report.Restored
	if !m.awaitsRestore() {
		return
	}
	if r.place != "" {
		m.hearPortion(mem)
		return
	}
	if mem.want.UID != r.who || said.Number != r.number {
		if !m.countsToo(mem) {
			return
		}
		if !said.Found {
			r.paths = r.paths[1:]
			return
		}
		if !r.find(mem, said.Snapshot, mem.report.RestoredParts) {
			return
		}
		m.tellTo(&r.who, mem.want.UID)
		r.number, r.paths = said.Number, r.paths[len(r.paths)-1:]
		if said.Snapshot.Round > 0 {
			r.paths = []string{""}
		}
	}
	switch {
	case said.Error != "":
		r.failed[r.who] = said.Error
	case !said.Found:
		m.hearNothing(said)
	case m.isUnfit(mem):
	case len(mem.report.RestoredOf) > 0 && m.divide(mem):
	case !r.find(mem, said.Snapshot, mem.report.RestoredParts):
		r.failed[r.who] = "checkpoint " + said.Path + " came without some of its parts"
	default:
		m.brought(said.Path, said.Refused)
	}
}

// hearNothing takes note that there is no checkpoint where somebody has looked.
func (m *Machine) hearNothing(said *Restored) {
	r := m.restoring
	switch {
	case len(r.paths) > 1:
		r.paths = r.paths[1:]
		m.orderRestore()
	case m.gang.Storage.Known > 0:
		m.failRestore("the checkpoint of step %d is in the storage no more, and no other one is%s: where spec.checkpoint.storage.url "+
			"was changed, copy the folder of status.checkpoint.location to the new place", m.gang.Storage.Known, r.besides(said.Refused))
	case r.paths[0] != "":
		m.failRestore("there is no checkpoint %s to begin with%s", r.paths[0], r.besides(said.Refused))
	case r.of != nil:
		m.failRestore("the storage has no checkpoint of the job%s", r.besides(said.Refused))
	default:
		r.over = true
	}
}

// brought notes that what the world begins with is there, of the checkpoint at a path; refused says which newer ones could not be used.
func (m *Machine) brought(path, refused string) {
	r := m.restoring
	found := *r.found
	r.over, m.durable = true, Durable{found, path}
	// A record that was brought back from a backup may know of fewer rounds than the storage does: what is to come has
	// to be newer than what is there.
	m.topRound = max(m.topRound, found.Round)
	refused = r.besides(refused)
	if r.later && found.Step <= r.than {
		m.note(notedDurable, "the newest checkpoint that can be used is of step %d, and those who are left of round %d hold the state after step %d%s",
			found.Step, m.world.record.Round, r.than, refused)
		return
	}
	r.told = fmt.Sprintf("the attempt goes on from step %d: %s%s", found.Step, path, refused)
	switch {
	case r.of == nil:
	case r.later:
		r.told = fmt.Sprintf("those who are left of round %d hold nothing later than step %d: %s", m.world.record.Round, r.than, r.told)
	default:
		r.told = fmt.Sprintf("nobody who is left of round %d holds a whole snapshot: %s", m.world.record.Round, r.told)
	}
	if known := m.gang.Storage.Known; r.paths[0] == "" && found.Step < known && refused == "" {
		r.told += fmt.Sprintf("; the checkpoint of step %d, which was durable, is in the storage no more", known)
	}
	m.note(notedDurable, "%s", r.told)
}

// uploadsWork: what others could not do is no trouble any more. They come after who can, next time.
func (m *Machine) uploadsWork(of string) {
	for uid, failed := range m.failedUploads {
		m.failedUploads[uid] = failedUpload{at: failed.at}
	}
	delete(m.failedUploads, of)
}

// besides names the checkpoints that could not be used, with those that a member has just refused.
func (r *restoring) besides(refused string) string {
	all := r.refused
	if refused != "" {
		all = append(slices.Clone(all), refused)
	}
	if len(all) == 0 {
		return ""
	}
	return "; not used: " + strings.Join(all, "; ")
}

func newerSnapshot(s Snapshot, than Durable) bool {
	return than.Path == "" || cmp.Or(cmp.Compare(s.Round, than.Snapshot.Round), cmp.Compare(s.Step, than.Snapshot.Step)) > 0
}

// find notes what a member has brought back; false when it is not whole.
func (r *restoring) find(by *member, s Snapshot, parts []Snapshot) bool {
	if len(parts) == 0 {
		r.found, r.parts = &s, nil
		return true
	}
	c := catalogue{parted: map[fit]map[share.Key]files{}}
	for _, part := range parts {
		if key, ok := share.Parse(part.Part); ok && sameState(part, s) {
			c.add(fit{s.Round, s.Step, key.Of, key.Layout}, key, part, by)
		}
	}
	states := c.states()
	if len(states) != 1 {
		return false
	}
	r.found, r.parts = &states[0].Snapshot, states[0].parts
	return true
}

// broughtBy is who has the snapshot of the first world, and what it is made of; nil for a whole file.
func (m *Machine) broughtBy() (holders []holding, parts []Snapshot) {
	r := m.restoring
	if r == nil {
		return nil, nil
	}
	for _, uid := range sortedKeys(r.portions) {
		if mem := m.members[uid]; mem != nil {
			holders = append(holders, holding{mem.holder(), r.portions[uid].parts})
		}
	}
	if mem := m.members[r.who]; mem != nil && len(r.portions) == 0 {
		holders = []holding{{mem.holder(), r.parts}}
	}
	return holders, r.parts
}

// parks says whether the world is to stop for all workers to be let go.
func (m *Machine) parks() bool {
	return m.gang.Storage != nil && m.gang.Storage.Park != "" && m.gang.Strategy == InPlace
}

// farewell is the wish of a world that is to stop: nobody goes before its state is durable, and the controller lets all
// go then.
func (m *Machine) farewell() *wish {
	w := &wish{stay: map[string]bool{}, leave: true, reason: ReasonParked, why: m.gang.Storage.Park}
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil && !m.isLost(mem) {
			w.members = append(w.members, mem.want)
			w.stay[uid] = true
		}
	}
	return w
}

// park makes the state durable of a world that stands at its barrier.
func (m *Machine) park(now time.Time, w *wish) {
	m.doubtClaims()
	taken, ok := m.snapshotAfter(m.change.step)
	switch {
	case !ok:
		m.save(now, w)
	case m.bestFirst(now, taken), m.isParked():
	default:
		m.keepUploading(now, taken)
		if who := m.onlyFailing(); who != "" && !now.Before(m.lateAt(w)) {
			m.callOff(now, who+" cannot upload what nobody else has of the state")
		}
	}
}

// outlives says whether a world of which too few are left waits until the snapshot of its barrier is durable: nobody
// trains until there are enough again, and those who stay may be next to go. It waits no longer than a barrier may take.
func (m *Machine) outlives(now time.Time, w *wish, taken Snapshot) bool {
	if m.gang.Storage == nil || m.durable.Snapshot == taken || !now.Before(m.lateAt(w)) {
		return false
	}
	m.keepUploading(now, taken)
	return true
}

// isParked says whether the world stands, and what it has done is durable. A snapshot of as many steps of the world before
// is not that, unless this world has made none: its last steps may be among those that were thrown away.
func (m *Machine) isParked() bool {
	if m.world == nil || m.change == nil || !m.parks() || !m.change.arrived || m.durable.Path == "" {
		return false
	}
	of := &m.world.record
	return m.durable.Snapshot.Step == m.change.step && (m.durable.Snapshot.Round == of.Round || m.change.step == of.FromStep)
}

// restored says what the attempt has begun with; empty for nothing, or when another leader has seen to it.
func (m *Machine) restored() string {
	if m.restoring == nil {
		return ""
	}
	return m.restoring.told
}

// storageTrouble says what is wrong with the storage, as a member that works with it does.
func (m *Machine) storageTrouble() string {
	if u := m.uploading; u != nil {
		for _, uid := range u.at() {
			if mem := m.members[uid]; mem != nil && mem.report.UploadError != "" {
				return mem.want.Name + ": " + mem.report.UploadError
			}
		}
	}
	if !m.awaitsRestore() {
		for _, uid := range sortedKeys(m.failedUploads) {
			if why := m.failedUploads[uid].why; why != "" && m.members[uid] != nil {
				return m.members[uid].want.Name + ": " + why
			}
		}
		return m.snapshotTrouble()
	}
	if why := m.restoring.vainly; why != "" {
		return why
	}
	var why []string
	for _, uid := range m.restoring.bringing() {
		if mem := m.members[uid]; mem != nil && mem.report.UploadError != "" && m.restoring.failed[uid] == "" {
			why = append(why, mem.want.Name+" looks for the job's checkpoint, and tries again: "+mem.report.UploadError)
		}
	}
	for _, uid := range sortedKeys(m.restoring.failed) {
		if mem := m.members[uid]; mem != nil {
			why = append(why, mem.want.Name+": "+m.restoring.failed[uid])
		}
	}
	return strings.Join(why, "; ")
}

// snapshotTrouble says why the members that take snapshots take none: there is nothing to make durable then.
func (m *Machine) snapshotTrouble() string {
	if m.world == nil {
		return ""
	}
	for _, node := range slices.Sorted(maps.Keys(m.world.writers)) {
		if rank := m.world.writers[node]; int(rank) < len(m.world.ranks.uids) {
			if mem := m.members[m.world.ranks.uids[rank]]; mem != nil && mem.report.SnapshotTrouble != "" {
				return mem.want.Name + " takes no snapshots: " + mem.report.SnapshotTrouble
			}
		}
	}
	return ""
}

func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }
