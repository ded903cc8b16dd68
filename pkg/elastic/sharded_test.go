package elastic_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// counts is a Sharded whose numbers are their indices, plus the number of steps.
func counts(length uint64) *elastic.Sharded[int64] {
	return &elastic.Sharded[int64]{Name: "counts", Length: length, Init: func(first uint64, values []int64) {
		for i := range values {
			values[i] = int64(first) + int64(i)
		}
	}}
}

// trainShards makes steps until it is parked, and notes what each world begins with.
func trainShards(shards *elastic.Sharded[int64], steps *int, run *elastic.Run, seen chan<- string, park func()) func(context.Context, elastic.World) error {
	return func(ctx context.Context, w elastic.World) error {
		first, values := shards.Local()
		for i, value := range values {
			if value != int64(first)+int64(i)+int64(*steps) {
				return fmt.Errorf("after %d steps the number at %d is %d", *steps, int(first)+i, value)
			}
		}
		seen <- fmt.Sprintf("%d: %d of %d has %d from %d", w.Round, w.Rank, w.Size, len(values), first)
		for step := range run.Steps(ctx) {
			if step.Number() == 3 {
				park()
			}
			for i := range values {
				values[i]++
			}
			*steps++
		}
		return run.Err()
	}
}

// leavesBeforeAStep takes over the snapshot of the first step, and aborts the world before it has made one. It returns the paths of its
// parts, the one with what is in no shard, and the key of the shard.
func (p *program) leavesBeforeAStep(t *testing.T) (parts map[string]string, own, shard string) {
	t.Helper()
	parts = p.keepParts(1, p.hears().(wire.Snapshot))
	p.says(wire.Abort{Type: wire.TypeAbort, Round: 1, Reason: "a test"})
	if left, ok := p.hears().(wire.Aborted); !ok || left.Step != 0 {
		t.Fatalf("it says %+v", left)
	}
	for key := range parts {
		if strings.HasPrefix(key, "d") {
			shard = key
		} else {
			own = parts[key]
		}
	}
	return parts, own, shard
}

// keepParts gives the files of a snapshot in parts the names that the agent gives, and returns their paths.
func (p *program) keepParts(round uint64, s wire.Snapshot) map[string]string {
	p.t.Helper()
	if s.Parts == nil || s.Error != "" {
		p.t.Fatalf("the program has written %+v", s)
	}
	paths := map[string]string{}
	for _, part := range *s.Parts {
		paths[part.Key] = filepath.Join(p.a.folder, fmt.Sprintf("%d-%d.%s", round, s.Step, part.Key))
		if err := os.Rename(filepath.Join(p.a.folder, part.File), paths[part.Key]); err != nil {
			p.t.Fatalf("%v", err)
		}
	}
	return paths
}

// excerpt is a file as large as another one that has some bytes of it, and nonsense elsewhere.
func (p *program) excerpt(path string, ranges [][2]uint64) string {
	p.t.Helper()
	all, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	some := bytes.Repeat([]byte{0xee}, len(all))
	for _, r := range ranges {
		copy(some[r[0]:r[1]], all[r[0]:r[1]])
	}
	if err := os.WriteFile(path+".excerpt", some, 0o600); err != nil {
		p.t.Fatalf("%v", err)
	}
	return path + ".excerpt"
}

