package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Left is a world that took the place of another one, and what was left of that for it to go on from.
type Left struct {
	Round, FromStep uint64
	// Parent is the world before it.
	Parent uint64
	// Survivors are the workers that were in the parent and went on with the program that they had there: the round from which on
	// they had it, by the names of their logs.
	Survivors map[string]uint64
	// Safe is the step of the newest snapshot in memory that workers still held, Durable that of the newest checkpoint in the
	// storage; 0 for none.
	Safe, Durable uint64
}

// CheckLeft returns every world that goes back further than it had to: behind a step that a survivor had done, a snapshot or a
// checkpoint.
func (r Run) CheckLeft(all []Left) error {
	var wrong []error
	for _, left := range all {
		further := func(step uint64, what string) {
			if left.FromStep < step {
				wrong = append(wrong, fmt.Errorf("round %d goes on after step %d, and there was step %d, %s", left.Round, left.FromStep, step, what))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(left.Survivors)) {
			further(r.done(name, left.Survivors[name], left.Parent), "which worker "+name+" had done")
		}
		further(left.Safe, "of which there was a snapshot in memory")
		further(left.Durable, "of which there was a checkpoint")
	}
	return errors.Join(wrong...)
}

// done is the last step that the program of a worker has surely done up to a round: it writes of a step when it begins. What it has
// done before counts as far as the round went on from there. 0 if it has not begun one.
func (r Run) done(name string, since, round uint64) uint64 {
	var last Line
	for _, line := range r.Logs[name].Lines {
		if since <= line.Round && line.Round <= round {
			last = line
		}
	}
	step := max(last.Step, 1) - 1
	for _, known := range r.Rounds {
		if known.Number == round && last.Round < round {
			return min(step, known.FromStep)
		}
	}
	return step
}
