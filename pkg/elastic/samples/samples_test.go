package samples_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/pkg/elastic/samples"
)

// vectors is testdata/samples.json, which was not written by this code.
type vectors struct {
	Permutations []struct {
		Seed, Epoch, N     uint64
		Positions, Samples []uint64
	}
	Plans []struct {
		N                              uint64
		GlobalBatch, World, MicroBatch int
		Steps                          []step
	}
}

type step struct {
	First   uint64
	Samples int
	Ranks   []struct {
		First        uint64
		Samples      int
		MicroBatches []samples.Part
	}
}

func load(t *testing.T) vectors {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "testdata", "samples.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Permutations) == 0 || len(v.Plans) == 0 {
		t.Fatal("no vectors")
	}
	return v
}

func TestPermutationVectors(t *testing.T) {
	for _, v := range load(t).Permutations {
		permutation := samples.NewPermutation(v.Seed, v.Epoch, v.N)
		var got []uint64
		for _, position := range v.Positions {
			got = append(got, permutation.At(position))
		}
		if diff := cmp.Diff(v.Samples, got); diff != "" {
			t.Errorf("seed %d, epoch %d, n %d (-want +got):\n%s", v.Seed, v.Epoch, v.N, diff)
		}
	}
}

func TestPlanVectors(t *testing.T) {
	for _, v := range load(t).Plans {
		shape := samples.Shape{Samples: v.N, GlobalBatch: v.GlobalBatch, MicroBatch: v.MicroBatch, Epochs: 1}
		if err := shape.Check(); err != nil {
			t.Fatal(err)
		}
		if got, want := shape.Steps(), uint64(len(v.Steps)); got != want {
			t.Fatalf("%+v has %d steps, want %d", shape, got, want)
		}
		for i, want := range v.Steps {
			checkStep(t, shape, uint64(i+1), v.World, want)
		}
	}
}

func checkStep(t *testing.T, shape samples.Shape, number uint64, ranks int, want step) {
	t.Helper()
	batch := shape.Batch(number)
	if batch.First != want.First || batch.Samples != want.Samples {
		t.Errorf("step %d of %+v is %+v, want %d samples from %d", number, shape, batch, want.Samples, want.First)
	}
	for rank, part := range want.Ranks {
		if got := batch.Of(rank, ranks); got.First != part.First || got.Samples != part.Samples {
			t.Errorf("step %d of %+v: rank %d of %d has %+v, want %d samples from %d",
				number, shape, rank, ranks, got, part.Samples, part.First)
		}
		var got []samples.Part
		for i := range batch.MicroBatches(ranks, shape.MicroBatch) {
			got = append(got, batch.MicroBatch(rank, ranks, shape.MicroBatch, i))
		}
		if diff := cmp.Diff(part.MicroBatches, got); diff != "" {
			t.Errorf("step %d of %+v: rank %d of %d (-want +got):\n%s", number, shape, rank, ranks, diff)
		}
	}
}

func TestPermutationIsABijection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(1, 5000).Draw(t, "n")
		permutation := samples.NewPermutation(
			rapid.Uint64().Draw(t, "seed"), rapid.Uint64Range(0, 1<<40).Draw(t, "epoch"), n)
		seen := make([]bool, n)
		for i := range n {
			sample := permutation.At(i)
			if sample >= n || seen[sample] {
				t.Fatalf("position %d holds sample %d, out of range or a second time", i, sample)
			}
			seen[sample] = true
		}
	})
}

func TestPermutationsDiffer(t *testing.T) {
	const n = 1000
	base := samples.NewPermutation(1, 0, n)
	for name, other := range map[string]samples.Permutation{
		"next epoch": samples.NewPermutation(1, 1, n),
		"next seed":  samples.NewPermutation(2, 0, n),
	} {
		same := 0
		for i := range uint64(n) {
			if base.At(i) == other.At(i) {
				same++
			}
		}
		// One fixed point is expected between two random permutations.
		if same > 10 {
			t.Errorf("%s: %d of %d positions hold the same sample", name, same, n)
		}
	}
}

