package controller

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// memories holds the Memory of every job.
type memories struct {
	mu   sync.Mutex
	jobs map[types.UID]Memory
	// uids are the jobs by name: of one that is gone, only that is known.
	uids map[types.NamespacedName]types.UID
	// trains counts the jobs whose world trains.
	trains int
}

// training is how many jobs train.
func (m *memories) training() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trains
}

// drop forgets a job; the caller holds the lock.
func (m *memories) drop(uid types.UID) {
	if m.jobs[uid].Trains {
		m.trains--
	}
	delete(m.jobs, uid)
}

// meet learns which job has a name. What is kept of another that had it before is
// dropped; its uid is returned, empty for none.
func (m *memories) meet(name types.NamespacedName, uid types.UID) (gone types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uids == nil {
		m.uids = map[types.NamespacedName]types.UID{}
	}
	if before := m.uids[name]; before != uid {
		m.drop(before)
		gone = before
	}
	m.uids[name] = uid
	return gone
}

// part drops what is kept of the job that had a name, and returns its uid; empty for none.
func (m *memories) part(name types.NamespacedName) types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	uid := m.uids[name]
	delete(m.uids, name)
	m.drop(uid)
	return uid
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
	trained := memory.Trains
	change(&memory)
	m.jobs[uid] = memory
	switch {
	case memory.Trains && !trained:
		m.trains++
	case trained && !memory.Trains:
		m.trains--
	}
}

// anyRefused says whether the API server has refused a batch of a job in a namespace.
func (m *memories) anyRefused(namespace string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, uid := range m.uids {
		if name.Namespace == namespace && m.jobs[uid].Refusal != nil {
			return true
		}
	}
	return false
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
	m.Elastic, m.NoPlaceSince, m.Crashes = plan.Elastic, plan.NoPlaceSince, plan.Crashes
	m.LateTold = m.LateTold || slices.ContainsFunc(plan.Notes, func(n Note) bool { return n.Reason == v1alpha1.EventLate })
	m.NotAllowedTold = m.NotAllowedTold || slices.ContainsFunc(plan.Notes, func(n Note) bool { return n.Reason == v1alpha1.EventPolicyNotAllowed })
	m.KueueTold = m.KueueTold || slices.ContainsFunc(plan.Notes, func(n Note) bool { return n.Reason == v1alpha1.EventKueueNotAsked })
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

// looked remembers what of a job says whether its gang starts, and what is said of its best checkpoints, once its status says of which
// generation that is.
func (m *Memory) looked(job *v1alpha1.TrainingJob, observed *int64) {
	if value(observed) == job.Generation && m.GangOf != job.Generation {
		m.Gang, m.GangOf, m.Metric = gangKey(job), job.Generation, bestOf(&job.Spec).Metric
	}
}

// gangKey is the same for a job as long as nothing changes of what may keep its gang from starting.
func gangKey(job *v1alpha1.TrainingJob) [sha256.Size]byte {
	spec := &job.Spec
	text, err := json.Marshal([]any{spec.Workers.Template, spec.Workers.Min, spec.Gang})
	if err != nil {
		text = []byte(fmt.Sprint("generation ", job.Generation))
	}
	return sha256.Sum256(text)
}

// reported remembers what status.progress was written with.
func (m *Memory) reported(state *State) {
	seen := &state.World.Progress
	if m.ReportedRound != state.World.Round {
		m.Reports = 0
	}
	m.Reports++
	m.ReportedAt, m.ReportedRound = state.Now, state.World.Round
	m.ReportedSamples, m.ReportedStep = seen.Samples, seen.Step
}

// refused remembers one more refusal. The pause is up to a quarter longer, by the job: two that were refused
// because they tried at once shall not try at once again.
func (m *Memory) refused(now time.Time, uid types.UID, attempt int32, reason, message string) {
	count := 1
	if m.Refusal != nil {
		count = m.Refusal.Count + 1
	}
	pause := firstRefusal
	for i := 1; i < count && pause < lastRefusal; i++ {
		pause *= 2
	}
	pause = min(pause, lastRefusal)
	hash := fnv.New32a()
	_, _ = fmt.Fprintf(hash, "%s %d", uid, count)
	pause += time.Duration(float64(pause) / 4 * float64(hash.Sum32()) / math.MaxUint32)
	m.Refusal = &Refusal{Reason: reason, Message: message, Attempt: attempt, Retry: now.Add(pause), Count: count}
}
