package rendezvous

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/concertina-dev/concertina/internal/share"
)

// What the members hold of the history of the world makes states that it could go back to: whole files, and parts that fit
// together when somebody has each of the shares. A state of which a share is missing is none: an older one serves then.

// state is a snapshot that can be had.
type state struct {
	Snapshot
	// parts are its shares, or the shards of all ranks, in their order, and then the parts of ranks that there are, those first that can be had now; nil
	// for a whole file.
	parts []Snapshot
	// holders are those who hold each of the parts, or the whole. The part of a rank may be with its
	// member alone, which may be out of touch.
	holders [][]*member
	// copies is on how many different nodes each of the shares is, at least.
	copies int
}

// fit is what parts that fit together have in common.
type fit struct {
	round, step uint64
	of          int
	layout      string
}

// files are those of one key, and who holds each.
type files map[Snapshot][]*member

// chosen is the file of a key that most hold.
func (f files) chosen() Snapshot {
	var best Snapshot
	for s := range f {
		if len(f[best]) == 0 || cmp.Or(cmp.Compare(len(f[s]), len(f[best])), bytes.Compare(best.Hash[:], s.Hash[:]), cmp.Compare(best.Bytes, s.Bytes)) > 0 {
			best = s
		}
	}
	return best
}

// catalogue is what members hold of the history: whole files, and parts by what they have in common.
type catalogue struct {
	whole  files
	parted map[fit]map[share.Key]files
}

// catalogueOf is that of these members, with what differs by the ranks of those who are away for a while.
func (m *Machine) catalogueOf(members []*member) catalogue {
	made, older := m.mostMade(), m.anyOlder(m.isLeftOut)
	counts := func(mem *member, s Snapshot) bool {
		if older {
			if _, isPart := share.Parse(s.Part); isPart {
				return false
			}
		}
		return m.inHistory(mem, s, made)
	}
	c := catalogue{files{}, map[fit]map[share.Key]files{}}
	for _, mem := range members {
		for _, s := range mem.report.Snapshots {
			if counts(mem, s) {
				c.note(s, mem)
			}
		}
		for _, s := range m.broughtFor(mem) {
			if !slices.Contains(mem.report.Snapshots, s) || !counts(mem, s) {
				c.note(s, mem)
			}
		}
	}
	for _, mem := range m.away() {
		for _, s := range mem.report.Snapshots {
			if key, ok := share.Parse(s.Part); ok && key.Rank && counts(mem, s) {
				c.note(s, mem)
			}
		}
	}
	return c
}

// note adds what a member holds.
func (c *catalogue) note(s Snapshot, mem *member) {
	if key, isPart := share.Parse(s.Part); isPart {
		c.add(fit{s.Round, s.Step, key.Of, key.Layout}, key, s, mem)
	} else {
		c.whole[s] = append(c.whole[s], mem)
	}
}

// has says whether a part is there.
func (c *catalogue) has(part Snapshot) bool {
	key, _ := share.Parse(part.Part)
	return len(c.parted[fit{part.Round, part.Step, key.Of, key.Layout}][key][part]) > 0
}

func (c *catalogue) add(of fit, key share.Key, s Snapshot, mem *member) {
	if c.parted[of] == nil {
		c.parted[of] = map[share.Key]files{}
	}
	if c.parted[of][key] == nil {
		c.parted[of][key] = files{}
	}
	c.parted[of][key][s] = append(c.parted[of][key][s], mem)
}

// states are those that can be had. Any whole file of a step serves, so all of them are copies of it, though what differs by
// rank makes them different files.
func (c *catalogue) states() []state {
	same := map[fit][]*member{}
	for s, holders := range c.whole {
		of := fit{round: s.Round, step: s.Step}
		same[of] = append(same[of], holders...)
	}
	var states []state
	for s, holders := range c.whole {
		copies := nodesOf(same[fit{round: s.Round, step: s.Step}])
		states = append(states, state{Snapshot: s, holders: [][]*member{holders}, copies: copies})
	}
	for of, keys := range c.parted {
		if s, ok := together(of, keys); ok {
			states = append(states, s)
		}
	}
	return states
}

// statesOf are the states that can be had of what these members hold.
func (m *Machine) statesOf(members []*member) []state {
	c := m.catalogueOf(members)
	return c.states()
}

// anyOlder says whether there is a member whose agent knows no parts, and who is not left out: what is written for all must be whole then.
func (m *Machine) anyOlder(isLeftOut func(*member) bool) bool {
	for _, mem := range m.members {
		if mem.joined && !mem.parts && !isLeftOut(mem) {
			return true
		}
	}
	return false
}

