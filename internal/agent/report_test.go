package agent

import (
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
	"github.com/concertina-dev/concertina/internal/checkpoint"
)

// A state that was brought back for the first world of an attempt is held before that world is entered: it is told of once it
// can be believed, for a report that cannot be true ends the session.
func TestAStateOfALaterRoundIsToldOnceThatIsEntered(t *testing.T) {
	held := []checkpoint.Snapshot{{ID: checkpoint.ID{Round: 1, Step: 64}}, {ID: checkpoint.ID{Round: 0, Step: 8}}}
	if told := report(standing{}, nil, held, "").GetSnapshots(); len(told) != 1 || told[0].GetStep() != 8 {
		t.Errorf("in no round it tells of %v", told)
	}
	in := lifecycle.Start{Round: 2}
	if told := report(standing{in: &in}, nil, held, "").GetSnapshots(); len(told) != 2 {
		t.Errorf("in round 2 it tells of %v", told)
	}
}
