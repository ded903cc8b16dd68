// Package ledger judges from the logs of a training job whose world changed whether it trained as if
// nothing had happened: every sample was used once in an epoch, no step is missing or counts twice,
// and the losses are those of an undisturbed run. It reads what examples/go-digits writes with
// -ledger, and knows nothing of clusters.
package ledger

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Round is the record of a world, as the job's status and events tell.
type Round struct {
	Number uint64
	// Parent is the round whose state this one continues; 0 if it began from nothing.
	Parent uint64
	// FromStep is the step after which it begins.
	FromStep uint64
	// Ranks is the number of ranks, at least 1.
	Ranks int
}

// Line is one line of the ledger: what one rank used in one step.
type Line struct {
	Round, Step, Epoch uint64
	Rank               int
	Samples            []uint64
}

// Loss is one line in which rank 0 tells the loss of a step.
type Loss struct {
	Step, Steps uint64
	Loss        float64
}

// Log is what a worker wrote, in its order.
type Log struct {
	Lines  []Line
	Losses []Loss
}

var (
	linePattern = regexp.MustCompile(`^ledger round=(\d+) step=(\d+) epoch=(\d+) rank=(\d+) ids=([0-9,]*)$`)
	lossPattern = regexp.MustCompile(`^step (\d+)/(\d+) loss (\S+)$`)
)

// Parse reads a worker's log; other lines are passed over. A last line that is cut off, as a killed
// worker leaves it, is passed over too; any other that begins like one of ours and cannot be read is
// an error.
func Parse(text string) (Log, error) {
	var log Log
	number := 0
	for line := range strings.Lines(text) {
		number++
		whole := strings.HasSuffix(line, "\n")
		line = strings.TrimRight(line, "\r\n")
		ours := strings.HasPrefix(line, "ledger ") || lossLike(line)
		if !whole || !ours {
			continue
		}
		if err := log.add(line); err != nil {
			return Log{}, fmt.Errorf("line %d, %q: %w", number, line, err)
		}
	}
	return log, nil
}

func lossLike(line string) bool {
	return strings.HasPrefix(line, "step ") && strings.Contains(line, " loss ")
}

func (l *Log) add(line string) error {
	if found := linePattern.FindStringSubmatch(line); found != nil {
		numbers, err := numbersOf(found[1:5])
		if err != nil {
			return err
		}
		var samples []uint64
		if found[5] != "" {
			if samples, err = numbersOf(strings.Split(found[5], ",")); err != nil {
				return err
			}
		}
		if numbers[3] > math.MaxInt32 {
			return fmt.Errorf("no world has a rank %d", numbers[3])
		}
		l.Lines = append(l.Lines, Line{
			Round: numbers[0], Step: numbers[1], Epoch: numbers[2], Rank: int(numbers[3]), Samples: samples,
		})
		return nil
	}
	found := lossPattern.FindStringSubmatch(line)
	if found == nil {
		return errors.New("it cannot be read")
	}
	numbers, err := numbersOf(found[1:3])
	if err != nil {
		return err
	}
	loss, err := strconv.ParseFloat(found[3], 64)
	if err != nil {
		return fmt.Errorf("read the loss: %w", err)
	}
	l.Losses = append(l.Losses, Loss{Step: numbers[0], Steps: numbers[1], Loss: loss})
	return nil
}

func numbersOf(words []string) ([]uint64, error) {
	numbers := make([]uint64, len(words))
	for i, word := range words {
		number, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read a number: %w", err)
		}
		numbers[i] = number
	}
	return numbers, nil
}

// Stretch is a part of the history that counts: the steps after From, up to and with To, were made in
// one round.
type Stretch struct {
	Round    uint64
	Ranks    int
	From, To uint64
}

