package rendezvous

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent"
	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/server"
	"github.com/concertina-dev/concertina/internal/score"
	uploading "github.com/concertina-dev/concertina/internal/uploader/server"
)

// stateBytes is the size of the larger part of the program's state, unless a test says more; there is half as much beside it.
const stateBytes = 16 << 20

// sharing is a job whose programs have a large state, each on a node of its own.
type sharing struct {
	t       *testing.T
	team    *team
	leader  *server.Server
	rounds  *rounds
	address string
	binary  string
	clean   string
	workers []*sharer
	// attempt is the one that those begin who are started, kept the folder of checkpoints; empty for a job without a storage.
	attempt int32
	kept    string
	// every is how often a checkpoint is made; 0 for every second.
	every time.Duration
	// best is which checkpoints are kept for their scores.
	best score.Best
	// copies is on how many nodes each part is to be; 0 for what is usual.
	copies int32
	// spares is how many of the workers are more than the world is to have.
	spares int32
	// bytes is the size of the larger part of the state, steps the file of steps that were made; empty for none.
	bytes int
	steps string
	// command is the program, with these variables besides.
	command []string
	extra   []string
}

// sharesProgram is the program of most tests.
var sharesProgram = []string{"python3", "testdata/shares.py"}

// sharer is one worker.
type sharer struct {
	cmd    *exec.Cmd
	memory string

	mu     sync.Mutex
	output bytes.Buffer

	lost bool
	// leaving is true for one that is to leave.
	leaving bool
	// attempt is the one that it is of.
	attempt int32
}

func newSharing(t *testing.T, clean string, workers int) *sharing {
	t.Helper()
	s := &sharing{t: t, team: newTeam(t, workers), clean: clean, attempt: 1, binary: buildAgent(t), bytes: stateBytes, command: sharesProgram}
	s.rounds = &rounds{Recorder: recorder()}
	s.leader, s.address = s.team.lead(t, s.rounds)
	return s
}

// rounds is a Recorder that keeps what was written.
type rounds struct {
	rendezvous.Recorder
	mu      sync.Mutex
	written []rendezvous.Record
}

func (r *rounds) Record(ctx context.Context, job rendezvous.JobKey, prev, next rendezvous.Record) (rendezvous.Record, error) {
	found, err := r.Recorder.Record(ctx, job, prev, next)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.written = append(r.written, next)
	}
	return found, err
}

// all are the records that were written, oldest first.
func (r *rounds) all() []rendezvous.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.written)
}

// expect has the leader expect the workers that there are.
func (s *sharing) expect() {
	gang := s.team.gang(durable(s.t.Context(), s.t, s.team.key))
	all := gang.Members[:len(s.workers)]
	gang.Attempt, gang.Minimum, gang.Members, gang.Copies = s.attempt, 2, nil, s.copies
	for i := range all {
		if s.workers[i].attempt != s.attempt {
			continue
		}
		all[i].Node = all[i].Name
		if s.workers[i].lost {
			all[i].Lost, all[i].Ended = "it was killed", true
		}
		if s.workers[i].leaving {
			all[i].Leaving = rendezvous.ReasonScaledDown
			gang.Target--
		}
		gang.Members = append(gang.Members, all[i])
	}
	gang.Target += int32(len(gang.Members)) - s.spares
	if s.kept != "" {
		gang.Storage = &rendezvous.Storage{Interval: cmp.Or(s.every, time.Second), Keep: 2, Own: true, Best: rendezvous.Best{Best: s.best}}
	}
	s.leader.Expect(s.team.key, gang)
}

// start starts the next worker.
func (s *sharing) start() {
	s.t.Helper()
	pod := s.team.pods[len(s.workers)]
	directory := s.t.TempDir()
	for name, text := range map[string]string{
		"token": s.team.tokens[pod.Name], "ca.crt": string(s.team.authority(s.t.Context(), s.t).Bundle()),
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	w := &sharer{memory: filepath.Join(directory, "memory"), attempt: s.attempt}
	w.cmd = exec.Command(s.binary, append([]string{"run", "--token-file", filepath.Join(directory, "token"),
		"--ca-file", filepath.Join(directory, "ca.crt"), "--"}, s.command...)...)
	w.cmd.Stdout, w.cmd.Stderr = w, w
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	_, port, _ := strings.Cut(s.address, ":")
	w.cmd.Env = append(os.Environ(), "PYTHONPATH="+root+"/python", "STATE_BYTES="+strconv.Itoa(s.bytes), "CLEAN="+s.clean,
		"STEPS="+s.steps)
	w.cmd.Env = append(w.cmd.Env, s.extra...)
	for name, value := range map[string]string{
		agent.EnvNamespace: s.team.key.Namespace, agent.EnvJob: s.team.key.Name, agent.EnvAttempt: strconv.Itoa(int(s.attempt)),
		agent.EnvPodName: pod.Name, agent.EnvPodUID: string(pod.UID), agent.EnvPodIP: "127.0.0.1",
		agent.EnvLaunch: string(agent.LaunchPerProcess), agent.EnvProcesses: "1", agent.EnvStrategy: "InPlace",
		agent.EnvRendezvous: "localhost:" + port, agent.EnvSocket: filepath.Join(directory, "agent.sock"),
		agent.EnvMemory: w.memory, agent.EnvSnapshotInterval: "1",
	} {
		w.cmd.Env = append(w.cmd.Env, name+"="+value)
	}
	if s.kept != "" {
		w.cmd.Env = append(w.cmd.Env, agent.EnvUploader+"="+s.upload(filepath.Join(directory, "uploader.sock")), agent.EnvBest+"="+s.best.String())
	}
	if err := w.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.workers = append(s.workers, w)
	s.t.Cleanup(func() {
		w.kill()
		if s.t.Failed() {
			s.t.Logf("worker %s:\n%s", pod.Name, w.text())
		}
	})
}

// upload starts the uploader of a worker.
func (s *sharing) upload(socket string) string {
	opened, err := storage.Open(s.t.Context(), "file://"+s.kept)
	if err != nil {
		s.t.Fatal(err)
	}
	job := storage.Job{Namespace: s.team.key.Namespace, Name: s.team.key.Name, UID: "uid"}
	listening, err := uploading.Listen(socket, uploading.New(opened, job, s.attempt, "", s.best, func(string, ...any) {}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := errors.Join(listening.Close(), opened.Close()); err != nil {
			s.t.Error(err)
		}
	})
	return socket
}

// Write collects what agent and program write, on either stream.
func (w *sharer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.output.Write(p)
}

// text is what they have written by now.
func (w *sharer) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.output.String()
}

