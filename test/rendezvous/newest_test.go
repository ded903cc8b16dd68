package rendezvous

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// The storage has a later state than anybody holds, as the newest one was altered wherever it is held. All hold the one before, and the world
// that follows on a loss begins with that of the storage: real agents bring it, and their programs check it.
func TestALaterStateOfTheStorage(t *testing.T) {
	t.Parallel()
	s := newStanding(t)
	s.standsWhen("all hold two states", func(held []uint64) bool { return len(held) > 1 && held[len(held)-2] > 0 })
	var durable, older uint64
	eventually(t, "the newest state is durable", func() bool {
		held := s.heldByAll()
		if len(held) < 2 {
			return false
		}
		durable, older = held[len(held)-1], held[len(held)-2]
		return s.durable() == durable
	})
	for i, w := range s.workers {
		if !w.alter(t, durable) {
			t.Errorf("worker %d holds nothing of step %d", i, durable)
		}
	}
	if from := s.loses(1); from != durable {
		t.Errorf("the storage has step %d, those who are left hold step %d, and the world begins after step %d", durable, older, from)
	}
}

// Those who are left hold a later state than the storage has: the world begins with theirs.
func TestALaterStateInMemory(t *testing.T) {
	t.Parallel()
	s := newStanding(t)
	eventually(t, "some state is durable", func() bool { return s.durable() > 0 })
	s.every = time.Hour
	s.expect()
	s.standsWhen("all hold two states later than the one that is durable", func(held []uint64) bool {
		return len(held) > 1 && held[len(held)-2] > s.durable()
	})
	durable, held := s.durable(), s.heldByAll()
	newest := held[len(held)-1]
	// What they write meanwhile may be later still.
	if from := s.loses(1); from < newest {
		t.Errorf("the storage has step %d, those who are left hold step %d, and the world begins after step %d", durable, newest, from)
	}
}

// standing is a job of three, whose programs have nothing live to go on from, with a state that each of them holds whole.
type standing struct {
	*sharing
	// stand is the file that has its programs stand in a step.
	stand string
}

// newStanding has it train.
func newStanding(t *testing.T) standing {
	t.Helper()
	s := standing{newSharing(t, "no", 3), filepath.Join(t.TempDir(), "stand")}
	s.bytes, s.kept, s.extra = 1<<16, t.TempDir(), []string{"STAND=" + s.stand}
	for range 3 {
		s.start()
	}
	s.expect()
	s.trains(3)
	return s
}

// standsWhen waits until something is so of the steps after which all hold the state, and then has the programs stand.
func (s standing) standsWhen(what string, so func(held []uint64) bool) {
	s.t.Helper()
	eventually(s.t, what, func() bool { return so(s.heldByAll()) })
	if err := os.WriteFile(s.stand, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// durable is the step of the newest state that is durable.
func (s standing) durable() uint64 { return s.leader.Observe(s.team.key).Durable.Snapshot.Step }

// heldByAll are the steps after which all workers hold the state, the newest last.
func (s standing) heldByAll() (steps []uint64) {
	s.t.Helper()
	for i, w := range s.workers {
		held := map[uint64]bool{}
		w.eachFile(s.t, func(_ string, step uint64) { held[step] = true })
		if i == 0 {
			for step := range held {
				steps = append(steps, step)
			}
		}
		steps = slices.DeleteFunc(steps, func(step uint64) bool { return !held[step] })
	}
	slices.Sort(steps)
	return steps
}

// loses has the job lose a worker and train on without it, and returns the step that the newest world has begun after.
func (s standing) loses(number int) (from uint64) {
	s.t.Helper()
	s.workers[number].kill()
	s.workers[number].lost = true
	s.expect()
	if err := os.Remove(s.stand); err != nil {
		s.t.Fatal(err)
	}
	s.trains(2)
	records := s.rounds.all()
	return records[len(records)-1].FromStep
}

// alter changes one bit of what a worker holds of the state after a step, as bad memory does, and says whether it holds anything.
func (w *sharer) alter(t *testing.T, of uint64) (altered bool) {
	t.Helper()
	w.eachFile(t, func(path string, step uint64) {
		if step != of {
			return
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		middle, one := info.Size()/2, make([]byte, 1)
		_, err = file.ReadAt(one, middle)
		one[0] ^= 1
		_, failed := file.WriteAt(one, middle)
		if err := errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		altered = true
	})
	return altered
}

// eachFile goes through the files of the states that a worker holds, with the step of each.
func (w *sharer) eachFile(t *testing.T, see func(path string, step uint64)) {
	t.Helper()
	err := filepath.Walk(w.memory, func(path string, info os.FileInfo, err error) error {
		var round, step uint64
		if err != nil || !info.Mode().IsRegular() {
			return nil // what has gone meanwhile is held no more
		}
		if n, _ := fmt.Sscanf(info.Name(), "%d-%d", &round, &step); n == 2 {
			see(path, step)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