// History follows the parents of the last round back to the first step, and returns what counts of
// each round, oldest first. last is the last step of the training.
func History(rounds []Round, newest, last uint64) ([]Stretch, error) {
	known := make(map[uint64]Round, len(rounds))
	for _, r := range rounds {
		if other, twice := known[r.Number]; twice && other != r {
			return nil, fmt.Errorf("there are two records of round %d: %+v and %+v", r.Number, other, r)
		}
		known[r.Number] = r
	}
	var history []Stretch
	for number, end := newest, last; ; {
		r, ok := known[number]
		switch {
		case !ok:
			return nil, fmt.Errorf("there is no record of round %d", number)
		case r.Parent >= r.Number:
			return nil, fmt.Errorf("round %d continues round %d, which is not older", r.Number, r.Parent)
		case r.Ranks < 1:
			return nil, fmt.Errorf("round %d has %d ranks", r.Number, r.Ranks)
		}
		// A recovery can go back behind the beginning of the round before: nothing of that one counts.
		if r.FromStep < end {
			history = append(history, Stretch{Round: r.Number, Ranks: r.Ranks, From: r.FromStep, To: end})
			end = r.FromStep
		}
		if r.Parent == 0 || end == 0 {
			if end != 0 {
				return nil, fmt.Errorf("round %d begins after step %d and continues no other", r.Number, end)
			}
			slices.Reverse(history)
			return history, nil
		}
		number = r.Parent
	}
}

// Run is what is known of a training job that is over.
type Run struct {
	// Logs of all workers that there ever were, by name.
	Logs   map[string]Log
	Rounds []Round
	// Newest is the round that the training ended in, Steps its last step.
	Newest, Steps uint64
	// Samples is the number of samples in an epoch.
	Samples uint64
}

// Check returns everything that is wrong with the samples and the steps, nil if nothing is.
func (r Run) Check() error {
	history, err := History(r.Rounds, r.Newest, r.Steps)
	if err != nil {
		return err
	}
	var wrong []error
	type step struct{ round, step uint64 }
	lines := make(map[step][]Line)
	for _, name := range slices.Sorted(maps.Keys(r.Logs)) {
		if err := inOrder(r.Logs[name].Lines); err != nil {
			wrong = append(wrong, fmt.Errorf("worker %s: %w", name, err))
		}
		for _, line := range r.Logs[name].Lines {
			at := step{line.Round, line.Step}
			lines[at] = append(lines[at], line)
		}
	}
	wrong = append(wrong, tooEarly(r.Rounds, r.Logs)...)
	var counted [][]Line
	for _, part := range history {
		for number := part.From + 1; number <= part.To; number++ {
			found := lines[step{part.Round, number}]
			if err := wholeStep(found, part, number); err != nil {
				wrong = append(wrong, err)
			}
			counted = append(counted, found)
		}
	}
	return errors.Join(append(wrong, wholeEpochs(counted, r.Samples)...)...)
}

// inOrder says whether a worker went from step to step: inside a round each follows the one before, and
// no older round comes back.
func inOrder(lines []Line) error {
	for i := 1; i < len(lines); i++ {
		before, now := lines[i-1], lines[i]
		switch {
		case now.Round < before.Round:
			return fmt.Errorf("round %d comes after round %d", now.Round, before.Round)
		case now.Round > before.Round || now.Rank != before.Rank:
			// Several processes of a worker share its log.
		case now.Step != before.Step+1:
			return fmt.Errorf("step %d comes after step %d in round %d", now.Step, before.Step, now.Round)
		}
	}
	return nil
}

// tooEarly finds steps that a round made although it was to begin after them.
func tooEarly(rounds []Round, logs map[string]Log) []error {
	first := make(map[uint64]uint64, len(rounds))
	for _, r := range rounds {
		first[r.Number] = r.FromStep + 1
	}
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		for _, line := range logs[name].Lines {
			if begin, ok := first[line.Round]; ok && line.Step < begin {
				wrong = append(wrong, fmt.Errorf("worker %s: step %d of round %d, which begins with step %d", name, line.Step, line.Round, begin))
			}
		}
	}
	return wrong
}

