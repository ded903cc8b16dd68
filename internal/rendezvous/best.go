package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/score"
)

// A program that evaluates a state says how good it is. When it is among the best that state is made durable, whether it is time for a
// checkpoint or not, and its score lies beside it: the uploader keeps the best ones when it deletes old ones. There is a snapshot of
// exactly that state, since programs take one when they evaluate. Nothing older than the newest checkpoint is made durable any more, so
// while such a state waits for its turn no later one is begun, and members keep it.

// Best says which checkpoints are kept for their scores.
type Best struct {
	score.Best
	// Known are those that the controller knows of.
	Known []Kept
}

// Score is what an evaluation said of the state after a step of a round: how good it is, or why that is not known.
type Score struct {
	Round, Step uint64
	Value       float64
	Why         string
}

// of says whether it is of a state.
func (s *Score) of(round, step uint64) bool { return s.Round == round && s.Step == step }

// Kept is a checkpoint in the storage with a score.
type Kept struct {
	Round, Step uint64
	Path        string
	Score       float64
}

// scores is what a leader knows of states that were evaluated.
type scores struct {
	// last is the newest that was heard, heard is true once there was one with a value.
	last  Score
	heard bool
	// waiting are those of states that may become durable; next is the one that does next, which members keep.
	waiting []Score
	next    *Snapshot
	// doubted are the newest of those that are not among the best by what is known before the storage was listed, which may be wrong.
	doubted []Score
	// kept are those in the storage, the best first. marking is a score that is being put beside a checkpoint that is there.
	kept    []Kept
	marking *marking
	// listing is who lists the storage; nil for nobody. listed is true once somebody has.
	listing *listing
	listed  bool
	// denied are paths that a worker told of, or the record, before the storage was listed, and that are not among the best there.
	denied []string
	// told is true once the controller's record was taken over, by is by which metric this attempt's programs are asked to score.
	told bool
	by   string
	// trouble says why a state that was evaluated is not kept, or nothing is known of how good it is; empty for nothing.
	trouble string
}

// marking is who puts a score beside a checkpoint, since given, and since when one is to be put; hung is true once somebody has said
// nothing for too long, and another one is to.
type marking struct {
	of           Score
	by           string
	since, given time.Time
	hung         bool
}

// mostWaiting is how many states may wait, mostDoubted how many for the storage to be listed.
const (
	mostWaiting = 16
	mostDoubted = 8
)

// wantsBest is which checkpoints are kept for their scores; nil for none.
func (m *Machine) wantsBest() *Best {
	if s := m.gang.Storage; s != nil && s.Best.Keep > 0 && m.gang.Strategy != Restart {
		return &s.Best
	}
	return nil
}

// expectBest takes over what the controller knows of the storage, once in an attempt: after that the controller knows it by this leader,
// and what it says again may be older than what was found in the storage.
func (m *Machine) expectBest() {
	if b := m.wantsBest(); b != nil && !m.scores.told {
		m.scores.told, m.scores.by = true, b.Metric
		for _, known := range b.Known {
			m.keepInMind(b, known)
		}
	}
}

// keepInMind takes note of a checkpoint with a score; true for one that is among the best and was not known.
func (m *Machine) keepInMind(b *Best, of Kept) bool {
	s := &m.scores
	s.waiting = slices.DeleteFunc(s.waiting, func(w Score) bool { return w.of(of.Round, of.Step) })
	if slices.Contains(s.denied, of.Path) || slices.ContainsFunc(s.kept, func(k Kept) bool { return k.Path == of.Path }) {
		return false
	}
	all := append(slices.Clone(s.kept), of)
	slices.SortFunc(all, func(x, y Kept) int {
		return cmp.Or(b.Compare(x.Score, y.Score), cmp.Compare(y.Round, x.Round), cmp.Compare(y.Step, x.Step))
	})
	s.kept = nil
	for _, k := range all {
		if len(s.kept) < b.Keep && !slices.ContainsFunc(s.kept, k.isCopyOf) {
			s.kept = append(s.kept, k)
		}
	}
	return slices.Contains(s.kept, of)
}

// isCopyOf says whether two are of one state, which was evaluated again after a restart.
func (k Kept) isCopyOf(other Kept) bool { return k.Step == other.Step && k.Score == other.Score }

// isGood says whether a state with a score would be among the best: of equals the newest is, and what is there already is not again.
func (m *Machine) isGood(b *Best, of *Score) bool {
	kept := m.scores.kept
	if slices.ContainsFunc(kept, Kept{Step: of.Step, Score: of.Value}.isCopyOf) {
		return false
	}
	return len(kept) < b.Keep || b.Compare(of.Value, kept[len(kept)-1].Score) <= 0
}

