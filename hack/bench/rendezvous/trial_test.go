package rendezvous

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/hack/bench/figures"
)

// What the benchmark measures takes place: a few agents get their places, a change for which one of each job leaves, and a
// successor of their operator. An agent that the server refuses would wait for all of patience.
func TestATrial(t *testing.T) {
	t.Parallel()
	const jobs, members = 2, 4
	one, err := start(t.Context(), trialConfig{Jobs: jobs, Members: members, Rate: 1000, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := one.stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := one.agents.Call("Agents.Start", None{}, &None{}); err != nil {
		t.Fatal(err)
	}
	ranked, err := one.ranked()
	if err != nil || len(ranked.Took) != jobs*members {
		t.Fatalf("%d of %d agents have a place: %v", len(ranked.Took), jobs*members, err)
	}
	changed, err := one.shrink()
	if err != nil || len(changed.Took) != jobs*(members-1) || len(changed.Armed) != len(changed.Took) {
		t.Fatalf("%d of %d agents are in the next world: %v", len(changed.Took), jobs*(members-1), err)
	}
	done, err := one.succeed()
	if err != nil || len(done.adopted) != jobs*members || len(done.lost) == 0 {
		t.Fatalf("%d of %d agents obey the successor, and streams have ended by %v: %v", len(done.adopted), jobs*members, done.lost, err)
	}
}

// Those who work beside a member that floods have their answers, and the flood takes place.
func TestAFloodIsMeasured(t *testing.T) {
	t.Parallel()
	measured := map[string]float64{}
	err := Bench{
		Rate: 1000, Beats: time.Second, JobMembers: 1, Flood: true, Say: t.Logf,
		Tell: func(all ...figures.Figure) {
			for _, figure := range all {
				measured[figure.Name] = figure.Value
			}
		},
	}.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The operator reads 20 of its reports in a second, the connection takes more.
	if measured["flood_reports_per_s"] < 30 || measured["flood_answer_p99"] <= 0 || measured["flood_without_answer_p99"] <= 0 {
		t.Errorf("the figures are %v", measured)
	}
}

// A size that fails does not take the figures of those before along.
func TestFiguresOutliveALaterFailure(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var measured []figures.Figure
	err := Bench{
		Members: []int{2}, Jobs: 1, JobMembers: 1, Rate: 1000, Beats: time.Millisecond,
		Say: func(format string, args ...any) {
			if strings.HasPrefix(fmt.Sprintf(format, args...), "jobs_1: 1 agents start") {
				cancel()
			}
		},
		Tell: func(known ...figures.Figure) { measured = append(measured, known...) },
	}.Measure(ctx)
	if err == nil || len(measured) == 0 || measured[0].Name != "members_2_ranked_p50" {
		t.Errorf("the jobs fail with %v, and the figures are %v", err, measured)
	}
}

// The beats of agents are counted beside an operator that knows of nothing, too.
func TestBareBeatsAreMeasured(t *testing.T) {
	t.Parallel()
	measured := map[string]float64{}
	err := Bench{
		Members: []int{2}, Rate: 1000, JobMembers: 1, Beats: 2 * time.Second, Bare: true, Say: t.Logf,
		Tell: func(all ...figures.Figure) {
			for _, figure := range all {
				measured[figure.Name] = figure.Value
			}
		},
	}.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if measured["bare_us_per_beat"] <= 0 || measured["operator_us_per_beat"] <= 0 {
		t.Errorf("the figures are %v", measured)
	}
}
