package elastic_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/masterport"
	"github.com/concertina-dev/concertina/internal/agent/socket"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

var variables = []string{
	"CONCERTINA_SOCKET", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
}

// environment gives this process the variables of a training process, and no others of them.
func environment(t testing.TB, set map[string]string) {
	t.Helper()
	for _, name := range variables {
		t.Setenv(name, set[name])
	}
}

// startAgent starts the agent's end of the socket, with a place for rank 0 of 2, and makes this
// process the one with local rank 0.
func startAgent(t testing.TB, place socket.Place) *socket.Server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "agent.sock")
	server, err := socket.Listen(path, socket.Identity{Namespace: "team", Job: "digits", Attempt: 1, Slots: 2},
		masterport.Listen, func() {}, socket.DefaultTiming())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if place.MasterPort == 0 {
		port, err := masterport.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		port.Release()
		place.MasterAddress, place.MasterPort = "127.0.0.1", port.Number()
	}
	if err := server.Enter(place); err != nil {
		t.Fatal(err)
	}
	environment(t, map[string]string{"CONCERTINA_SOCKET": path, "LOCAL_RANK": "0"})
	return server
}

var options = elastic.Options{Samples: 10, Epochs: 2, GlobalBatch: 4, MicroBatch: 1, Seed: 7}

func join(t testing.TB, options elastic.Options) *elastic.Run {
	t.Helper()
	run, err := elastic.Join(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run.Close)
	return run
}