// hearScores takes note of what a member says of states that were evaluated.
func (m *Machine) hearScores(mem *member) {
	b, s, r := m.wantsBest(), &m.scores, &mem.report
	if b == nil || m.world == nil {
		return
	}
	if r.Listed.Number > 0 {
		m.hearListed(mem, b)
	}
	if d := &r.Durable; d.Path != "" && r.Scored && m.keepInMind(b, Kept{d.Snapshot.Round, d.Snapshot.Step, d.Path, r.Score}) {
		m.uploadsWork(mem.want.UID)
		m.note(notedDurable, "the state after step %d, with %s %s, is one of the best: %s", d.Snapshot.Step, b.Metric, score.Text(r.Score), d.Path)
		m.out.Changed = true
		m.findNext(b)
	}
	for _, said := range r.Scores {
		newer := cmp.Or(cmp.Compare(said.Round, s.last.Round), cmp.Compare(said.Step, s.last.Step))
		found := newer == 0 && said.Why == "" && s.last.Why != "" // by another evaluation of the same state
		if newer <= 0 && !found || said.Round > m.world.record.Round {
			continue
		}
		s.last = said
		m.hearScore(b, said)
	}
	m.look = m.look || len(s.waiting) > 0
}

// hearScore takes note of one that is new.
func (m *Machine) hearScore(b *Best, said Score) {
	s := &m.scores
	if s.heard = s.heard || said.Why == ""; said.Why != "" {
		m.missBest("%s", said.Why)
		return
	}
	if s.trouble != "" {
		s.trouble, m.out.Changed = "", true
	}
	if m.keepsIt(&said) {
		return
	}
	s.waiting = append(s.waiting, said)
	if len(s.waiting) > mostWaiting {
		s.waiting = s.waiting[1:]
	}
	if u := m.uploading; u != nil && said.of(u.snapshot.Round, u.snapshot.Step) {
		m.out.Tell = append(m.out.Tell, u.at()...)
	}
	m.findNext(b)
}

// missBest notes why a state that was evaluated is not kept.
func (m *Machine) missBest(format string, args ...any) {
	if why := fmt.Sprintf(format, args...); why != m.scores.trouble {
		m.scores.trouble = why
		m.note(notedDoubted, "%s", why)
		m.out.Changed = true
	}
}

// findNext finds the best of the states that wait, of equals the newest, and drops those that can be kept no more.
func (m *Machine) findNext(b *Best) *Score {
	s := &m.scores
	if len(s.waiting) > 0 {
		states := m.states()
		s.waiting = slices.DeleteFunc(s.waiting, func(w Score) bool {
			if !s.listed && !m.keepsIt(&w) && !m.isGood(b, &w) {
				s.doubted = append(s.doubted, w)
				s.doubted = s.doubted[max(len(s.doubted)-mostDoubted, 0):]
				return true
			}
			gone, why := m.isGone(b, &w, states)
			if why != "" {
				m.missScored(b, w, why)
			}
			return gone
		})
	}
	var next *Score
	for i := range s.waiting {
		if w := &s.waiting[i]; next == nil || b.Compare(w.Value, next.Value) <= 0 {
			next = w
		}
	}
	var keep *Snapshot
	if next != nil {
		keep = &Snapshot{Round: next.Round, Step: next.Step}
	}
	if (keep == nil) != (s.next == nil) || keep != nil && *keep != *s.next {
		s.next, m.out.Publish = keep, true
	}
	return next
}

// keepsIt says whether a state is in the storage with its score.
func (m *Machine) keepsIt(w *Score) bool {
	return slices.ContainsFunc(m.scores.kept, func(k Kept) bool { return w.of(k.Round, k.Step) })
}

// isGone says whether a state that waits can be kept no more, or is not to be, and why, where that is a pity.
func (m *Machine) isGone(b *Best, w *Score, states []state) (gone bool, why string) {
	of, known := Snapshot{Round: w.Round, Step: w.Step}, m.gang.Storage
	switch {
	case m.keepsIt(w), w.Round != m.world.record.Round && !m.isOfHistory(of), !m.isGood(b, w):
		return true, "" // that step is made, and evaluated, again; or others are better
	case m.durable.Path != "" && sameState(of, m.durable.Snapshot) && slices.Contains(m.scores.denied, m.durable.Path):
		return true, "" // it had its score, and is there no more
	case m.durable.Path != "" && sameState(of, m.durable.Snapshot), m.uploading != nil && sameState(of, m.uploading.snapshot):
		return false, ""
	case m.durable.Path == "" && !newerSnapshot(of, Durable{Snapshot{Round: known.KnownRound, Step: known.Known}, "known"}):
		return true, "" // an earlier leader has seen to it
	case !newerSnapshot(of, m.durable):
		return true, fmt.Sprintf("that after step %d was durable before", m.durable.Snapshot.Step)
	}
	newest, there := m.bestOf(states)
	if _, held := whichIs(states, of); !held && there && newest.Step > w.Step {
		return true, "the workers hold no whole snapshot of it"
	}
	return false, ""
}

