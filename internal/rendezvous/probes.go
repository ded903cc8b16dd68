package rendezvous

import (
	"slices"
	"time"
)

// When a member says nothing, and no step is made, or its session has ended (away.go), some of its peers are asked whether
// they can reach its agent. The question is part of their directive, the answer of their next report. Peers on other nodes
// are asked first: what is wrong with the member's own node is not seen from there. Nobody is lost by what a single one
// says as long as there are two to ask.

const (
	// maxWitnesses is how many peers are asked about one member, enoughWitnesses how many of them must not reach it.
	maxWitnesses    = 3
	enoughWitnesses = 2
	// probeEvery is the time from one probe of a member to the next: longer than one takes, with what is on the way.
	probeEvery = 3 * time.Second
	// probePatience is how long the one who is asked waits for an answer.
	probePatience = time.Second
	// provesFor is how long what a probe has found counts.
	provesFor = 3 * probeEvery
	// MaxProbes is how many members one peer is asked about at a time. It is a rule of the protocol.
	MaxProbes = 8
	// maxBegun is how many probes begin at a time.
	maxBegun = 64
)

// Probe asks a member whether it can reach another one.
type Probe struct {
	Number uint64
	Peer   holder
}

// Probed is what a member says of a probe.
type Probed struct {
	Number uint64
	// Reached is true when it can, Refused when nobody is at the other's port: its machine has said so, or a firewall in its name.
	Reached, Refused bool
}

// finding is what is known of a member from its peers.
type finding int

const (
	notKnown finding = iota
	reached
	unreachable
)

// probe is what peers were asked about a member, and what they have said.
type probe struct {
	number uint64
	asked  time.Time
	// peers were asked; firm is true when there are enough of them on other nodes than the member's, and nodes is on how
	// many such nodes they are.
	peers []string
	firm  bool
	nodes int
	// yes can reach it, no cannot, of whom refused were told by its machine that nobody is at its port.
	yes, no, refused []string
	// found is what came of the newest probe that came to something, by whom, when that was asked, and whether it
	// was firm.
	found     finding
	by        []string
	foundAt   time.Time
	foundFirm bool
}

// known is what is known now of a member that has given no sign since then.
func (p *probe) known(now, sign time.Time) finding {
	if p.foundAt.Before(sign) || now.Sub(p.foundAt) > provesFor {
		return notKnown
	}
	return p.found
}

// vacant says whether enough peers have found nobody at the member's port, and none the member, when they were asked since
// its session ended. Those who have yet to answer have as long as that may take, unless they are away themselves. Where peers
// are asked on more than one other node, what one of these nodes says is not enough.
func (m *Machine) vacant(now time.Time, mem *member) bool {
	p := &mem.probe
	awaits := now.Sub(p.asked) < probePatience && slices.ContainsFunc(p.peers, func(uid string) bool {
		peer := m.members[uid]
		return peer != nil && peer.connected && !slices.Contains(p.yes, uid) && !slices.Contains(p.no, uid)
	})
	return !awaits && !p.asked.Before(mem.hungUp) && len(p.yes) == 0 && len(p.refused) >= enoughWitnesses &&
		m.nodesApart(mem, p.refused) >= min(p.nodes, enoughWitnesses)
}

// nodesApart is on how many nodes, other than the member's, some of its peers are.
func (m *Machine) nodesApart(mem *member, peers []string) int {
	nodes := map[string]bool{}
	for _, uid := range peers {
		if peer := m.members[uid]; peer != nil && peer.want.Node != "" && peer.want.Node != mem.want.Node {
			nodes[peer.want.Node] = true
		}
	}
	return len(nodes)
}

// hear takes what a peer says. It returns false when that is nothing new.
func (p *probe) hear(uid string, said Probed) bool {
	if !slices.Contains(p.peers, uid) || slices.Contains(p.yes, uid) || slices.Contains(p.no, uid) {
		return false
	}
	switch {
	case said.Reached:
		p.yes = append(p.yes, uid)
	case said.Refused:
		p.no, p.refused = append(p.no, uid), append(p.refused, uid)
	default:
		p.no = append(p.no, uid)
	}
	needed := len(p.peers)
	if p.firm {
		needed = enoughWitnesses
	}
	switch {
	case len(p.no) >= needed:
		p.found, p.by = unreachable, p.no
	case len(p.yes) > 0:
		p.found, p.by = reached, p.yes
	default:
		return true
	}
	p.foundAt, p.foundFirm = p.asked, p.firm
	return true
}

// probeSilent has peers asked about members that say nothing, before these are missed: what they find is known
// then.
func (m *Machine) probeSilent(now time.Time) {
	begun := 0
	var aside []*member
	for i := range m.gang.Members {
		mem := m.members[m.gang.Members[i].UID]
		switch {
		case !m.isProbed(now, mem):
			m.endProbe(mem)
		case now.Sub(mem.probe.asked) < probeEvery:
		case mem.isAside():
			aside = append(aside, mem)
		case begun < maxBegun:
			m.beginProbe(now, mem)
			begun++
		}
	}
	m.probeAside(now, aside, maxBegun-begun)
}

// probeAside has peers asked about members that were set aside, of whom there may be thousands: those first whose turn was longest
// ago. They leave half of what can be asked to others.
func (m *Machine) probeAside(now time.Time, aside []*member, room int) {
	slices.SortStableFunc(aside, func(a, b *member) int { return a.probe.asked.Compare(b.probe.asked) })
	for _, mem := range aside {
		m.endTasks(mem) // there was time to answer
	}
	for _, mem := range aside[:min(len(aside), room, maxBegun/2)] {
		before := mem.probe.asked
		if m.beginProbe(now, mem); len(mem.probe.peers) == 0 {
			mem.probe.asked = before
			return // nobody has room for more
		}
	}
}

