package rendezvous

import (
	"fmt"
	"slices"
	"strings"
)

// Shards fit together where all ranks have the same values in them: a rank whose optimizer has some that others have not, or lacks
// one, makes a state of which no snapshot is ever whole. So nothing is safe then, which nobody would see before it is needed.

// mostCuts bounds how many of those that differ are named.
const mostCuts = 4

// compareCuts tells of ranks whose shards of a state do not fit together, once for the same ranks. states are those of the catalogue,
// by round and step.
func (m *Machine) compareCuts(c catalogue, states []fit) {
	for len(states) > 0 {
		of := states[0]
		n := slices.IndexFunc(states, func(f fit) bool { return f.round != of.round || f.step != of.step || f.of != of.of })
		if n < 0 {
			n = len(states)
		}
		same := states[:n]
		states = states[n:]
		if n < 2 {
			continue
		}
		var cuts []string
		ranks := 0
		for _, layout := range same {
			if who, written := m.inCut(c, layout); written > 0 {
				cuts, ranks = append(cuts, who), ranks+written
			}
		}
		if len(cuts) < 2 || ranks < of.of {
			continue // not all have said what they have written
		}
		slices.Sort(cuts)
		who := strings.Join(cuts[:min(len(cuts), mostCuts)], " against ")
		if len(cuts) > mostCuts {
			who += fmt.Sprintf(" and %d others", len(cuts)-mostCuts)
		}
		if slices.Contains(m.differing, who) || len(m.differing) == mostDiffering {
			continue
		}
		m.differing = append(m.differing, who)
		m.differ = fmt.Sprintf("after step %d the ranks have not the same values in shards, as their names, types and shapes show: %s. No "+
			"snapshot of such a state is whole, so none is safe. Each rank has to have the same keys in state_dict(), of the optimizer as well: "+
			"step it on all ranks with a gradient for the same parameters", of.step, who)
		m.note(notedDoubted, "%s", m.differ)
		m.out.Changed = true
	}
}

// inCut names the ranks that have written their shards so, and the first of their workers, and says how many they are; none for a state in
// no shards.
func (m *Machine) inCut(c catalogue, of fit) (who string, written int) {
	var ranks []int
	var first string
	for key, files := range c.parted[of] {
		if !key.Shard {
			continue
		}
		if len(ranks) == 0 || key.Index < slices.Min(ranks) {
			first = ""
			for _, mem := range files[files.chosen()] {
				if name := mem.want.Name + " on " + mem.want.Node; first == "" || name < first {
					first = name
				}
			}
		}
		ranks = append(ranks, key.Index)
	}
	if len(ranks) == 0 {
		return "", 0
	}
	slices.Sort(ranks)
	names := make([]string, len(ranks))
	for i, rank := range ranks {
		names[i] = fmt.Sprint(rank)
	}
	return fmt.Sprintf("rank %s (%s)", list(names), first), len(ranks)
}
