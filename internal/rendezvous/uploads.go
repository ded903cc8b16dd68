package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// Of a snapshot in parts each is put into the storage by one of those that hold it, so that nobody gathers anything, and all
// upload at once. Who fails, or is lost, gives way to another holder; what was put stays put. When all parts are there one
// member writes the manifest, which makes the checkpoint. A snapshot that is one file is made durable by one member.

// uploading is a snapshot that is being made durable.
type uploading struct {
	snapshot Snapshot
	// by makes all of it durable, or writes the manifest, since writing; empty while parts are missing.
	by             string
	since, writing time.Time
	// puts are its parts; nil for one member that makes all of it durable. parts are what that has to gather, nil for nothing.
	puts  []put
	parts []Snapshot
	// freed is since when whoever is at it was not held back any more; nobody who is.
	freed map[string]time.Time
}

// put is a part, and who puts it.
type put struct {
	part  Snapshot
	by    string
	since time.Time
	done  bool
}

// at are those who are at it.
func (u *uploading) at() []string {
	var uids []string
	if u.by != "" {
		uids = append(uids, u.by)
	}
	for i := range u.puts {
		if p := &u.puts[i]; !p.done && !slices.Contains(uids, p.by) {
			uids = append(uids, p.by)
		}
	}
	return uids
}

// has says whether a member is at it.
func (u *uploading) has(uid string) bool { return slices.Contains(u.at(), uid) }

// putsOf divides the parts of a snapshot among those that hold them, so that all have about as many bytes to put; nil where it
// is one file, or has a share that nobody holds whose agent can do so.
func (m *Machine) putsOf(now time.Time, s Snapshot) []put {
	at, ok := m.stateOf(s)
	if !ok {
		return nil
	}
	var puts []put
	load := map[string]uint64{}
	ranks, mostRanks := 0, share.MostParts-max(share.Most, at.of())
	for i, part := range at.parts {
		key, _ := share.Parse(part.Part)
		by := m.putter(at.holders[i], load)
		switch {
		case by == "" && !key.Rank:
			return nil
		case by == "" || key.Rank && ranks == mostRanks:
			continue
		case key.Rank:
			ranks++
		}
		load[by] += part.Bytes
		puts = append(puts, put{part: part, by: by, since: now})
	}
	if ranks == 0 {
		return nil
	}
	return puts
}

// awaitsPart says whether a member that is away for a while has what differs by its rank of a snapshot, or may have it: a checkpoint
// without that would give the rank another one's.
func (m *Machine) awaitsPart(now time.Time, s Snapshot) bool {
	at, ok := m.stateOf(s)
	if !ok || at.parts == nil {
		return false
	}
	own := at.ownParts()
	for rank, uid := range m.world.ranks.uids {
		if !m.isAwaited(now, m.members[uid]) {
			continue
		}
		i, there := own[rank]
		if !there && m.writes(&at, rank) || there && !slices.ContainsFunc(at.holders[i], isConnected) {
			return true
		}
	}
	return false
}

// putter is who of those that hold a part is to put it: who has not failed, or whose failure is the longest ago, and then who
// has the least to put. Empty for nobody.
func (m *Machine) putter(holders []*member, load map[string]uint64) string {
	best := ""
	for _, mem := range holders {
		uid := mem.want.UID
		if mem.puts && mem.connected && !m.isLost(mem) && (best == "" || cmp.Or(
			m.failedUploads[uid].at.Compare(m.failedUploads[best].at), cmp.Compare(load[uid], load[best]),
			cmp.Compare(mem.report.WorkerRank, m.members[best].report.WorkerRank),
		) < 0) {
			best = uid
		}
	}
	return best
}

// thoseWhoUpload leaves out whose uploads fail, where others are left: nobody else has what they would write at a barrier.
func (m *Machine) thoseWhoUpload(uids []string) []string {
	if m.gang.Storage == nil {
		return uids
	}
	able := slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return !m.failedUploads[uid].at.IsZero() })
	if len(able) == 0 {
		return uids
	}
	return able
}

// goesOn says whether what is being made durable still is.
func (m *Machine) goesOn(now time.Time, u *uploading) bool {
	mem := m.members[u.by]
	if u.puts == nil {
		return m.isThere(mem) && !mem.madeDurable(u.snapshot) && m.canUpload(mem, u.snapshot) && m.keepsAt(now, u)
	}
	m.noteFreed(now, u)
	if !newerSnapshot(u.snapshot, m.durable) || !m.put(now, u) {
		return false
	}
	if slices.ContainsFunc(u.puts, func(p put) bool { return !p.done }) {
		return true
	}
	if _, held := m.stateOf(u.snapshot); !held && mem != nil && mem.report.UploadError != "" {
		return false // what was put may be gone, and nobody could put it again
	}
	if u.by == "" || !m.finishes(now, u) {
		m.tellTo(&u.by, m.finisher())
		u.writing = now
	}
	return u.by != ""
}

