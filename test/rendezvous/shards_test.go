package rendezvous

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// newSharded is a job whose programs have their state in shards.
func newSharded(t *testing.T, workers int) *sharing {
	t.Helper()
	s := newSharing(t, "", workers)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.command, s.extra = []string{program}, []string{shardsVariable + "=yes"}
	return s
}

// startMore starts workers until there are so many of this attempt.
func (s *sharing) startMore(workers int) {
	s.t.Helper()
	for range workers {
		s.start()
	}
	s.expect()
}

// holdings are the parts that each worker holds.
func (s *sharing) holdings() (all [][]string) {
	for _, w := range s.workers {
		parts, _ := w.held(s.t)
		all = append(all, parts)
	}
	return all
}

// isSafe says whether a state is held on two nodes, with all of its parts.
func (s *sharing) isSafe(beyond uint64) bool {
	memory := s.leader.Observe(s.team.key).Memory
	return memory.Copies >= 2 && memory.Step > beyond
}

// Real agents, and programs that check their state whenever a world begins: four workers become three as planned, and these six;
// then one of them is killed, and the others have its shard.
func TestStateInShardsIsResized(t *testing.T) {
	s := newSharded(t, 7)
	s.startMore(4)
	_, step := s.trains(4)
	s.workers[1].leaving = true
	s.expect()
	round, after := s.trains(3)
	if round != 2 || after < step {
		t.Errorf("the change to 3 workers was to lose nothing: it is at step %d of round %d, and was at %d", after, round, step)
	}
	s.startMore(3)
	round, grown := s.trains(6)
	if grown < after {
		t.Errorf("growth was to lose nothing: round %d is at step %d, and was at %d", round, grown, after)
	}
	t.Cleanup(func() {
		if t.Failed() {
			seen := s.leader.Observe(s.team.key)
			t.Logf("round %d, %s, step %d, in memory %+v; held: %v", seen.Round, seen.Phase, seen.Progress.Step, seen.Memory, s.holdings())
		}
	})
	eventually(t, "all shards have a copy", func() bool { return s.isSafe(grown) })
	safe := s.leader.Observe(s.team.key).Memory.Step
	s.workers[2].kill()
	s.workers[2].lost = true
	s.expect()
	eventually(t, "the others go on from what was safe", func() bool {
		seen := s.leader.Observe(s.team.key)
		if seen.Fatal != "" {
			t.Fatal(seen.Fatal)
		}
		return seen.Round > round && seen.Phase == rendezvous.PhaseTraining && seen.Progress.Step > safe && !seen.Untold
	})
	for _, w := range s.workers {
		w.kill() // it writes no more then
		if text := w.text(); strings.Contains(text, "after step 0 with") && !strings.Contains(text, "round 1:") {
			t.Errorf("a worker began anew:\n%s", text)
		}
	}
}

// What four ranks have made durable is what any other number of them begins with, to the bit.
func TestStateInShardsOutlivesItsWorkers(t *testing.T) {
	s := newSharded(t, 4+2+3+8)
	s.kept = t.TempDir()
	began := 0
	for _, workers := range []int{4, 2, 3, 8} {
		before := s.leader.Observe(s.team.key).Durable
		s.startMore(workers)
		s.trains(int32(workers))
		if seen := s.leader.Observe(s.team.key); s.attempt > 1 && (!strings.Contains(seen.Restored, "the attempt goes on from step") || seen.Progress.Step < before.Snapshot.Step) {
			t.Errorf("attempt %d of %d workers is at step %d, and %d was durable: %q", s.attempt, workers, seen.Progress.Step, before.Snapshot.Step, seen.Restored)
		}
		var durable rendezvous.Durable
		eventually(t, "a checkpoint in shards is durable", func() bool {
			seen := s.leader.Observe(s.team.key)
			if seen.Storage != "" {
				t.Fatal(seen.Storage)
			}
			durable = seen.Durable
			return durable.Path != "" && durable != before && durable.Snapshot.Step > before.Snapshot.Step
		})
		manifest, err := os.ReadFile(filepath.Join(s.kept, durable.Path, "manifest.json"))
		if err != nil || !strings.Contains(string(manifest), `"version": 3`) {
			t.Errorf("the manifest of a state in shards: %v\n%.200s", err, manifest)
		}
		for _, w := range s.workers[began:] {
			w.kill()
			if parts, _ := w.held(t); s.attempt > 1 && workers > 3 && len(parts) >= 4*workers {
				t.Errorf("a worker has gathered %v", parts)
			}
		}
		began = len(s.workers)
		s.leader.Release(s.team.key, "")
		s.attempt++
	}
}

// A worker is lost before the world that has begun with a checkpoint has made a step: nobody has copies of its shard, and the others go on
// all the same, with what they have and what the storage has.
func TestALossBeforeThereAreCopies(t *testing.T) {
	s := newSharded(t, 3+3)
	s.kept = t.TempDir()
	s.startMore(3)
	s.trains(3)
	eventually(t, "a checkpoint in shards is durable", func() bool { return s.leader.Observe(s.team.key).Durable.Snapshot.Step > 10 })
	for _, w := range s.workers {
		w.kill()
	}
	s.leader.Release(s.team.key, "")
	s.attempt++
	hold := filepath.Join(t.TempDir(), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.extra = append(s.extra, holdVariable+"="+hold)
	s.startMore(3)
	eventually(t, "all have loaded the checkpoint", func() bool {
		return !slices.ContainsFunc(s.workers[3:], func(w *sharer) bool { return !strings.Contains(w.text(), "begins after step") })
	})
	first := s.leader.Observe(s.team.key)
	s.workers[4].kill()
	s.workers[4].lost = true
	s.expect()
	eventually(t, "the others have loaded it again", func() bool {
		seen := s.leader.Observe(s.team.key)
		if seen.Fatal != "" {
			t.Fatal(seen.Fatal)
		}
		return strings.Count(s.workers[3].text(), "begins after step") > 1 && strings.Count(s.workers[5].text(), "begins after step") > 1
	})
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	round, step := s.trains(2)
	seen := s.leader.Observe(s.team.key)
	if round <= first.Round || step <= first.Durable.Snapshot.Step || seen.Attempt != 2 || !strings.Contains(seen.Restored, "hold") {
		t.Errorf("round %d began after step %d, round %d of attempt %d is at %d: %q", first.Round, first.Durable.Snapshot.Step, round, seen.Attempt, step, seen.Restored)
	}
}
