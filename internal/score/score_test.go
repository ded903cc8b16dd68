package score_test

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/concertina-dev/concertina/internal/score"
)

func TestTextsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := score.Best{
			Metric: rapid.StringMatching(`[A-Za-z0-9_]{1,32}`).Draw(t, "metric"), Lowest: rapid.Bool().Draw(t, "lowest"),
			Keep: rapid.IntRange(1, 16).Draw(t, "keep"),
		}
		if got, err := score.Parse(want.String()); err != nil || got != want {
			t.Fatalf("%+v as %q is read as %+v (%v)", want, want.String(), got, err)
		}
		value := rapid.Float64().Draw(t, "value")
		if got, err := strconv.ParseFloat(score.Text(value), 64); err != nil || got != value || len(score.Text(value)) > 32 {
			t.Fatalf("%v as %q is read as %v (%v)", value, score.Text(value), got, err)
		}
	})
}

func TestParseRefusesNonsense(t *testing.T) {
	for _, text := range []string{" ", "accuracy", "accuracy Maximize", "accuracy Maximize 0", "accuracy Maximize x", "accuracy maximize 1", "a/b Maximize 1", "a Maximize 1 2"} {
		if got, err := score.Parse(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	if got, err := score.Parse(""); err != nil || got != (score.Best{}) || got.String() != "" {
		t.Errorf("nothing is read as %+v (%v)", got, err)
	}
}

func TestWhichIsBetter(t *testing.T) {
	highest, lowest := score.Best{Metric: "a", Keep: 1}, score.Best{Metric: "a", Lowest: true, Keep: 1}
	if highest.Compare(2, 1) >= 0 || highest.Compare(1, 2) <= 0 || lowest.Compare(2, 1) <= 0 || lowest.Compare(1, 1) != 0 {
		t.Error("the better score does not come first")
	}
}
