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
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/concertina-dev/concertina/internal/agent/gate"
	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	a := begin(t)
	run, p := a.join(context.Background(), options)
	if diff := cmp.Diff(gate.Progress{Phase: gate.PhaseForming, LastStep: 6}, p.progress()); diff != "" {
		t.Errorf("before the world (-want +got):\n%s", diff)
	}
	training := goTrain(t, run, func(ctx context.Context, w elastic.World) error {
		if w.Round != 3 || w.Rank != 0 || w.Size != 4 || w.LocalSize != 2 || w.Workers != 2 {
			t.Errorf("the world is %+v", w)
		}
		if w.MasterListener == nil || w.MasterListener.Addr().String() != w.MasterAddress {
			t.Errorf("rank 0 listens at %v, want %s", w.MasterListener, w.MasterAddress)
		}
		for step := range run.Steps(ctx) {
			k := step.Number()
			want := gate.Progress{Entered: k, Done: k - 1, LastStep: 6, Phase: gate.PhaseStep, Samples: usedBefore(k)}
			if diff := cmp.Diff(want, p.progress()); diff != "" {
				t.Errorf("in step %d (-want +got):\n%s", k, diff)
			}
			step.Report(float64(k))
		}
		if err := run.During(elastic.Evaluating, func() error {
			if phase := p.progress().Phase; phase != gate.PhaseEval {
				t.Errorf("phase %d while evaluating", phase)
			}
			return run.Report(map[string]float64{"accuracy": 0.97})
		}); err != nil {
			return err
		}
		return run.Err()
	})
	p.expects(wire.Join{Type: wire.TypeJoin})
	p.world(wire.World{Round: 3, Size: 4, LocalSize: 2, Workers: 2, Restore: true})
	var last wire.Progress
	for message := range p.said {
		if progress, ok := message.(wire.Progress); ok {
			last = progress
		} else {
			break
		}
	}
	if diff := cmp.Diff(wire.Progress{Type: wire.TypeProgress, TotalSteps: 6, Metrics: map[string]float64{"loss": 6, "accuracy": 0.97}}, last); diff != "" {
		t.Errorf("the last numbers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(gate.Progress{Entered: 6, Done: 6, LastStep: 6, Phase: gate.PhaseFinished, Samples: 20}, p.progress()); diff != "" {
		t.Errorf("at the end (-want +got):\n%s", diff)
	}
	p.says(wire.End{Type: wire.TypeEnd})
	if err := training.ends(); err != nil {
		t.Fatal(err)
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
	a := begin(t)
	run, p := a.join(context.Background(), options)
	training := goTrain(t, run, func(ctx context.Context, _ elastic.World) error {
		for epoch := range run.Epochs(ctx) {
			for step := range epoch.Steps(ctx) {
				if step.Number() == 2 {
					break
				}
			}
		}
		return run.Err()
	})
	p.start()
	if fault, ok := p.hears().(wire.Fault); !ok || !strings.Contains(fault.Message, "epoch 0 was left after step 1") {
		t.Errorf("the program says %+v", fault)
	}
	if got := p.progress(); got.Entered != 2 || got.Done != 1 {
		t.Errorf("the agent sees %+v", got)
	}
	p.says(wire.Raise{Type: wire.TypeRaise})
	if training.ends() == nil {
		t.Error("an epoch that was left is no error")
	}
}

func TestALongFaultIsCut(t *testing.T) {
	a := begin(t)
	run, p := a.join(context.Background(), options)
	training := goTrain(t, run, func(context.Context, elastic.World) error {
		return errors.New(strings.Repeat("x", 100_000) + "the end")
	})
	p.start()
	if fault, ok := p.hears().(wire.Fault); !ok || len(fault.Message) != wire.MaxFault || !strings.HasSuffix(fault.Message, "the end") {
		t.Errorf("the program says %.60v", fault)
	}
	p.says(wire.Raise{Type: wire.TypeRaise})
	if training.ends() == nil {
		t.Error("Train hides the failure")
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
	scripted(t, `{"type":"error","message":"local rank 0 belongs to another process"}`+"\n")
	if _, err := elastic.Join(context.Background(), options); err == nil || !strings.Contains(err.Error(), "belongs to another process") {
		t.Errorf("the slot is taken: %v", err)
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

// The program trains on when its agent goes away, and ends with an error when it needs it.
func TestAnAgentThatGoesAway(t *testing.T) {
	a := begin(t)
	run, p := a.join(context.Background(), options)
	steps := 0
	training := goTrain(t, run, func(ctx context.Context, _ elastic.World) error {
		for step := range run.Steps(ctx) {
			if step.Number() == 2 {
				p.hangUp()
			}
			steps++
			step.Report(1)
		}
		return run.Err()
	})
	p.start()
	if err := training.ends(); err == nil || !strings.Contains(err.Error(), "finished here") || steps != 6 {
		t.Errorf("%d steps, then %v", steps, err)
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
		"no page":         `{"type":"welcome","protocol":2,"slot":0,"slots":1,"fds":0}` + "\n",
		"a page too few":  `{"type":"welcome","protocol":2,"slot":0,"slots":1,"fds":1}` + "\n",
		"other protocol":  `{"type":"welcome","protocol":1,"slot":0,"slots":1,"fds":0}` + "\n",
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
	serving.Go(func() { said <- converse(listener, page, t.TempDir()) })
	environment(t, map[string]string{"CONCERTINA_SOCKET": path})
	o := options
	o.State = elastic.Gob(&counter{})
	run := join(t, o)
	if err := run.Train(func(ctx context.Context, w elastic.World) error {
		if w.Round == 1 {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		for range run.Steps(ctx) {
			continue
		}
		return errors.Join(run.Err(), run.Report(map[string]float64{"loss": 0.5}))
	}); err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	serving.Wait()
	want := []string{
		`{"type":"hello","protocol":2,"localRank":0}`,
		`{"type":"join"}`,
		`{"type":"progress","totalSteps":6}`,
		`{"type":"aborted","step":0,"clean":true}`,
		`{"type":"parked","step":1}`,
		`{"type":"snapshot","step":1,"file":"1.2.0-1.part","bytes":…,"size":{"state":…,"own":…,"written":…}}`,
		`{"type":"progress","totalSteps":6,"metrics":{"loss":0.5}}`,
		`{"type":"progress","totalSteps":6,"metrics":{"loss":0.5}}`,
		`{"type":"finished","step":6,"clean":true}`,
	}
	if diff := cmp.Diff(want, <-said); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// converse is the agent's side, with the bytes of docs/program-protocol.md.
func converse(listener net.Listener, page *gate.Page, folder string) []string {
	conn, err := listener.Accept()
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	var said []string
	lines := bufio.NewScanner(conn)
	say := func(line string) { _, _ = io.WriteString(conn, line+"\n") }
	world := func(round string) {
		say(`{"type":"world","term":1,"round":` + round + `,"parent":0,"fromStep":0,"rank":0,"size":1,"localRank":0,"localSize":1,"workerRank":0,"workers":1,"masterAddress":"10.0.0.7","masterPort":40123,"restore":true,"writer":false,"later":1}`)
	}
	for lines.Scan() {
		var message struct{ Type string }
		_ = json.Unmarshal(lines.Bytes(), &message)
		said = append(said, regexp.MustCompile(`"(bytes|state|own|written)":\d+`).ReplaceAllString(lines.Text(), `"$1":…`))
		switch message.Type {
		case "hello":
			_ = sendWithFile(conn, `{"type":"welcome","protocol":2,"namespace":"n","job":"j","attempt":1,"slot":0,"slots":1,"snapshots":"`+folder+`","interval":"1.5","fds":1,"later":{}}`, page.File())
		case "join":
			world("1")
			say(`{"type":"later"}`)
			say(`{"type":"abort","round":1,"reason":"lost"}`)
		case "aborted":
			page.Arm(0, 1)
			world("2")
		case "parked":
			say(`{"type":"save","step":1}`)
		case "snapshot":
			page.Lift(0)
			say(`{"type":"go"}`)
		case "finished":
			say(`{"type":"end"}`)
		}
	}
	return slices.Clip(said)
}
