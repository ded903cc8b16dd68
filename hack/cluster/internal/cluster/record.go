package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
)

// record is what the tool writes down about the cluster. It is written before
// what it describes is done, so that `down` knows of it after a crash.
type record struct {
	// Running is set when everything is up.
	Running bool `json:"running"`
	// GPUs per node, unless the node says otherwise.
	GPUs  int          `json:"gpus"`
	Nodes []nodeRecord `json:"nodes"`
	// ProxyNode is the node whose name kube-proxy bears.
	ProxyNode string `json:"proxyNode"`
	// Sysctls are the kernel settings from before the cluster.
	Sysctls map[string]string `json:"sysctls"`
	// Chains are the packet filter chains of Kubernetes from before the cluster.
	Chains []string `json:"chains,omitempty"`
}

type nodeRecord struct {
	Name   string `json:"name"`
	Number int    `json:"number"`
	GPUs   int    `json:"gpus"`
	// Down nodes have been killed; they may come back.
	Down bool `json:"down,omitempty"`
	// Cut nodes are off the network, wholly or in part.
	Cut bool `json:"cut,omitempty"`
}

// load reads the record; there is none, and no error, when no cluster was started.
func (c Cluster) load() (record, error) {
	raw, err := os.ReadFile(c.Layout.ClusterFile())
	if errors.Is(err, os.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("read the cluster's record: %w", err)
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return record{}, fmt.Errorf("read the cluster's record %s: %w", c.Layout.ClusterFile(), err)
	}
	return r, nil
}

func (c Cluster) save(r record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the cluster's record: %w", err)
	}
	path := c.Layout.ClusterFile()
	if err := os.WriteFile(path+".new", raw, 0o644); err != nil {
		return fmt.Errorf("write the cluster's record: %w", err)
	}
	return os.Rename(path+".new", path)
}

func (r record) find(name string) (nodeRecord, bool) {
	i := slices.IndexFunc(r.Nodes, func(n nodeRecord) bool { return n.Name == name })
	if i < 0 {
		return nodeRecord{}, false
	}
	return r.Nodes[i], true
}

// with returns the record with the node set, added where it was not known.
func (r record) with(n nodeRecord) record {
	r = r.without(n.Name)
	r.Nodes = append(r.Nodes, n)
	slices.SortFunc(r.Nodes, func(a, b nodeRecord) int { return a.Number - b.Number })
	return r
}

func (r record) without(name string) record {
	r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(n nodeRecord) bool { return n.Name == name })
	return r
}

// freeNumber returns the smallest number that no node has.
func (r record) freeNumber() (int, error) {
	for number := 1; number <= network.MaxNodes; number++ {
		taken := func(n nodeRecord) bool { return n.Number == number }
		if !slices.ContainsFunc(r.Nodes, taken) {
			return number, nil
		}
	}
	return 0, fmt.Errorf("the cluster has %d nodes already, as many as its address plan allows", network.MaxNodes)
}

// newRecord plans a cluster of nodes named node-1, node-2, ...
func newRecord(nodes, gpus int) record {
	r := record{GPUs: gpus}
	for number := 1; number <= nodes; number++ {
		r.Nodes = append(r.Nodes, nodeRecord{Name: fmt.Sprintf("node-%d", number), Number: number, GPUs: gpus})
	}
	r.ProxyNode = r.Nodes[0].Name
	return r
}
