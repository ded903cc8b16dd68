package agent_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/agent/agenttest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// launch is a launcher that stays: it notes its process id at its start, and each world that it is given. It ends in the
// third.
func launch() int {
	conn, err := net.Dial("unix", os.Getenv("CONCERTINA_SOCKET"))
	if err != nil {
		return 1
	}
	_, _ = conn.Write([]byte(`{"type":"hello","protocol":2,"launcher":true}` + "\n"))
	addLine("launchers", strconv.Itoa(os.Getpid()))
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var message struct {
			Type                            string
			Round                           uint64
			WorkerRank, Workers, MasterPort int
		}
		if json.Unmarshal(lines.Bytes(), &message) != nil {
			return 1
		}
		switch message.Type {
		case "world":
			listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(message.MasterPort)))
			if err != nil {
				return 1
			}
			_ = listener.Close()
			addLine("worlds", fmt.Sprintf("round %d: %d of %d", message.Round, message.WorkerRank, message.Workers))
			if message.Round == 3 {
				return 0
			}
		case "stop":
			_, _ = conn.Write([]byte(`{"type":"stopped"}` + "\n"))
		}
	}
	return 1
}

// A launcher that speaks to the agent goes from world to world without being started anew, and its port is free in each.
func TestALauncherStays(t *testing.T) {
	r := agenttest.New(t)
	w := startWorker(t, r, []string{"CONCERTINA_LAUNCH=PerWorker"}, "launcher")
	r.AwaitSessions(1)
	port := r.Hellos()[0].GetMasterPort()
	for round := uint64(1); round <= 3; round++ {
		d := world(1, round, 1, port)
		d.GetWorld().Workers = uint32(round)
		r.Direct(d)
		if round == 3 {
			break
		}
		eventually(t, "the world", func() bool {
			_, err := os.Stat(w.directory + "/worlds")
			return err == nil && len(w.file("worlds")) == int(round)
		})
		r.Direct(abort(d, true))
		r.Await("the way out", func(report *rendezvousv1.Report) bool { return report.GetRound() == round && report.GetOut() })
		port = r.Last().GetMasterPort()
	}
	if code := w.exit(); code != 0 {
		t.Errorf("exit code %d: %s", code, w.text())
	}
	want := []string{"round 1: 0 of 1", "round 2: 0 of 2", "round 3: 0 of 3"}
	if diff := cmp.Diff(want, w.file("worlds")); diff != "" {
		t.Errorf("worlds (-want +got):\n%s", diff)
	}
	if started := w.file("launchers"); len(started) != 1 {
		t.Errorf("the launcher was started %d times", len(started))
	}
}
