package socket

import (
	"slices"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// mostScores is how many are kept: an operator that takes over hears them again.
const mostScores = 8

// Score is what a process has said of a state that was evaluated in a world: its value, or why there is none.
type Score struct {
	Round, Step uint64
	Value       *float64
	Error       string
}

// Scores are the newest, oldest first.
func (s *Server) Scores() []Score {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.scores)
}

// score takes note of one. A process that is in no world has no state that anybody could keep. Where a state is evaluated in several ways,
// those that report no score take away none.
func (c *connection) score(said wire.Score) error {
	return c.update(func(of *slot) {
		s := c.server
		same := func(known Score) bool { return known.Round == of.round && known.Step == said.Step }
		if at := slices.IndexFunc(s.scores, same); of.round == 0 || at >= 0 && s.scores[at].Value != nil && said.Value == nil {
			return
		}
		s.scores = slices.DeleteFunc(s.scores, same)
		s.scores = append(s.scores, Score{Round: of.round, Step: said.Step, Value: said.Value, Error: said.Error})
		s.scores = s.scores[max(0, len(s.scores)-mostScores):]
	})
}
