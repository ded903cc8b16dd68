package rendezvous

import (
	"testing"

	"github.com/concertina-dev/concertina/internal/share"
)

// A loss while copies are made costs the state before some of its own: that is the one that is kept until it, or a later one, has all
// again, and so another loss finds it.
func TestALossWhileCopiesAreMade(t *testing.T) {
	f, l := cutUp(t, 5)
	m := l.machine
	copied := copiedOnce(f, l)
	copyless := func(are bool) {
		for _, uid := range f.uids() {
			f.pods[uid].copyless = are
		}
	}
	f.settleSteps()
	copyless(true)
	f.periodic(f.uids()...)
	f.turns(l, 4)
	if m.copying == nil || m.copying.Step <= copied.Step {
		t.Fatalf("what is copied: %+v", m.copying)
	}
	lose := func(uid string) {
		f.lose(l, uid)
		for range 20 {
			f.turn(l)
			f.goLeavers()
		}
	}
	lose("p00")
	f.settleSteps()
	f.periodic(f.uids()...)
	f.turns(l, 3)
	if m.relied == nil || !sameState(*m.relied, copied.Snapshot) {
		t.Errorf("%+v is relied on, and of step %d there were copies", m.relied, copied.Step)
	}
	copyless(false)
	for range 6 { // those of the state before come, and none of the next
		f.turn(l)
		if m.copying != nil && m.copying.Step > copied.Step {
			copyless(true)
		}
	}
	newest, ok := m.newestSnapshot()
	at, held := m.stateOf(newest)
	if !ok || !held || newest.Step <= copied.Step {
		t.Fatalf("the newest state is %+v", newest)
	}
	alone := ""
	for i, part := range at.parts {
		if share.IsShard(part.Part) && len(at.holders[i]) == 1 {
			alone = at.holders[i][0].want.UID
		}
	}
	if alone == "" {
		t.Fatalf("all of %+v is copied", newest)
	}
	lose(alone)
	if w := m.world; m.fatal != "" || w == nil || w.record.Round < 3 || w.record.FromStep < copied.Step {
		t.Errorf("%q; of step %d there were copies: %s", m.fatal, copied.Step, m.State())
	}
}
