package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/agent/session"
)

// stepTime is how long a step of a job takes: short enough that each has made some when something happens to it,
// and long beside what is measured.
const stepTime = 2 * time.Second

// Agents is the process of all agents: each has the session that ships, and an address of its own.
type Agents struct {
	config  agentsConfig
	members []*member
	// flooder is the first of them, when it is one; nil otherwise.
	flooder *flooder
	// beside are the members of the small job.
	beside []*member

	mu    sync.Mutex
	paces map[int]*pace
	// lost counts the streams that have ended, by cause.
	lost map[string]int
}

// agentsConfig is what the process is started with.
type agentsConfig struct {
	Address, CA, Tokens string
	Jobs, Members, Rate int
	// Flood says whether the first member is one that can report as fast as its connection takes it.
	Flood bool
	// Beside is how many members one more job has, which is small; 0 for none.
	Beside int
}

// pace is how far the world of a job is. Its members make each step together.
type pace struct {
	round, from uint64
	since       time.Time
	held        bool
	at          uint64
}

// step is the last step that the members of a world have done.
func (a *Agents) step(job int, round uint64) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.paces[job]
	switch {
	case p == nil || p.round != round:
		return 0
	case p.held:
		return p.at
	}
	return p.from + uint64(time.Since(p.since)/stepTime)
}

// begin has a world begin to train once its first member has heard of it.
func (a *Agents) begin(job int, round, from uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.paces[job]; p == nil || p.round < round {
		a.paces[job] = &pace{round: round, from: from, since: time.Now()}
	}
}

// hold stops a world: the first member that stands keeps the others from a further step.
func (a *Agents) hold(job int, round, step uint64) uint64 {
	now := a.step(job, round)
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.paces[job]
	p.held, p.at = true, max(now, step)
	return p.at
}

// serveAgents is the agents' process.
func serveAgents() error {
	config, err := configured[agentsConfig]()
	if err != nil {
		return err
	}
	return answer("Agents", &Agents{config: config, paces: map[int]*pace{}, lost: map[string]int{}})
}

// Start starts the agents, a few at a time. They live as long as the process.
func (a *Agents) Start(None, *None) error {
	for job := range a.config.Jobs {
		for i := range a.config.Members {
			address := source(job*a.config.Members + i)
			dialer, err := session.NewDialer(a.config.Address, filepath.Join(a.config.Tokens, podName(job, i)), a.config.CA)
			if err != nil {
				return err
			}
			m := &member{job: job, index: i, address: address.String(), fleet: a}
			if a.config.Flood && len(a.members) == 0 {
				a.members = append(a.members, m)
				if err := a.startFlooder(m, address.AsSlice()); err != nil {
					return err
				}
				continue
			}
			one := session.New(dialer.From(address), m, session.DefaultTiming())
			m.tell = one.Tell
			a.members = append(a.members, m)
			go one.Run(context.Background())
			time.Sleep(time.Second / time.Duration(a.config.Rate))
		}
	}
	return nil
}

// source is the address of an agent.
func source(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + i/62500), byte(i / 250 % 250), byte(1 + i%250)})
}

// Times are how long something took each member.
type Times struct{ Took, Armed []time.Duration }

// Ranked waits until all members are in a world, and says how long after the last hello of its job each one was.
func (a *Agents) Ranked(_ None, times *Times) error {
	if err := a.await("to be in a world", func(m *member) bool { return m.round > 0 }); err != nil {
		return err
	}
	*times = a.since(func(m *member) time.Time { return m.helloAt }, func(m *member) bool { return true })
	return nil
}

// Changed waits until all members but the last so many of each job are in a second world, and says how long that was
// after the last one has parked; Armed is how long after the first one had heard of the barrier.
func (a *Agents) Changed(leaving int, times *Times) error {
	stays := func(m *member) bool { return m.index < a.config.Members-leaving }
	if err := a.await("to be in the next world", func(m *member) bool { return m.round > 1 || !stays(m) }); err != nil {
		return err
	}
	*times = a.since(func(m *member) time.Time { return m.parkedAt }, stays)
	first := map[int]time.Time{}
	for _, m := range a.members {
		if at, ok := first[m.job]; !ok || m.armedAt.Before(at) {
			first[m.job] = m.armedAt
		}
	}
	for _, m := range a.members {
		if stays(m) {
			times.Armed = append(times.Armed, m.rankedAt.Sub(first[m.job]))
		}
	}
	return nil
}

// since is how long after the last of a job's moments its members were told of their places.
func (a *Agents) since(moment func(*member) time.Time, counts func(*member) bool) (times Times) {
	last := map[int]time.Time{}
	for _, m := range a.members {
		m.mu.Lock()
		if at := moment(m); at.After(last[m.job]) {
			last[m.job] = at
		}
		m.mu.Unlock()
	}
	for _, m := range a.members {
		if counts(m) {
			m.mu.Lock()
			times.Took = append(times.Took, m.rankedAt.Sub(last[m.job]))
			m.mu.Unlock()
		}
	}
	return times
}

// Adopted is how many streams of agents had ended, by cause, and when each agent obeyed the successor.
type Adopted struct {
	Lost map[string]int
	At   []time.Time
}

// Adopted waits until all members obey a term above this one.
func (a *Agents) Adopted(term uint64, adopted *Adopted) error {
	if err := a.await("to be adopted", func(m *member) bool { return m.term > term }); err != nil {
		return err
	}
	for _, m := range a.members {
		m.mu.Lock()
		adopted.At = append(adopted.At, m.termAt)
		m.mu.Unlock()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	adopted.Lost = maps.Clone(a.lost)
	return nil
}

// Count is a number of things.
type Count struct{ N int64 }

// Reports counts what all agents have reported.
func (a *Agents) Reports(_ None, count *Count) error {
	for _, m := range a.members {
		m.mu.Lock()
		count.N += m.reports
		m.mu.Unlock()
	}
	return nil
}

// Term is the highest term that any agent has obeyed.
func (a *Agents) Term(_ None, term *uint64) error {
	for _, m := range a.members {
		m.mu.Lock()
		*term = max(*term, m.term)
		m.mu.Unlock()
	}
	return nil
}

// ForgetLosses has the streams counted anew that end.
func (a *Agents) ForgetLosses(None, *None) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.lost)
	return nil
}

// addresses are what the causes of agents differ by.
var addresses = regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+:[0-9]+`)

// loses counts a stream that has ended.
func (a *Agents) loses(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost[addresses.ReplaceAllString(why.Error(), "ADDRESS")]++
}

// Usage is what the process has used.
func (a *Agents) Usage(_ None, usage *Usage) (err error) {
	*usage, err = used()
	return err
}

// await waits for all members. Its error says why one of those that it waits for has lost its last stream, if any has.
func (a *Agents) await(what string, done func(*member) bool) error {
	deadline := time.Now().Add(patience)
	for {
		missing, first := 0, ""
		var why error
		for _, m := range a.members {
			m.mu.Lock()
			if !done(m) {
				missing++
				why = cmp.Or(why, m.why)
				first = cmp.Or(first, fmt.Sprintf("%s, in round %d of term %d", podName(m.job, m.index), m.round, m.term))
			}
			m.mu.Unlock()
		}
		switch {
		case missing == 0:
			return nil
		case time.Now().After(deadline):
			if why == nil {
				why = errors.New("no stream has ended")
			}
			return fmt.Errorf("%d of %d agents wait %s for %s, %s first: %w", missing, len(a.members), what, patience, first, why)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
