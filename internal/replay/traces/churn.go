package traces

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/replay"
)

// mostNodes bounds how many nodes a trace of churn may have at a time.
const mostNodes = 10_000

// Counted reads how many nodes there were, as the spot traces of SkyPilot have it: {"metadata": {"gap_seconds": 300},
// "data": [0, 5, 16, …]}. Which nodes they are it does not say: those that came last go first. The end is that of the last
// interval.
func Counted(file string) (changes []replay.NodeChange, end time.Duration, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, 0, err
	}
	var trace struct {
		Metadata struct {
			Gap int64 `json:"gap_seconds"`
		} `json:"metadata"`
		Data []int `json:"data"`
	}
	if err := json.Unmarshal(text, &trace); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", file, err)
	}
	if gap := trace.Metadata.Gap; gap < 1 || gap > latest || len(trace.Data) == 0 || int64(len(trace.Data)) > latest/gap {
		return nil, 0, fmt.Errorf("%s: %d numbers of nodes, one each %d s, are no trace of up to ten years", file, len(trace.Data), gap)
	}
	there := 0
	for i, nodes := range trace.Data {
		if nodes < 0 || nodes > mostNodes {
			return nil, 0, fmt.Errorf("%s: number %d is %d nodes, it must be from 0 to %d", file, i+1, nodes, mostNodes)
		}
		at := time.Duration(i) * time.Duration(trace.Metadata.Gap) * time.Second
		for ; there < nodes; there++ {
			changes = append(changes, replay.NodeChange{At: at, Node: there})
		}
		for ; there > nodes; there-- {
			changes = append(changes, replay.NodeChange{At: at, Node: there - 1, Gone: true})
		}
	}
	return changes, time.Duration(len(trace.Data)) * time.Duration(trace.Metadata.Gap) * time.Second, nil
}

// Named reads when which node came and went, as the traces of Bamboo have it: lines of milliseconds, add or remove, and the
// name of a node, in the order of time. The end is the last of them.
func Named(file string) (changes []replay.NodeChange, end time.Duration, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	known := newNames()
	header := []string{"milliseconds", "change", "node"}
	err = scanWith(file, f, header, func(l *line) error {
		at := time.Duration(l.integer("milliseconds", 0, latest*1000)) * time.Millisecond
		change := l.text("change")
		if change != "add" && change != "remove" {
			l.fault("%q is neither add nor remove", change)
		}
		if at < end {
			l.fault("%d ms is before the line above", at.Milliseconds())
		}
		if l.err != nil {
			return nil
		}
		end = at
		node, err := known.number(l.text("node"), change == "add")
		changes = append(changes, replay.NodeChange{At: at, Node: node, Gone: change == "remove"})
		return err
	})
	if err == nil && len(changes) == 0 {
		err = fmt.Errorf("%s: no node comes", file)
	}
	return changes, end, err
}

// names gives numbers to nodes that are there; that of one that went is used again.
type names struct {
	of   map[string]int
	free []int
	next int
}

func newNames() *names { return &names{of: map[string]int{}} }

func (n *names) number(name string, comes bool) (int, error) {
	at, there := n.of[name]
	switch {
	case comes && there:
		return 0, fmt.Errorf("node %s is there already", name)
	case !comes && !there:
		return 0, fmt.Errorf("node %s is not there", name)
	case !comes:
		delete(n.of, name)
		n.free = append(n.free, at)
		slices.Sort(n.free)
		return at, nil
	case len(n.of) == mostNodes:
		return 0, fmt.Errorf("there are more than %d nodes", mostNodes)
	case len(n.free) > 0:
		at, n.free = n.free[0], n.free[1:]
	default:
		at, n.next = n.next, n.next+1
	}
	n.of[name] = at
	return at, nil
}
