package rendezvous

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/score"
)

// A real program whose loop evaluates, agents, uploaders and an operator: the best states are in the storage at the end, with their
// scores, whichever checkpoints were made meanwhile, and so is the last one where it is one of the best.
func TestTheBestStatesAreKept(t *testing.T) {
	s := newSharing(t, "yes", 2)
	s.command, s.bytes, s.kept = []string{"python3", "testdata/best.py"}, 1<<20, t.TempDir()
	s.best = score.Best{Metric: "loss", Lowest: true, Keep: 3}
	for range 2 {
		s.start()
	}
	s.expect()
	eventually(t, "all have ended", func() bool {
		return !slices.ContainsFunc(s.workers, func(w *sharer) bool { return !strings.Contains(w.text(), "the training is over") })
	})
	seen := s.leader.Observe(s.team.key)
	var best []uint64
	for _, kept := range seen.Best {
		best = append(best, kept.Step)
	}
	if !slices.Equal(best, []uint64{10, 50, 15}) {
		t.Errorf("the best are %v (%q)", seen.Best, seen.Missed)
	}
	for _, kept := range seen.Best {
		scores, err := filepath.Glob(filepath.Join(s.kept, kept.Path, "scores", "loss_"+score.Text(kept.Score)))
		manifest, failed := filepath.Glob(filepath.Join(s.kept, kept.Path, "manifest.json"))
		if err != nil || failed != nil || len(scores) != 1 || len(manifest) != 1 {
			t.Errorf("of %+v there is %v and %v", kept, scores, manifest)
		}
	}
}
