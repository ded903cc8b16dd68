package server

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

func TestScoresThatAreRead(t *testing.T) {
	hash := make([]byte, 32)
	report := &rendezvousv1.Report{
		Sequence: 1, Round: 3, MembersDigest: strings.Repeat("a", 64),
		Scores:  []*rendezvousv1.Score{{Round: 2, Step: 5, Error: "evaluations report nothing\x00"}, {Round: 3, Step: 7, Value: proto.Float64(-0.5)}},
		Durable: &rendezvousv1.Durable{Snapshot: &rendezvousv1.Snapshot{Round: 3, Step: 7, Hash: hash}, Path: "team/job", Score: proto.Float64(0)},
	}
	read, refused := readReport(report)
	if refused != nil {
		t.Fatal(refused)
	}
	want := []rendezvous.Score{{Round: 2, Step: 5, Why: read.Scores[0].Why}, {Round: 3, Step: 7, Value: -0.5}}
	if len(read.Scores) != 2 || read.Scores[0] != want[0] || read.Scores[1] != want[1] || !strings.HasPrefix(want[0].Why, "evaluations report nothing") ||
		strings.Contains(want[0].Why, "\x00") || !read.Scored || read.Score != 0 {
		t.Errorf("it is read as %+v", read)
	}
	report.Durable.Score, report.Scores = nil, nil // as an agent of an older version has it
	if read, refused := readReport(report); refused != nil || read.Scored || len(read.Scores) > 0 {
		t.Errorf("without scores it is read as %+v (%v)", read, refused)
	}
}

func TestScoresThatAreRefused(t *testing.T) {
	for name, scores := range map[string][]*rendezvousv1.Score{
		"of a round to come": {{Round: 4, Step: 1, Value: proto.Float64(1)}},
		"a step too large":   {{Round: 3, Step: 1 << 63, Value: proto.Float64(1)}},
		"neither":            {{Round: 3, Step: 1}},
		"both":               {{Round: 3, Step: 1, Value: proto.Float64(1), Error: "bad"}},
		"nan":                {{Round: 3, Step: 1, Value: proto.Float64(math.NaN())}},
		"infinite":           {{Round: 3, Step: 1, Value: proto.Float64(math.Inf(1))}},
		"a long text":        {{Round: 3, Step: 1, Error: strings.Repeat("x", maxErrorBytes+1)}},
		"too many":           make([]*rendezvousv1.Score, maxScores+1),
	} {
		report := &rendezvousv1.Report{Sequence: 1, Round: 3, MembersDigest: strings.Repeat("a", 64), Scores: scores}
		if read, refused := readReport(report); refused == nil {
			t.Errorf("%s: it is read as %+v", name, read.Scores)
		}
	}
	bad := &rendezvousv1.Durable{Snapshot: &rendezvousv1.Snapshot{Hash: make([]byte, 32)}, Score: proto.Float64(math.NaN())}
	if _, refused := readReport(&rendezvousv1.Report{Sequence: 1, Durable: bad}); refused == nil {
		t.Error("a checkpoint is as good as NaN")
	}
}

func TestTheBestThatAreRead(t *testing.T) {
	one := func() *rendezvousv1.Kept {
		return &rendezvousv1.Kept{Round: 2, Step: 5, Path: "team/job/uid/attempt-1/2-5", Score: -0.5}
	}
	read, refused := readReport(&rendezvousv1.Report{Sequence: 1, Listed: &rendezvousv1.Listed{Number: 7, Best: []*rendezvousv1.Kept{one()}}})
	want := rendezvous.Kept{Round: 2, Step: 5, Path: "team/job/uid/attempt-1/2-5", Score: -0.5}
	if refused != nil || read.Listed.Number != 7 || len(read.Listed.Best) != 1 || read.Listed.Best[0] != want {
		t.Errorf("it is read as %+v (%v)", read.Listed, refused)
	}
	for name, change := range map[string]func(*rendezvousv1.Listed){
		"no path":           func(l *rendezvousv1.Listed) { l.Best[0].Path = "" },
		"a long path":       func(l *rendezvousv1.Listed) { l.Best[0].Path = strings.Repeat("x", maxPathBytes+1) },
		"a step too large":  func(l *rendezvousv1.Listed) { l.Best[0].Step = 1 << 63 },
		"a round too large": func(l *rendezvousv1.Listed) { l.Best[0].Round = 1 << 63 },
		"nan":               func(l *rendezvousv1.Listed) { l.Best[0].Score = math.NaN() },
		"too many":          func(l *rendezvousv1.Listed) { l.Best = make([]*rendezvousv1.Kept, maxBest+1) },
	} {
		listed := &rendezvousv1.Listed{Number: 7, Best: []*rendezvousv1.Kept{one()}}
		change(listed)
		if read, refused := readReport(&rendezvousv1.Report{Sequence: 1, Listed: listed}); refused == nil {
			t.Errorf("%s: it is read as %+v", name, read.Listed)
		}
	}
}

func TestADirectiveWithAScore(t *testing.T) {
	d := &rendezvous.Directive{Scored: &rendezvous.Snapshot{Round: 2, Step: 5}, ListBest: 7}
	m := directiveMessage(d, 1)
	if m.GetListBest() != 7 || m.GetScored().GetRound() != 2 || m.GetScored().GetStep() != 5 || m.GetUpload() != nil {
		t.Errorf("it is %v", m)
	}
}
