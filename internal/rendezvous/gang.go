package rendezvous

import (
	"maps"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/straggler"
)

// expect takes over what the controller wants.
func (m *Machine) expect(now time.Time, gang Gang) {
	first := m.since.IsZero()
	gang = normal(gang)
	switch {
	case m.deposed || gang.Attempt < m.gang.Attempt:
		return
	case (m.released || m.gone) && gang.Attempt == m.gang.Attempt:
		// These members were let go.
		return
	}
	if first {
		m.since = now
	}
	if m.term == 0 && m.writing == nil && newer(gang.Durable, m.base) {
		m.base = gang.Durable
	}
	another := !first && gang.Attempt != m.gang.Attempt
	same := !first && !another && sameMembers(gang.Members, m.gang.Members)
	m.out.Publish = m.out.Publish || m.term > 0 && BeatOf(len(gang.Members)) != BeatOf(len(m.gang.Members))
	m.gang, m.namedIn = gang, ""
	m.released, m.gone = false, false
	m.look = true
	if another {
		m.leaveAttempt()
	}
	m.expectBest()
	m.replaceMembers(now)
	m.noteEnded()
	if same {
		return
	}
	m.out.Changed = true
	if m.writing != nil && m.world == nil {
		m.writing.overtaken = true
	}
}

// leaveAttempt drops all that belongs to the attempt before.
func (m *Machine) leaveAttempt() {
	if m.world != nil {
		m.world, m.out.Publish = nil, true
	}
	if m.writing != nil {
		m.writing.overtaken = true
	}
	m.change, m.broken, m.pending, m.retried = nil, nil, nil, nil
	m.restoring, m.uploading, m.relied, m.unsafe = nil, nil, nil, nil
	m.copying, m.uncopied, m.scores = nil, false, scores{}
	clear(m.failedUploads)
	clear(m.failedSaves)
	clear(m.departed)
	m.pace = straggler.Watch{}
	m.changes, m.losses, m.fatal = nil, nil, ""
	m.nextTry, m.tries, m.unwritten = time.Time{}, 0, false
}

// normal fills in what is left out and drops members that are named twice.
func normal(gang Gang) Gang {
	if gang.HeartbeatTimeout <= 0 {
		gang.HeartbeatTimeout = defaultHeartbeat
	}
	if gang.BarrierTimeout <= 0 {
		gang.BarrierTimeout = defaultBarrier
	}
	gang.ProcessesPerWorker = max(gang.ProcessesPerWorker, 1)
	known := make(map[string]bool, len(gang.Members))
	members := make([]Member, 0, len(gang.Members))
	for _, member := range gang.Members {
		if !known[member.UID] {
			known[member.UID] = true
			members = append(members, member)
		}
	}
	gang.Members = members
	if beat := BeatOf(len(members)); beat > BeatOf(0) {
		gang.HeartbeatTimeout = max(gang.HeartbeatTimeout, silentBeats*beat)
	}
	if gang.Minimum <= 0 {
		gang.Minimum = int32(len(members))
	}
	gang.Target = max(gang.Target, gang.Minimum)
	return gang
}

func newer(a, b Record) bool {
	return a.Term > b.Term || a.Term == b.Term && a.Round > b.Round
}

func sameMembers(a, b []Member) bool {
	if len(a) != len(b) {
		return false
	}
	known := make(map[string]bool, len(a))
	for i := range a {
		known[a[i].UID] = true
	}
	for i := range b {
		if !known[b[i].UID] {
			return false
		}
	}
	return true
}

// replaceMembers keeps what is known of members that stay, and lets the others go.
func (m *Machine) replaceMembers(now time.Time) {
	members := make(map[string]*member, len(m.gang.Members))
	for _, expected := range m.gang.Members {
		known := m.members[expected.UID]
		if known == nil {
			known = m.named(expected.UID)
		}
		delete(m.members, expected.UID)
		if m.wentAsPlanned(known) && (expected.Lost != "" || expected.Ended) {
			known.wentFrom = m.world.record.Round
		} else {
			known.wentFrom = 0
		}
		known.want = expected
		members[expected.UID] = known
	}
	left := m.members
	m.members = members
	for _, uid := range slices.Sorted(maps.Keys(left)) {
		mem := left[uid]
		delete(m.failedUploads, uid)
		delete(m.failedSaves, uid)
		m.parted(now, uid, mem)
		if mem.connected {
			m.out.End = append(m.out.End, ending{uid, Refusal{RefusedForGood,
				"this worker does not belong to the gang any more"}})
		}
	}
	sortEndings(m.out.End)
}

// named is a member that was not in the gang before. One that the world has lost by then stays lost, and is counted
// in it no second time.
func (m *Machine) named(uid string) *member {
	mem := &member{}
	delete(m.departed, uid)
	if m.world == nil {
		return mem
	}
	before, parted := m.world.parted[uid]
	mem.entered = before.entered
	if parted && !before.well {
		delete(m.world.parted, uid)
		mem.lostIn = m.world.record.Round
	}
	return mem
}

// release lets every member go.
func (m *Machine) release() {
	if m.over() {
		return
	}
	m.released, m.out.Changed = true, true
	if m.term > 0 {
		m.out.Publish = true
		return
	}
	m.endAll(Refusal{RefusedForGood, GoneMessage})
}

const GoneMessage = "the job is finished, suspended or deleted: its workers are not needed any more"
