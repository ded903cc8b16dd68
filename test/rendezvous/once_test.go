//go:build pytorch

package rendezvous

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/test/e2e/ledger"
)

// What tests_torch.once trains on.
const (
	onceEpochs  = 300
	onceSamples = 110
)

// mostWorkers is how many train at once.
const mostWorkers = 4

// campaign is a training whose world changes at random.
type campaign struct {
	*sharing
	random *rand.Rand
	slow   string
}

func newCampaign(t *testing.T, seed uint64, shards, changes int) *campaign {
	t.Helper()
	c := &campaign{sharing: newSharing(t, "", 3+changes), random: rand.New(rand.NewPCG(seed, 0))}
	c.slow = filepath.Join(t.TempDir(), "slow")
	if err := os.WriteFile(c.slow, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.command, c.extra = inPyTorch(t, "python3", "-m", "tests_torch.once", fmt.Sprintf("--stream=%d", shards),
		fmt.Sprintf("--epochs=%d", onceEpochs), "--slow-while="+c.slow)
	c.startMore(3)
	c.settles()
	return c
}

// here are the workers that are to stay.
func (c *campaign) here() (staying []*sharer) {
	for _, w := range c.workers {
		if !w.lost && !w.leaving {
			staying = append(staying, w)
		}
	}
	return staying
}

// settles waits until all who are to stay train together, and a loss would leave a snapshot.
func (c *campaign) settles() {
	c.t.Helper()
	c.reaches(int32(len(c.here())))
	within(c.t, slowness, "a snapshot is safe", func() bool { return c.isSafe(0) })
}

// goesOn waits until a few more steps are made, so that what comes next meets any place of an epoch.
func (c *campaign) goesOn() {
	c.t.Helper()
	until := c.leader.Observe(c.team.key).Progress.Step + c.random.Uint64N(8)
	within(c.t, slowness, fmt.Sprintf("step %d is done", until), func() bool {
		seen := c.leader.Observe(c.team.key)
		if seen.Fatal != "" {
			c.t.Fatal(seen.Fatal)
		}
		return seen.Progress.Step >= until
	})
}

// disturb does one thing to the job. Nobody is lost before the others have settled; a planned change may come at any time.
func (c *campaign) disturb() string {
	c.t.Helper()
	staying := c.here()
	one := staying[c.random.IntN(len(staying))]
	name := c.team.pods[slices.Index(c.workers, one)].Name
	can := []string{"its program is killed"}
	if len(staying) < mostWorkers && len(c.workers) < len(c.team.pods) {
		can = append(can, "grows")
	}
	if len(staying) > 2 {
		can = append(can, "leaves", "is killed")
	}
	if len(c.workers) < len(c.team.pods) {
		can = append(can, "is replaced")
	}
	what := can[c.random.IntN(len(can))]
	switch what {
	case "its program is killed", "is killed":
		c.settles()
		c.goesOn()
		if what == "is killed" {
			one.kill()
			one.lost = true
		} else {
			one.killProgram(c.t)
		}
	case "leaves":
		one.leaving = true
	case "is replaced":
		one.leaving = true
		c.start()
	case "grows":
		name = "the job"
		c.start()
	}
	c.expect()
	if c.random.IntN(2) == 0 {
		c.settles()
	}
	c.goesOn()
	return name + " " + what
}

// killProgram ends what the agent has started, as a crash does.
func (w *sharer) killProgram(t *testing.T) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // A thread may have ended.
		for _, pid := range strings.Fields(string(text)) {
			number, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			_ = syscall.Kill(number, syscall.SIGKILL)
		}
	}
}

// ends lets the training go on quickly, and waits until all programs have ended with 0.
func (c *campaign) ends() {
	c.t.Helper()
	if err := os.Remove(c.slow); err != nil {
		c.t.Fatal(err)
	}
	within(c.t, slowness, "all programs have ended", func() bool {
		seen := c.leader.Observe(c.team.key)
		if seen.Fatal != "" {
			c.t.Fatal(seen.Fatal)
		}
		for i, w := range c.workers {
			if !w.lost && !w.leaving && !seen.Members[string(c.team.pods[i].UID)].Exited {
				return false
			}
		}
		return true
	})
	for i, member := range c.leader.Observe(c.team.key).Members {
		if member.Exited && member.WorkerRank >= 0 && member.ExitCode != 0 {
			c.t.Errorf("worker %s has ended with %d", i, member.ExitCode)
		}
	}
}