// put takes note of parts that were put, and finds others for those that are not; false when nobody has one.
func (m *Machine) put(now time.Time, u *uploading) bool {
	m.takeNote(now, u)
	at, _ := m.stateOf(u.snapshot)
	load := u.load()
	for i := 0; i < len(u.puts); i++ {
		p := &u.puts[i]
		mem := m.members[p.by]
		if p.done {
			continue
		}
		hangs := m.stalls(now, u, p.by, p.since, p.part.Bytes)
		var holders []*member
		if j := slices.Index(at.parts, p.part); j >= 0 {
			holders = at.holders[j]
		}
		next := m.putter(holders, load)
		key, _ := share.Parse(p.part.Part)
		spare := key.Rank && m.ranksOf(u) > 1
		able := m.isThere(mem) && (mem.report.UploadError == "" || slices.Contains(holders, mem))
		alone := hangs && (next == "" || next == p.by)
		switch {
		case spare && (alone || m.standsFor(now, u, p)):
			m.out.Tell = append(m.out.Tell, p.by)
			u.puts = slices.Delete(u.puts, i, i+1)
			i--
		case alone:
			return false
		case able && !hangs && !m.givesWay(now, p, next):
		case next != "":
			load[p.by], load[next] = load[p.by]-p.part.Bytes, load[next]+p.part.Bytes
			p.since = now
			m.tellTo(&p.by, next)
		case m.isAwaited(now, mem):
		default:
			if !spare {
				return false
			}
			u.puts = slices.Delete(u.puts, i, i+1)
			i--
		}
	}
	return true
}

// takeNote takes note of the parts that were put.
func (m *Machine) takeNote(now time.Time, u *uploading) {
	for i := range u.puts {
		p := &u.puts[i]
		mem := m.members[p.by]
		if p.done || mem == nil || !slices.Contains(mem.report.Put, p.part) {
			continue
		}
		p.done = true
		u.moves(now, p.by)
		if mem.report.UploadError == "" {
			delete(m.failedUploads, p.by)
		}
	}
}

// load is how many bytes everybody still has to put.
func (u *uploading) load() map[string]uint64 {
	load := map[string]uint64{}
	for i := range u.puts {
		if !u.puts[i].done {
			load[u.puts[i].by] += u.puts[i].part.Bytes
		}
	}
	return load
}

// standsFor says whether a world has stood at its barrier for half of the time that it may, for a part whose upload fails.
func (m *Machine) standsFor(now time.Time, u *uploading, p *put) bool {
	c, mem := m.change, m.members[p.by]
	if c == nil || !c.arrived || c.step != u.snapshot.Step || mem == nil || mem.report.UploadError == "" {
		return false
	}
	w := m.wish()
	return w != nil && !now.Before(c.arrivedAt.Add(m.lateAt(w).Sub(c.arrivedAt)/2))
}

// onlyFailing names who keeps a parked world from being durable: only it has a share, or the one file, its uploads fail, and
// those of others do not. Empty for nobody.
func (m *Machine) onlyFailing() string {
	u := m.uploading
	if u == nil || len(m.thoseWhoUpload(m.world.ranks.uids)) == len(m.world.ranks.uids) {
		return ""
	}
	fails := func(uid string) bool { return m.members[uid] != nil && m.members[uid].report.UploadError != "" }
	if u.puts == nil && fails(u.by) {
		return m.members[u.by].want.Name
	}
	for i := range u.puts {
		if p := &u.puts[i]; !p.done && fails(p.by) {
			return m.members[p.by].want.Name
		}
	}
	return ""
}

// hangTime is how long at least a member has for a part, for the manifest, or for a snapshot that is one file; hangFactor is how
// much longer than all of the upload before: what one has to put may be most of that, and what was put of a part is not put
// again by the next.
const (
	hangTime   = 15 * time.Minute
	hangFactor = 4
)