// judgeAgain has those states wait once more that were not among the best by what was known before the storage was listed.
func (m *Machine) judgeAgain() {
	s := &m.scores
	s.waiting, s.doubted = append(s.doubted, s.waiting...), nil
	slices.SortStableFunc(s.waiting, func(x, y Score) int { return cmp.Or(cmp.Compare(x.Round, y.Round), cmp.Compare(x.Step, y.Step)) })
	s.waiting = s.waiting[max(len(s.waiting)-mostWaiting, 0):]
}

// missScored notes that a state with a score is not kept.
func (m *Machine) missScored(b *Best, of Score, why string) {
	m.missBest("the state after step %d, with %s %s, is not kept: %s", of.Step, b.Metric, score.Text(of.Value), why)
}

// whichIs is a state of some, if it can be had.
func whichIs(states []state, of Snapshot) (*state, bool) {
	var found *state
	for i := range states {
		if s := &states[i]; sameState(s.Snapshot, of) && (found == nil || s.copies > found.copies) {
			found = s
		}
	}
	return found, found != nil
}

// waitingFor is the score of a state that is to lie beside it; nil for none.
func (m *Machine) waitingFor(of Snapshot) *float64 {
	if m.wantsBest() == nil {
		return nil
	}
	for i := range m.scores.waiting {
		if w := &m.scores.waiting[i]; w.of(of.Round, of.Step) {
			return &w.Value
		}
	}
	return nil
}

// makeBest has the best of the states that wait made durable; false when none waits, or it does not keep others from it.
func (m *Machine) makeBest(now time.Time) bool {
	b := m.wantsBest()
	if b == nil {
		return false
	}
	next := m.findNext(b)
	if next == nil {
		m.scores.marking = nil
		return false
	}
	of := Snapshot{Round: next.Round, Step: next.Step}
	if m.durable.Path != "" && sameState(of, m.durable.Snapshot) {
		return m.mark(now, b, *next)
	}
	m.scores.marking = nil
	states := m.states()
	at, held := whichIs(states, of)
	if !held {
		return false // its snapshot may never come, and an older one is better than none
	}
	newest, _ := m.bestOf(states)
	if at.parts == nil || m.isComplete(at) || newest.Step > at.Step { // or some rank writes none of it
		m.upload(now, at.Snapshot)
	}
	return true
}

// inVain says whether a state is given up whose upload fails: a later one is there, which outlives the workers as well.
func (m *Machine) inVain(now time.Time, u *uploading) bool {
	b, newest := m.wantsBest(), Snapshot{}
	if b == nil || m.waitingFor(u.snapshot) == nil || now.Before(m.nextUpload) {
		return false
	}
	if newest, _ = m.best(); newest.Step <= u.snapshot.Step {
		return false
	}
	for _, uid := range u.at() {
		if mem := m.members[uid]; mem != nil && mem.report.UploadError != "" {
			m.forget(b, u.snapshot, mem.want.Name+": "+mem.report.UploadError)
			return true
		}
	}
	return false
}

// bestFirst says whether a world that is to be let go makes a state durable first that was evaluated well: it goes with its workers
// otherwise. The state that the world stands with has the time that there is, so what is not durable soon is given up, and nothing is
// begun first with a storage that has trouble.
func (m *Machine) bestFirst(now time.Time, taken Snapshot) bool {
	b, why := m.wantsBest(), m.storageTrouble()
	if b == nil || len(m.scores.waiting) == 0 {
		return false
	}
	u := m.uploading
	isBest := u != nil && m.waitingFor(u.snapshot) != nil
	switch soon := now.Before(m.change.began.Add(m.gang.BarrierTimeout/2 - m.uploadTook)); {
	case soon && why == "":
		if isBest {
			if m.goesOn(now, u) {
				return true
			}
			m.uploading = nil
		}
		return m.makeBest(now) && (m.uploading != nil && m.waitingFor(m.uploading.snapshot) != nil || m.scores.marking != nil)
	case soon && !m.isParked():
		return false
	}
	if isBest && !sameState(u.snapshot, taken) {
		m.out.Tell = append(m.out.Tell, u.at()...)
		m.uploading = nil
	}
	for _, of := range slices.Clone(m.scores.waiting) {
		if !of.of(taken.Round, taken.Step) || m.isParked() {
			m.forget(b, Snapshot{Round: of.Round, Step: of.Step}, cmp.Or(why, fmt.Sprintf("the workers are to go, and the state after step %d comes first", taken.Step)))
		}
	}
	m.findNext(b)
	return false
}

