package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/concertina-dev/concertina/internal/score"
)

// scoreName is that of the object that says how good a checkpoint is: all is in the name, so that a listing tells it.
func scoreName(metric string, value float64) string { return metric + "_" + score.Text(value) }

// parseScore reads such a name.
func parseScore(name string) (metric string, value float64, ok bool) {
	at := strings.LastIndexByte(name, '_')
	if at < 0 || !score.IsMetric(name[:at]) {
		return "", 0, false
	}
	value, err := strconv.ParseFloat(name[at+1:], 64)
	if err != nil || !score.IsFinite(value) || scoreName(name[:at], value) != name {
		return "", 0, false
	}
	return name[:at], value, true
}

// Score puts down how good a checkpoint is, which may be there, or is about to be saved. Errors: a name that is none of a metric, or a
// value that is not finite; ErrDropped; ErrRefused; ctx has ended.
func (s *Storage) Score(ctx context.Context, place Place, metric string, value float64) error {
	if err := s.score(ctx, place, metric, value); err != nil {
		return fmt.Errorf("put the score of checkpoint %s: %w", place.Path(), err)
	}
	return nil
}

func (s *Storage) score(ctx context.Context, place Place, metric string, value float64) error {
	if err := place.Job.check(); err != nil {
		return err
	}
	name := scoreName(metric, value)
	if _, _, ok := parseScore(name); !ok {
		return fmt.Errorf("%w: %.40q with the value %v is no score", ErrRefused, metric, value)
	}
	there, err := s.one(ctx, place)
	switch {
	case err != nil:
		return err
	case len(there.doomed) > 0:
		return ErrDropped
	case there.scores[name]:
		return nil
	}
	return s.create(ctx, place.score(name), nil)
}

// by is the score of a checkpoint by a metric, the best where it has several.
func (c *contents) by(best score.Best) (found float64, ok bool) {
	for name := range c.scores {
		if metric, value, is := parseScore(name); is && metric == best.Metric && (!ok || best.Compare(value, found) < 0) {
			found, ok = value, true
		}
	}
	return found, ok
}

// Scored is a checkpoint with a score.
type Scored struct {
	Place Place
	Score float64
}

// Best lists the checkpoints of a job that stay for their scores, the best first and of equals the newest: at most best.Keep, those
// that are whole. One that a newer version has written is left out, as nobody here can tell whether it is. Errors: ErrRefused; the storage
// cannot be reached, also for one of those; ctx has ended.
func (s *Storage) Best(ctx context.Context, job Job, best score.Best) ([]Scored, error) {
	if err := job.check(); err != nil {
		return nil, err
	}
	all, err := s.look(ctx, job.path())
	if err != nil {
		return nil, err
	}
	var whole []Scored
	for _, one := range s.best(ctx, all, best) {
		switch {
		case one.unread == nil:
			whole = append(whole, Scored{one.place, one.score})
		case errors.Is(one.unread, ErrNewer), errors.Is(one.unread, ErrNotFound):
		default:
			return nil, fmt.Errorf("read the manifest of checkpoint %s: %w", one.place.Path(), one.unread)
		}
	}
	return whole, nil
}

// staying is a checkpoint that stays for its score; unread is why it is not certain that it is whole, nil for one that is.
type staying struct {
	place  Place
	score  float64
	unread error
}

// best are those that stay for their scores: as many whole ones as asked for, the best first and of equals the newest, and those
// before them of which it is not certain whether they are whole. Those of one step with one score count once, as one state that was
// evaluated again after a restart is there again. all is ordered, newest first.
func (s *Storage) best(ctx context.Context, all []*contents, best score.Best) []staying {
	type scored struct {
		*contents
		score float64
	}
	var found []scored
	for _, c := range all {
		if score, ok := c.by(best); ok && c.readable() {
			found = append(found, scored{c, score})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return best.Compare(a.score, b.score) })
	type state struct {
		step  uint64
		score float64
	}
	var stay []staying
	whole := map[state]bool{}
	for i := 0; i < len(found) && len(whole) < best.Keep; i++ {
		of := state{found[i].place.Step, found[i].score}
		if whole[of] {
			continue
		}
		m, err := s.manifest(ctx, found[i].place)
		if err == nil && found[i].lacks(m) != "" || errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
			continue // it is of no use to anybody
		}
		stay = append(stay, staying{found[i].place, found[i].score, err})
		if err == nil {
			whole[of] = true
		}
	}
	return stay
}
