// Package steps reads what a measured program says of its own steps.
package steps

import (
	"strconv"
	"strings"
	"time"
)

// Stamp is one step of one rank, as the program itself has timed it.
type Stamp struct {
	// Round numbers the world that made the step: a later one has a higher number.
	Round, Step uint64
	Rank        int
	Begun, Done time.Time
}

// Parse reads a line `stamp ROUND STEP RANK BEGUN DONE`, times in nanoseconds since 1970.
func Parse(line string) (Stamp, bool) {
	fields := strings.Fields(line)
	if len(fields) != 6 || fields[0] != "stamp" {
		return Stamp{}, false
	}
	var numbers [5]int64
	for i, field := range fields[1:] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil || n < 0 {
			return Stamp{}, false
		}
		numbers[i] = n
	}
	return Stamp{
		Round: uint64(numbers[0]), Step: uint64(numbers[1]), Rank: int(numbers[2]),
		Begun: time.Unix(0, numbers[3]), Done: time.Unix(0, numbers[4]),
	}, true
}
