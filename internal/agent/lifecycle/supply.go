package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

const (
	// firstFetch and lastFetch bound the wait before a snapshot is asked for again; it doubles from one to the next.
	firstFetch = time.Second
	lastFetch  = 8 * time.Second
	// maxBroken is how many tries may break off in one world after something has come, as if none had come to nothing before: a network
	// that breaks each of them off is of no use either.
	maxBroken = 4
	// maxBusy is how many tries may find a holder that has no place: each has waited for one for a while.
	maxBusy = 20
)

// supply is about the snapshot of a world that cannot be had. Holders that cannot be reached are the network's fault, so
// nothing ends by it: the worker tries for a while, and then leaves the world before it has begun. The operator makes the
// next one of what is there then, and is told which holders could not be reached for long, by those that have left and those
// that are still trying: where several say so of one, the state that it has is of no use. Where all holders were reached the worker leaves at once: one whose file was altered has
// dropped it by now, so the next world begins with another snapshot. A holder that has no place is reached, and waited for much
// longer, unless something is missing that only others have who are not reached. If nothing is to be had for that either, what is
// wrong is here.
type supply struct {
	// since is when the first try came to nothing after something has come whole, or the last one that brought something, tries how many
	// have; again is when the next one is due, zero for none.
	since, again time.Time
	tries        int
	// broken is how many brought something, and did not come to their end, busy how many found a holder that had no place.
	broken, busy int
	// unreached are the holders that could not be reached the last time, once that has been so for long.
	unreached []Unreached
}

// Unreached are the holders of the snapshot of this worker's world that it has not reached for half of the time for which it
// tries: longer than a network takes that only has to catch its breath.
func (m *Machine) Unreached() []Unreached { return m.supply.unreached }

// fetch gets the snapshot that the world of in begins with.
func (m *Machine) fetch() Effect {
	return Fetch{Round: m.in.Round, World: m.in.World, Holders: m.in.World.Holders}
}

func (m *Machine) fetched(now time.Time, f Fetched) []Effect {
	if m.in == nil || f.Round != m.in.Round || m.supplied || m.stage != running {
		return nil
	}
	if f.Why == "" {
		m.supplied, m.denied = true, ""
		m.supply.came()
		return nil
	}
	for _, part := range m.in.World.Parts {
		if share.IsShard(part.Key) {
			f.Lacks = append(f.Lacks, part.Key) // which of them are needed no process has said yet
		}
	}
	return m.missed(now, f)
}

// came notes that something of the snapshot has come whole: what cannot be had from now on begins to be missed then.
func (s *supply) came() { s.since, s.tries, s.unreached = time.Time{}, 0, nil }

// missed decides what follows where some of the snapshot of this worker's world cannot be had.
func (m *Machine) missed(now time.Time, f Fetched) []Effect {
	switch {
	case m.orders.abort != nil:
		return nil // that world is over: nobody enters it any more
	case f.Unreached || f.Busy:
		return m.unreached(now, f)
	}
	why := fmt.Sprintf("round %d cannot begin here, its snapshot is not to be had: %s", f.Round, f.Why)
	if m.denied == "" && !f.Local {
		m.denied = why
		return m.giveUp(why)
	}
	if m.denied != "" {
		why = m.denied + "; then " + why
	}
	m.stage, m.unsupplied = stopping, why
	return []Effect{Note{Text: why}, Kill{}}
}

// giveUp leaves a world that has not begun.
func (m *Machine) giveUp(why string) []Effect {
	m.orders.abort = &Abort{Reason: why}
	return []Effect{Note{Text: why}}
}

// unreached has the snapshot asked for again later, or gives the world up.
func (m *Machine) unreached(now time.Time, f Fetched) []Effect {
	s := &m.supply
	missed := f.Holders
	if f.Moved {
		s.broken++
	}
	if s.broken <= maxBroken {
		missed = slices.DeleteFunc(slices.Clone(missed), func(u Unreached) bool { return u.Gave })
	}
	if f.Busy {
		s.busy++
	}
	if s.since.IsZero() || f.Moved && s.broken <= maxBroken || f.Busy && s.busy <= maxBusy && !m.hasNoOther(missed, f.Lacks) {
		s.since, s.unreached, s.tries = now, nil, 0
	}
	var effects []Effect
	if now.Sub(s.since) >= m.limits.Supply/2 && len(missed) > 0 {
		s.unreached, effects = missed, []Effect{Tell{}}
	}
	if now.Sub(s.since) >= m.limits.Supply {
		why := fmt.Sprintf("round %d cannot begin here, its snapshot could not be had for %v: %s", f.Round, m.limits.Supply, f.Why)
		return append(effects, m.giveUp(why)...)
	}
	wait := min(firstFetch<<min(s.tries, 8), lastFetch)
	s.again, s.tries = now.Add(wait), s.tries+1
	return append(effects, Note{Text: fmt.Sprintf("the snapshot of round %d cannot be had, trying again in %v: %s", f.Round, wait, f.Why)})
}

// hasNoOther says whether something that this worker lacks of what its world begins with is with nobody but holders that it misses: a place
// with others is not worth to be waited for then.
func (m *Machine) hasNoOther(missed []Unreached, lacks []string) bool {
	if len(missed) == 0 {
		return false
	}
	for part := range max(1, len(m.in.World.Parts)) {
		if len(m.in.World.Parts) > 0 && !slices.Contains(lacks, m.in.World.Parts[part].Key) {
			continue
		}
		has := func(h Holder) bool { return len(m.in.World.Parts) == 0 || slices.Contains(h.Parts, part) }
		misses := func(h Holder) bool {
			return slices.ContainsFunc(missed, func(u Unreached) bool {
				return u.Address == h.Address && u.Port == h.Port && u.Certificate == h.Certificate
			})
		}
		if slices.ContainsFunc(m.in.World.Holders, has) &&
			!slices.ContainsFunc(m.in.World.Holders, func(h Holder) bool { return has(h) && !misses(h) }) {
			return true
		}
	}
	return false
}

// fetchAgain asks for the snapshot again when it is time to.
func (m *Machine) fetchAgain(now time.Time) []Effect {
	if m.supply.again.IsZero() || now.Before(m.supply.again) {
		return nil
	}
	m.supply.again = time.Time{}
	switch {
	case m.orders.abort != nil:
		return nil
	case m.supplied:
		return m.fetchShards()
	}
	return []Effect{m.fetch()}
}
