package replay

import (
	"cmp"
	"slices"
)

// Optimus is the policy of Peng et al. (EuroSys 2018) as it was simulated for Pollux: each further device goes to the
// job that it saves most time, whose remaining steps and step times at other sizes are known beforehand.
type Optimus struct {
	cluster Cluster
}

// NewOptimus is for a cluster.
func NewOptimus(c Cluster) *Optimus { return &Optimus{cluster: c} }

// Assign says which devices each job has.
func (o *Optimus) Assign(_ int64, active []*Run) ([][]int, error) {
	sizes := o.sizes(active)
	free, nodes := roomOf(o.cluster), make([][]int, len(active))
	var order []int
	for i, r := range active {
		if len(r.Nodes) == sizes[i] {
			nodes[i] = r.Nodes
			free.take(r.Nodes)
		} else if sizes[i] > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sizes[a], sizes[b]) })
	for _, i := range order {
		nodes[i] = free.place(sizes[i])
	}
	return nodes, nil
}

// Why is the same for all.
func (o *Optimus) Why(*Run) string { return "by the time that the next device would save each job" }

// sizes gives each job one device, and then one by one to whom it is worth most. A job for which one more is worth
// nothing stays where it is, even if two more would help.
func (o *Optimus) sizes(active []*Run) []int {
	free := o.cluster.Devices()
	sizes, gains := make([]int, len(active)), make([]float64, len(active))
	for i, r := range active {
		if free > 0 {
			free--
			sizes[i] = 1
			gains[i] = o.gain(r, 1, free)
		}
	}
	for ; free > 0; free-- {
		best := 0
		for i, gain := range gains {
			if gain > gains[best] {
				best = i
			}
		}
		if gains[best] <= 0 {
			break
		}
		sizes[best]++
		// The device that is being given still counts as free.
		gains[best] = o.gain(active[best], sizes[best], free)
	}
	return sizes
}

// gain is the time, in seconds, that one more device saves a job with n of them.
func (o *Optimus) gain(r *Run, n, free int) float64 {
	if free == 0 || n+1 > min(r.Program.Max(), o.cluster.Devices()) {
		return 0
	}
	now := r.Program.StepTime(filled(n, o.cluster.DevicesPerNode))
	then := r.Program.StepTime(filled(n+1, o.cluster.DevicesPerNode))
	return (now - then) * r.Program.Left(r.Epoch, r.Progress)
}
