package storage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/checkpoint/storage"
	"github.com/concertina-dev/concertina/internal/score"
)

// childArgument makes this program one that saves, collects and loads until it is killed.
const childArgument = "-save-collect-load"

// stateBytes is more than one piece.
const stateBytes = 16<<20 + 12345

// child saves checkpoints from a step on, whole or in parts, and says so of each that is durable.
func child(arguments []string) {
	ctx := context.Background()
	s, err := storage.Open(ctx, arguments[0])
	if err != nil {
		panic(err)
	}
	step, _ := strconv.ParseUint(arguments[1], 10, 64)
	saveOne, loadOne := saveWhole, loadWhole
	if arguments[2] == inParts {
		saveOne, loadOne = saveParts, partsWhole
	}
	for ; ; step++ {
		where := place(1, step)
		if err := errors.Join(s.Score(ctx, where, best.Metric, scoreOf(step)), saveOne(ctx, s, where)); err != nil {
			panic(err)
		}
		fmt.Println("durable", step)
		if _, err := s.Collect(ctx, job, 2, best); err != nil {
			panic(err)
		}
		found, err := s.Find(ctx, "team/llama")
		if err != nil || len(found) == 0 || found[0] != where {
			panic(fmt.Sprint(found, err))
		}
		if err := loadOne(ctx, s, found[len(found)-1]); err != nil {
			panic(err)
		}
		fmt.Println("loaded", found[len(found)-1].Step)
	}
}

// best are those that stay for their scores. Of one step more than a child has said so it may have been saved.
var best = score.Best{Metric: "loss", Lowest: true, Keep: 2}

// scoreOf is how good the state after a step is.
func scoreOf(step uint64) float64 { return float64(step*2654435761%1009) / 100 }

// bestUpTo is the best step of those up to one.
func bestUpTo(step uint64) uint64 {
	found := step
	for s := step; s > 0; s-- {
		if best.Compare(scoreOf(s), scoreOf(found)) < 0 {
			found = s
		}
	}
	return found
}

// inParts has a child save in parts.
const inParts = "in-parts"

func saveWhole(ctx context.Context, s *storage.Storage, where storage.Place) error {
	return s.Save(ctx, where, fileOf(where, state(where.Step, stateBytes)))
}

func loadWhole(ctx context.Context, s *storage.Storage, where storage.Place) error {
	reading, err := s.Read(ctx, where)
	if err != nil {
		return err
	}
	return errors.Join(reading.Load(ctx, "state", discard{}), reading.Close(ctx))
}

// leastLife bounds how long a process lives that is killed; where the machine has so much else to do that none comes far in that
// time they live longer.
const leastLife = 1200 * time.Millisecond

// A process that saves, collects and loads is killed at random moments: the newest checkpoint that it called durable
// is there, whole, and the next process goes on.
func TestKilledWhileItSavesCollectsAndLoads(t *testing.T) {
	t.Parallel()
	kills := 12
	if text := os.Getenv("STORAGE_KILLS"); text != "" {
		kills, _ = strconv.Atoi(text)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	server := startS3(t)
	folder := t.TempDir()
	for _, backend := range []struct{ name, url, how string }{
		{"folder", "file://" + folder, "whole"},
		{"S3", url(server.address, ""), "whole"},
		{"folder in parts", "file://" + folder + "/parts", inParts},
		{"S3 in parts", url(server.address, inParts), inParts},
	} {
		t.Run(backend.name, func(t *testing.T) {
			s := open(t, backend.url)
			durable, saved := uint64(0), 0
			within := leastLife
			for i := 0; i < kills || saved == 0 && i < 4*kills; i++ {
				before := durable
				durable = killed(t, backend.url, backend.how, durable+1, time.Duration(random.Int64N(int64(within))))
				if within += within / 4; durable > before {
					saved++
					within = max(leastLife, within/2)
				}
				whole(t, s, durable, backend.how)
			}
			if saved == 0 {
				t.Fatal("no process came so far as to save a checkpoint")
			}
			if _, err := s.Collect(t.Context(), job, 1, score.Best{}); err != nil {
				t.Fatal(err)
			}
			t.Logf("of %d processes or more that were killed %d had saved some of the %d checkpoints", kills, saved, durable)
		})
	}
}

// killed runs a child until a time, and returns the last step that it called durable, or the one before from.
func killed(t *testing.T, url, how string, from uint64, after time.Duration) uint64 {
	t.Helper()
	command := exec.Command(os.Args[0], childArgument, url, strconv.FormatUint(from, 10), how)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	command.SysProcAttr = dieWithParent()
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = command.Process.Kill() })
	defer timer.Stop()
	durable := from - 1
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if step, ok := strings.CutPrefix(lines.Text(), "durable "); ok {
			durable, _ = strconv.ParseUint(step, 10, 64)
		}
	}
	_, _ = io.Copy(io.Discard, out)
	_ = command.Wait()
	if strings.Contains(stderr.String(), "panic") {
		t.Fatalf("the process ended by itself: %s", stderr.String())
	}
	return durable
}

// whole checks that the newest complete checkpoint is one from a step on, that the best one up to that is there as well, and that
// both are what they should be.
func whole(t *testing.T, s *storage.Storage, step uint64, how string) {
	t.Helper()
	found := find(t, s, "team/llama")
	if step == 0 && len(found) == 0 {
		return
	}
	if len(found) == 0 || found[0].Step < step {
		t.Fatalf("step %d was called durable, and %v is there", step, found)
	}
	good := place(1, bestUpTo(step))
	if step > 0 && !slices.Contains(found, good) {
		t.Fatalf("step %d was called durable, and its score is the best up to step %d: %v is there", good.Step, step, found)
	}
	for _, where := range found {
		if where.Step < step && where != good {
			continue
		}
		if how == inParts {
			if err := partsWhole(t.Context(), s, where); err != nil {
				t.Fatalf("the checkpoint of step %d is not whole: %v", where.Step, err)
			}
			continue
		}
		got, err := load(t, s, where)
		if err != nil || !bytes.Equal(got, state(where.Step, stateBytes)) {
			t.Fatalf("the checkpoint of step %d is not whole: %v", where.Step, err)
		}
	}
}
