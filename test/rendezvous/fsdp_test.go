//go:build pytorch

package rendezvous

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// slowness bounds what processes take that load PyTorch beside each other.
const slowness = 5 * time.Minute

// told is a line of a program's: a world begins, or a step is done.
type told struct {
	World, Size, Rank int
	// Done is the step after which a world begins, Step the one that is done. State is the same for states with the same bits.
	Done  *uint64
	Step  uint64
	State string
	// Gives is how many ranks of a world that is to begin give others what they have of the state.
	Gives int
}

// inFSDP has a job's programs train the model of the Python tests, which fully_shard() cuts, in the PyTorch root.
func inFSDP(t *testing.T, workers int) *sharing {
	t.Helper()
	s := newSharing(t, "", workers)
	s.kept = t.TempDir()
	s.command, s.extra = inPyTorch(t, "python3", "-m", "tests_torch.sharded", "", "100000")
	return s
}

// reaches waits until the job trains in a world of so many workers.
func (s *sharing) reaches(workers int32) {
	s.t.Helper()
	within(s.t, slowness, "a world trains", func() bool {
		_, _, does := s.training(workers)
		return does
	})
}

// isDurable waits for a checkpoint of a later step than this one.
func (s *sharing) isDurable(beyond uint64) {
	s.t.Helper()
	within(s.t, slowness, "a checkpoint is durable", func() bool {
		seen := s.leader.Observe(s.team.key)
		if seen.Storage != "" {
			s.t.Fatal(seen.Storage)
		}
		return seen.Durable.Snapshot.Step > beyond
	})
}

// killAll kills all workers from one on, and returns what each of them has told.
func (s *sharing) killAll(from int) (all [][]told) {
	s.t.Helper()
	for _, w := range s.workers[from:] {
		w.kill() // it writes no more then
		var lines []told
		for scan := bufio.NewScanner(strings.NewReader(w.text())); scan.Scan(); {
			var line told
			if strings.HasPrefix(scan.Text(), "{") && json.Unmarshal(scan.Bytes(), &line) == nil {
				lines = append(lines, line)
			}
		}
		all = append(all, lines)
	}
	return all
}

// follow checks that all ranks of a world had one state after each step, and that each world begins with one that there was after
// its step: on a slow machine a world may be lost, and steps made again by other ranks, which add up in another order. known has the
// states after steps of before. It returns how many ranks have begun worlds of each size.
func follow(t *testing.T, known map[uint64]map[string]bool, all [][]told) (sizes map[int]int) {
	t.Helper()
	type place struct {
		round int
		step  uint64
	}
	sizes = map[int]int{}
	states := map[place]string{}
	for _, lines := range all {
		round := 0
		for _, line := range lines {
			if line.Done != nil {
				round = line.World
				continue
			}
			if line.Step == 0 {
				continue
			}
			at := place{round, line.Step}
			if before, there := states[at]; there && before != line.State {
				t.Errorf("after step %d ranks of round %d have the states %s and %s", line.Step, round, before, line.State)
			}
			states[at] = line.State
			if known[line.Step] == nil {
				known[line.Step] = map[string]bool{}
			}
			known[line.Step][line.State] = true
		}
	}
	for i, lines := range all {
		for _, line := range lines {
			if line.Done == nil {
				continue
			}
			sizes[line.Size]++
			if *line.Done > 0 && !known[*line.Done][line.State] {
				t.Errorf("worker %d begins round %d after step %d with the state %s, and that was %v", i, line.World, *line.Done, line.State, known[*line.Done])
			}
		}
	}
	return sizes
}

// exported is the state that plain PyTorch has of a checkpoint that was exported.
func (s *sharing) exported(checkpoint string) string {
	s.t.Helper()
	const program = "import sys; from tests_torch import sharded; print(sharded.exported(*sys.argv[1:])[0])"
	command, extra := inPyTorch(s.t, "python3", "-c", program, checkpoint, s.t.TempDir())
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), extra...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("export %s: %v", checkpoint, err)
	}
	return strings.TrimSpace(string(out))
}

// A model that fully_shard() cuts, with real agents and a storage: three workers become two as planned, and these four; then all
// are killed, and two of the next attempt go on from the storage. No bit of the state is another one for it, and plain PyTorch reads
// the same of the checkpoint.
func TestModelInShardsWithRealAgents(t *testing.T) {
	s := inFSDP(t, 3+2+2)
	s.startMore(3)
	s.reaches(3)
	s.workers[1].leaving = true
	s.expect()
	s.reaches(2)
	s.startMore(2)
	s.reaches(4)
	_, grown, _ := s.training(4)
	s.isDurable(grown)

	steps := map[uint64]map[string]bool{}
	before := s.killAll(0)
	if sizes := follow(t, steps, before); sizes[3] < 3 || sizes[2] < 2 || sizes[4] < 4 {
		t.Errorf("worlds of 3, 2 and 4 were to begin on each rank; by their sizes %v have begun", sizes)
	}
	gave := map[int]int{}
	for _, lines := range before {
		for _, line := range lines {
			gave[line.Gives]++
		}
	}
	if gave[2] == 0 { // in one of the two changes at least: after a loss nobody does
		t.Errorf("two were to give others their rows; so often it was heard that so many do: %v", gave)
	}
	durable := s.leader.Observe(s.team.key).Durable
	if got := s.exported(filepath.Join(s.kept, durable.Path)); !steps[durable.Snapshot.Step][got] {
		t.Errorf("the checkpoint of step %d is the state %s where it is exported, and that was %v", durable.Snapshot.Step, got, steps[durable.Snapshot.Step])
	}

	s.leader.Release(s.team.key, "")
	s.attempt++
	s.startMore(2)
	s.reaches(2)
	s.isDurable(durable.Snapshot.Step)
	if seen := s.leader.Observe(s.team.key); !strings.Contains(seen.Restored, "the attempt goes on from step") {
		t.Errorf("step %d was durable: %q", durable.Snapshot.Step, seen.Restored)
	}
	after := s.killAll(5)
	if sizes := follow(t, steps, after); sizes[2] < 2 {
		t.Errorf("a world of 2 was to begin from the storage; by their sizes %v have begun", sizes)
	}
	for _, lines := range after {
		for _, line := range lines {
			if line.Done != nil && *line.Done < durable.Snapshot.Step {
				t.Errorf("it begins after step %d, and %d was durable", *line.Done, durable.Snapshot.Step)
			}
		}
	}
}

func within(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(limit)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
