package rendezvous

import (
	"encoding/base64"
	"encoding/binary"
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

// ordinalsOf are the ordinals of members.
func (m *Machine) ordinalsOf(uids []string) []int32 {
	ordinals := make([]int32, len(uids))
	for rank, uid := range uids {
		ordinals[rank] = m.members[uid].want.Ordinal
	}
	return ordinals
}
