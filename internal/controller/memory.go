package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// memories holds the Memory of every job.
type memories struct {
	mu   sync.Mutex
	jobs map[types.UID]Memory
}

func (m *memories) of(uid types.UID) Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.jobs[uid]
}

func (m *memories) update(uid types.UID, change func(*Memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.jobs == nil {
		m.jobs = map[types.UID]Memory{}
	}
	memory := m.jobs[uid]
	change(&memory)
	m.jobs[uid] = memory
}

func (m *memories) drop(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, uid)
}

const (
	// The pause after a refused batch doubles from firstRefusal to lastRefusal; a change of a quota
	// or limit ends it.
	firstRefusal = 10 * time.Second
	lastRefusal  = 5 * time.Minute
)

// remember keeps what a plan wants to be kept. What was used up of the reservation while the plan was
// carried out, and why growth was refused then, is known better here.
func (m *Memory) remember(plan *Plan) {
	used := m.Elastic
	m.Elastic = plan.Elastic
	if plan.Decided || used.Attempt != plan.Elastic.Attempt {
		return
	}
	if len(used.Reserved) < len(plan.Elastic.Reserved) {
		m.Elastic.Reserved = used.Reserved
	}
	if used.Growth.Until.After(plan.Elastic.Growth.Until) {
		m.Elastic.Growth = used.Growth
	}
}

// reported remembers what status.progress was written with.
func (m *Memory) reported(state *State) {
	seen := &state.World.Progress
	m.ReportedAt, m.ReportedRound = state.Now, state.World.Round
	m.ReportedSamples, m.ReportedStep = seen.Samples, seen.Step
}

// refused remembers one more refusal.
func (m *Memory) refused(now time.Time, attempt int32, reason, message string) {
	count := 1
	if m.Refusal != nil {
		count = m.Refusal.Count + 1
	}
	pause := firstRefusal
	for i := 1; i < count && pause < lastRefusal; i++ {
		pause *= 2
	}
	m.Refusal = &Refusal{Reason: reason, Message: message, Attempt: attempt, Retry: now.Add(min(pause, lastRefusal)), Count: count}
}
