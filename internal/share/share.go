// Package share says how the state of a job is held by several workers: into how many shares one is cut that is the same on
// all ranks, who writes which of them, who keeps a copy of what only one rank has, and what the parts of such a snapshot are
// named by. It is pure, and knows nothing of worlds, files or transfers.
package share

import (
	"fmt"
	"strconv"
	"strings"
)

// Most is the largest number of shares that a state is cut into. Cut into more it is no burden to anybody any more, and
// whoever gathers it would have to ask that many.
const Most = 32

// MostRanks is of how many workers at most what differs by rank goes to the storage: of the first ones. Those beyond begin
// with what the first has.
const MostRanks = 192

// MostShards is of how many ranks each may have its own shard of the state: workers are told of all of them, and report
// what they hold.
const MostShards = 128

// MostParts is how many parts a checkpoint has.
const MostParts = Most + MostRanks

// Key names a part: a share of what is the same on all ranks; or the shard of a rank, which no other one has; or what
// differs by rank, of one worker, with the description of all.
type Key struct {
	// Rank is true for the part of the worker whose rank is Index, Shard for the shard of the process of that rank, of a
	// world of Of; otherwise it is share Index, from 0, of Of.
	Rank, Shard bool
	Index, Of   int
	// Layout is the same for parts that fit together: 16 hex digits.
	Layout string
}

// layoutBytes is how long a layout is.
const layoutBytes = 16

// Parse reads a key; ok is false when it is none. Each report of an agent names what it holds, so that costs no more than
// looking at each byte once.
func Parse(text string) (key Key, ok bool) {
	if text == "" || text[0] != 'r' && text[0] != 's' && text[0] != 'd' {
		return Key{}, false
	}
	index, rest, _ := strings.Cut(text[1:], ".")
	of, layout, _ := strings.Cut(rest, ".")
	if !isNumber(index, 9) || !isNumber(of, 3) || of == "0" || !isLayout(layout) {
		return Key{}, false
	}
	key.Rank, key.Shard, key.Layout = text[0] == 'r', text[0] == 'd', layout
	key.Index, _ = strconv.Atoi(index)
	key.Of, _ = strconv.Atoi(of)
	switch {
	case key.Rank:
		return key, key.Of <= MostShards
	case key.Shard:
		return key, key.Of <= MostShards && key.Index < key.Of
	}
	return key, 2 <= key.Of && key.Of <= Most && key.Index < key.Of
}

// isNumber says whether this is a number of at most so many digits, without zeros before it.
func isNumber(text string, digits int) bool {
	if text == "" || len(text) > digits || text[0] == '0' && len(text) > 1 {
		return false
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return true
}

func isLayout(text string) bool {
	if len(text) != layoutBytes {
		return false
	}
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// IsShard says whether a part of this name is the shard of a rank.
func IsShard(name string) bool {
	key, ok := Parse(name)
	return ok && key.Shard
}

// String is the key as it is written.
func (k Key) String() string {
	kind := "s"
	switch {
	case k.Rank:
		kind = "r"
	case k.Shard:
		kind = "d"
	}
	return fmt.Sprintf("%s%d.%d.%s", kind, k.Index, k.Of, k.Layout)
}

// Whole says whether parts with these names make a state: each share, or each shard, of one layout once, and what differs by
// rank of at least one worker.
func Whole(names []string) bool {
	var of Key
	seen, shares, shards := map[Key]bool{}, 0, 0
	for i, name := range names {
		key, ok := Parse(name)
		if i == 0 {
			of = Key{Of: key.Of, Layout: key.Layout}
		}
		if !ok || seen[key] || key.Of != of.Of || key.Layout != of.Layout {
			return false
		}
		seen[key] = true
		switch {
		case key.Shard:
			shards++
		case !key.Rank:
			shares++
		}
	}
	return max(shares, shards) == of.Of && min(shares, shards) == 0 && of.Of > 0 && len(seen) > of.Of
}
