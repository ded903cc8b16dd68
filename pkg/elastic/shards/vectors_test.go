package shards_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/concertina-dev/concertina/pkg/elastic/shards"
)

// testdata/shards.json was not written by this code; the tests of the Python SDK read it as well.
func TestPlanVectors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "testdata", "shards.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Plans []struct {
			Want  [2]uint64
			Parts [][2]uint64
			Moves *[][3]uint64
		}
		Joins []struct {
			Intervals [][2]uint64
			Most      int
			Joined    [][2]uint64
		}
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Plans) == 0 || len(vectors.Joins) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors.Joins {
		var all []shards.Interval
		for _, i := range v.Intervals {
			all = append(all, shards.Interval{From: i[0], To: i[1]})
		}
		var got [][2]uint64
		for _, i := range shards.Joined(all, v.Most) {
			got = append(got, [2]uint64{i.From, i.To})
		}
		if !slices.Equal(got, v.Joined) {
			t.Errorf("%v are joined to %d as %v, want %v", v.Intervals, v.Most, got, v.Joined)
		}
	}
	for _, v := range vectors.Plans {
		var all []shards.Part
		for _, p := range v.Parts {
			all = append(all, shards.Part{Interval: shards.Interval{From: p[0], To: p[1]}})
		}
		moves, err := shards.Plan(shards.Interval{From: v.Want[0], To: v.Want[1]}, all)
		var got [][3]uint64
		for _, m := range moves {
			got = append(got, [3]uint64{uint64(m.Part), m.From, m.To})
		}
		if (err != nil) != (v.Moves == nil) || v.Moves != nil && !slices.Equal(got, *v.Moves) {
			t.Errorf("%v of %v: %v, %v; want %v", v.Want, v.Parts, got, err, v.Moves)
		}
	}
}