// forget drops a state that waits.
func (m *Machine) forget(b *Best, of Snapshot, why string) {
	m.scores.waiting = slices.DeleteFunc(m.scores.waiting, func(w Score) bool {
		is := w.of(of.Round, of.Step)
		if is {
			m.missScored(b, w, why)
		}
		return is
	})
}

// mark has a score put beside the newest checkpoint, which became durable before it was known; false once that is given up, as no later
// state becomes durable before. Who fails gives way to who has not until another checkpoint is due; who says nothing for too long gives
// way as well, and when that is in vain too others do not have to try.
func (m *Machine) mark(now time.Time, b *Best, of Score) bool {
	s := &m.scores
	if s.marking == nil || s.marking.of != of {
		s.marking = &marking{of: of, since: now}
	}
	k := s.marking
	mem, why := m.members[k.by], ""
	switch {
	case !m.isThere(mem):
		if m.finisher() == "" && !now.Before(k.since.Add(hangTime)) {
			why = "no worker is there that could put its score into the storage"
		}
	case mem.report.UploadError != "":
		m.failedUploads[k.by] = failedUpload{now, mem.report.UploadError}
		if !now.Before(k.since.Add(m.gang.Storage.Interval)) {
			why = mem.want.Name + ": " + mem.report.UploadError
		} else if next := m.finisher(); !m.failedUploads[next].at.IsZero() {
			return true
		}
	case m.stalls(now, &uploading{}, k.by, k.given, 0):
		if next := m.finisher(); k.hung || next == "" || next == k.by {
			why = mem.want.Name + ": " + m.failedUploads[k.by].why
		}
		k.hung = true
	default:
		return true
	}
	if why != "" {
		m.forget(b, m.durable.Snapshot, why)
		m.tellTo(&k.by, "")
		s.marking = nil
		return false
	}
	k.given = now
	m.tellTo(&k.by, m.finisher())
	return true
}

// marksFor is the order to put a score beside a checkpoint, for who does so.
func (m *Machine) marksFor(uid string) *upload {
	k := m.scores.marking
	if k == nil || k.by != uid || m.gang.Storage == nil || !k.of.of(m.durable.Snapshot.Round, m.durable.Snapshot.Step) {
		return nil
	}
	return &upload{Snapshot: m.durable.Snapshot, Keep: m.gang.Storage.Keep, Score: &k.of.Value, Durable: true, Rate: m.uploadRate(m.members[uid])}
}

// awaitsBest says whether a world in which all have finished stays until a state is durable that was evaluated well, as that after the
// last step: its snapshots go with its workers. It stays no longer than a barrier may take.
func (m *Machine) awaitsBest(now time.Time) bool {
	b := m.wantsBest()
	if b == nil || m.findNext(b) == nil {
		return false
	}
	w := m.world
	if w.finishedAt.IsZero() {
		if u := m.uploading; u != nil {
			m.out.Tell = append(m.out.Tell, u.at()...) // nobody is held back any more
		}
		w.finishedAt, m.change, m.out.Publish = now, nil, true
		m.note(notedFinished, "round %d has finished, and waits until the state after step %d is durable", w.record.Round, m.scores.next.Step)
	}
	why := fmt.Sprintf("the training is over, and nothing has come of its upload for %s", m.gang.BarrierTimeout)
	if _, held := whichIs(m.states(), *m.scores.next); !held && m.snapshotTrouble() != "" {
		why = m.snapshotTrouble()
	} else if now.Before(w.finishedAt.Add(m.gang.BarrierTimeout)) {
		return true
	}
	for m.findNext(b) != nil {
		m.forget(b, *m.scores.next, why)
	}
	return false
}

// missAll notes that a training is over of which no score was heard.
func (m *Machine) missAll() {
	if b := m.wantsBest(); b != nil && !m.scores.heard && len(m.scores.kept) == 0 && m.scores.trouble == "" {
		m.missBest("the training is over, and no evaluation has reported %s", b.Metric)
	}
}
