package planner

import (
	"math/rand/v2"

	"github.com/concertina-dev/concertina/internal/allocation"
	"github.com/concertina-dev/concertina/internal/speed"
)

// pace has each job be one that was seen at its least size and at the one that it has, and makes more or less of workers.
func pace(c *allocation.Cluster, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 11))
	for i := range c.Jobs {
		j := &c.Jobs[i]
		serial, has := random.Float64(), max(int(j.Min), len(j.Workers))
		var seen []speed.Observation
		for _, n := range []int{int(j.Min), has} {
			seen = append(seen, speed.Observation{
				Workers: n, Nodes: (n + 3) / 4, StepsPerSecond: 1 / (serial/10 + 1/float64(n)), Steps: 100,
			})
		}
		j.Pace = &allocation.Pace{
			Speed: speed.Fit(seen, int(j.Min)), Tried: int32(has), Done: 1e4, Left: 1e4 * (1 + 9*random.Float64()),
		}
	}
}
