package live

import (
	"math"
	"regexp"
	"strconv"
)

// Log is what the programs of one attempt have printed, as far as the view understands it:
// "step 40/900 loss 0.1234" and "test accuracy 0.9722".
type Log struct {
	Step, Total int64
	Losses      []Loss
	Accuracy    *float64
}

var (
	stepLine     = regexp.MustCompile(`\bstep (\d{1,18})/(\d{1,18})(?: loss (\S+))?`)
	accuracyLine = regexp.MustCompile(`\btest accuracy ([0-9.]+)`)
)

// Read takes in one line and returns the Log that follows. A line that was read before changes
// nothing, so a log may be read again from its start.
func (l Log) Read(line string) Log {
	if found := accuracyLine.FindStringSubmatch(line); found != nil {
		if accuracy, err := strconv.ParseFloat(found[1], 64); err == nil && accuracy <= 1 {
			l.Accuracy = &accuracy
		}
		return l
	}
	found := stepLine.FindStringSubmatch(line)
	if found == nil {
		return l
	}
	step, _ := strconv.ParseInt(found[1], 10, 64)
	if step <= l.Step {
		return l
	}
	l.Step = step
	l.Total, _ = strconv.ParseInt(found[2], 10, 64)
	if loss, err := strconv.ParseFloat(found[3], 64); err == nil && !math.IsNaN(loss) && !math.IsInf(loss, 0) {
		l.Losses = append(l.Losses[:len(l.Losses):len(l.Losses)], Loss{Step: step, Value: loss})
	}
	return l
}
