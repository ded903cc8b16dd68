package rendezvous

import (
	"strings"
	"testing"

	"github.com/concertina-dev/concertina/internal/share"
)

// A rank whose shard has other values in it than those of the others is named, once, also though nothing is ever whole so.
func TestRanksWhoseShardsDoNotFitTogether(t *testing.T) {
	f, l := cutUp(t, 3)
	m := l.machine
	other := func(layout string) {
		f.settleSteps()
		f.periodic(f.uids()...)
		p := f.pods["p01"]
		newest := p.latest()
		for i, s := range p.snapshots {
			if key, ok := share.Parse(s.Part); ok && sameState(s, newest) {
				key.Layout = layout
				p.snapshots[i].Part = key.String()
				p.states[p.snapshots[i]] = p.states[s]
			}
		}
		f.turns(l, 3)
	}
	f.turns(l, 3)
	if m.differ != "" {
		t.Fatalf("at first it says %q", m.differ)
	}
	other("fedcba9876543210")
	rank := m.world.ranks.rank("p01")
	if rank < 0 {
		t.Fatal("p01 has no rank")
	}
	for _, word := range []string{"not the same values in shards", "p01 on ", " against rank "} {
		if !strings.Contains(m.differ, word) {
			t.Errorf("%q is not in %q", word, m.differ)
		}
	}
	before := len(m.differing)
	other("fedcba9876543210")
	if len(m.differing) != before || before != 1 {
		t.Errorf("it is told of %q", m.differing)
	}
}
