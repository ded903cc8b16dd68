package rendezvous

import (
	"slices"
	"time"
)

// What the record of a job says of its best checkpoints may be less than what there is: it was brought back from a backup, a leader was
// killed before it had written what it had heard, or somebody has deleted checkpoints by hand. So each leader has one worker of the first
// world that it sees in an attempt list the storage. Nothing waits for that: what is made durable meanwhile has its score there as well.

// Listed is what a worker has found in the storage.
type Listed struct {
	Number uint64
	Best   []Kept
}

// listing is who lists the storage, by an order of a number, since when.
type listing struct {
	by     string
	number uint64
	since  time.Time
	// known are those that were kept in mind by then, told the paths of those that workers told of; vain is how many had no answer before.
	known []Kept
	told  []string
	vain  int
}

// listTime is how long a worker has to list the storage before another one is asked, as long as it has patience with one request of that;
// twice as long each time that patientLists had no answer, so that a storage that is slow for all is listed in the end.
const (
	listTime     = 2 * time.Minute
	patientLists = 3
)

// toldOf are the paths of the checkpoints with scores that workers tell of.
func (m *Machine) toldOf() (paths []string) {
	for _, mem := range m.members {
		if d := &mem.report.Durable; d.Path != "" && mem.report.Scored {
			paths = append(paths, d.Path)
		}
	}
	return paths
}

// listBest has a worker say which checkpoints are the best, until one has.
func (m *Machine) listBest(now time.Time) {
	s := &m.scores
	if m.wantsBest() == nil || s.listed || !m.world.formed() {
		return
	}
	uids := m.world.ranks.uids
	l := s.listing
	if l != nil && m.isThere(m.members[l.by]) && now.Before(l.since.Add(listTime<<min(l.vain/patientLists, mostDoubled))) {
		return
	}
	at, vain := -1, 0
	if l != nil {
		at, vain = slices.Index(uids, l.by), l.vain+1
		m.out.Tell = append(m.out.Tell, l.by)
	}
	s.listing = nil
	for i := range uids {
		if uid := uids[(at+1+i)%len(uids)]; m.isThere(m.members[uid]) {
			m.restores++
			s.listing = &listing{uid, m.term*numbersPerTerm + m.restores, now, slices.Clone(s.kept), m.toldOf(), vain}
			m.out.Tell = append(m.out.Tell, uid)
			return
		}
	}
}

// listsFor is the number of the order to list the storage, for who does so; 0 for the others.
func (m *Machine) listsFor(uid string) uint64 {
	if l := m.scores.listing; l != nil && l.by == uid {
		return l.number
	}
	return 0
}

// hearListed takes over what a worker has found in the storage. What was kept in mind when it was asked, and is not there, is in the
// storage no more, or better ones are, and copies of it.
func (m *Machine) hearListed(mem *member, b *Best) {
	s, said := &m.scores, &mem.report.Listed
	if l := s.listing; l == nil || l.by != mem.want.UID || l.number != said.Number {
		return
	}
	before, known, told := slices.Clone(s.kept), s.listing.known, s.listing.told
	s.listing, s.listed = nil, true
	m.out.Tell, m.out.Changed, m.look = append(m.out.Tell, mem.want.UID), true, true
	is := func(path string) func(Kept) bool { return func(k Kept) bool { return k.Path == path } }
	s.kept = slices.DeleteFunc(s.kept, func(k Kept) bool {
		return slices.ContainsFunc(known, is(k.Path)) && !slices.ContainsFunc(said.Best, is(k.Path))
	})
	for _, k := range known {
		told = append(told, k.Path)
	}
	s.denied = slices.DeleteFunc(told, func(path string) bool { return slices.ContainsFunc(said.Best, is(path)) })
	for _, one := range said.Best {
		m.keepInMind(b, one)
	}
	for _, k := range before {
		full := len(s.kept) == b.Keep && b.Compare(k.Score, s.kept[b.Keep-1].Score) >= 0
		if !full && !slices.ContainsFunc(s.kept, is(k.Path)) && !slices.ContainsFunc(s.kept, k.isCopyOf) {
			m.missScored(b, Score{Step: k.Step, Value: k.Score}, "checkpoint "+k.Path+" is in the storage no more")
		}
	}
	for _, k := range s.kept {
		if !slices.ContainsFunc(before, is(k.Path)) {
			m.note(notedDurable, "checkpoint %s, of step %d, was found in the storage, and is one of the best", k.Path, k.Step)
		}
	}
	m.judgeAgain()
	m.findNext(b)
}