// isProbed says whether peers should be asked about a member.
func (m *Machine) isProbed(now time.Time, mem *member) bool {
	switch {
	case m.world == nil:
		return false
	case mem.isAside():
		return mem.connected && mem.serves.Port > 0 && !m.world.finishing
	case !m.mayBeProbed(mem):
		return false
	}
	askedWhenAway := m.isAskedAbout(mem) && !mem.probe.asked.Before(mem.hungUp)
	return askedWhenAway || m.quiet(now, mem) > m.quietLimit() && m.hears(now)
}

// mayBeProbed says whether peers can be asked about a member, and their answer can matter.
func (m *Machine) mayBeProbed(mem *member) bool {
	return mem.joined && mem.serves.Port > 0 && !m.world.finishing && m.world.ranks.rank(mem.want.UID) >= 0 && !m.isLost(mem)
}

// quietLimit is how long a member is quiet before its peers are asked. Half of the heartbeat timeout leaves the time
// for an answer; an agent that misses one beat is in no trouble.
func (m *Machine) quietLimit() time.Duration {
	return min(max(m.gang.HeartbeatTimeout/2, 2*m.Beat()), m.gang.HeartbeatTimeout)
}

// beginProbe asks some peers about a member, others than the last time if there are more.
func (m *Machine) beginProbe(now time.Time, mem *member) {
	next := mem.probe
	m.endProbe(mem)
	next.number, next.asked, next.yes, next.no, next.refused = m.probes+1, now, nil, nil, nil
	if next.peers, next.firm = m.witnesses(now, mem); len(next.peers) > 0 {
		m.probes = next.number
	}
	next.nodes = m.nodesApart(mem, next.peers)
	for _, uid := range next.peers {
		m.members[uid].tasks = append(m.members[uid].tasks, mem.want.UID)
	}
	mem.probe = next
	m.out.Tell = append(m.out.Tell, next.peers...)
}

// heardAgain ends what peers are asked about a member that has said something. Who is set aside says things all the time.
func (m *Machine) heardAgain(mem *member) {
	if !mem.isAside() {
		m.endProbe(mem)
	}
}

// endProbe ends what peers are asked about a member.
func (m *Machine) endProbe(mem *member) {
	m.endTasks(mem)
	mem.probe = probe{}
}

func (m *Machine) endTasks(mem *member) {
	for _, uid := range mem.probe.peers {
		if peer := m.members[uid]; peer != nil {
			peer.tasks = slices.DeleteFunc(peer.tasks, func(task string) bool { return task == mem.want.UID })
		}
	}
}

// witnesses are the peers that are asked about a member, and says whether they are enough on other nodes: one of
// each node, then more of them. If there are not enough there, or nobody knows who is where, it is all that there
// are, up to the number that is asked.
func (m *Machine) witnesses(now time.Time, mem *member) (peers []string, firm bool) {
	var apart, more, near []string
	nodes := map[string]bool{"": true, mem.want.Node: true}
	uids := m.world.ranks.uids
	most := MaxProbes
	if mem.isAside() {
		most /= 2
	}
	start := int(max(m.world.ranks.rank(mem.want.UID), 0)) + int(m.probes%uint64(len(uids)))
	for i := range uids {
		uid := uids[(start+i)%len(uids)]
		peer := m.members[uid]
		if peer == nil || peer == mem || len(peer.tasks) >= most || !m.isWitness(now, peer) {
			continue
		}
		switch node := peer.want.Node; {
		case !nodes[node]:
			nodes[node] = true
			apart = append(apart, uid)
		case mem.want.Node != "" && node != "" && node != mem.want.Node:
			more = append(more, uid)
		case len(near) < maxWitnesses:
			near = append(near, uid)
		}
		if len(apart) == maxWitnesses || len(more) == MaxProbes*maxWitnesses {
			break
		}
	}
	if mem.want.Node == "" {
		apart, more, near = nil, nil, slices.Concat(apart, more, near)
	}
	apart = slices.Concat(apart, more)
	firm = len(apart) >= enoughWitnesses
	if !firm {
		apart = append(apart, near...)
	}
	return apart[:min(len(apart), maxWitnesses)], firm
}

// isWitness says whether a member can be asked about another one.
func (m *Machine) isWitness(now time.Time, mem *member) bool {
	return mem.connected && mem.in(&m.world.record) && mem.usable() && !m.isLost(mem) && !mem.isAside() &&
		now.Sub(mem.lastSeen) <= m.quietLimit()
}

// hearProbes takes what a member says of the probes that it was asked for.
func (m *Machine) hearProbes(uid string, mem *member) {
	if mem.report.Term != m.term {
		return // of an older leader's probes, whose numbers are others
	}
	for _, said := range mem.report.Probed {
		for _, task := range mem.tasks {
			if target := m.members[task]; target != nil && target.probe.number == said.Number && target.probe.hear(uid, said) {
				m.look = true
			}
		}
	}
}

// probesFor are those that a member is asked for.
func (m *Machine) probesFor(mem *member) []Probe {
	var all []Probe
	for _, task := range mem.tasks {
		if target := m.members[task]; target != nil && target.probe.number > 0 {
			all = append(all, Probe{target.probe.number, holder{target.endpoint.Address, target.serves}})
		}
	}
	return all
}
