package replay

import "slices"

// room is how many devices of each node are free.
type room []int

func roomOf(c Cluster) room { return slices.Repeat([]int{c.DevicesPerNode}, c.Nodes) }

// take takes the devices of workers on these nodes.
func (r room) take(nodes []int) {
	for _, n := range nodes {
		r[n]--
	}
}

// place takes n devices, from the node with most free ones first, and says on which nodes they are: one entry for each
// device. There must be as many.
func (r room) place(n int) []int {
	var nodes []int
	for n > 0 {
		best := 0
		for i, free := range r {
			if free > r[best] {
				best = i
			}
		}
		taken := min(n, r[best])
		r[best] -= taken
		n -= taken
		nodes = append(nodes, slices.Repeat([]int{best}, taken)...)
	}
	return nodes
}

// placementOn counts the workers on each node, for nodes that are each named in one piece.
func placementOn(nodes []int) Placement {
	var p Placement
	for i, n := range nodes {
		if i == 0 || n != nodes[i-1] {
			p = append(p, 0)
		}
		p[len(p)-1]++
	}
	return p
}
