// Package figures is what every bench prints: `name value unit`, one figure per line.
package figures

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// Figure is one result.
type Figure struct {
	Name  string
	Value float64
	// Unit is s for seconds.
	Unit string
}

// Print writes the figures, one line each.
func Print(out io.Writer, all []Figure) error {
	for _, f := range all {
		if _, err := fmt.Fprintf(out, "%s %.3f %s\n", f.Name, f.Value, f.Unit); err != nil {
			return fmt.Errorf("print %s: %w", f.Name, err)
		}
	}
	return nil
}

// Durations makes NAME_p50 and NAME_max, in seconds, of samples; of none it makes nothing.
func Durations(name string, samples []time.Duration) []Figure {
	if len(samples) == 0 {
		return nil
	}
	return []Figure{
		{Name: name + "_p50", Value: Median(samples).Seconds(), Unit: "s"},
		{Name: name + "_max", Value: slices.Max(samples).Seconds(), Unit: "s"},
	}
}

// Median is the middle of the samples, or the mean of the two in the middle; of none it is 0.
func Median(samples []time.Duration) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
