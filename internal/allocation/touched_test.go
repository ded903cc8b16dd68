package allocation

import (
	"math/rand/v2"
	"testing"
)

// TestPlacesAreTrueWhenAskedFor: of as many kinds of pods as there are jobs nobody is told of a change, and whoever is asked for has
// what is free then.
func TestPlacesAreTrueWhenAskedFor(t *testing.T) {
	const kinds = 50
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := newCluster().withNodes(1+random.IntN(150), 8)
		var shapes []ShapeID
		for i := range kinds {
			s := c.shape(int64(1+i%3), 0)
			c.Shapes[s].Request[0] += int64(i)
			shapes = append(shapes, s)
		}
		cl := newClasses(c)
		var r room
		r.reset(c, cl)
		ids := make([]classID, kinds)
		for i, s := range shapes {
			ids[i] = cl.of(s, scope{})
			r.of(ids[i])
		}
		var marks []int
		for range 300 {
			s, n := shapes[random.IntN(kinds)], NodeID(random.IntN(len(c.Nodes)))
			switch what := random.IntN(10); {
			case what < 2:
				marks = append(marks, r.mark())
			case what < 4 && len(marks) > 0:
				r.undo(marks[len(marks)-1])
				marks = marks[:len(marks)-1]
			case what < 7:
				if r.of(ids[random.IntN(kinds)]).at[n] > 0 {
					r.add(n, s, -1)
				}
			default:
				r.add(n, s, 1)
			}
			k := ids[random.IntN(kinds)]
			var anew places
			anew.find(&cl.all[k], nil, r.free, len(c.Resources), len(c.Nodes))
			has := r.of(k)
			if has.total != anew.total || has.fullest(nil) != anew.fullest(nil) || has.together(5, nil) != anew.together(5, nil) {
				t.Fatalf("seed %d: %d places in all, the fullest is %d: it should be %d and %d", seed, has.total, has.fullest(nil), anew.total, anew.fullest(nil))
			}
			for n := range anew.at {
				if has.at[n] != anew.at[n] {
					t.Fatalf("seed %d: node %d has %d places: it should be %d", seed, n, has.at[n], anew.at[n])
				}
			}
		}
	}
}

// TestAChangeIsNoWorkForWhoDoesNotAsk: it is looked at once by who asks, however often room was taken and given back meanwhile.
func TestAChangeIsNoWorkForWhoDoesNotAsk(t *testing.T) {
	c := newCluster().withNodes(100, 8)
	s := c.shape(1, 0)
	var r room
	r.reset(c, newClasses(c))
	k := r.classes.of(s, scope{})
	seen := r.of(k).seen
	for range 1000 {
		mark := r.mark()
		r.add(3, s, -1)
		r.add(5, s, -1)
		r.undo(mark)
	}
	if r.index[k].seen != seen {
		t.Error("places that nobody asked for were looked at")
	}
	looked := 0
	for n := r.touched.newest; r.touched.since(n, seen); n = r.touched.nodes[n].before {
		looked++
	}
	if looked != 2 {
		t.Errorf("%d nodes are to be looked at again: it should be the two that changed", looked)
	}
}