// Promise 5: along any sequence of worlds every sample of an epoch is used exactly once.
func TestEverySampleOnceWhateverTheWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := samples.Shape{
			Samples:     rapid.Uint64Range(1, 400).Draw(t, "samples"),
			GlobalBatch: rapid.IntRange(1, 500).Draw(t, "batch"),
			MicroBatch:  rapid.IntRange(0, 40).Draw(t, "micro"),
			Epochs:      rapid.IntRange(1, 3).Draw(t, "epochs"),
			Seed:        rapid.Uint64().Draw(t, "seed"),
		}
		if err := shape.Check(); err != nil {
			t.Fatal(err)
		}
		used := map[[2]uint64]int{}
		total := uint64(0)
		for number := uint64(1); number <= shape.Steps(); number++ {
			batch := shape.Batch(number)
			order := samples.NewPermutation(shape.Seed, batch.Epoch, shape.Samples)
			ranks := rapid.IntRange(1, 12).Draw(t, "ranks")
			weights := 0.0
			for rank := range ranks {
				for i := range batch.MicroBatches(ranks, shape.MicroBatch) {
					part := batch.MicroBatch(rank, ranks, shape.MicroBatch, i)
					if shape.MicroBatch > 0 && part.Samples > shape.MicroBatch {
						t.Fatalf("a micro-batch of %d samples", part.Samples)
					}
					weights += part.Weight
					for j := range part.Samples {
						used[[2]uint64{batch.Epoch, order.At(part.First + uint64(j))}]++
					}
				}
			}
			if math.Abs(weights/float64(ranks)-1) > 1e-12 {
				t.Fatalf("the weights of step %d add up to %v for %d ranks", number, weights, ranks)
			}
			if total += uint64(batch.Samples); shape.Used(number) != total {
				t.Fatalf("%d samples used after step %d, want %d", shape.Used(number), number, total)
			}
		}
		if want := uint64(shape.Epochs) * shape.Samples; uint64(len(used)) != want || total != want {
			t.Fatalf("%d different samples in %d, want %d", len(used), total, want)
		}
	})
}

func TestShapeCheck(t *testing.T) {
	good := samples.Shape{Samples: 10, GlobalBatch: 4, Epochs: 1}
	for name, row := range map[string]struct {
		change func(*samples.Shape)
		want   string
	}{
		"good":             {func(*samples.Shape) {}, ""},
		"no samples":       {func(s *samples.Shape) { s.Samples = 0 }, "number of samples is 0"},
		"too many samples": {func(s *samples.Shape) { s.Samples = samples.MaxSamples + 1 }, "number of samples"},
		"no batch":         {func(s *samples.Shape) { s.GlobalBatch = 0 }, "global batch is 0"},
		"negative micro":   {func(s *samples.Shape) { s.MicroBatch = -1 }, "micro-batch is -1"},
		"no epochs":        {func(s *samples.Shape) { s.Epochs = 0 }, "number of epochs is 0"},
		"too many steps": {func(s *samples.Shape) {
			s.Samples, s.GlobalBatch, s.Epochs = 1<<62, 1, 2
		}, "more than 2^62 steps"},
		"too many in all": {func(s *samples.Shape) {
			s.Samples, s.GlobalBatch, s.Epochs = 1<<62, 1<<31, 2
		}, "more than 2^62 samples"},
	} {
		t.Run(name, func(t *testing.T) {
			shape := good
			row.change(&shape)
			err := shape.Check()
			if (err == nil) != (row.want == "") || (err != nil && !strings.Contains(err.Error(), row.want)) {
				t.Errorf("Check() = %v, want %q", err, row.want)
			}
		})
	}
}

func TestAfterIsTheNextBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := samples.Shape{
			Samples:     rapid.Uint64Range(1, 40).Draw(t, "samples"),
			GlobalBatch: rapid.IntRange(1, 50).Draw(t, "batch"),
			Epochs:      rapid.IntRange(1, 3).Draw(t, "epochs"),
		}
		for step := uint64(1); step < shape.Steps(); step++ {
			if diff := cmp.Diff(shape.Batch(step+1), shape.After(shape.Batch(step))); diff != "" {
				t.Fatalf("after step %d (-want +got):\n%s", step, diff)
			}
		}
	})
}