func TestTrainingUnderAnAgent(t *testing.T) {
	server := startAgent(t, socket.Place{Term: 2, Round: 3, Workers: 2, HandOver: true})
	run := join(t, options)
	progress := func() gate.Progress { return server.States()[0].Progress }
	if diff := cmp.Diff(gate.Progress{Phase: gate.PhaseForming, LastStep: 6}, progress()); diff != "" {
		t.Errorf("before the world (-want +got):\n%s", diff)
	}
	err := run.Train(func(ctx context.Context, w elastic.World) error {
		if w.Round != 3 || w.Rank != 0 || w.Size != 4 || w.LocalSize != 2 || w.Workers != 2 {
			t.Errorf("the world is %+v", w)
		}
		if w.MasterListener == nil || w.MasterListener.Addr().String() != w.MasterAddress {
			t.Errorf("rank 0 listens at %v, want %s", w.MasterListener, w.MasterAddress)
		}
		for step := range run.Steps(ctx) {
			k := step.Number()
			want := gate.Progress{Entered: k, Done: k - 1, LastStep: 6, Phase: gate.PhaseStep, Samples: usedBefore(k)}
			if diff := cmp.Diff(want, progress()); diff != "" {
				t.Errorf("in step %d (-want +got):\n%s", k, diff)
			}
			step.Report(float64(k))
		}
		if err := run.During(elastic.Evaluating, func() error {
			if phase := progress().Phase; phase != gate.PhaseEval {
				t.Errorf("phase %d while evaluating", phase)
			}
			return run.Report(map[string]float64{"accuracy": 0.97})
		}); err != nil {
			return err
		}
		return run.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Drain(-1, patience)
	want := socket.State{
		Progress: gate.Progress{Entered: 6, Done: 6, LastStep: 6, Phase: gate.PhaseFinished, Samples: 20},
		Metrics:  map[string]float64{"loss": 6, "accuracy": 0.97},
	}
	if diff := cmp.Diff(want, server.States()[0]); diff != "" {
		t.Errorf("at the end (-want +got):\n%s", diff)
	}
}

// usedBefore is the number of samples used before step k: batches of 4, 4 and 2.
func usedBefore(k uint64) uint64 { return (k-1)/3*10 + (k-1)%3*4 }

func TestEverySampleOnceOverAllRanks(t *testing.T) {
	const ranks = 3
	type use struct{ epoch, sample uint64 }
	used := map[use]int{}
	micro := map[uint64]map[int]int{}
	for rank := range ranks {
		environment(t, map[string]string{
			"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
		})
		run := join(t, options)
		if err := run.Train(func(ctx context.Context, _ elastic.World) error {
			for step := range run.Steps(ctx) {
				if micro[step.Number()] == nil {
					micro[step.Number()] = map[int]int{}
				}
				for indices, weight := range step.MicroBatches() {
					micro[step.Number()][rank]++
					if weight == 0 {
						if len(indices) != 1 {
							t.Errorf("a filler of %d samples", len(indices))
						}
						continue
					}
					if want := float64(len(indices)*ranks) / float64(step.Samples()); weight != want {
						t.Errorf("weight %v, want %v", weight, want)
					}
					for _, i := range indices {
						used[use{step.Epoch(), i}]++
					}
				}
				if want := step.Number()%3 == 0; step.EndsEpoch() != want {
					t.Errorf("step %d ends an epoch: %v", step.Number(), step.EndsEpoch())
				}
			}
			return run.Err()
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(used) != 20 {
		t.Errorf("%d different samples were used in 2 epochs of 10", len(used))
	}
	for u, n := range used {
		if n != 1 {
			t.Errorf("sample %d was used %d times in epoch %d", u.sample, n, u.epoch)
		}
	}
	for step, counts := range micro {
		if counts[0] == 0 || counts[0] != counts[1] || counts[1] != counts[2] {
			t.Errorf("step %d: the ranks ran %v micro-batches", step, counts)
		}
	}
}

func TestTheEndOfTheContextEndsTheLoop(t *testing.T) {
	environment(t, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	run, err := elastic.Join(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	err = run.Train(func(ctx context.Context, _ elastic.World) error {
		for step := range run.Steps(ctx) {
			if step.Number() == 2 {
				cancel(enough)
			}
			if step.Number() > 2 {
				t.Errorf("step %d after the end", step.Number())
			}
		}
		return run.Err()
	})
	if !errors.Is(err, enough) {
		t.Errorf("got %v, want %v", err, enough)
	}
}

func TestAStepThatIsLeftIsNotDone(t *testing.T) {
	server := startAgent(t, socket.Place{Round: 1, Workers: 1, HandOver: true})
	run := join(t, options)
	if err := run.Train(func(ctx context.Context, _ elastic.World) error {
		for step := range run.Steps(ctx) {
			if step.Number() == 2 {
				break
			}
		}
		return run.Err()
	}); err != nil {
		t.Fatal(err)
	}
	if p := server.States()[0].Progress; p.Entered != 2 || p.Done != 1 {
		t.Errorf("the operator sees %+v", p)
	}
}

func TestFaults(t *testing.T) {
	for name, row := range map[string]struct {
		fail func() error
		want string
	}{
		"an error": {func() error { return errors.New("no more memory") }, "no more memory"},
		"a panic":  {func() error { panic("index out of range") }, "panic: index out of range"},
		"a long one": {func() error { return errors.New(strings.Repeat("x", 100_000) + "the end") },
			strings.Repeat("x", 100)},
	} {
		t.Run(name, func(t *testing.T) {
			server := startAgent(t, socket.Place{Round: 1, Workers: 1, HandOver: true})
			run := join(t, options)
			var err error
			func() {
				defer func() {
					if p := recover(); p != nil {
						err = fmt.Errorf("%v", p)
					}
				}()
				err = run.Train(func(ctx context.Context, _ elastic.World) error {
					for step := range run.Steps(ctx) {
						if step.Number() == 2 {
							return row.fail()
						}
					}
					return nil
				})
			}()
			if err == nil {
				t.Error("Train hides the failure")
			}
			server.Drain(-1, patience)
			state := server.States()[0]
			if state.FaultStep != 2 || !strings.HasPrefix(state.Fault, row.want) {
				t.Errorf("the operator sees step %d: %.60q", state.FaultStep, state.Fault)
			}
			if state.Phase == gate.PhaseFinished {
				t.Error("a training that failed looks finished")
			}
		})
	}
}

func TestWorldsOfTheEnvironment(t *testing.T) {
	for name, row := range map[string]struct {
		set  map[string]string
		want string
	}{
		"nothing set":       {nil, "0/1"},
		"one":               {map[string]string{"RANK": "0", "WORLD_SIZE": "1"}, "0/1"},
		"rank 1 of 2":       {map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "1/2"},
		"no size":           {map[string]string{"RANK": "0"}, "WORLD_SIZE is"},
		"rank out of range": {map[string]string{"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "RANK is"},
		"not a number":      {map[string]string{"RANK": "first", "WORLD_SIZE": "2"}, "RANK is"},
		"no master":         {map[string]string{"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT"},
		"no such address":   {map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}, "listen on the master address"},
	} {
		t.Run(name, func(t *testing.T) {
			environment(t, row.set)
			got := ""
			run := join(t, options)
			err := run.Train(func(_ context.Context, w elastic.World) error {
				got = fmt.Sprintf("%d/%d", w.Rank, w.Size)
				if (w.Rank == 0) != (w.MasterListener != nil) {
					t.Errorf("rank %d has the listener %v", w.Rank, w.MasterListener)
				}
				return nil
			})
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, row.want) {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestJoinThatIsRefused(t *testing.T) {
	startAgent(t, socket.Place{Round: 1, Workers: 1, HandOver: true})
	join(t, options)
	if _, err := elastic.Join(context.Background(), options); err == nil || !strings.Contains(err.Error(), "belongs to another process") {
		t.Errorf("the slot is taken: %v", err)
	}
	t.Setenv("LOCAL_RANK", "5")
	if _, err := elastic.Join(context.Background(), options); err == nil || !strings.Contains(err.Error(), "local ranks 0 to 1") {
		t.Errorf("no such slot: %v", err)
	}
	t.Setenv("LOCAL_RANK", "x")
	if _, err := elastic.Join(context.Background(), options); err == nil || !strings.Contains(err.Error(), "LOCAL_RANK") {
		t.Errorf("no number: %v", err)
	}
	t.Setenv("CONCERTINA_SOCKET", "/no/such/socket")
	t.Setenv("LOCAL_RANK", "")
	if _, err := elastic.Join(context.Background(), options); err == nil || !strings.Contains(err.Error(), "CONCERTINA_SOCKET") {
		t.Errorf("no agent: %v", err)
	}
	if _, err := elastic.Join(context.Background(), elastic.Options{}); err == nil || !strings.Contains(err.Error(), "elastic.Options") {
		t.Errorf("no samples: %v", err)
	}
}

func TestTrainOnce(t *testing.T) {
	environment(t, nil)
	run := join(t, options)
	nothing := func(context.Context, elastic.World) error { return nil }
	if err := run.Train(nothing); err != nil {
		t.Fatal(err)
	}
	if err := run.Train(nothing); !errors.Is(err, elastic.ErrTrained) {
		t.Errorf("got %v, want ErrTrained", err)
	}
}

func TestMetricsThatAreRefused(t *testing.T) {
	environment(t, nil)
	run := join(t, options)
	for name, metrics := range map[string]map[string]float64{
		"bad name":   {"a-b": 1},
		"no name":    {"": 1},
		"not finite": {"loss": math.NaN()},
	} {
		if run.Report(metrics) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for i := range 8 {
		if err := run.Report(map[string]float64{"m" + strconv.Itoa(i): 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := run.Report(map[string]float64{"m7": 2}); err != nil {
		t.Errorf("a known name: %v", err)
	}
	if run.Report(map[string]float64{"m8": 1}) == nil {
		t.Error("a ninth name was accepted")
	}
}

// The program trains on when its agent goes away.
func TestAnAgentThatGoesAway(t *testing.T) {
	server := startAgent(t, socket.Place{Round: 1, Workers: 1, HandOver: true})
	run := join(t, options)
	steps := 0
	if err := run.Train(func(ctx context.Context, _ elastic.World) error {
		for step := range run.Steps(ctx) {
			if step.Number() == 2 {
				if err := server.Close(); err != nil {
					t.Error(err)
				}
			}
			steps++
			step.Report(1)
		}
		return run.Report(map[string]float64{"accuracy": 1})
	}); err != nil {
		t.Fatal(err)
	}
	if steps != 6 {
		t.Errorf("%d steps, want 6", steps)
	}
}

// scripted is an agent that answers each line with the next of its own, whatever it says.
func scripted(t *testing.T, answers ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		lines := bufio.NewReader(conn)
		for _, answer := range answers {
			if _, err := lines.ReadString('\n'); err != nil {
				return
			}
			_, _ = io.WriteString(conn, answer)
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	environment(t, map[string]string{"CONCERTINA_SOCKET": path})
}

func TestAgentsThatMakeNoSense(t *testing.T) {
	for name, answer := range map[string]string{
		"hangs up":        "",
		"no line":         `{"type":"welcome"`,
		"no JSON":         "hello\n",
		"another message": `{"type":"world"}` + "\n",
		"no page":         `{"type":"welcome","protocol":1,"slot":0,"slots":1,"fds":0}` + "\n",
		"a page too few":  `{"type":"welcome","protocol":1,"slot":0,"slots":1,"fds":1}` + "\n",
		"other protocol":  `{"type":"welcome","protocol":2,"slot":0,"slots":1,"fds":0}` + "\n",
		"an error":        `{"type":"error","message":"go away"}` + "\n",
		"too long":        strings.Repeat("x", 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, answer)
			if run, err := elastic.Join(context.Background(), options); err == nil {
				run.Close()
				t.Error("joined")
			}
		})
	}
}

func TestJoinIsBoundedByItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	environment(t, map[string]string{"CONCERTINA_SOCKET": path})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := elastic.Join(ctx, options); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The bytes on the wire are those of docs/program-protocol.md.
func TestWhatTheSDKSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	page, err := gate.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = page.Close() }()
	said := make(chan []string, 1)
	var serving sync.WaitGroup
	serving.Go(func() { said <- converse(listener, page.File()) })
	environment(t, map[string]string{"CONCERTINA_SOCKET": path})
	run := join(t, options)
	if err := run.Train(func(context.Context, elastic.World) error {
		return run.Report(map[string]float64{"loss": 0.5})
	}); err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	serving.Wait()
	want := []string{
		`{"type":"hello","protocol":1,"localRank":0}`,
		`{"type":"join"}`,
		`{"type":"progress","totalSteps":6}`,
		`{"type":"progress","totalSteps":6,"metrics":{"loss":0.5}}`,
		`{"type":"progress","totalSteps":6,"metrics":{"loss":0.5}}`,
		`{"type":"finished"}`,
	}
	if diff := cmp.Diff(want, <-said); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func converse(listener net.Listener, page *os.File) []string {
	conn, err := listener.Accept()
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	var said []string
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		said = append(said, lines.Text())
		var message struct{ Type string }
		_ = json.Unmarshal(lines.Bytes(), &message)
		switch message.Type {
		case "hello":
			_ = sendWithFile(conn, `{"type":"welcome","protocol":1,"namespace":"n","job":"j","attempt":1,"slot":0,"slots":1,"fds":1,"later":{}}`, page)
		case "join":
			_, _ = io.WriteString(conn, `{"type":"world","term":1,"round":1,"fromStep":0,"rank":0,"size":1,"localRank":0,"localSize":1,"workerRank":0,"workers":1,"masterAddress":"10.0.0.7","masterPort":40123}`+"\n")
		}
	}
	return slices.Clip(said)
}
