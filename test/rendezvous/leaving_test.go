package rendezvous

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/agent"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/server"
)

// launcher starts two processes, as torchrun does, and ends when both have.
const launcher = `for i in 0 1; do RANK=$((2 * PET_NODE_RANK + i)) LOCAL_RANK=$i python3 "$0" & all="$all $!"; done; code=0; for p in $all; do wait $p || code=1; done; exit $code`

// TestProgramsLeaveTheirWorlds has real agents and a real operator change worlds of programs that are started anew in
// each, and ask the Python SDK whether they should stop: all stop after the same step, and the next world begins there.
func TestProgramsLeaveTheirWorlds(t *testing.T) {
	binary := buildAgent(t)
	program, err := filepath.Abs("testdata/leaves.py")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("one process in each worker", func(t *testing.T) {
		leaveTheirWorlds(t, binary, 1, agent.LaunchPerProcess, "python3", program)
	})
	t.Run("a launcher with two", func(t *testing.T) {
		leaveTheirWorlds(t, binary, 2, agent.LaunchPerWorker, "/bin/sh", "-c", launcher, program)
	})
}

// leaving is a job whose programs leave their worlds.
type leaving struct {
	t      *testing.T
	team   *team
	server *server.Server
	gang   rendezvous.Gang
	notes  string
}

func leaveTheirWorlds(t *testing.T, binary string, processes int, launch agent.Launch, command ...string) {
	team, notes := newTeam(t, 3), t.TempDir()
	socket, address := listen(t)
	l := &leaving{t: t, team: team, server: team.leadOn(t, socket), gang: team.gang(rendezvous.Record{}), notes: notes}
	l.gang.Strategy, l.gang.ProcessesPerWorker = rendezvous.Restart, int32(processes)
	l.gang.Minimum, l.gang.Target, l.gang.BarrierTimeout = 2, 2, 30*time.Second
	members := slices.Clone(l.gang.Members)
	sdk, err := filepath.Abs(root + "/python")
	if err != nil {
		t.Fatal(err)
	}
	var workers []*worker
	start := func(number int) {
		workers = append(workers, startAgent(t, team, number, binary, address, map[string]string{
			"NOTES": notes, "PYTHONPATH": sdk, agent.EnvLaunch: string(launch), agent.EnvStrategy: "Restart",
			agent.EnvProcesses: fmt.Sprint(processes),
		}, command...))
	}

	l.gang.Members = members[:2]
	l.server.Expect(team.key, l.gang)
	start(0)
	start(1)
	l.trains(1, 2*processes, 0)
	l.gang.Members, l.gang.Target = members, 3
	l.server.Expect(team.key, l.gang)
	start(2)
	grown := l.trains(2, 3*processes, l.stopped(1, 2*processes))
	if grown.Reason != rendezvous.ReasonCapacityAvailable {
		t.Errorf("the world has grown because of %s", grown.Reason)
	}
	members[0].Leaving, l.gang.Target = rendezvous.ReasonScaledDown, 2
	l.server.Expect(team.key, l.gang)
	l.trains(3, 2*processes, l.stopped(2, 3*processes))
	if err := os.WriteFile(filepath.Join(notes, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range workers[1:] {
		select {
		case <-w.ended:
		case <-time.After(patience):
			t.Errorf("worker %s does not end", w.name)
		}
	}
	for _, change := range l.server.Observe(team.key).Changes {
		if change.StepsLost > 0 || change.Round > 1 && change.Pause == 0 {
			t.Errorf("the change to round %d has lost %d steps, and taken %s", change.Round, change.StepsLost, change.Pause)
		}
	}
	for _, w := range workers[1:] {
		if strings.Contains(w.output.String(), "checkpoint is complete") {
			t.Errorf("worker %s was asked for a checkpoint", w.name)
		}
	}
}

// trains waits until all ranks of a round have made a few steps, and checks that the round and each of them began after
// a step. It returns the record.
func (l *leaving) trains(round uint64, ranks int, after uint64) rendezvous.Record {
	l.t.Helper()
	eventually(l.t, fmt.Sprintf("round %d trains", round), func() bool {
		steps := l.steps(round)
		return len(steps) == ranks && !slices.ContainsFunc(steps, func(made []uint64) bool { return len(made) < 5 })
	})
	found := durable(l.t.Context(), l.t, l.team.key)
	if found.Round != round || found.FromStep != after {
		l.t.Errorf("the record is that of round %d after step %d, want round %d after %d", found.Round, found.FromStep, round, after)
	}
	for rank, made := range l.steps(round) {
		for i, step := range made {
			if step != after+uint64(i)+1 {
				l.t.Fatalf("rank %d of round %d has made the steps %v after step %d", rank, round, made, after)
			}
		}
	}
	return found
}

// stopped waits until the next round is there, and returns the step after which all ranks of a round have stopped.
func (l *leaving) stopped(round uint64, ranks int) uint64 {
	l.t.Helper()
	eventually(l.t, fmt.Sprintf("round %d is left", round), func() bool { return l.server.Observe(l.team.key).Round == round+1 })
	steps := l.steps(round)
	last := slices.Max(steps[0])
	for rank, made := range steps {
		if len(steps) != ranks || slices.Max(made) != last {
			l.t.Fatalf("of round %d rank 0 has stopped after step %d, and rank %d after %d", round, last, rank, slices.Max(made))
		}
	}
	return last
}

// steps are those that each rank of a round has made, in their order.
func (l *leaving) steps(round uint64) [][]uint64 {
	text, _ := os.ReadFile(filepath.Join(l.notes, "steps"))
	var made [][]uint64
	for line := range strings.Lines(string(text)) {
		var of, step uint64
		var rank int
		if n, _ := fmt.Sscan(line, &of, &rank, &step); n != 3 || of != round {
			continue
		}
		for len(made) <= rank {
			made = append(made, nil)
		}
		made[rank] = append(made[rank], step)
	}
	return made
}