// A rank of three becomes the first of two: it asks for the shards that it lacks some of, and has all of its new interval then.
func TestShardsOfAnotherWorld(t *testing.T) {
	paths, keys := map[string]string{}, make([]string, 3)
	var own string
	for rank := range 3 {
		a := begin(t)
		shards, steps := counts(10), 0
		ctx, end := context.WithCancel(t.Context())
		defer end()
		run, p := a.join(ctx, elastic.Options{
			Samples: 1 << 20, Epochs: 1 << 20, GlobalBatch: 1, State: elastic.Gob(&steps), Shards: []elastic.Shard{shards},
		})
		seen := make(chan string, 8)
		training := goTrain(t, run, trainShards(shards, &steps, run, seen, func() { a.page.Arm(0, 3) }))
		p.expects(wire.Join{Type: wire.TypeJoin})
		p.world(wire.World{Round: 1, Rank: rank, Size: 3, Workers: 3, WorkerRank: rank, Restore: true})
		if got, want := <-seen, fmt.Sprintf("1: %d of 3 has %d from %d", rank, []int{3, 3, 4}[rank], 3*rank); got != want {
			t.Errorf("it begins with %q, not %q", got, want)
		}
		first, ok := p.hears().(wire.Snapshot) // of the state before the first step
		if !ok || first.Step != 0 {
			t.Fatalf("the program says %+v", first)
		}
		p.keepParts(1, first)
		parked, ok := p.hears().(wire.Parked)
		if !ok {
			t.Fatalf("the program says %+v", parked)
		}
		p.says(wire.Save{Type: wire.TypeSave, Step: parked.Step})
		saved, ok := p.hears().(wire.Snapshot)
		if !ok || saved.Step != 3 {
			t.Fatalf("the program answers save with %+v", saved)
		}
		size := saved.Size // of 10 numbers, of which the ranks have 3, 3 and 4
		if size == nil || size.Shards != []uint64{3, 3, 4}[rank]*8*3 || size.Own == 0 || size.State != size.Shards+size.Own ||
			size.Written != size.Shards/3+size.Own {
			t.Errorf("the size of the state is told as %+v", size)
		}
		for key, path := range p.keepParts(1, saved) {
			paths[key] = path
			if strings.HasPrefix(key, "d") {
				keys[rank] = key
			} else if rank == 0 {
				own = path
			}
		}
		if rank < 2 {
			p.hangUp()
			if err := training.ends(); err == nil {
				t.Error("it goes on without its agent")
			}
			continue
		}
		p.world(wire.World{Round: 2, Parent: 1, FromStep: 3, Rank: 0, Size: 2, Workers: 2, Snapshot: own, Shards: keys})
		want, ok := p.hears().(wire.Want)
		if !ok || !slices.Equal(want.Parts, keys[:2]) {
			t.Fatalf("it asks for %+v, of %v", want, keys)
		}
		for _, round := range []uint64{1, 2} { // what was asked for in another world counts for nothing
			had := wire.Had{Type: wire.TypeHad, Round: round}
			for i, key := range want.Parts {
				had.Parts = append(had.Parts, wire.Part{Key: key, File: p.excerpt(paths[key], want.Ranges[i])})
			}
			p.says(had)
		}
		if got := <-seen; got != "2: 0 of 2 has 5 from 0" {
			t.Errorf("it begins with %q", got)
		}
		end()
		if err := training.ends(); !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	}
}

// The state before the first step is a snapshot as well: of it what was sharded is loaded like that of any other step.
func TestShardsOfTheFirstStep(t *testing.T) {
	a := begin(t)
	shards, steps := counts(10), 0
	run, p := a.join(t.Context(), elastic.Options{
		Samples: 9, Epochs: 1, GlobalBatch: 1, State: elastic.Gob(&steps), Shards: []elastic.Shard{shards},
	})
	seen, held := make(chan string, 8), make(chan struct{})
	training := goTrain(t, run, func(ctx context.Context, w elastic.World) error {
		first, values := shards.Local()
		seen <- fmt.Sprintf("%d: %d from %d", w.Round, values[0], first)
		for range run.Steps(ctx) {
			select {
			case <-ctx.Done():
			case <-held:
			}
			return run.Err()
		}
		return run.Err()
	})
	p.start()
	<-seen
	parts, own, shard := p.leavesBeforeAStep(t)
	p.world(wire.World{Round: 2, Parent: 1, Rank: 1, Size: 2, Workers: 2, WorkerRank: 1, Restore: true, Snapshot: own, Shards: []string{shard}})
	p.expects(wire.Want{Type: wire.TypeWant, Parts: []string{shard}, Ranges: [][][2]uint64{{{40, 80}}}})
	p.says(wire.Had{Type: wire.TypeHad, Round: 2, Parts: []wire.Part{{Key: shard, File: parts[shard]}}})
	if got := <-seen; got != "2: 5 from 5" {
		t.Errorf("it begins with %q", got)
	}
	close(held)
	p.hangUp()
	_ = training.ends() // without its agent, or because it was not to end there
}

// A rank that needs no shard says so, and waits to be told: nobody else knows that it has all that it needs.
func TestARankThatNeedsNoShard(t *testing.T) {
	a := begin(t)
	shards, steps := counts(10), 0
	ctx, end := context.WithCancel(t.Context())
	defer end()
	run, p := a.join(ctx, elastic.Options{
		Samples: 9, Epochs: 1, GlobalBatch: 1, State: elastic.Gob(&steps), Shards: []elastic.Shard{shards},
	})
	seen := make(chan string, 8)
	training := goTrain(t, run, func(ctx context.Context, w elastic.World) error {
		first, values := shards.Local()
		seen <- fmt.Sprintf("%d: %d from %d", w.Round, len(values), first)
		for range run.Steps(ctx) {
			<-ctx.Done()
			return run.Err()
		}
		return run.Err()
	})
	p.start()
	<-seen
	_, own, shard := p.leavesBeforeAStep(t)
	// As long as it is told of nothing it waits: worlds that are over by then are none that it has trained in.
	next := wire.World{Round: 1, Rank: 0, Size: 12, Workers: 12, Restore: true, Snapshot: own, Shards: []string{shard}}
	enters := func() {
		next.Round, next.Parent = next.Round+1, next.Round
		p.world(next)
		p.expects(wire.Want{Type: wire.TypeWant, Parts: []string{}})
	}
	for range 4 {
		enters()
		p.says(wire.Abort{Type: wire.TypeAbort, Round: next.Round, Reason: "a test"})
		if left, ok := p.hears().(wire.Aborted); !ok {
			t.Fatalf("it says %+v", left)
		}
	}
	enters()
	p.says(wire.Had{Type: wire.TypeHad, Round: next.Round, Parts: []wire.Part{}})
	if got, want := <-seen, fmt.Sprintf("%d: 0 from 0", next.Round); got != want {
		t.Errorf("it begins with %q; it was told of its world alone that it has what it needs, so with %q", got, want)
	}
	end()
	if err := training.ends(); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}