// alone is what the program prints where nobody disturbs it.
func (c *campaign) alone(shards int) string {
	c.t.Helper()
	command, extra := inPyTorch(c.t, "python3", "-m", "tests_torch.once", fmt.Sprintf("--stream=%d", shards),
		fmt.Sprintf("--epochs=%d", onceEpochs), "--slow-while="+c.slow)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), extra...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("train alone: %v", err)
	}
	return string(out)
}

var evaluation = regexp.MustCompile(`(?m)^evaluation (\d+) of (\d+): (\d+) right$`)

// judge checks that each sample was used once in each epoch, that the losses are those of a run that nobody disturbed, and that
// an evaluation after each epoch counts once.
func (c *campaign) judge(shards int) {
	c.t.Helper()
	undisturbed := c.alone(shards)
	want, err := ledger.Parse(undisturbed)
	if err != nil {
		c.t.Fatal(err)
	}
	run := ledger.Run{Logs: map[string]ledger.Log{}, Samples: onceSamples, Steps: want.Losses[0].Steps}
	for _, record := range c.rounds.all() {
		run.Rounds = append(run.Rounds, ledger.Round{Number: record.Round, Parent: record.Parent, FromStep: record.FromStep, Ranks: int(record.Processes)})
	}
	run.Newest = run.Rounds[len(run.Rounds)-1].Number
	evaluations := map[string]bool{}
	for _, found := range evaluation.FindAllString(undisturbed, -1) {
		evaluations[found] = true
	}
	ended := 0
	for i, w := range c.workers {
		w.kill() // It writes no more then.
		log, err := ledger.Parse(w.text())
		if err != nil {
			c.t.Fatalf("worker %d: %v", i, err)
		}
		run.Logs[c.team.pods[i].Name] = log
		for _, found := range evaluation.FindAllString(w.text(), -1) {
			if !evaluations[found] {
				c.t.Errorf("worker %d tells: %s; undisturbed no line is like it", i, found)
			}
		}
		if strings.Contains(w.text(), fmt.Sprintf("\n%d evaluations in the end\n", onceEpochs)) {
			ended++
		}
	}
	if want := len(c.here()); ended != want {
		c.t.Errorf("%d of %d programs have counted %d evaluations", ended, want, onceEpochs)
	}
	if err := run.Check(); err != nil {
		c.t.Error(err)
	}
	if err := run.CompareLosses(want.Losses, 1e-6); err != nil {
		c.t.Error(err)
	}
}

// A training with real agents, on data with a length and on a stream, that evaluates after each epoch: workers come, leave, are replaced
// and are killed at random, at any place of an epoch. CAMPAIGNS says how many there are of each, and CAMPAIGN_SEED replays one.
func TestEachSampleOnceWithRealAgents(t *testing.T) {
	const changes = 12
	campaigns, seed := 1, rand.Uint64()
	for name, read := range map[string]func(uint64){
		"CAMPAIGNS": func(n uint64) { campaigns = int(n) }, "CAMPAIGN_SEED": func(n uint64) { campaigns, seed = 1, n },
	} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			read(n)
		}
	}
	for i := range campaigns {
		for name, shards := range map[string]int{"data with a length": 0, "a stream": 7} {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed+uint64(i)), func(t *testing.T) {
				c := newCampaign(t, seed+uint64(i), shards, changes)
				begun := time.Now()
				for range changes {
					t.Log(c.disturb())
				}
				c.settles()
				t.Logf("%d rounds in %s", c.leader.Observe(c.team.key).Round, time.Since(begun).Round(time.Second))
				c.ends()
				c.judge(shards)
			})
		}
	}
}
