// Package share says how a state that is the same on all ranks is held by several workers: into how many shares it is cut,
// who writes which of them, and what the parts of such a snapshot are named by. It is pure, and knows nothing of worlds,
// files or transfers.
package share

import (
	"fmt"
	"regexp"
	"strconv"
)

// Most is the largest number of shares that a state is cut into. Cut into more it is no burden to anybody any more, and
// whoever gathers it would have to ask that many.
const Most = 32

// MostRanks is of how many workers at most what differs by rank goes to the storage: of the first ones. Those beyond begin
// with what the first has.
const MostRanks = 192

// Key names a part: a share of what is the same on all ranks, or what differs by rank, of one worker, with the
// description of all.
type Key struct {
	// Rank is true for the part of the worker whose rank is Index; otherwise it is share Index, from 0, of Of.
	Rank      bool
	Index, Of int
	// Layout is the same for parts that fit together: 16 hex digits.
	Layout string
}

var form = regexp.MustCompile(`^([rs])(0|[1-9][0-9]{0,8})\.([2-9]|[1-9][0-9])\.([0-9a-f]{16})$`)

// Parse reads a key; ok is false when it is none.
func Parse(text string) (key Key, ok bool) {
	found := form.FindStringSubmatch(text)
	if found == nil {
		return Key{}, false
	}
	key.Rank, key.Layout = found[1] == "r", found[4]
	key.Index, _ = strconv.Atoi(found[2])
	key.Of, _ = strconv.Atoi(found[3])
	return key, key.Of <= Most && (key.Rank || key.Index < key.Of)
}

// String is the key as it is written.
func (k Key) String() string {
	kind := "s"
	if k.Rank {
		kind = "r"
	}
	return fmt.Sprintf("%s%d.%d.%s", kind, k.Index, k.Of, k.Layout)
}

// Whole says whether parts with these names make a state: each share of one layout once, and what differs by rank of at least
// one worker.
func Whole(names []string) bool {
	var of Key
	seen, shares := map[Key]bool{}, 0
	for i, name := range names {
		key, ok := Parse(name)
		if i == 0 {
			of = Key{Of: key.Of, Layout: key.Layout}
		}
		if !ok || seen[key] || key.Of != of.Of || key.Layout != of.Layout {
			return false
		}
		seen[key] = true
		if !key.Rank {
			shares++
		}
	}
	return shares > 0 && shares == of.Of && len(seen) > shares
}
