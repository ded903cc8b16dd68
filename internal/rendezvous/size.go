package rendezvous

import "github.com/concertina-dev/concertina/internal/share"

// hearSize has somebody look at once when a state has become so much larger, or a worker writes so much more of it, that its
// volume may be too small. It changes by a few bytes with every snapshot.
func (m *Machine) hearSize(before, now share.Size) {
	if more(before.State, now.State) || more(before.Written, now.Written) {
		m.out.Changed = true
	}
}

func more(before, now uint64) bool { return now > before+before/16 }

// size is how large the state of the world is, by what its members say; before the first one, that of the checkpoint which is
// brought back for it. What is written differs by member: it is the most.
func (m *Machine) size() share.Size {
	var most share.Size
	for _, mem := range m.members {
		if m.world == nil || mem.in(&m.world.record) {
			most = most.Most(mem.report.Size)
		}
	}
	return most
}
