package share

import "slices"

// Assign says which shares each worker writes, by its rank: it has the state anyway, so copies cost no transfer. nodes are
// where the workers are, by rank; copies, at least 1, is on how many nodes each share should be. There are as many shares as
// workers, at most Most.
//
// Every share is with min(copies, workers) workers, on min(copies, different nodes) nodes. Workers have as many shares as
// others, or one more, as far as their nodes let that be: where few nodes have many workers the others have more.
func Assign(nodes []string, copies int) (of int, shares [][]int) {
	of = min(len(nodes), Most)
	shares = make([][]int, len(nodes))
	if of < 2 {
		return of, shares
	}
	on := map[string][]int{}
	for rank, node := range nodes {
		on[node] = append(on[node], rank)
	}
	for share := range of {
		used := map[string]bool{}
		first := share * len(nodes) / of
		for copy := range max(1, min(copies, len(nodes))) {
			best := -1
			for i := range nodes {
				rank := (first + i) % len(nodes)
				fits := !used[nodes[rank]] || copy >= len(on) && !slices.Contains(shares[rank], share)
				if fits && (best < 0 || lighter(shares, on, nodes, rank, best)) {
					best = rank
				}
			}
			used[nodes[best]] = true
			shares[best] = append(shares[best], share)
		}
	}
	return of, shares
}

// lighter says whether a worker should rather have one more share than another: who has fewer, and then whose node has
// fewer for each of its workers.
func lighter(shares [][]int, on map[string][]int, nodes []string, a, b int) bool {
	if len(shares[a]) != len(shares[b]) {
		return len(shares[a]) < len(shares[b])
	}
	load := func(rank int) (of, workers int) {
		for _, other := range on[nodes[rank]] {
			of += len(shares[other])
		}
		return of, len(on[nodes[rank]])
	}
	ofA, workersA := load(a)
	ofB, workersB := load(b)
	return ofA*workersB < ofB*workersA
}
