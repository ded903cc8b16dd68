package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Told is what a rank of a program of examples/frameworks tells of a step.
type Told struct {
	Step    int     `json:"step"`
	Round   int     `json:"round"`
	Rank    int     `json:"rank"`
	Size    int     `json:"size"`
	Loss    float64 `json:"loss"`
	Samples []int   `json:"samples"`
}

// Points is a job of such a program, of which each world starts it anew: what all ranks have told, and what it was to do.
type Points struct {
	Told []Told
	// Samples is how many there are, Batch how many of them a step uses in whatever world, Steps how many there are to make.
	Samples, Batch, Steps int
	// Every is how many steps lie between two checkpoints that the program writes unasked.
	Every int
}

// ParsePoints reads the lines of one worker; those of others are passed over. So is a line that is cut off, as one who is killed
// leaves it: what it would have told is missed where it counts.
func ParsePoints(lines []string) []Told {
	var all []Told
	for _, line := range lines {
		var told Told
		if strings.HasPrefix(line, `{"step"`) && json.Unmarshal([]byte(line), &told) == nil {
			all = append(all, told)
		}
	}
	return all
}

// History is what was told of each step that counts: of one that was made again, in the last world that made it.
func (p Points) History() map[int][]Told {
	history := map[int][]Told{}
	for _, round := range p.rounds() {
		first, _ := p.span(round)
		maps.DeleteFunc(history, func(step int, _ []Told) bool { return step >= first })
		for _, told := range p.Told {
			if told.Round == round {
				history[told.Step] = append(history[told.Step], told)
			}
		}
	}
	return history
}

// CheckOnce says what is wrong with the steps that count: each must be there, with each of its ranks once, and together the
// steps of an epoch must have used each sample once.
func (p Points) CheckOnce() error {
	history := p.History()
	used := map[int]map[int]int{}
	for step := 1; step <= p.Steps; step++ {
		if err := toldByAll(history[step]); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		epoch := (step - 1) * p.Batch / p.Samples
		if used[epoch] == nil {
			used[epoch] = map[int]int{}
		}
		for _, told := range history[step] {
			for _, sample := range told.Samples {
				if used[epoch][sample]++; used[epoch][sample] > 1 || sample < 0 || sample >= p.Samples {
					return fmt.Errorf("step %d: sample %d of epoch %d is used once more", step, sample, epoch)
				}
			}
		}
	}
	for epoch, samples := range used {
		if len(samples) != p.Samples {
			return fmt.Errorf("epoch %d has used %d of %d samples", epoch, len(samples), p.Samples)
		}
	}
	for step := range history {
		if step > p.Steps {
			return fmt.Errorf("step %d was made, of %d", step, p.Steps)
		}
	}
	return nil
}

// toldByAll checks that all ranks of one world have told of a step, each once.
func toldByAll(told []Told) error {
	if len(told) == 0 {
		return fmt.Errorf("nobody has told of it")
	}
	ranks := map[int]bool{}
	for _, one := range told {
		if one.Size != told[0].Size || ranks[one.Rank] {
			return fmt.Errorf("rank %d of %d has told of it in round %d once more", one.Rank, one.Size, one.Round)
		}
		ranks[one.Rank] = true
	}
	if len(ranks) != told[0].Size {
		return fmt.Errorf("%d of %d ranks have told of it in round %d", len(ranks), told[0].Size, told[0].Round)
	}
	return nil
}

// CheckNothingLost says which change has lost or left out a step: none may but that from the round lost, if it is not 0, after
// which the program goes on from its newest checkpoint.
func (p Points) CheckNothingLost(lost int) error {
	return p.checkChanges(func(change change) error {
		if change.before == lost {
			return p.checkNewest(change)
		}
		if change.first != change.last+1 {
			return fmt.Errorf("%v: a planned change loses no step and leaves none out", change)
		}
		return nil
	})
}

// CheckNewestCheckpoints says after which change the program did not go on from its newest checkpoint.
func (p Points) CheckNewestCheckpoints() error { return p.checkChanges(p.checkNewest) }

// checkNewest allows for a worker that is lost while the checkpoint of its last step is written.
func (p Points) checkNewest(change change) error {
	for _, done := range []int{change.last, change.last - 1} {
		if newest := max(change.began-1, done/p.Every*p.Every); change.first == newest+1 {
			return nil
		}
	}
	return fmt.Errorf("%v: it does not go on from its newest checkpoint, and there is one every %d steps", change, p.Every)
}

// change is where one world took over from another: the steps that the one made, and the first of the other.
type change struct {
	before, after      int
	began, last, first int
}

func (c change) String() string {
	return fmt.Sprintf("round %d made steps %d to %d, and round %d goes on with %d", c.before, c.began, c.last, c.after, c.first)
}

func (p Points) checkChanges(check func(change) error) error {
	rounds := p.rounds()
	for i := range len(rounds) - 1 {
		began, last := p.span(rounds[i])
		first, _ := p.span(rounds[i+1])
		if err := check(change{before: rounds[i], after: rounds[i+1], began: began, last: last, first: first}); err != nil {
			return err
		}
	}
	return nil
}

// rounds are those in which a step was made.
func (p Points) rounds() []int {
	numbers := map[int]bool{}
	for _, told := range p.Told {
		numbers[told.Round] = true
	}
	return slices.Sorted(maps.Keys(numbers))
}

// span is the first and the last step that was told of in a round.
func (p Points) span(round int) (first, last int) {
	first = math.MaxInt
	for _, told := range p.Told {
		if told.Round == round {
			first, last = min(first, told.Step), max(last, told.Step)
		}
	}
	return first, last
}

// CompareLosses says at which of the steps that count the loss is not that of another job, relatively.
func (p Points) CompareLosses(other Points, within float64) error {
	ours, theirs := p.History(), other.History()
	for step := 1; step <= p.Steps; step++ {
		loss, want := meanLoss(ours[step]), meanLoss(theirs[step])
		if !(math.Abs(loss/want-1) <= within) {
			return fmt.Errorf("step %d has loss %g, and %g where nobody disturbed it", step, loss, want)
		}
	}
	return nil
}

// String lists the steps that were made, in the order of their worlds: by how many ranks, and with what loss.
func (p Points) String() string {
	var text strings.Builder
	for _, round := range p.rounds() {
		made := map[int][]Told{}
		for _, told := range p.Told {
			if told.Round == round {
				made[told.Step] = append(made[told.Step], told)
			}
		}
		for _, step := range slices.Sorted(maps.Keys(made)) {
			fmt.Fprintf(&text, "round %d step %d: %d of %d ranks, loss %.6f\n", round, step, len(made[step]), made[step][0].Size, meanLoss(made[step]))
		}
	}
	return text.String()
}

// meanLoss is that of all ranks, which have as many samples each.
func meanLoss(told []Told) float64 {
	sum := 0.0
	for _, one := range told {
		sum += one.Loss
	}
	return sum / float64(len(told))
}
