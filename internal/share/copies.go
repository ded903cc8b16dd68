package share

import "slices"

// Copies says which parts each worker, by its rank, is to get a copy of, where only some have them: so that each is on as many
// nodes as there are to be copies, or on all that there are. places are where the workers are, by rank; holders are the ranks of
// those that have each part: none, but not nil, where somebody else could give it, who does not count. Who has failed to make copies lately,
// by rank, comes last; nil for nobody. Another rack comes before another node of the same one, and then who has least.
//
// What a worker has it is not to get again. Who holds a part that is on enough nodes keeps it.
func Copies(places []Place, holders [][]int, copies int, failed []bool) [][]int {
	failed = append(failed[:len(failed):len(failed)], make([]bool, len(places))...)
	got, load := make([][]int, len(places)), make([]int, len(places))
	nodes := map[string]bool{}
	for _, at := range places {
		nodes[at.Node] = true
	}
	for _, of := range holders {
		for _, rank := range of {
			load[rank]++
		}
	}
	for part, of := range holders {
		if of == nil {
			continue // nobody could give it
		}
		first := part
		if len(of) > 0 {
			first = of[0] + 1
		}
		for has := slices.Clone(of); ; {
			on := map[string]bool{}
			in := map[string]bool{}
			for _, rank := range has {
				on[places[rank].Node], in[places[rank].Rack] = true, true
			}
			if len(on) >= min(copies, len(nodes)) {
				break
			}
			best := -1
			for i := range places {
				rank := (first + i) % len(places)
				if on[places[rank].Node] {
					continue
				}
				if best < 0 || failed[best] && !failed[rank] ||
					failed[best] == failed[rank] && before(in[places[rank].Rack], load[rank], in[places[best].Rack], load[best]) {
					best = rank
				}
			}
			got[best] = append(got[best], part)
			load[best]++
			has = append(has, best)
		}
	}
	return got
}

// before compares two workers that might get a copy.
func before(sameRack bool, load int, otherSameRack bool, otherLoad int) bool {
	if sameRack != otherSameRack {
		return !sameRack
	}
	return load < otherLoad
}
