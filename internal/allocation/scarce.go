package allocation

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Scarce are the resources other than devices that keep pods of a shape from devices that are free, by what is free on each
// node that may be used; nil where there is nothing but devices to ask for, or to lack.
func (c *Cluster) Scarce(s ShapeID, free func(NodeID) Amounts) []string {
	shape, wants := &c.Shapes[s], false
	for i, amount := range shape.Request {
		wants = wants || amount > 0 && c.device(i)
	}
	if !wants {
		return nil
	}
	short := make([]bool, len(shape.Request))
	for w, word := range shape.Nodes {
		for ; word != 0; word &= word - 1 {
			n := w*64 + bits.TrailingZeros64(word)
			if n < len(c.Nodes) && c.Nodes[n].Name != "" && c.Nodes[n].Closed == "" {
				c.markScarce(short, shape.Request, free(NodeID(n)))
			}
		}
	}
	var names []string
	for i := range short {
		if short[i] {
			names = append(names, c.Resources[i])
		}
	}
	return names
}

// markScarce marks what is less of on a node than its devices would do for.
func (c *Cluster) markScarce(short []bool, request, free Amounts) {
	if len(free) < len(request) {
		return // nothing is known of it
	}
	devices := int64(math.MaxInt64)
	for i, amount := range request {
		if amount > 0 && c.device(i) {
			devices = min(devices, max(free[i], 0)/amount)
		}
	}
	if devices == 0 {
		return
	}
	for i, amount := range request {
		if amount > 0 && !c.device(i) && max(free[i], 0)/amount < devices {
			short[i] = true
		}
	}
}

func (c *Cluster) device(i int) bool { return i < len(c.Devices) && c.Devices[i] }

// scarce is that of a gang when the plan is made. Gangs of one class lack the same.
func (p *planner) scarce(id JobID) []string {
	k, s := p.jobs[id].waits.demand.class, p.c.Jobs[id].Gang
	names, known := p.scarcity[k]
	if !known {
		width := len(p.c.Resources)
		names = p.c.Scarce(s, func(n NodeID) Amounts { return p.now.free[int(n)*width : (int(n)+1)*width] })
		p.scarcity[k] = names
	}
	return names
}

// quantity is an amount of a resource as people write it: 1.5 for thousandths of a CPU, 40Gi for bytes.
func quantity(name string, amount int64) string {
	switch {
	case name == "cpu":
		return strconv.FormatFloat(float64(amount)/1000, 'f', -1, 64)
	case amount < 1<<10 || name != "memory" && !strings.HasSuffix(name, "storage") && !strings.HasPrefix(name, "hugepages-"):
		return strconv.FormatInt(amount, 10)
	}
	power := (bits.Len64(uint64(amount)) - 1) / 10 // what is no whole number of units is rounded down: a node never seems to have more than it has
	hundredths := math.Floor(float64(amount)/math.Pow(1024, float64(power))*100) / 100
	return strconv.FormatFloat(hundredths, 'f', -1, 64) + string("KMGTPE"[power-1]) + "i"
}