// stalls says whether nothing has come for too long of what a member was to do with so many bytes, not even an error, and takes
// that for a failure.
func (m *Machine) stalls(now time.Time, u *uploading, uid string, since time.Time, bytes uint64) bool {
	mem, long := m.members[uid], max(hangTime, hangFactor*m.uploadTook)+m.heldBack(u, uid, since, bytes)
	if mem == nil || mem.report.UploadError != "" || now.Before(since.Add(long)) {
		return false
	}
	m.failedUploads[uid] = failedUpload{now, fmt.Sprintf("nothing has come of its upload for %s", long.Round(time.Second))}
	return true
}

// moves gives a member that has put a part the time that there is for the next: it puts one after another.
func (u *uploading) moves(now time.Time, uid string) {
	for i := range u.puts {
		if u.puts[i].by == uid {
			u.puts[i].since = now
		}
	}
}

// isThere says whether a member is in touch.
func (m *Machine) isThere(mem *member) bool { return mem != nil && mem.connected && !m.isLost(mem) }

// lostOf says whether somebody is lost who was to put a part.
func (m *Machine) lostOf(u *uploading) bool {
	return slices.ContainsFunc(u.puts, func(p put) bool { return !p.done && !m.isThere(m.members[p.by]) })
}

// ranksOf is of how many ranks there are parts.
func (m *Machine) ranksOf(u *uploading) (n int) {
	for i := range u.puts {
		if key, _ := share.Parse(u.puts[i].part.Part); key.Rank {
			n++
		}
	}
	return n
}

// givesWay says whether another member is to put a part: who fails gives way at once to one that has not failed, and after an
// interval to others.
func (m *Machine) givesWay(now time.Time, p *put, next string) bool {
	mem := m.members[p.by]
	if mem.report.UploadError == "" || next == "" || next == p.by || m.failedUploads[p.by].at.IsZero() {
		return false
	}
	return m.failedUploads[next].at.IsZero() || !now.Before(p.since.Add(m.gang.Storage.Interval))
}

// finishes says whether who is to write the manifest stays at it.
func (m *Machine) finishes(now time.Time, u *uploading) bool {
	mem := m.members[u.by]
	return m.isThere(mem) && !m.stalls(now, u, u.by, u.writing, 0) &&
		!m.givesWay(now, &put{by: u.by, since: u.writing}, m.finisher())
}

// finisher is who is to write a manifest: anybody can.
func (m *Machine) finisher() string {
	var all []*member
	for _, uid := range m.world.ranks.uids {
		if mem := m.members[uid]; mem != nil {
			all = append(all, mem)
		}
	}
	return m.putter(all, nil)
}

// tellTo gives a task from one member to another.
func (m *Machine) tellTo(by *string, next string) {
	if *by == next {
		return
	}
	for _, uid := range []string{*by, next} {
		if uid != "" {
			m.out.Tell = append(m.out.Tell, uid)
		}
	}
	*by = next
}

// makeDurable has the newest snapshot made durable when it is time for one; of those in parts the newest that is safe, since
// of a newer one what differs by rank is not there of all.
func (m *Machine) makeDurable(now time.Time) {
	s := m.gang.Storage
	if s == nil || m.gang.Strategy == Restart || !m.world.formed() {
		return
	}
	if m.nextUpload.IsZero() {
		m.nextUpload = now.Add(s.Interval)
	}
	if u := m.uploading; u != nil {
		if m.goesOn(now, u) && !m.inVain(now, u) {
			return
		}
		m.uploading = nil
		if u.puts != nil && newerSnapshot(u.snapshot, m.durable) {
			m.nextUpload = now // nobody has all of it any more: another one may be had
			if !m.lostOf(u) {
				m.nextUpload = now.Add(s.Interval) // it would fail as well, and what was put of each stays a while
			}
		}
		m.out.Tell = append(m.out.Tell, u.at()...)
		// It is not waited for once more when another one may do what this one could not.
		newest, _ := m.best()
		if next := m.uploader(newest); next != "" && next != u.by && m.failedUploads[next].at.IsZero() {
			m.nextUpload = now
		}
	}
	if m.makeBest(now) || now.Before(m.nextUpload) {
		return
	}
	if newest, ok := m.best(); ok && newerSnapshot(newest, m.durable) {
		m.upload(now, newest)
	}
}

