package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/share"
)

// isSharded says whether the state that a world begins with is in shards: its processes load what they need of it, also those
// that go on with the state that they have, since that is cut otherwise in a world of another size.
func (w World) isSharded() bool {
	return slices.ContainsFunc(w.Parts, func(p Part) bool { return share.IsShard(p.Key) })
}

// loads says whether processes load a snapshot when the world begins.
func (w World) loads() bool { return w.Snapshot != nil && (w.Restore || w.isSharded()) }

// wants gets shards for a process that loads the state of its world.
func (m *Machine) wants(i int, s *slot, parts []string, ranges [][][2]uint64) []Effect {
	if m.in == nil || s.world != m.in.Round || m.orders.abort != nil || m.stage != running {
		return nil // it is told to leave that world
	}
	for _, key := range parts {
		if !slices.ContainsFunc(m.in.World.Parts, func(p Part) bool { return p.Key == key }) {
			return s.refuse(i, fmt.Sprintf("%.64q is no part of the state that round %d begins with", key, m.in.Round))
		}
	}
	if s.wants != nil {
		if slices.Equal(parts, s.wants) && slices.EqualFunc(ranges, s.ranges, slices.Equal[[][2]uint64]) {
			return nil // it is being got
		}
		return s.refuse(i, fmt.Sprintf("it wants other shards while it waits for %d that it has asked for in round %d", len(s.wants), m.in.Round))
	}
	if len(parts) == 0 {
		s.handed = m.in.Round
		// There is nothing to fetch, and that would end what is fetched for another process.
		return []Effect{Hand{Slot: i, Connection: s.connection, Round: m.in.Round, World: m.in.World}}
	}
	s.wants, s.ranges = parts, ranges
	return []Effect{m.fetchShardsFor(i)}
}

// refuse ends the connection of a process that asks for what it cannot get.
func (s *slot) refuse(i int, why string) []Effect {
	connection := s.connection
	s.connection, s.waiting = 0, WaitsNot
	return []Effect{Note{Text: fmt.Sprintf("process %d is refused: %s", i, why)}, Deny{Slot: i, Connection: connection, Why: why}}
}

// fetchShards gets what processes still want, but for those of whom it is not known yet what comes: nobody waits for the second of two fetches.
func (m *Machine) fetchShards() []Effect {
	var effects []Effect
	for i := range m.slots {
		if s := &m.slots[i]; s.wants != nil && !s.fetching && s.connection != 0 && s.world == m.in.Round {
			effects = append(effects, m.fetchShardsFor(i))
		}
	}
	return effects
}

func (m *Machine) fetchShardsFor(i int) Effect {
	s := &m.slots[i]
	s.fetching = true
	return FetchShards{Slot: i, Connection: s.connection, Round: m.in.Round, World: m.in.World, Parts: s.wants, Ranges: s.ranges}
}

// hasShards gives a process what it has asked for.
func (m *Machine) hasShards(now time.Time, h HasShards) []Effect {
	s := &m.slots[h.Slot]
	if m.in == nil || h.FetchShards.Round != m.in.Round || m.stage != running || s.connection != h.Connection || s.wants == nil {
		return nil
	}
	if s.fetching = false; h.Why != "" {
		for i := range m.slots {
			if i != h.Slot {
				h.Lacks = append(h.Lacks, m.slots[i].wants...)
			}
		}
		return m.missed(now, h.Fetched)
	}
	s.wants, s.ranges, s.handed = nil, nil, m.in.Round
	m.supply.came()
	if !slices.ContainsFunc(m.slots, func(s slot) bool { return s.wants != nil }) {
		m.denied, m.supply = "", supply{}
	}
	return []Effect{Hand{Slot: h.Slot, Connection: h.Connection, Round: m.in.Round, World: h.World, Parts: h.Parts, Ranges: h.Ranges}}
}
