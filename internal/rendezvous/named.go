package rendezvous

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"sync"
)

// maxNamed is the longest text that names the members of a world. Three bytes reach for an ordinal among a million
// pods of one job, which makes 40,000 characters of 10,000 workers.
const maxNamed = 65536

// packOrdinals names the members of a world by the numbers at the end of their pods' names, which no two pods of a
// job share: each as its difference to the one before plus one, as a variable-length integer, in base64. It is
// empty when that would be too long to be written, and the record then names nobody, like that of an older version.
func packOrdinals(ordinals []int32) string {
	packed := make([]byte, 0, 2*len(ordinals))
	next := int64(0)
	for _, ordinal := range ordinals {
		packed = binary.AppendVarint(packed, int64(ordinal)-next)
		next = int64(ordinal) + 1
	}
	if text := base64.RawStdEncoding.EncodeToString(packed); len(text) <= maxNamed {
		return text
	}
	return ""
}

// unpackOrdinals reads what packOrdinals has written of so many workers; nil when it cannot be that.
func unpackOrdinals(text string, workers int32) []int32 {
	packed, err := base64.RawStdEncoding.Strict().DecodeString(text)
	if err != nil || len(text) > maxNamed || workers < 1 || workers > MaxWorkers {
		return nil
	}
	ordinals := make([]int32, 0, workers)
	known := make(map[int32]bool, workers)
	next := int64(0)
	for len(packed) > 0 && len(ordinals) < int(workers) {
		difference, size := binary.Varint(packed)
		if size <= 0 {
			return nil
		}
		ordinal := next + difference
		if int64(int32(ordinal)) != ordinal || ordinal < 0 || known[int32(ordinal)] {
			return nil
		}
		known[int32(ordinal)] = true
		ordinals, packed, next = append(ordinals, int32(ordinal)), packed[size:], ordinal+1
	}
	if len(packed) > 0 || len(ordinals) != int(workers) || packOrdinals(ordinals) != text {
		return nil
	}
	return ordinals
}

// maxNodeName is the longest name of a node, as Kubernetes has it.
const maxNodeName = 253

// deflaters are kept because each has 800 KB, which is much for a world of two.
var deflaters = sync.Pool{New: func() any {
	writer, _ := flate.NewWriter(nil, flate.DefaultCompression) // it refuses other levels only
	return writer
}}

// packNodes names the nodes of the members of a world, in rank order. It is empty when that would be too long to be
// written, or somebody has no node.
func packNodes(nodes []string) string {
	if slices.Contains(nodes, "") {
		return ""
	}
	return packLines(nodes)
}

// packRacks names their racks, where anybody is known to be in one. It is empty when that would be too long to be written.
func packRacks(racks []string) string {
	if !slices.ContainsFunc(racks, func(rack string) bool { return rack != "" }) {
		return ""
	}
	return packLines(racks)
}

// packLines writes one name a line, as DEFLATE has it, in base64. It is empty when that would be too long.
func packLines(names []string) string {
	var packed bytes.Buffer
	writer, ok := deflaters.Get().(*flate.Writer)
	if !ok {
		return ""
	}
	defer deflaters.Put(writer)
	writer.Reset(&packed)
	for _, name := range names {
		_, _ = io.WriteString(writer, name+"\n") // a buffer takes everything
	}
	_ = writer.Close()
	if text := base64.RawStdEncoding.EncodeToString(packed.Bytes()); len(text) <= maxNamed {
		return text
	}
	return ""
}

// unpackNodes reads what packNodes has written of so many workers; nil when it cannot be that.
func unpackNodes(text string, workers int32) []string {
	nodes := unpackLines(text, workers)
	if slices.Contains(nodes, "") {
		return nil
	}
	return nodes
}

// unpackRacks reads what packRacks has written of so many workers; nil when it cannot be that, or nobody's rack is known.
func unpackRacks(text string, workers int32) []string { return unpackLines(text, workers) }

// unpackLines reads what packLines has written of so many names; nil when it cannot be that.
func unpackLines(text string, names int32) []string {
	packed, err := base64.RawStdEncoding.Strict().DecodeString(text)
	if err != nil || len(text) > maxNamed || names < 1 || names > MaxWorkers {
		return nil
	}
	longest := int64(names) * (maxNodeName + 1)
	lines, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), longest+1))
	if err != nil || int64(len(lines)) > longest {
		return nil
	}
	all := strings.Split(strings.TrimSuffix(string(lines), "\n"), "\n")
	if len(all) != int(names) || slices.ContainsFunc(all, func(name string) bool { return len(name) > maxNodeName }) {
		return nil
	}
	return all
}

// NamedMember is a member of a world as its record names it: the number at the end of its pod's name, and its node and the
// rack of that; no rack where none was known.
type NamedMember struct {
	Ordinal    int32
	Node, Rack string
}

// Name has the record name the members of its world, in rank order.
func (r *Record) Name(members []NamedMember) {
	ordinals, nodes, racks := make([]int32, len(members)), make([]string, len(members)), make([]string, len(members))
	for rank, member := range members {
		ordinals[rank], nodes[rank], racks[rank] = member.Ordinal, member.Node, member.Rack
	}
	r.Members, r.Nodes, r.Racks = packOrdinals(ordinals), packNodes(nodes), packRacks(racks)
}

// Ordinals are those of the members that the record names, in rank order; nil when it names nobody.
func (r *Record) Ordinals() []int32 { return unpackOrdinals(r.Members, r.Workers) }

// Named are the members that the record names, in rank order; nil when it does not name them and their nodes.
func (r *Record) Named() []NamedMember {
	ordinals, nodes := r.Ordinals(), unpackNodes(r.Nodes, r.Workers)
	if ordinals == nil || nodes == nil {
		return nil
	}
	named := make([]NamedMember, len(ordinals))
	for rank, ordinal := range ordinals {
		named[rank] = NamedMember{Ordinal: ordinal, Node: nodes[rank]}
	}
	for rank, rack := range unpackRacks(r.Racks, r.Workers) {
		named[rank].Rack = rack
	}
	return named
}

// naming is what a record says of its members: their ordinals in rank order, and the rank of each. Both are empty when it
// names nobody.
type naming struct {
	text     string
	workers  int32
	ordinals []int32
	ranks    map[int32]int
}

// naming is that of the record in the cluster, read once for each.
func (m *Machine) naming() *naming {
	n := &m.recordNames
	if n.ranks != nil && n.text == m.base.Members && n.workers == m.base.Workers {
		return n
	}
	*n = naming{text: m.base.Members, workers: m.base.Workers, ordinals: unpackOrdinals(m.base.Members, m.base.Workers)}
	n.ranks = make(map[int32]int, len(n.ordinals))
	for rank, ordinal := range n.ordinals {
		n.ranks[ordinal] = rank
	}
	return n
}

// membersNamed are members as a record names them.
func (m *Machine) membersNamed(uids []string) []NamedMember {
	named := make([]NamedMember, len(uids))
	for rank, uid := range uids {
		want := &m.members[uid].want
		named[rank] = NamedMember{want.Ordinal, want.Node, want.Rack}
	}
	return named
}

// ordinals are the uids of the expected members by their ordinals.
func (m *Machine) ordinals() map[int32]string {
	expected := make(map[int32]string, len(m.gang.Members))
	for i := range m.gang.Members {
		expected[m.gang.Members[i].Ordinal] = m.gang.Members[i].UID
	}
	return expected
}
