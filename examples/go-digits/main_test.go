package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/examples/go-digits/model"
)

// role makes the test binary the program itself.
const role = "GO_DIGITS_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(role) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// result is what one rank did.
type result struct {
	code   int
	output string
}

// run starts the program on so many ranks and waits for all of them.
func run(t *testing.T, ranks int, arguments ...string) []result {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	commands := make([]*exec.Cmd, ranks)
	outputs := make([]bytes.Buffer, ranks)
	for rank := range commands {
		command := exec.Command(os.Args[0], arguments...)
		command.Env = append(os.Environ(), role+"=1", "GORACE=atexit_sleep_ms=0", "CONCERTINA_SOCKET=", "MASTER_ADDR=127.0.0.1",
			"RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(ranks), "MASTER_PORT="+strconv.Itoa(port))
		command.Stdout, command.Stderr = &outputs[rank], &outputs[rank]
		command.WaitDelay = time.Second
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = command.Process.Kill() })
		commands[rank] = command
	}
	timeout := time.AfterFunc(time.Minute, func() {
		for _, command := range commands {
			_ = command.Process.Kill()
		}
	})
	defer timeout.Stop()
	results := make([]result, ranks)
	for rank, command := range commands {
		_ = command.Wait()
		results[rank] = result{command.ProcessState.ExitCode(), outputs[rank].String()}
	}
	return results
}

var (
	lossLine     = regexp.MustCompile(`(?m)^step (\d+)/\d+ loss (\S+)$`)
	accuracyLine = regexp.MustCompile(`(?m)^test accuracy (\d\.\d+)$`)
)

func losses(t *testing.T, output string) []float64 {
	t.Helper()
	var all []float64
	for _, match := range lossLine.FindAllStringSubmatch(output, -1) {
		loss, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, loss)
	}
	return all
}

func TestItReadsDigits(t *testing.T) {
	results := run(t, 2)
	for rank, r := range results {
		if r.code != 0 {
			t.Fatalf("rank %d ended with %d:\n%s", rank, r.code, r.output)
		}
	}
	match := accuracyLine.FindStringSubmatch(results[0].output)
	if match == nil {
		t.Fatalf("no accuracy in:\n%s", results[0].output)
	}
	if accuracy, _ := strconv.ParseFloat(match[1], 64); accuracy < 0.95 {
		t.Errorf("accuracy %v, want at least 0.95", accuracy)
	}
	if results[1].output != "" {
		t.Errorf("rank 1 says %q", results[1].output)
	}
}

func TestTheLossDoesNotDependOnTheWorld(t *testing.T) {
	arguments := []string{"-epochs=5", "-batch=100", "-log-every=1"}
	want := losses(t, run(t, 1, arguments...)[0].output)
	if len(want) != 5*15 {
		t.Fatalf("%d steps, want 75", len(want))
	}
	for _, row := range []struct {
		ranks int
		micro string
	}{{2, "0"}, {3, "0"}, {5, "7"}, {4, "16"}} {
		t.Run(fmt.Sprintf("%d ranks, micro-batch %s", row.ranks, row.micro), func(t *testing.T) {
			got := losses(t, run(t, row.ranks, append(arguments, "-micro-batch="+row.micro)...)[0].output)
			if len(got) != len(want) {
				t.Fatalf("%d steps, want %d", len(got), len(want))
			}
			for i := range got {
				if math.Abs(got[i]-want[i]) > 1e-3*want[i] {
					t.Errorf("step %d has the loss %v, with one rank %v", i+1, got[i], want[i])
				}
			}
		})
	}
}

var ledgerLine = regexp.MustCompile(`(?m)^ledger round=(\d+) step=(\d+) epoch=(\d+) rank=(\d+) ids=([0-9,]*)$`)

// Also with more ranks than samples in a step: 1438 images leave 2 for the last one of an epoch.
func TestTheLedgerHasEverySampleOnce(t *testing.T) {
	const ranks, epochs = 5, 2
	seen := map[string]int{}
	for rank, r := range run(t, ranks, "-epochs=2", "-batch=359", "-micro-batch=50", "-ledger") {
		if r.code != 0 {
			t.Fatalf("rank %d ended with %d:\n%s", rank, r.code, r.output)
		}
		lines := ledgerLine.FindAllStringSubmatch(r.output, -1)
		if len(lines) != epochs*5 {
			t.Errorf("rank %d wrote %d lines, want a line for each of 10 steps", rank, len(lines))
		}
		for _, line := range lines {
			if line[1] != "0" || line[4] != strconv.Itoa(rank) {
				t.Errorf("rank %d says %s", rank, line[0])
			}
			for _, id := range strings.Split(line[5], ",") {
				if id != "" {
					seen[line[3]+"/"+id]++
				}
			}
		}
	}
	if len(seen) != epochs*1438 {
		t.Errorf("%d different samples were used in 2 epochs", len(seen))
	}
	for use, n := range seen {
		if n != 1 {
			t.Errorf("sample %s was used %d times", use, n)
		}
	}
}

