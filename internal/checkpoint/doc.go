// Package checkpoint keeps the snapshots of one worker and hands them to other workers.
//
// A snapshot is one file, or several parts that different workers hold, each a file. A Store is a folder of
// such files, usually in memory. The training program writes a file there under a name of its own, the
// agent takes it over under the name ROUND-STEP, or ROUND-STEP.PART. A Server gives the files to the agents
// of the same job, and Store.Fetch gathers them from there. The package knows nothing of what is in a
// snapshot, and nothing of worlds.
//
// What a store holds are whole files. Of one of which only some is needed here the blocks with that come as an excerpt, of which nobody
// else is told: see excerpts.go.
//
// No file is ever held in memory whole. Every block of 1 MiB that arrives is checked before it is written, and
// one that is not what it should be is asked for again, alone.
package checkpoint

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/concertina-dev/concertina/internal/share"
	"github.com/concertina-dev/concertina/internal/ticket"
)

// ID names a file: the state after a step, in the round that made the step, or the part of it of this key.
type ID struct {
	Round, Step uint64
	// Part is empty for a whole state, and otherwise a share.Key.
	Part string
}

// State is the ID of the whole state.
func (id ID) State() ID { return ID{Round: id.Round, Step: id.Step} }

// Snapshot is a file.
type Snapshot struct {
	ID
	// Bytes is its size, Hash the SHA-256 of the SHA-256s of its blocks of 1 MiB.
	Bytes uint64
	Hash  Hash
}

// Holder is a server of snapshots, and the SHA-256 of the certificate (DER) that it shows.
type Holder struct {
	Address     string
	Port        int
	Certificate [32]byte
	// Ticket opens the snapshot there, with all of its parts.
	Ticket ticket.Ticket
}

// Wanted is a file that is to be had, who has it, and who is getting it as well and gives what it has by then.
type Wanted struct {
	Snapshot
	Holders, Peers []Holder
	// Only are the bytes of it that are needed; none for all. The blocks with these come as an excerpt then, and the file is not held.
	Only []Range
}

// MaxBytes is the size of the largest snapshot.
const MaxBytes = 1 << 50

// partSuffix ends the names of files that are being written.
const partSuffix = ".part"

// String is the name of the file: ROUND-STEP, or ROUND-STEP.PART.
func (id ID) String() string {
	if id.Part == "" {
		return fmt.Sprintf("%d-%d", id.Round, id.Step)
	}
	return fmt.Sprintf("%d-%d.%s", id.Round, id.Step, id.Part)
}

// CompareIDs orders by round first: a recovery goes back to earlier steps in a later round.
func CompareIDs(a, b ID) int {
	return cmp.Or(cmp.Compare(a.Round, b.Round), cmp.Compare(a.Step, b.Step), strings.Compare(a.Part, b.Part))
}

// ParseID reads the name of a file; ok is false when no ID has that name.
func ParseID(name string) (id ID, ok bool) {
	state, part, _ := strings.Cut(name, ".")
	round, step, _ := strings.Cut(state, "-")
	var errRound, errStep error
	id.Round, errRound = strconv.ParseUint(round, 10, 64)
	id.Step, errStep = strconv.ParseUint(step, 10, 64)
	id.Part = part
	return id, errRound == nil && errStep == nil && id.String() == name && (part == "" || isPart(part))
}

func isPart(key string) bool {
	_, ok := share.Parse(key)
	return ok
}
