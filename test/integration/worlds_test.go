package integration

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// worlds plays the rendezvous. A real one forms a world only with agents, which need kubelets; here
// a test says what agents would have reported. It keeps the contract of rendezvous.Coordinator:
// lower attempts are ignored, what was forgotten is unknown, and a world is recorded before it trains.
type worlds struct {
	journal *journal
	changed chan rendezvous.JobKey

	// told is asked to look when a gang is expected; nil for nobody.
	told func(job rendezvous.JobKey, gang rendezvous.Gang)

	mu    sync.Mutex
	gangs map[rendezvous.JobKey]rendezvous.Gang
	seen  map[rendezvous.JobKey]rendezvous.Observation
	// agents is what agents have told a leader that is gone, and will tell the next.
	agents map[rendezvous.JobKey]rendezvous.Observation
}

var _ rendezvous.Coordinator = (*worlds)(nil)

func newWorlds(journal *journal, before *operator) *worlds {
	w := &worlds{
		journal: journal,
		changed: make(chan rendezvous.JobKey, 16),
		gangs:   map[rendezvous.JobKey]rendezvous.Gang{},
		seen:    map[rendezvous.JobKey]rendezvous.Observation{},
	}
	if before != nil {
		before.worlds.mu.Lock()
		defer before.worlds.mu.Unlock()
		w.agents = maps.Clone(before.worlds.seen)
	}
	return w
}

// Expect implements rendezvous.Coordinator.
func (w *worlds) Expect(job rendezvous.JobKey, gang rendezvous.Gang) {
	if w.journal.isKilled() {
		return
	}
	if w.told != nil {
		w.told(job, gang)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	old, known := w.gangs[job]
	if known && (gang.Attempt < old.Attempt || reflect.DeepEqual(old.Members, gang.Members)) {
		return
	}
	w.gangs[job] = gang
	seen := rendezvous.Observation{}
	if known && gang.Attempt == old.Attempt {
		seen = w.seen[job]
	} else if told := w.agents[job]; !known && told.Known && told.Attempt == gang.Attempt {
		seen = told
		defer func() { w.changed <- job }()
	}
	members := map[string]rendezvous.MemberObservation{}
	var names []string
	for _, member := range gang.Members {
		before, there := seen.Members[member.UID]
		if !there {
			before = rendezvous.MemberObservation{WorkerRank: -1}
		}
		members[member.UID] = before
		text := member.Name + "@" + member.Node
		if member.Leaving != "" {
			text += " (leaves: " + string(member.Leaving) + ")"
		}
		names = append(names, text)
	}
	seen.Known, seen.Attempt, seen.Members = true, gang.Attempt, members
	w.seen[job] = seen
	w.journal.add("expect attempt %d: %s", gang.Attempt, strings.Join(names, " "))
}

// Release implements rendezvous.Coordinator.
func (w *worlds) Release(job rendezvous.JobKey, _ string) { w.journal.add("release %s", job.Name) }

// Forget implements rendezvous.Coordinator.
func (w *worlds) Forget(job rendezvous.JobKey, _ string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gangs, job)
	delete(w.seen, job)
	w.journal.add("forget %s", job.Name)
}

// Observe implements rendezvous.Coordinator.
func (w *worlds) Observe(job rendezvous.JobKey) rendezvous.Observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen[job]
	seen.Members = maps.Clone(seen.Members)
	return seen
}

// Changed implements rendezvous.Coordinator.
func (w *worlds) Changed() <-chan rendezvous.JobKey { return w.changed }

// report changes what is seen of a job and tells the controller.
func (w *worlds) report(job rendezvous.JobKey, change func(*rendezvous.Observation)) error {
	w.mu.Lock()
	seen, known := w.seen[job]
	if known {
		seen.Members = maps.Clone(seen.Members)
		change(&seen)
		w.seen[job] = seen
	}
	w.mu.Unlock()
	if !known {
		return fmt.Errorf("no gang of job %s is expected", job)
	}
	w.changed <- job
	return nil
}

// record makes a world durable, as the rendezvous does before anybody joins it.
func (w *worlds) record(job rendezvous.JobKey, round uint64, members []rendezvous.NamedMember) error {
	ctx := context.Background()
	var object v1alpha1.TrainingJob
	if err := cluster.Get(ctx, client.ObjectKey(job), &object); err != nil {
		return err
	}
	w.mu.Lock()
	attempt := w.gangs[job].Attempt
	w.mu.Unlock()
	before := record.FromStatus(&object)
	workers := int32(len(members))
	next := rendezvous.Record{
		Term: max(before.Term, 1), Round: round, Attempt: attempt, Workers: workers, Processes: workers, StartedAt: time.Now(),
	}
	next.Name(members)
	_, err := record.Status{Live: cluster, Writer: cluster.Status()}.Record(ctx, job, before, next)
	return err
}

// form has all expected members join one world, with ranks in the order of their ordinals.
func (w *worlds) form(job rendezvous.JobKey, round uint64) error {
	w.mu.Lock()
	gang, known := w.gangs[job]
	w.mu.Unlock()
	if !known {
		return fmt.Errorf("no gang of job %s is expected", job)
	}
	var members []rendezvous.NamedMember
	for _, member := range gang.Members {
		members = append(members, rendezvous.NamedMember{Ordinal: member.Ordinal, Node: member.Node})
	}
	if err := w.record(job, round, members); err != nil {
		return err
	}
	return w.report(job, func(seen *rendezvous.Observation) {
		seen.Round = round
		for _, member := range w.gangs[job].Members {
			seen.Members[member.UID] = rendezvous.MemberObservation{
				Joined: true, Connected: true, InWorld: true, WorkerRank: member.Ordinal - w.gangs[job].Members[0].Ordinal, LastSeen: time.Now(),
			}
		}
	})
}

// member changes what is seen of one pod.
func (w *worlds) member(job rendezvous.JobKey, pod *corev1.Pod, change func(*rendezvous.MemberObservation)) error {
	return w.report(job, func(seen *rendezvous.Observation) {
		member := seen.Members[string(pod.UID)]
		change(&member)
		seen.Members[string(pod.UID)] = member
	})
}
