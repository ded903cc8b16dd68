package traces

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/concertina-dev/concertina/internal/replay"
)

// Write writes jobs that scale by a formula, as Workload reads them.
func Write(out io.Writer, jobs []replay.Job) error {
	table := csv.NewWriter(out)
	header := slices.Clone(scalingColumns)
	deadlines := slices.ContainsFunc(jobs, func(j replay.Job) bool { return j.Deadline != 0 })
	if deadlines {
		header = append(header, deadlineColumn)
	}
	if err := table.Write(header); err != nil {
		return err
	}
	for i := range jobs {
		j := &jobs[i]
		p, ok := j.Program.(*replay.Scaling)
		if !ok {
			return fmt.Errorf("job %s is of a measured program, which has no formula", j.Name)
		}
		row := []string{
			j.Name, strconv.FormatInt(j.Submitted, 10), strconv.Itoa(j.Workers), strconv.Itoa(p.Most), strconv.FormatInt(p.Steps, 10),
			decimal(p.Serial), decimal(p.Parallel), decimal(p.Near), decimal(p.Far),
		}
		if deadlines && j.Deadline != 0 {
			row = append(row, strconv.FormatInt(j.Deadline, 10))
		} else if deadlines {
			row = append(row, "")
		}
		if err := table.Write(row); err != nil {
			return err
		}
	}
	table.Flush()
	return table.Error()
}

// decimal is a number of seconds, exact.
func decimal(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
