package rendezvous

import (
	"time"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// Snapshots go from agent to agent. The operator gives each agent that serves some a key of its own, and each
// that is to fetch one a ticket for every holder, made with the key of that holder. So whoever is not to have a
// snapshot any more, as a member that was lost, is given no ticket, and nobody else has to be told. Keys and
// tickets belong to a term; holders honour those of earlier terms for as long as a ticket can live.

// renewTickets is how long tickets stay the same. They live that much less than they may at the least.
const renewTickets = time.Hour

// keyOf is the key for the snapshots that a member serves; nil for one that serves none.
func (m *Machine) keyOf(mem *member) []byte {
	if mem.serves.Port == 0 {
		return nil
	}
	return m.issuer(mem.serves.Certificate).Key()
}

// issuer makes the tickets for a holder in this term. Every directive has a key, and a member that loads a snapshot needs tickets
// for each of its parts, so they are made once.
func (m *Machine) issuer(certificate [32]byte) *ticket.Issuer {
	one := m.issuers[certificate]
	if one == nil {
		if len(m.issuers) >= 2*MaxWorkers {
			clear(m.issuers) // of agents that are gone, for the most part
		}
		one = ticket.NewIssuer(ticket.KeyOf(m.secret, certificate))
		m.issuers[certificate] = one
	}
	return one
}

// suppliers are holders, with tickets with which a member gets the parts of a snapshot from them.
func (m *Machine) suppliers(uid string, s Snapshot, parts []Snapshot, holders []holding) []Supplier {
	var sources []source
	for i := range holders {
		sources = append(sources, source{holders[i].holder, holders[i].has(parts)})
	}
	return m.supply(uid, s, sources)
}

// supply gives a member the tickets with which it gets a snapshot from some. A member that was lost gets none.
func (m *Machine) supply(uid string, s Snapshot, sources []source) []Supplier {
	mem := m.members[uid]
	admitted := mem.serves.Port > 0 && !m.isLost(mem)
	grant := ticket.Grant{Fetcher: mem.serves.Certificate, Round: s.Round, Step: s.Step}
	expires := m.heardAt.Truncate(renewTickets).Add(ticket.Life)
	all := make([]Supplier, 0, len(sources))
	for i := range sources {
		one := Supplier{holder: sources[i].holder, Parts: sources[i].parts}
		if admitted {
			one.Ticket = m.issuer(one.Certificate).Issue(m.term, grant, expires)
		}
		all = append(all, one)
	}
	return all
}

// withdraw takes the tickets out of what a member is told of a world that goes on without it.
func withdraw(p *Place) {
	if p == nil {
		return
	}
	for i := range p.Holders {
		p.Holders[i].Ticket = nil
	}
	for i := range p.Peers {
		p.Peers[i].Ticket = nil
	}
}
