package elastic_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/wire"
	"github.com/concertina-dev/concertina/pkg/elastic"
)

// evaluated plays with an agent that wants a metric; the program evaluates after each epoch what report says of that.
func evaluated(t *testing.T, best string, report func(epoch uint64) map[string]float64) scene {
	t.Helper()
	a := begin(t)
	a.best = best
	return knowing(func(itself func() scene) scene {
		return play(t, a, func(_ context.Context, run *elastic.Run, epoch uint64) error {
			return run.Evaluate(func() (map[string]float64, error) {
				state := itself().state
				state.Steps = append(state.Steps, 2000+epoch) // the state that is kept is that of before
				return report(epoch), nil
			})
		})
	})
}

// knowing begins a scene whose program asks for itself: it trains before the test has what began it.
func knowing(begin func(itself func() scene) scene) scene {
	made := make(chan scene, 1)
	s := begin(sync.OnceValue(func() scene { return <-made }))
	made <- s
	return s
}

// hearsTwo are the next two messages, a snapshot and a score, in any order.
func (p *program) hearsTwo() (s wire.Snapshot, score wire.Score) {
	p.t.Helper()
	for range 2 {
		switch message := p.hears().(type) {
		case wire.Snapshot:
			s = message
		case wire.Score:
			score = message
		default:
			p.t.Fatalf("the program says %+v", message)
		}
	}
	return s, score
}

func TestEachStateThatIsEvaluatedHasASnapshotAndAScore(t *testing.T) {
	s := evaluated(t, "accuracy", func(epoch uint64) map[string]float64 {
		return map[string]float64{"loss": math.Inf(1), "accuracy": 0.5 + float64(epoch)/4}
	})
	s.expects(wire.Join{Type: wire.TypeJoin})
	s.world(wire.World{Round: 1, Restore: true, Writer: true})
	first, ok := s.hears().(wire.Snapshot)
	if !ok || first.Step != 0 {
		t.Fatalf("the program says %+v", first)
	}
	var path string
	for epoch, want := range []float64{0.5, 0.75} {
		last := uint64(3 * (epoch + 1))
		s.steps(t, last-2, last)
		snapshot, score := s.hearsTwo()
		if snapshot.Step != last || snapshot.Error != "" || score.Step != last || score.Value == nil || *score.Value != want || score.Error != "" {
			t.Errorf("after step %d it says %+v and %+v", last, snapshot, score)
		}
		path = s.keep(1, snapshot)
	}
	s.expects(finished(6))
	s.says(wire.End{Type: wire.TypeEnd})
	if err := s.training.ends(); err != nil {
		t.Error(err)
	}

	var kept []uint64
	other := knowing(func(itself func() scene) scene {
		return play(t, begin(t), func(context.Context, *elastic.Run, uint64) error {
			kept = itself().state.Steps
			return nil
		})
	})
	other.expects(wire.Join{Type: wire.TypeJoin})
	other.world(wire.World{Round: 2, FromStep: 6, Restore: true, Snapshot: path})
	other.expects(finished(6))
	other.says(wire.End{Type: wire.TypeEnd})
	if err := other.training.ends(); err != nil || !slices.Equal(kept, []uint64{1, 2, 3, 2000, 4, 5, 6}) {
		t.Errorf("what is kept of the last state is %v (%v)", kept, err)
	}
}

func TestWhatIsNoScoreIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		report map[string]float64
		words  string
	}{
		"nothing": {nil, "evaluations report nothing, and spec.checkpoint.storage.best wants accuracy"},
		"another": {map[string]float64{"loss": 1, "f1": 2}, "evaluations report f1, loss, and"},
		"nan":     {map[string]float64{"accuracy": math.NaN()}, "accuracy=NaN, which is no better"},
	} {
		t.Run(name, func(t *testing.T) {
			s := evaluated(t, "accuracy", func(uint64) map[string]float64 { return c.report })
			s.start() // not to write anything
			s.steps(t, 1, 3)
			score, ok := s.hears().(wire.Score)
			if !ok || score.Value != nil || !strings.Contains(score.Error, c.words) {
				t.Errorf("it says %+v", score)
			}
			s.steps(t, 4, 6)
			_ = s.hears()
			s.expects(finished(6))
			s.says(wire.End{Type: wire.TypeEnd})
			if err := s.training.ends(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A state may be evaluated in several ways, of which one reports its score.
func TestAnotherEvaluationOfAStateTakesNoScoreAway(t *testing.T) {
	a := begin(t)
	a.best = "accuracy"
	s := play(t, a, func(_ context.Context, run *elastic.Run, _ uint64) error {
		for _, name := range []string{"accuracy", "loss"} {
			if err := run.Evaluate(func() (map[string]float64, error) { return map[string]float64{name: 0.5}, nil }); err != nil {
				return err
			}
		}
		return nil
	})
	s.start()
	for _, last := range []uint64{3, 6} {
		s.steps(t, last-2, last)
		if score, ok := s.hears().(wire.Score); !ok || score.Value == nil || score.Step != last {
			t.Errorf("it says %+v", score)
		}
	}
	s.expects(finished(6)) // and no more of that
	s.says(wire.End{Type: wire.TypeEnd})
	if err := s.training.ends(); err != nil {
		t.Error(err)
	}
}

func TestNobodyHearsOfEvaluationsWhoWantsNone(t *testing.T) {
	for _, c := range map[string]struct {
		best string
		rank int
	}{"no metric": {"", 0}, "another rank": {"accuracy", 1}} {
		s := evaluated(t, c.best, func(uint64) map[string]float64 { return map[string]float64{"accuracy": 1} })
		s.expects(wire.Join{Type: wire.TypeJoin})
		s.world(wire.World{Round: 1, Restore: true, Rank: c.rank, Size: 2, Workers: 2})
		for _, steps := range [][2]uint64{{1, 3}, {4, 6}} {
			s.steps(t, steps[0], steps[1])
		}
		s.expects(finished(6))
		s.says(wire.End{Type: wire.TypeEnd})
		if err := s.training.ends(); err != nil {
			t.Error(err)
		}
	}
}

func TestEvaluateRefusesWhatItIsNotFor(t *testing.T) {
	a := begin(t)
	run, p := a.join(context.Background(), options)
	bad := errors.New("no data to test with")
	training := goTrain(t, run, func(ctx context.Context, _ elastic.World) error {
		for range run.Steps(ctx) {
			if err := run.Evaluate(func() (map[string]float64, error) { return nil, nil }); err == nil || !strings.Contains(err.Error(), "in step 1") {
				t.Errorf("in a step it says %v", err)
			}
			break
		}
		return nil
	})
	p.start()
	_ = p.hears()
	p.says(wire.End{Type: wire.TypeEnd})
	if err := training.ends(); err != nil {
		t.Error(err)
	}
	alone, err := elastic.Join(context.Background(), elastic.Options{Samples: 4, Epochs: 1, GlobalBatch: 4})
	if err == nil {
		defer alone.Close()
	}
	environment(t, nil)
	if alone, err = elastic.Join(context.Background(), elastic.Options{Samples: 4, Epochs: 1, GlobalBatch: 4}); err != nil {
		t.Fatal(err)
	}
	if err := alone.Train(func(ctx context.Context, _ elastic.World) error {
		for range alone.Steps(ctx) {
		}
		if err := alone.Evaluate(func() (map[string]float64, error) { return nil, bad }); !errors.Is(err, bad) {
			t.Errorf("it says %v", err)
		}
		if err := alone.Evaluate(func() (map[string]float64, error) { return map[string]float64{"no name": 1}, nil }); err == nil {
			t.Error("a name with a space is taken")
		}
		return alone.Evaluate(func() (map[string]float64, error) { return map[string]float64{"accuracy": 1, "loss": math.NaN()}, nil })
	}); err != nil {
		t.Error(err)
	}
}