// kill ends everything of a worker at once, as the end of its node does.
func (w *sharer) kill() {
	_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
	_ = w.cmd.Wait()
}

// trains waits until the job trains in a world of so many workers, beyond the step that it began with.
func (s *sharing) trains(workers int32) (round, step uint64) {
	s.t.Helper()
	eventually(s.t, "a world trains", func() (does bool) {
		round, step, does = s.training(workers)
		return does
	})
	return round, step
}

// training says whether the job trains so now, and where it is.
func (s *sharing) training(workers int32) (round, step uint64, does bool) {
	s.t.Helper()
	seen := s.leader.Observe(s.team.key)
	if seen.Fatal != "" {
		s.t.Fatal(seen.Fatal)
	}
	in := int32(0)
	for _, member := range seen.Members {
		if member.InWorld && member.WorkerRank >= 0 {
			in++
		}
	}
	return seen.Round, seen.Progress.Step, seen.Phase == rendezvous.PhaseTraining && in == workers && seen.Progress.Step > 10 && !seen.Untold
}

// held are the parts that a worker's memory has, and how many bytes all of its files have.
func (w *sharer) held(t *testing.T) (parts []string, size int64) {
	t.Helper()
	err := filepath.Walk(w.memory, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
			if strings.Count(info.Name(), ".") == 3 {
				parts = append(parts, info.Name())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return parts, size
}

// Real agents and programs, with a state that is large enough for shares: it grows, and loses a worker for good. Where live
// state does not serve it goes back to a snapshot of which nobody has held all.
func TestStateInShares(t *testing.T) {
	for name, clean := range map[string]string{"from live state": "yes", "from a snapshot": "no"} {
		t.Run(name, func(t *testing.T) {
			s := newSharing(t, clean, 4)
			for range 3 {
				s.start()
			}
			s.expect()
			s.trains(3)
			eventually(t, "all hold parts", func() bool {
				for _, w := range s.workers {
					if parts, _ := w.held(t); len(parts) < 3 {
						return false
					}
				}
				return true
			})
			eventually(t, "what is pushed out is left to be written over", func() bool {
				spares, err := filepath.Glob(filepath.Join(s.workers[0].memory, "*", "spare-*"))
				return err == nil && len(spares) > 0
			})
			s.start()
			s.expect()
			round, grown := s.trains(4)
			if round < 2 {
				t.Errorf("it has grown in round %d", round)
			}
			// Parts that were gathered go with the next snapshot: nobody has the whole state for long.
			eventually(t, "nobody holds as much as the state", func() bool {
				for _, w := range s.workers {
					parts, size := w.held(t)
					if len(parts) == 0 || size > stateBytes*3/2*8/5 {
						return false
					}
				}
				return true
			})
			s.workers[1].kill()
			s.workers[1].lost = true
			s.expect()
			after, step := s.trains(3)
			if after <= round || step < grown/2 {
				t.Errorf("round %d is at step %d, round %d was at %d", after, step, round, grown)
			}
		})
	}
}

// All workers are killed at once, after a checkpoint that each has put its own parts of. The next attempt, which is smaller,
// goes on from it: its programs check the state that they begin with.
func TestStateInSharesOutlivesItsWorkers(t *testing.T) {
	s := newSharing(t, "yes", 5)
	s.kept = t.TempDir()
	for range 3 {
		s.start()
	}
	s.expect()
	s.trains(3)
	var durable rendezvous.Durable
	eventually(t, "a checkpoint in parts is durable", func() bool {
		seen := s.leader.Observe(s.team.key)
		if seen.Storage != "" {
			t.Fatal(seen.Storage)
		}
		durable = seen.Durable
		parts, _ := filepath.Glob(filepath.Join(s.kept, durable.Path, "parts", "*.3.*"))
		return durable.Path != "" && len(parts) == 6
	})
	for _, w := range s.workers {
		w.kill()
		if parts, _ := w.held(t); len(parts) > 3*4 {
			t.Errorf("a worker has gathered %v", parts)
		}
	}
	s.leader.Release(s.team.key, "")
	s.attempt = 2
	for range 2 {
		s.start()
	}
	s.expect()
	s.trains(2)
	eventually(t, "the next attempt goes beyond what was durable", func() bool {
		return s.leader.Observe(s.team.key).Progress.Step > durable.Snapshot.Step
	})
	if seen := s.leader.Observe(s.team.key); !strings.Contains(seen.Restored, "the attempt goes on from step") {
		t.Errorf("step %d was durable: %s", durable.Snapshot.Step, seen.Restored)
	}
}
