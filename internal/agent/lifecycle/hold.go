package lifecycle

import "time"

// hold is the operator's right to keep processes standing at a barrier. It ends when nobody renews it: then the
// operator is gone, or cut off, and the world trains on. That some resume while others have entered the next
// world breaks nothing: neither world can make a step without all of its ranks.
type hold struct {
	// number is the newest hold of the term that was obeyed.
	number uint64
	// until is when processes are let go; zero for never.
	until time.Time
}

// renew takes the hold of a directive that is obeyed. It counts from when the report was sent that the
// directive answers: one that was long on its way renews nothing.
func (m *Machine) renew(heard Heard) {
	d := heard.Directive
	if d.Term > m.obeyedTerm {
		m.hold.number = 0
	}
	switch {
	case d.Hold > m.hold.number:
		m.hold = hold{number: d.Hold, until: heard.Sent.Add(m.limits.Stand)}
	case d.Hold == 0 && d.Barrier.Attempt > 0:
		m.hold = hold{} // an operator that knows no holds
	}
}

// stands says whether there is a barrier that ends by itself.
func (m *Machine) stands() bool {
	return m.stage == running && m.in != nil && m.orders.barrier.Attempt > 0 && !m.hold.until.IsZero()
}

// lapse takes the barrier away when nobody has renewed the hold.
func (m *Machine) lapse(now time.Time) []Effect {
	if !m.stands() || now.Before(m.hold.until) {
		return nil
	}
	given := m.orders.barrier.Attempt
	m.orders.barrier = Barrier{}
	for i := range m.slots {
		if m.slots[i].armed.Attempt == given {
			return []Effect{Note{Text: "no operator has renewed the hold of the barrier: the program goes on"}}
		}
	}
	return nil // it was let go before, and the same hold is told again
}
