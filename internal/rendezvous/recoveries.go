package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// keptRecoveries is how many recoveries a record names. A recovery is counted once the cause of its loss is certain, which takes
// the kubelet's word, and the job may change once or twice until then.
const keptRecoveries = 4

// packRecoveries names the newest of some changes that followed a loss, the oldest first: round, reason, workers before and
// after, and the time in seconds since 1970 of each.
func packRecoveries(changes []Change) string {
	var packed []string
	for _, c := range changes {
		if c.Reason.recovers() {
			packed = append(packed, fmt.Sprintf("%d:%s:%d:%d:%d", c.Round, c.Reason, c.From, c.To, c.At.Unix()))
		}
	}
	return strings.Join(packed[max(0, len(packed)-keptRecoveries):], " ")
}

// Recovered are the newest changes before this round that followed a loss, the oldest first, as far as the record names them.
func (r Record) Recovered() []Change {
	var changes []Change
	for _, text := range strings.Fields(r.Recoveries) {
		c, seconds := Change{Begun: true, Inherited: true}, int64(0)
		words := strings.ReplaceAll(text, ":", " ")
		if _, err := fmt.Sscanf(words, "%d %s %d %d %d", &c.Round, &c.Reason, &c.From, &c.To, &seconds); err != nil {
			continue // nobody but a leader writes it, and one of another version may write something else
		}
		c.At = time.Unix(seconds, 0).UTC()
		if c.Round > 0 && c.Round < r.Round && c.Reason.recovers() {
			changes = append(changes, c)
		}
	}
	return changes
}

// recoveries are those that the next record has to name: whoever leads next may be the first that counts them.
func (m *Machine) recoveries() string {
	made := m.changes
	if m.pending != nil {
		made = append(slices.Clone(made), m.pending.Change)
	}
	return packRecoveries(made)
}

// inherit takes over the change that led to an adopted world, and the recoveries before it.
func (m *Machine) inherit(record *Record) {
	m.pending = inherited(record)
	for _, c := range m.base.Recovered() {
		known := slices.ContainsFunc(m.changes, func(k Change) bool { return k.Round >= c.Round })
		if c.Round <= record.Round && !known {
			m.noteChange(c)
		}
	}
}
