package server

import (
	"github.com/concertina-dev/concertina/internal/plain"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
	"github.com/concertina-dev/concertina/internal/score"
)

// maxScores is how many scores a report may have, maxBest how many of the best checkpoints it may name.
const (
	maxScores = 8
	maxBest   = 16
)

// readScores reads what the programs of a worker have said of states that were evaluated, in rounds up to one.
func readScores(r *rendezvousv1.Report, read *rendezvous.Report) *rendezvous.Refusal {
	if d := r.GetDurable(); d != nil && d.Score != nil {
		read.Scored, read.Score = true, d.GetScore()
	}
	if n := len(r.GetScores()); n > maxScores {
		return malformed("%d scores, there may be %d", n, maxScores)
	}
	if !score.IsFinite(read.Score) {
		return malformed("the score of a checkpoint is %v, it must be finite", read.Score)
	}
	for _, s := range r.GetScores() {
		switch {
		case s.GetRound() > r.GetRound() || s.GetStep() > rendezvous.MaxCount:
			return malformed("a score of round %d, step %d cannot be in round %d", s.GetRound(), s.GetStep(), r.GetRound())
		case (s.Value == nil) == (s.GetError() == ""):
			return malformed("a score of round %d, step %d has either a value or an error", s.GetRound(), s.GetStep())
		case !score.IsFinite(s.GetValue()):
			return malformed("the score of round %d, step %d is %v, it must be finite", s.GetRound(), s.GetStep(), s.GetValue())
		case len(s.GetError()) > maxErrorBytes:
			return malformed("what is said of a score has %d bytes, it may have %d", len(s.GetError()), maxErrorBytes)
		}
		read.Scores = append(read.Scores, rendezvous.Score{Round: s.GetRound(), Step: s.GetStep(), Value: s.GetValue(), Why: plain.Text(s.GetError())})
	}
	return nil
}

// readListed reads which checkpoints in the storage are the best.
func readListed(r *rendezvousv1.Report) (rendezvous.Listed, *rendezvous.Refusal) {
	read := rendezvous.Listed{Number: r.GetListed().GetNumber()}
	if n := len(r.GetListed().GetBest()); n > maxBest {
		return rendezvous.Listed{}, malformed("%d of the best checkpoints, there may be %d", n, maxBest)
	}
	for _, one := range r.GetListed().GetBest() {
		path, refused := readPath(one.GetPath())
		switch {
		case refused != nil:
			return rendezvous.Listed{}, refused
		case path == "" || one.GetRound() > rendezvous.MaxCount || one.GetStep() > rendezvous.MaxCount:
			return rendezvous.Listed{}, malformed("one of the best checkpoints is %.64q, of round %d, step %d", path, one.GetRound(), one.GetStep())
		case !score.IsFinite(one.GetScore()):
			return rendezvous.Listed{}, malformed("the score of checkpoint %.64q is %v, it must be finite", path, one.GetScore())
		}
		read.Best = append(read.Best, rendezvous.Kept{Round: one.GetRound(), Step: one.GetStep(), Path: path, Score: one.GetScore()})
	}
	return read, nil
}
