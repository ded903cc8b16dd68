package allocation

import (
	"fmt"
	"math/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/speed"
)

// The seeds of restless are clusters that once went to and fro for ever, one in thousands; restlessDrawn are drawn besides.
// VALUE_CLUSTERS and VALUE_FROM draw others.
const restlessDrawn, restlessFrom = 500, 0

var restless = []int{534, 3030, 3885, 9748, 16614, 23115, 27433, 29959, 34493, 38948, 300433, 302014, 1014049, 2000145, 2017393, 5009108}

// TestByValueAPlanRests: where nothing changes but what plans do themselves, workers do not go to and fro for ever.
func TestByValueAPlanRests(t *testing.T) {
	many, from := numberFrom(t, "VALUE_CLUSTERS", restlessDrawn), numberFrom(t, "VALUE_FROM", restlessFrom)
	seeds := slices.Clone(restless)
	for seed := from; seed < from+many; seed++ {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		c := valued(rand.New(rand.NewSource(int64(seed))))
		if log, rests := comesToRest(t, c); !rests {
			t.Errorf("seed %d: %d jobs on %d nodes do not come to rest: %v", seed, len(c.Jobs), len(c.Nodes), log[max(0, len(log)-6):])
		}
	}
}

// comesToRest carries plans out until nothing has changed for ten of them, each made when all that is waited for is over.
func comesToRest(t failer, c *Cluster) (log []string, rests bool) {
	var p Planner
	for quiet, late := 0, 0; late < 40 && len(log) < 400; {
		plan := p.Plan(c)
		for id := range c.Jobs {
			notToAndFro(t, c, plan, JobID(id))
		}
		if words := carry(c, &plan); words != "" {
			log, quiet, c.Now = append(log, words), 0, c.Now.Add(2*time.Second)
			continue
		}
		if quiet++; quiet == 10 {
			return log, true
		}
		late, c.Now = late+1, c.Now.Add(11*time.Minute)
	}
	return log, false
}

// carry carries a plan out at once, and says what it changed.
func carry(c *Cluster, plan *Plan) (words string) {
	for id := range c.Jobs {
		j, d := &c.Jobs[id], &plan.Decisions[id]
		j.ShortSince, j.Again, j.Work, j.Target = d.ShortSince, d.Again, d.Work, d.Count
		leaves := map[int]bool{}
		for _, l := range d.Leave {
			leaves[l.Worker] = true
			if l.For != None && l.For != JobID(id) && l.Rule == RuleGrowth {
				j.EvenedAt = c.Now
			}
		}
		var stay []Worker
		for w := range j.Workers {
			if !leaves[w] {
				stay = append(stay, j.Workers[w])
				continue
			}
			free(c, j.Workers[w].Node, j.Workers[w].Shape, 1)
		}
		j.Workers = stay
		for _, n := range d.Places {
			at := int32(len(j.Workers))
			j.Workers, j.GrewAt = append(j.Workers, Worker{Node: n, Shape: j.Growth, Bound: true, World: true, For: None, Rank: at, Ordinal: at}), c.Now
			free(c, n, j.Growth, -1)
		}
		if len(d.Leave)+len(d.Places) > 0 {
			words += fmt.Sprintf("%s -%d +%d ", j.Name, len(d.Leave), len(d.Places))
		}
	}
	return words
}

func free(c *Cluster, n NodeID, s ShapeID, times int64) {
	for i, amount := range c.Shapes[s].Request {
		c.Nodes[n].Free[i] += times * amount
	}
}

// valued is a small cluster of jobs that train with one worker each, most of which have a pace: processors are scarce on some
// nodes, and pods ask for few or many.
func valued(r *rand.Rand) *Cluster {
	c := &Cluster{Now: noon, Resources: []string{"cpu", "gpu"}, Devices: []bool{false, true}, Settings: Settings{
		ByValue: true, Backfill: 10 * time.Minute, CoolDown: 2 * time.Minute, MinRuntime: 10 * time.Second, FirstRegrow: time.Second, LastRegrow: 5 * time.Minute,
	}}
	all := Bits{0}
	for i := range 1 + r.Intn(4) {
		has := Amounts{int64(4 + r.Intn(13)), int64(2 + r.Intn(4))}
		c.Nodes = append(c.Nodes, Node{Name: "n" + strconv.Itoa(i), Capacity: has, Free: slices.Clone(has)})
		all.Set(i)
	}
	for _, cpu := range []int64{1, 2, 4, 6} {
		c.Shapes = append(c.Shapes, Shape{Request: Amounts{cpu, 1}, Nodes: all})
	}
	for _, request := range []Amounts{{4, 2}, {3, 0}} {
		if r.Intn(3) == 0 {
			c.Shapes = append(c.Shapes, Shape{Request: request, Nodes: all})
		}
	}
	for i := range 1 + r.Intn(2) {
		c.Namespaces = append(c.Namespaces, Namespace{Name: "ns" + strconv.Itoa(i), Weight: 1 + int64(r.Intn(2)), NeverAllowed: true, EvictAllowed: true})
	}
	for i := range 2 + r.Intn(4) {
		s := ShapeID(r.Intn(len(c.Shapes)))
		j := Job{
			Name: "x/j" + strconv.Itoa(i), UID: strconv.Itoa(i), Namespace: NamespaceID(r.Intn(len(c.Namespaces))), Stage: Training,
			Priority: int32(r.Intn(4) / 3), Preempts: true, Submitted: noon.Add(time.Duration(i) * time.Second),
			Min: 1, Max: int32(2 + r.Intn(12)), Gang: s, Growth: s, Target: 1, Pause: time.Duration(r.Intn(8)) * time.Second,
		}
		if r.Intn(3) == 0 {
			j.Sizes, j.Max = []int32{1, 2, 4, 8}, 8
		}
		if r.Intn(4) > 0 {
			serial := r.Float64() * []float64{0.01, 0.3, 1}[r.Intn(3)]
			var seen []speed.Observation
			for _, n := range []int{1, 2, 4, 8} {
				seen = append(seen, speed.Observation{Workers: n, Nodes: 1, StepsPerSecond: 1 / (serial + 1/float64(n)), Steps: 1000})
			}
			j.Pace = &Pace{Speed: speed.Fit(seen, 1), Tried: 8, Done: 100, Left: float64(int(10) << r.Intn(14))}
		}
		for n := range c.Nodes {
			if request := c.Shapes[s].Request; c.Nodes[n].Free[0] >= request[0] && c.Nodes[n].Free[1] >= request[1] {
				free(c, NodeID(n), s, -1)
				j.Workers = []Worker{{Node: NodeID(n), Shape: s, Own: true, Bound: true, World: true, For: None}}
				c.Jobs = append(c.Jobs, j)
				break
			}
		}
	}
	return c
}
