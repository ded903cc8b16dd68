// Package checkpoint keeps the snapshots of one worker and hands them to other workers.
//
// A Store is a folder of snapshot files, usually in memory. The training program writes a file there
// under a name of its own, the agent takes it over under the name ROUND-STEP. A Server gives the
// files to the agents of the same job, and Store.Fetch gets them from there. The package knows
// nothing of what is in a snapshot, and nothing of worlds.
//
// No file is ever held in memory whole, and every file that arrives is checked against its size and
// hash before it gets its name.
package checkpoint

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// ID says which state a snapshot holds: that after a step, in the round that made the step.
type ID struct{ Round, Step uint64 }

// Snapshot is a whole file.
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
	// Ticket opens the snapshot there.
	Ticket ticket.Ticket
}

// MaxBytes is the size of the largest snapshot.
const MaxBytes = 1 << 50

// partSuffix ends the names of files that are being written.
const partSuffix = ".part"

// String is the name of the file: ROUND-STEP.
func (id ID) String() string { return fmt.Sprintf("%d-%d", id.Round, id.Step) }

// CompareIDs orders by round first: a recovery goes back to earlier steps in a later round.
func CompareIDs(a, b ID) int {
	return cmp.Or(cmp.Compare(a.Round, b.Round), cmp.Compare(a.Step, b.Step))
}

// ParseID reads the name of a file; ok is false when no ID has that name.
func ParseID(name string) (id ID, ok bool) {
	round, step, _ := strings.Cut(name, "-")
	var errRound, errStep error
	id.Round, errRound = strconv.ParseUint(round, 10, 64)
	id.Step, errStep = strconv.ParseUint(step, 10, 64)
	return id, errRound == nil && errStep == nil && id.String() == name
}