func TestEvaluations(t *testing.T) {
	begun := time.Now()
	r := run(t, 1, "-epochs=3", "-batch=500", "-eval-every=2", "-eval-time=60ms")[0]
	if r.code != 0 || !regexp.MustCompile(`(?m)^epoch 2: test accuracy 0\.\d+$`).MatchString(r.output) ||
		!accuracyLine.MatchString(r.output) || strings.Count(r.output, "accuracy") != 2 {
		t.Errorf("ended with %d:\n%s", r.code, r.output)
	}
	if took := time.Since(begun); took < 120*time.Millisecond {
		t.Errorf("two evaluations of 60 ms took %v", took)
	}
}

func TestFailAtStep(t *testing.T) {
	results := run(t, 2, "-fail-at-step=7", "-log-every=1")
	if results[0].code != 1 || !strings.Contains(results[0].output, "failing in step 7") {
		t.Errorf("rank 0 ended with %d:\n%s", results[0].code, results[0].output)
	}
	if n := len(losses(t, results[0].output)); n != 6 {
		t.Errorf("%d steps were done, want 6", n)
	}
	if results[1].code != 1 || !strings.Contains(results[1].output, "step 7") {
		t.Errorf("rank 1 ended with %d:\n%s", results[1].code, results[1].output)
	}
}

func TestFailEverywhereAtStep(t *testing.T) {
	for rank, r := range run(t, 3, "-fail-everywhere-at-step=7", "-step-time=20ms") {
		if r.code != 1 || !strings.HasSuffix(r.output, "failing in step 7, as --fail-everywhere-at-step says\n") {
			t.Errorf("rank %d ended with %d:\n%s", rank, r.code, r.output)
		}
	}
}

// Also with fewer samples than ranks.
func TestSamples(t *testing.T) {
	results := run(t, 4, "-samples=3", "-batch=8", "-epochs=2", "-ledger")
	for _, epoch := range []string{"0", "1"} {
		seen := map[string]int{}
		for _, r := range results {
			for _, line := range ledgerLine.FindAllStringSubmatch(r.output, -1) {
				for _, id := range strings.Split(line[5], ",") {
					if id != "" && line[3] == epoch {
						seen[id]++
					}
				}
			}
		}
		if want := map[string]int{"0": 1, "1": 1, "2": 1}; !maps.Equal(seen, want) {
			t.Errorf("epoch %s used the samples %v, want each of 3 once:\n%s", epoch, seen, results[0].output)
		}
	}
	if r := run(t, 1, "-samples=1439")[0]; r.code != 1 || !strings.Contains(r.output, "at most 1438") {
		t.Errorf("more samples than there are: exit code %d:\n%s", r.code, r.output)
	}
}

func TestAbsent(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if r := run(t, 1, "-epochs=1", "-absent=not-"+host)[0]; r.code != 0 {
		t.Errorf("on another host it ended with %d:\n%s", r.code, r.output)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("that was long enough")
	cancel(enough)
	if err := stayAway(ctx, host); !errors.Is(err, enough) {
		t.Errorf("it did not stay away until the end of its context: %v", err)
	}
}

func TestBallastIsPartOfTheState(t *testing.T) {
	if r := run(t, 2, "-epochs=1", "-ballast=100000")[1]; r.code != 0 {
		t.Fatalf("ended with %d:\n%s", r.code, r.output)
	}
	size := func(ballast int) int {
		var saved bytes.Buffer
		if err := state(model.New(1), ballast).Save(&saved); err != nil {
			t.Fatal(err)
		}
		return saved.Len()
	}
	if more := size(100000) - size(0); more < 100000 {
		t.Errorf("100000 bytes of ballast make the state larger by %d", more)
	}
}

func TestStepTime(t *testing.T) {
	begun := time.Now()
	if r := run(t, 1, "-epochs=1", "-batch=500", "-step-time=100ms")[0]; r.code != 0 {
		t.Fatalf("ended with %d:\n%s", r.code, r.output)
	}
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("three steps of 100 ms took %v", took)
	}
}

func TestStartTime(t *testing.T) {
	begun := time.Now()
	if r := run(t, 1, "-epochs=1", "-batch=500", "-start-time=300ms")[0]; r.code != 0 {
		t.Fatalf("ended with %d:\n%s", r.code, r.output)
	}
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("a start of 300 ms and the training took %v", took)
	}
}

func TestBadFlags(t *testing.T) {
	for _, flag := range []string{
		"-rate=0", "-momentum=1", "-log-every=0", "-step-time=-1s", "-start-time=-1s", "-eval-every=-1", "-eval-time=-1s",
		"-samples=-1", "-ballast=-1", "-epochs=x", "surplus",
	} {
		if r := run(t, 1, flag)[0]; r.code != 2 {
			t.Errorf("%s: exit code %d, want 2:\n%s", flag, r.code, r.output)
		}
	}
	for _, flag := range []string{"-epochs=0", "-batch=0", "-micro-batch=-1"} {
		if r := run(t, 1, flag)[0]; r.code != 1 || !strings.Contains(r.output, "must") {
			t.Errorf("%s: exit code %d:\n%s", flag, r.code, r.output)
		}
	}
}
