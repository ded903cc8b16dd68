package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/test/e2e/ledger"
)

// ends waits until the job is complete, and judges it: each sample was used once, and no world went back further than it had to.
func (s *survivor) ends(ctx context.Context) {
	GinkgoHelper()
	s.storage.heal()
	s.powerOn(ctx)
	s.completes(ctx, 10*time.Minute)
	changes, err := s.history.Changes()
	Expect(err).NotTo(HaveOccurred())
	expectNamesUsedOnce(changes)
	Expect(ptr.Deref(s.get(ctx).Status.Restarts.Program, 0)).To(BeNumerically("<=", s.blame), "programs are blamed for what was done to them")
	run := s.expectEachSampleOnce(ctx)
	left := s.left()
	Expect(run.CheckLeft(left)).To(Succeed(), "%+v", left)
}

// left is what was left for every world that the job has had but the first.
func (s *survivor) left() []ledger.Left {
	GinkgoHelper()
	writes, err := s.worlds.Writes()
	Expect(err).NotTo(HaveOccurred())
	nodes := map[string]string{}
	changes, err := s.history.Changes()
	Expect(err).NotTo(HaveOccurred())
	for _, change := range changes {
		if change.Pod.Spec.NodeName != "" {
			nodes[change.Pod.Name] = change.Pod.Spec.NodeName
		}
	}
	planned := s.planned(writes)
	var all []ledger.Left
	members := map[int64][]string{}
	var before *v1alpha1.TrainingJob
	for _, written := range writes {
		world := written.Status.World
		if world != nil && ptr.Deref(world.Round, 0) > 0 && members[*world.Round] == nil {
			members[*world.Round] = membersIn(written)
			if before != nil && before.Status.World != nil && ptr.Deref(before.Status.World.Round, 0) > 0 {
				left := s.leftFor(written, before, members, nodes)
				// What a loss takes of a state in shards nobody has live.
				if s.program.sharded && *world.Parent > 0 && !planned[*world.Round] {
					left.Survivors = nil
				}
				all = append(all, left)
			}
		}
		before = written
	}
	return all
}

// recoveries are why worlds end that nobody has stopped at a barrier.
var recoveries = []string{"WorkerLost", "ProgramFailed", "Hung", "Retried", "Unreached"}

// planned are the rounds of worlds that took the place of another one as planned, by the job's history.
func (s *survivor) planned(writes []*v1alpha1.TrainingJob) map[int64]bool {
	rounds := map[int64]bool{}
	for _, written := range writes {
		for _, resize := range written.Status.Resizes {
			rounds[ptr.Deref(resize.Round, 0)] = !slices.Contains(recoveries, resize.Reason)
		}
	}
	return rounds
}

// leftFor is what was left for a new world, by the job as it was before it.
func (s *survivor) leftFor(written, before *v1alpha1.TrainingJob, members map[int64][]string, nodes map[string]string) ledger.Left {
	world := written.Status.World
	left := ledger.Left{
		Round: uint64(*world.Round), FromStep: uint64(*world.FromStep), Parent: uint64(*world.Parent),
		Durable: uint64(ptr.Deref(before.Status.Checkpoint.Step, 0)),
	}
	if *world.Parent == 0 {
		// Who leaves in good order leaves its state in the storage.
		if last := before.Status.World; s.released[*last.Attempt] && *world.Attempt == *last.Attempt+1 {
			left.Parent, left.Survivors = uint64(*last.Round), map[string]uint64{}
			for _, name := range members[*last.Round] {
				left.Survivors[name] = s.restarted[name]
			}
		}
		return left
	}
	lost := map[string]bool{}
	left.Survivors = map[string]uint64{}
	for _, name := range members[*world.Parent] {
		if slices.Contains(members[*world.Round], name) {
			left.Survivors[name] = s.restarted[name]
		} else {
			lost[nodes[name]] = true
		}
	}
	if memory := before.Status.Checkpoint.Memory; len(lost) < int(ptr.Deref(memory.Copies, 0)) {
		left.Safe = uint64(ptr.Deref(memory.Step, 0))
	}
	return left
}

// membersIn are the names of the pods of a job's world.
func membersIn(written *v1alpha1.TrainingJob) []string {
	ranks, attempt := record.Ranks(written)
	names := []string{}
	for ordinal := range ranks {
		names = append(names, fmt.Sprintf("%s-%d-%d", written.Name, attempt, ordinal))
	}
	return names
}
