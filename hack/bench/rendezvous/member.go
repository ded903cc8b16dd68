package rendezvous

import (
	"context"
	"sync"
	"time"

	"github.com/concertina-dev/concertina/internal/agent"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// member is one agent, whose program makes steps with the others of its job. It is the owner of a session.
type member struct {
	job, index int
	address    string
	fleet      *Agents
	tell       func()

	mu sync.Mutex
	// term, hold, round, digest and rank are what it was told, done and stop its steps, attempt its barrier.
	term, hold uint64
	round      uint64
	digest     string
	rank       uint32
	done, stop uint64
	attempt    uint64
	parked     bool
	helloAt    time.Time
	rankedAt   time.Time
	armedAt    time.Time
	parkedAt   time.Time
	termAt     time.Time
	reports    int64
	// asking says whether it counts how long its answers take, asked is when the report was sent that was answered last.
	asking bool
	asked  time.Time
	took   []time.Duration
	// why is why its last stream has ended.
	why error
}

// State implements session.Owner.
func (m *member) State() *rendezvousv1.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reports++
	one := &rendezvousv1.Process{Elastic: true, Waiting: rendezvousv1.Waiting_WAITING_JOIN}
	if m.round > 0 {
		one.Phase, one.Waiting = rendezvousv1.Phase_PHASE_STEP, rendezvousv1.Waiting_WAITING_UNSPECIFIED
		if !m.parked {
			m.done = max(m.done, m.fleet.step(m.job, m.round))
		}
		one.Entered, one.Done, one.BarrierAttempt, one.Stop = m.done+1, m.done, m.attempt, m.stop
		if m.parked {
			one.Waiting = rendezvousv1.Waiting_WAITING_PARKED
		}
	}
	return &rendezvousv1.Report{
		Term: m.term, Hold: m.hold, Round: m.round, MembersDigest: m.digest, WorkerRank: m.rank, Standby: m.round == 0,
		Processes: []*rendezvousv1.Process{one},
	}
}

// Hello implements session.Owner.
func (m *member) Hello() *rendezvousv1.Hello {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Who comes again with a place is not one that others have waited for.
	if m.round == 0 {
		m.helloAt = time.Now()
	}
	return &rendezvousv1.Hello{
		Protocol: agent.Protocol, Namespace: namespace, Job: jobName(m.job), Attempt: 1,
		PodName: podName(m.job, m.index), PodUid: podName(m.job, m.index), Address: m.address, MasterPort: 2000,
	}
}

// Hear implements session.Owner.
func (m *member) Hear(_ context.Context, d *rendezvousv1.Directive, sent time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking && sent.After(m.asked) {
		m.took = append(m.took, time.Since(sent))
	}
	m.asked = sent
	if d.GetTerm() < m.term || d.GetRound() != 0 && d.GetRound() < m.round {
		return false
	}
	moved := d.GetTerm() > m.term
	if moved {
		m.term, m.termAt, m.hold = d.GetTerm(), time.Now(), 0
	}
	m.hold = max(m.hold, d.GetHold())
	if world := d.GetWorld(); d.GetRound() > m.round {
		m.round, m.digest, m.rank, m.rankedAt, moved = d.GetRound(), world.GetMembersDigest(), world.GetWorkerRank(), time.Now(), true
		m.done, m.attempt, m.stop, m.parked = world.GetFromStep(), 0, 0, false
		m.fleet.begin(m.job, m.round, m.done)
	}
	if barrier := d.GetBarrier(); barrier.GetAttempt() > m.attempt {
		if m.attempt == 0 {
			m.armedAt = time.Now()
		}
		m.attempt, moved = barrier.GetAttempt(), true
		m.done = m.fleet.hold(m.job, m.round, max(barrier.GetStep(), m.done))
		m.stop, m.parked, m.parkedAt = m.done, true, time.Now()
	}
	if moved {
		m.tell()
	}
	return true
}

// answers begins or ends to count how long answers take, and returns what was counted.
func (m *member) answers(count bool) (took []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	took, m.took, m.asking = m.took, nil, count
	return took
}

// Gone implements session.Owner.
func (m *member) Gone(context.Context) {}

// Found implements session.Owner.
func (m *member) Found() {}

// Lost implements session.Owner.
func (m *member) Lost(why error) {
	m.fleet.loses(why)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.why = why
}