// together puts parts that fit together into a state; false when one is missing.
func together(of fit, keys map[share.Key]files) (s state, ok bool) {
	s.Round, s.Step = of.round, of.step
	sum := sha256.New()
	_, _ = sum.Write([]byte(of.layout))
	add := func(all files) Snapshot {
		one := all.chosen()
		s.parts, s.holders = append(s.parts, one), append(s.holders, all[one])
		return one
	}
	inShards := false
	for key := range keys {
		inShards = inShards || key.Shard
	}
	for i := range of.of {
		all := keys[share.Key{Shard: inShards, Index: i, Of: of.of, Layout: of.layout}]
		if len(all) == 0 {
			return state{}, false
		}
		one := add(all)
		if n := nodesOf(all[one]); i == 0 || n < s.copies {
			s.copies = n
		}
		s.Bytes += one.Bytes
		_, _ = sum.Write(binary.BigEndian.AppendUint64(one.Hash[:], one.Bytes))
	}
	sum.Sum(s.Hash[:0])
	ranks := slices.DeleteFunc(slices.Collect(maps.Keys(keys)), func(k share.Key) bool { return !k.Rank })
	slices.SortFunc(ranks, func(a, b share.Key) int { return cmp.Compare(a.Index, b.Index) })
	inTouch := func(key share.Key) bool { return slices.ContainsFunc(keys[key][keys[key].chosen()], isConnected) }
	for _, rank := range ranks {
		if inTouch(rank) {
			add(keys[rank])
		}
	}
	ok = len(s.parts) > of.of
	for _, rank := range ranks {
		if !inTouch(rank) {
			add(keys[rank])
		}
	}
	return s, ok
}

func isConnected(mem *member) bool { return mem.connected }

// of is of how many shares or shards the state is made; 0 for a whole file.
func (s *state) of() int {
	if len(s.parts) == 0 {
		return 0
	}
	key, _ := share.Parse(s.parts[0].Part)
	return key.Of
}

// ownParts says which of the parts is what differs by a rank.
func (s *state) ownParts() map[int]int {
	own := map[int]int{}
	for i, part := range s.parts {
		if key, _ := share.Parse(part.Part); key.Rank {
			own[key.Index] = i
		}
	}
	return own
}

// writes says whether the member of a rank writes its part of such a state. Who is lost is not missed.
func (m *Machine) writes(s *state, rank int) bool {
	mem := m.members[m.world.ranks.uids[rank]]
	return mem != nil && !m.isLost(mem) && s.Round == m.world.record.Round && (inShards(s.parts) || m.stages(rank, s.of()))
}

// isComplete says whether a state lacks nothing that a member writes of it.
func (m *Machine) isComplete(s *state) bool {
	own := s.ownParts()
	for rank := range m.world.ranks.uids {
		if _, there := own[rank]; !there && m.writes(s, rank) {
			return false
		}
	}
	return true
}

// neededBy are the parts of a state that the worker of a rank loads: what differs by rank, of its own or else of the first
// that can be had, and then all shares, or all shards, of which its programs choose.
func neededBy(rank int32, parts []Snapshot) []Snapshot {
	var needed, shares []Snapshot
	for _, part := range parts {
		key, _ := share.Parse(part.Part)
		switch {
		case !key.Rank:
			shares = append(shares, part)
		case len(needed) == 0 || int32(key.Index) == rank:
			needed = []Snapshot{part}
		}
	}
	return append(needed, shares...)
}

// holding is an agent that serves a snapshot, or those parts of it.
type holding struct {
	holder
	parts []Snapshot
}

// has says which of the parts it has.
func (h *holding) has(parts []Snapshot) []uint32 {
	var has []uint32
	for i := range parts {
		if slices.Contains(h.parts, parts[i]) {
			has = append(has, uint32(i))
		}
	}
	return has
}

// holdersOf are those who serve a snapshot now, and what it is made of; nil for a whole file.
func (m *Machine) holdersOf(s Snapshot) (holders []holding, parts []Snapshot) {
	if m.world == nil {
		return m.broughtBy()
	}
	at, ok := m.stateOf(s)
	if !ok {
		return nil, nil
	}
	by := map[*member]*holding{}
	for i, members := range at.holders {
		for _, mem := range members {
			if mem.serves.Port == 0 {
				continue
			}
			if by[mem] == nil {
				by[mem] = &holding{holder: mem.holder()}
			}
			if at.parts != nil {
				by[mem].parts = append(by[mem].parts, at.parts[i])
			}
		}
	}
	for _, h := range by {
		holders = append(holders, *h)
	}
	slices.SortFunc(holders, func(a, b holding) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return holders, at.parts
}

// stateOf is the state that a snapshot names, if it can be had.
func (m *Machine) stateOf(s Snapshot) (state, bool) {
	states := m.states()
	if i := slices.IndexFunc(states, func(at state) bool { return at.Snapshot == s }); i >= 0 {
		return states[i], true
	}
	return state{}, false
}

// heldBy says whether a member holds the state, or a part of it.
func (s *state) heldBy(mem *member) bool {
	return slices.ContainsFunc(s.holders, func(of []*member) bool { return slices.Contains(of, mem) })
}
