// Package score says which states of a training are the best, by a metric that its evaluations report. It is pure.
package score

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Best says which checkpoints stay beside the newest: those with the best scores by a metric. Its zero value keeps none of them.
type Best struct {
	Metric string
	// Lowest is true where a lower score is better.
	Lowest bool
	// Keep is how many stay.
	Keep int
}

// Compare compares two scores: negative where the first is better.
func (b Best) Compare(x, y float64) int {
	if b.Lowest {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(y, x)
}

const maximize, minimize = "Maximize", "Minimize"

// String is the same as one text, which Parse reads; empty for the zero value.
func (b Best) String() string {
	order := maximize
	switch {
	case b == Best{}:
		return ""
	case b.Lowest:
		order = minimize
	}
	return fmt.Sprintf("%s %s %d", b.Metric, order, b.Keep)
}

// Parse reads the text of a Best.
func Parse(text string) (Best, error) {
	if text == "" {
		return Best{}, nil
	}
	fields := strings.Fields(text)
	if len(fields) != 3 || !IsMetric(fields[0]) || fields[1] != maximize && fields[1] != minimize {
		return Best{}, fmt.Errorf("%.100q: METRIC %s or %s, and how many to keep, is wanted", text, maximize, minimize)
	}
	keep, err := strconv.Atoi(fields[2])
	if err != nil || keep < 1 {
		return Best{}, fmt.Errorf("%.100q: it must end with how many checkpoints to keep, from 1 on", text)
	}
	return Best{Metric: fields[0], Lowest: fields[1] == minimize, Keep: keep}, nil
}

var metric = regexp.MustCompile(`^[A-Za-z0-9_]{1,32}$`)

// IsMetric says whether this is a name of a metric.
func IsMetric(name string) bool { return metric.MatchString(name) }

// IsFinite says whether a value can be a score.
func IsFinite(value float64) bool { return !math.IsNaN(value) && !math.IsInf(value, 0) }

// Text is a score as the shortest text that is read as the same.
func Text(value float64) string {
	return strings.Replace(strconv.FormatFloat(value, 'g', -1, 64), "e+", "e", 1)
}
