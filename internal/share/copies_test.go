package share

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// Whoever has what, each part that somebody has, in the world or outside of it, is on enough nodes afterwards, nobody gets what it has, and no part comes to
// more nodes than it has to.
func TestCopiesComeToEnoughNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 30).Draw(t, "workers")
		spread := rapid.IntRange(1, 10).Draw(t, "spread")
		racks := rapid.IntRange(1, 4).Draw(t, "racks")
		places, different := make([]Place, workers), map[string]bool{}
		for i := range places {
			node := rapid.IntRange(1, spread).Draw(t, "node")
			places[i] = Place{fmt.Sprint(node), fmt.Sprint(node % racks)}
			different[places[i].Node] = true
		}
		copies := rapid.IntRange(1, 4).Draw(t, "copies")
		holders := rapid.SliceOfN(rapid.SliceOfNDistinct(rapid.IntRange(0, workers-1), 0, min(3, workers), rapid.ID), 0, 30).Draw(t, "holders")
		for part := range holders {
			if len(holders[part]) == 0 && rapid.Bool().Draw(t, "lost") {
				holders[part] = nil
			}
		}
		failed := rapid.SliceOfN(rapid.Bool(), 0, workers).Draw(t, "failed")
		got := Copies(places, holders, copies, failed)
		on := make([]map[string]bool, len(holders))
		held := make([]map[int]bool, len(holders))
		for part, of := range holders {
			on[part], held[part] = map[string]bool{}, map[int]bool{}
			for _, rank := range of {
				on[part][places[rank].Node], held[part][rank] = true, true
			}
		}
		for rank := range got {
			for _, part := range got[rank] {
				if held[part][rank] || on[part][places[rank].Node] || len(on[part]) >= copies {
					t.Fatalf("worker %d gets part %d, which %v have, of %v: %v", rank, part, holders[part], places, got)
				}
				held[part][rank], on[part][places[rank].Node] = true, true
			}
		}
		for part := range holders {
			if n := len(on[part]); holders[part] != nil && n < min(copies, len(different)) || holders[part] == nil && n > 0 {
				t.Fatalf("part %d is on %d nodes: %v", part, n, got)
			}
		}
	})
}

// Where each has one part, and all nodes as many workers, each gets as many as others.
func TestCopiesAreDividedEvenly(t *testing.T) {
	for _, c := range []struct {
		nodes  string
		failed []bool
		want   [][]int
	}{
		{"ABCD", nil, [][]int{{3}, {0}, {1}, {2}}},
		{"AABB", nil, [][]int{{2}, {3}, {0}, {1}}},
		{"AB", nil, [][]int{{1}, {0}}},
		{"AA", nil, make([][]int, 2)},
		{"ABC", []bool{false, true}, [][]int{{1, 2}, nil, {0}}},
		{"AB", []bool{false, true}, [][]int{{1}, {0}}},
	} {
		places, holders := make([]Place, len(c.nodes)), make([][]int, len(c.nodes))
		for rank := range places {
			places[rank].Node, holders[rank] = c.nodes[rank:rank+1], []int{rank}
		}
		if got := Copies(places, holders, 2, c.failed); !reflect.DeepEqual(got, c.want) {
			t.Errorf("workers on %s, of whom have failed %v, get %v", c.nodes, c.failed, got)
		}
	}
}
