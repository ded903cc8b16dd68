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
	left := s.left(ctx)
	Expect(run.CheckLeft(left)).To(Succeed(), "%+v", left)
}

// left is what was left for every world that the job has had but the first.
func (s *survivor) left(ctx context.Context) []ledger.Left {
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
	planned := s.planned(ctx)
	var all []ledger.Left
	members := map[int64][]string{}
	worlds := map[int64]*v1alpha1.WorldStatus{}
	var before *v1alpha1.TrainingJob
	for _, written := range writes {
		world := written.Status.World
		if world != nil && ptr.Deref(world.Round, 0) > 0 && members[*world.Round] == nil {
			members[*world.Round], worlds[*world.Round] = membersIn(written), world
			if before != nil && before.Status.World != nil && ptr.Deref(before.Status.World.Round, 0) > 0 {
				left := s.leftFor(written, before, worlds, members, nodes)
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

// planned are the rounds of worlds that took the place of another one at a barrier, as far as operators lived to tell of them.
func (s *survivor) planned(ctx context.Context) map[int64]bool {
	GinkgoHelper()
	rounds := map[int64]bool{}
	for _, note := range s.events(ctx, v1alpha1.EventResized)() {
		var round int64
		_, err := fmt.Sscanf(note, "round %d:", &round)
		Expect(err).NotTo(HaveOccurred(), note)
		rounds[round] = true
	}
	return rounds
}

// leftFor is what was left for a new world, by the job as it was before it.
func (s *survivor) leftFor(
	written, before *v1alpha1.TrainingJob, worlds map[int64]*v1alpha1.WorldStatus, members map[int64][]string, nodes map[string]string,
) ledger.Left {
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
	left.Survivors = map[string]uint64{}
	for _, name := range members[*world.Parent] {
		if slices.Contains(members[*world.Round], name) {
			left.Survivors[name] = s.restarted[name]
		}
	}
	memory := before.Status.Checkpoint.Memory
	step := ptr.Deref(memory.Step, 0)
	if lost := lostSince(step, world, worlds, members, nodes); lost < int(ptr.Deref(memory.Copies, 0)) {
		left.Safe = uint64(step)
	}
	return left
}

// lostSince is of how many nodes members have gone that may have held the snapshot of a step: those of the worlds since that in which
// the step was made.
func lostSince(step int64, world *v1alpha1.WorldStatus, worlds map[int64]*v1alpha1.WorldStatus, members map[int64][]string, nodes map[string]string) int {
	lost := map[string]bool{}
	for parent := worlds[*world.Parent]; parent != nil; parent = worlds[*parent.Parent] {
		for _, name := range members[*parent.Round] {
			if !slices.Contains(members[*world.Round], name) {
				lost[nodes[name]] = true
			}
		}
		if *parent.FromStep < step {
			break
		}
	}
	return len(lost)
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