// upload has a member that holds a snapshot make it durable, once nobody is waited for who has a part of it.
func (m *Machine) upload(now time.Time, s Snapshot) {
	if m.awaitsPart(now, s) {
		return
	}
	if puts := m.putsOf(now, s); puts != nil {
		m.uploading, m.nextUpload = &uploading{snapshot: s, puts: puts, since: now}, now.Add(m.gang.Storage.Interval)
		m.out.Tell = append(m.out.Tell, m.uploading.at()...)
		return
	}
	if uid := m.uploader(s); uid != "" {
		_, parts := m.holdersOf(s)
		m.uploading, m.nextUpload = &uploading{snapshot: s, parts: neededBy(m.world.ranks.rank(uid), parts), by: uid, since: now}, now.Add(m.gang.Storage.Interval)
		if failed, ok := m.failedUploads[uid]; ok {
			m.failedUploads[uid] = failedUpload{now, failed.why} // it has its turn now: the others come before it
		}
		m.out.Tell = append(m.out.Tell, uid)
	}
}

// uploader is who is to make a snapshot durable of those that hold it: who has not failed, or else whose failure is the
// longest ago; the first by rank of several, empty for none.
func (m *Machine) uploader(s Snapshot) string {
	best := ""
	at, ok := m.stateOf(s)
	if !ok {
		return best
	}
	for _, uid := range m.world.ranks.uids {
		if m.uploadsAlone(uid, &at) && (best == "" || m.failedUploads[uid].at.Before(m.failedUploads[best].at)) {
			best = uid
		}
	}
	return best
}

// uploadsAlone says whether a member can make all of a state durable by itself.
func (m *Machine) uploadsAlone(uid string, at *state) bool {
	mem := m.members[uid]
	return m.isThere(mem) && at.heldBy(mem) && (at.parts == nil || !mem.puts)
}

// keepUploading has a member make a snapshot durable, and another one when that is lost.
func (m *Machine) keepUploading(now time.Time, s Snapshot) {
	if u := m.uploading; u != nil && u.snapshot == s && (u.puts == nil && m.keepsAt(now, u) || u.puts != nil && m.goesOn(now, u)) {
		return
	}
	m.upload(now, s)
}

// keepsAt says whether who is at making a snapshot durable stays at it: as long as it is there, and does neither fail nor hang.
// One that fails gives way to who has not failed yet at once, and after an interval to the others that hold the snapshot.
func (m *Machine) keepsAt(now time.Time, u *uploading) bool {
	m.noteFreed(now, u)
	mem := m.members[u.by]
	if !m.isThere(mem) || m.another(u) && m.stalls(now, u, u.by, u.since, u.snapshot.Bytes) {
		return false
	}
	if mem.report.UploadError == "" || m.failedUploads[u.by].at.IsZero() {
		return true
	}
	next := m.uploader(u.snapshot)
	return next == "" || next == u.by || !m.failedUploads[next].at.IsZero() && now.Before(u.since.Add(m.gang.Storage.Interval))
}

// another says whether somebody else could make a snapshot durable that is one file, and has not failed. Nobody tells how far a
// file has come: without such a one a large file on a slow link would be broken off for ever.
func (m *Machine) another(u *uploading) bool {
	at, ok := m.stateOf(u.snapshot)
	return ok && slices.ContainsFunc(m.world.ranks.uids, func(uid string) bool {
		return uid != u.by && m.uploadsAlone(uid, &at) && m.failedUploads[uid].at.IsZero()
	})
}

// canUpload says whether a member may still make a snapshot durable: what it does not hold any more it may have begun
// with before.
func (m *Machine) canUpload(mem *member, s Snapshot) bool {
	if mem.report.UploadError == "" {
		return true
	}
	at, ok := m.stateOf(s)
	return ok && at.heldBy(mem)
}

func (mem *member) madeDurable(s Snapshot) bool {
	return mem.report.Durable.Snapshot == s && mem.report.Durable.Path != ""
}

func (m *Machine) uploadFor(uid string) *upload {
	w := m.uploading
	if w == nil || m.gang.Storage == nil || !w.has(uid) {
		return m.marksFor(uid)
	}
	u := &upload{Snapshot: w.snapshot, Keep: m.gang.Storage.Keep, Parts: w.parts, Rate: m.uploadRate(m.members[uid])}
	if w.by == uid {
		u.Score = m.waitingFor(w.snapshot)
	}
	if u.Parts != nil && m.world != nil {
		holders, _ := m.holdersOf(u.Snapshot)
		u.Holders = m.suppliers(uid, u.Snapshot, u.Parts, holdersFor(m.world.ranks.rank(uid), u.Parts, holders))
	}
	for i := range w.puts {
		if w.puts[i].by == uid {
			u.Put = append(u.Put, w.puts[i].part)
		}
		if w.by == uid {
			u.Manifest = append(u.Manifest, w.puts[i].part)
		}
	}
	return u
}