// What cannot be loaded ends the program with words.
func TestShardsThatCannotBeLoaded(t *testing.T) {
	for name, c := range map[string]struct {
		shards []elastic.Shard
		world  wire.World
		file   string
		want   string
	}{
		"the program has none": {
			world: wire.World{Shards: []string{"d0.1.0123456789abcdef"}}, want: "the program has none",
		},
		"the operator tells none": {
			shards: []elastic.Shard{counts(10)}, want: "the shards of the state are not told",
		},
		"the world has too many ranks": {
			shards: []elastic.Shard{counts(1000)}, world: wire.World{Shards: []string{"d0.1.0123456789abcdef"}, Size: 136, Workers: 17},
			want: "at most 128 ranks",
		},
		"it is a state without shards": {
			shards: []elastic.Shard{counts(10)}, world: wire.World{Shards: []string{"d0.1.0123456789abcdef"}},
			file: `{"format":"concertina.dev/go/1","step":3}` + "\n", want: "it is of another training",
		},
		"they have another shape": {
			shards: []elastic.Shard{counts(10)}, world: wire.World{Shards: []string{"d0.1.0123456789abcdef"}},
			file: `{"format":"concertina.dev/go/1/shards","step":3,"samples":9,"globalBatch":1,"seed":0}` + "\n" +
				`{"ranks":1,"shards":[{"name":"counts","length":11,"type":"int64","bytes":8}]}` + "\n",
			want: "it is of the shards",
		},
		"nonsense": {
			shards: []elastic.Shard{counts(10)}, world: wire.World{Shards: []string{"d0.1.0123456789abcdef"}},
			file: `{"format":"concertina.dev/go/1/shards","step":3,"samples":9,"globalBatch":1,"seed":0}` + "\n" + `{"ranks":-1}` + "\n",
			want: "speaks of -1 ranks",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := begin(t)
			run, p := a.join(t.Context(), elastic.Options{Samples: 9, Epochs: 9, GlobalBatch: 1, Shards: c.shards})
			training := goTrain(t, run, func(context.Context, elastic.World) error { return nil })
			p.expects(wire.Join{Type: wire.TypeJoin})
			w := c.world
			w.Round, w.FromStep, w.Restore, w.Snapshot = 1, 3, true, filepath.Join(a.folder, "1-3.r0")
			if err := os.WriteFile(w.Snapshot, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			p.world(w)
			if fault, ok := p.hears().(wire.Fault); !ok || !strings.Contains(fault.Message, c.want) {
				t.Errorf("it says %+v", fault)
			}
			p.says(wire.Raise{Type: wire.TypeRaise})
			if err := training.ends(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}

func TestShardsThatAreNone(t *testing.T) {
	for _, shards := range [][]elastic.Shard{
		{counts(1), counts(2)}, {&elastic.Sharded[int8]{Length: 3}}, {counts(1 << 62)},
	} {
		if _, err := elastic.Join(t.Context(), elastic.Options{Samples: 9, Epochs: 9, GlobalBatch: 1, Shards: shards}); err == nil || !strings.Contains(err.Error(), "Options.Shards") {
			t.Errorf("got %v", err)
		}
	}
	a := begin(t)
	a.old = true
	var welcoming sync.WaitGroup
	welcoming.Go(func() { a.welcome() })
	defer welcoming.Wait()
	if _, err := elastic.Join(t.Context(), elastic.Options{Samples: 9, Epochs: 9, GlobalBatch: 1, Shards: []elastic.Shard{counts(9)}}); err == nil || !strings.Contains(err.Error(), "knows no state in shards") {
		t.Errorf("an older agent: %v", err)
	}
}

// Without an agent the only rank has all.
func TestShardsAlone(t *testing.T) {
	environment(t, map[string]string{"CONCERTINA_SOCKET": ""})
	shards := counts(10)
	run, err := elastic.Join(t.Context(), elastic.Options{Samples: 3, Epochs: 1, GlobalBatch: 1, Shards: []elastic.Shard{shards}})
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("enough")
	err = run.Train(func(context.Context, elastic.World) error {
		if first, values := shards.Local(); first != 0 || len(values) != 10 || values[9] != 9 {
			t.Errorf("it has %v from %d", values, first)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Error(err)
	}
}