// wholeStep says whether a step that counts has one line of each of its ranks, all of one epoch.
func wholeStep(lines []Line, part Stretch, number uint64) error {
	seen := make([]int, part.Ranks)
	for _, line := range lines {
		if line.Rank >= part.Ranks {
			return fmt.Errorf("step %d of round %d: there is a rank %d among %d", number, part.Round, line.Rank, part.Ranks)
		}
		if line.Epoch != lines[0].Epoch {
			return fmt.Errorf("step %d of round %d: ranks are in the epochs %d and %d", number, part.Round, lines[0].Epoch, line.Epoch)
		}
		seen[line.Rank]++
	}
	for rank, times := range seen {
		if times != 1 {
			return fmt.Errorf("step %d of round %d: rank %d stands there %d times", number, part.Round, rank, times)
		}
	}
	return nil
}

// wholeEpochs says whether each epoch uses the samples 0 to n-1, each of them once, and whether the
// epochs follow each other from 0.
func wholeEpochs(steps [][]Line, n uint64) []error {
	var wrong []error
	used := make(map[uint64]map[uint64]int)
	var epoch uint64
	for _, lines := range steps {
		for _, line := range lines {
			if line.Epoch != epoch && line.Epoch != epoch+1 || (line.Epoch != epoch && len(used) == 0) {
				wrong = append(wrong, fmt.Errorf("step %d of round %d: epoch %d follows epoch %d", line.Step, line.Round, line.Epoch, epoch))
			}
			epoch = line.Epoch
			if used[epoch] == nil {
				used[epoch] = make(map[uint64]int)
			}
			for _, sample := range line.Samples {
				used[epoch][sample]++
			}
		}
	}
	if len(used) == 0 {
		return append(wrong, errors.New("no step counts"))
	}
	for _, epoch := range slices.Sorted(maps.Keys(used)) {
		if err := onceEach(used[epoch], n); err != nil {
			wrong = append(wrong, fmt.Errorf("epoch %d: %w", epoch, err))
		}
	}
	return wrong
}

func onceEach(used map[uint64]int, n uint64) error {
	var twice, strange []uint64
	for _, sample := range slices.Sorted(maps.Keys(used)) {
		if sample >= n {
			strange = append(strange, sample)
		}
		if used[sample] > 1 {
			twice = append(twice, sample)
		}
	}
	missing := n - uint64(len(used)-len(strange))
	if len(twice) == 0 && len(strange) == 0 && missing == 0 {
		return nil
	}
	return fmt.Errorf("of %d samples %d were not used, %d more than once %v, %d are not of the data %v",
		n, missing, len(twice), some(twice), len(strange), some(strange))
}

func some(all []uint64) []uint64 { return all[:min(len(all), 5)] }

// CompareLosses checks all losses that any worker told against those of an undisturbed run. Steps that
// were made again count as well: they use the same samples with the same state. tolerance is relative.
// Each loss of the undisturbed run must have been told, but for steps after which a world begins: rank 0 may
// have been lost in that very step, when others had made it.
func (r Run) CompareLosses(undisturbed []Loss, tolerance float64) error {
	if len(undisturbed) == 0 {
		return errors.New("the undisturbed run told no loss")
	}
	want, told := make(map[uint64]Loss), make(map[uint64]bool)
	for _, loss := range undisturbed {
		want[loss.Step] = loss
	}
	for _, round := range r.Rounds {
		told[round.FromStep] = round.Parent > 0
	}
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(r.Logs)) {
		for _, got := range r.Logs[name].Losses {
			expected, ok := want[got.Step]
			switch {
			case got.Steps != undisturbed[0].Steps:
				wrong = append(wrong, fmt.Errorf("worker %s: there are %d steps, not %d", name, got.Steps, undisturbed[0].Steps))
			case !ok:
				wrong = append(wrong, fmt.Errorf("worker %s: the undisturbed run has no loss of step %d", name, got.Step))
			case !(math.Abs(got.Loss-expected.Loss) <= tolerance*math.Abs(expected.Loss)):
				wrong = append(wrong, fmt.Errorf("worker %s: step %d has the loss %v, undisturbed %v", name, got.Step, got.Loss, expected.Loss))
			}
			told[got.Step] = true
		}
	}
	for _, step := range slices.Sorted(maps.Keys(want)) {
		if !told[step] {
			wrong = append(wrong, fmt.Errorf("nobody told the loss of step %d", step))
		}
	}
	return errors.Join(wrong...)
}
