package allocation

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// What is free beside promises is what is left once these are taken out of it, whatever has become of what is free, and whichever of
// them were kept meanwhile.
func TestWhatIsFreeBesidePromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawTakers(t)
		for range rapid.IntRange(1, 3).Draw(t, "more nodes") {
			c.withNodes(1, int64(rapid.IntRange(1, 4).Draw(t, "devices too")))
		}
		for range rapid.IntRange(0, 3).Draw(t, "more gangs") {
			c.arrive(t)
		}
		node := rapid.Map(rapid.IntRange(0, len(c.Nodes)), func(n int) NodeID { return NodeID(len(c.Nodes) - 1 - n) })
		for id := range c.Jobs {
			if j := &c.Jobs[id]; j.Stage == Queued {
				j.Promised = rapid.SliceOfN(node, 0, 4).Draw(t, "promised")
			}
		}
		p := &planner{c: c, classes: newClasses(c), out: make([]Decision, len(c.Jobs))}
		p.now.reset(c, p.classes)
		p.soon.copyOf(&p.now)
		p.reach.copyOf(&p.now)
		p.gather()
		demands := p.demands()
		p.promised = p.outstanding(demands)
		for i := range demands {
			d := &demands[i]
			p.keep(d)
			for range rapid.IntRange(0, 2).Draw(t, "changes") {
				p.now.add(node.Draw(t, "where"), c.Jobs[rapid.IntRange(0, len(c.Jobs)-1).Draw(t, "whose")].Gang, -1)
			}
			in := &c.Jobs[d.job]
			for least, from := range map[int32]*aside{math.MinInt32: &p.besideAll, in.Priority: &p.besideSome} {
				left := p.besidePromises(in.Gang, least, from)
				var taken room
				taken.copyOf(&p.now)
				p.setAside(&taken, least)
				want, got := taken.of(d.class), left.of(d.class)
				if diff := cmp.Diff(want.at, got.at); diff != "" || want.total != got.total {
					t.Fatalf("beside promises of %d and more: %d places, want %d: %s", least, got.total, want.total, diff)
				}
				if want, got := taken.bounds(in.Gang, 0), left.bounds(in.Gang, 0); want != got {
					t.Fatalf("beside promises of %d and more quotas admit %d, want %d", least, got, want)
				}
			}
		}
	})
}
