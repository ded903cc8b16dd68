package traces

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/concertina-dev/concertina/internal/replay"
)

// Columns of the two kinds of workload.
var (
	scalingColumns  = []string{"name", "submitted_s", "workers", "max", "steps", "serial_s", "parallel_s", "near_s", "far_s"}
	profiledColumns = []string{"name", "time", "application", "num_replicas", "batch_size"}
)

// deadlineColumn may be there or not; a job with an empty cell has none.
const deadlineColumn = "deadline_s"

// Bounds of what is read: the most of anything that is counted, and the latest time, ten years.
const (
	most   = 1_000_000_000
	latest = 10 * 365 * 24 * 3600
)

// Workload reads jobs, in the order of the file; - is for standard input. Jobs that name an application need the folder of its profile: empty
// for the one above that of the workload.
func Workload(file, profiles string) ([]replay.Job, error) {
	text, err := whole(file)
	if err != nil {
		return nil, err
	}
	if file == "-" {
		file = "standard input"
	}
	header, _, _ := strings.Cut(string(text), "\n")
	header = strings.TrimSpace(header)
	columns, job := scalingColumns, scalingJob
	if strings.Contains(","+header+",", ",application,") {
		if profiles == "" {
			profiles = filepath.Dir(filepath.Dir(file))
		}
		known := &folder{path: profiles, programs: map[kind]*replay.Training{}}
		columns, job = profiledColumns, known.job
	}
	var jobs []replay.Job
	lines := map[string]int{}
	err = readTableFrom(file, bytes.NewReader(text), columns, func(l *line) error {
		j := job(l)
		if j.Name == "" {
			l.fault("name is empty")
		}
		if before := lines[j.Name]; before > 0 {
			l.fault("job %s is in line %d already", j.Name, before)
		}
		lines[j.Name] = l.number
		if l.has(deadlineColumn) {
			if j.Deadline = int64(l.integer(deadlineColumn, 1, latest)); j.Deadline <= j.Submitted {
				l.fault("%s is %d, it must be after %d, when the job is submitted", deadlineColumn, j.Deadline, j.Submitted)
			}
		}
		jobs = append(jobs, j)
		return nil
	}, deadlineColumn)
	if err == nil && len(jobs) == 0 {
		err = fmt.Errorf("%s: there are no jobs", file)
	}
	return jobs, err
}

func scalingJob(l *line) replay.Job {
	p := &replay.Scaling{
		Steps:    int64(l.integer("steps", 1, most)),
		Serial:   l.decimal("serial_s", 0, most),
		Parallel: l.positive("parallel_s", most),
		Near:     l.decimal("near_s", 0, most),
		Far:      l.decimal("far_s", 0, most),
		Most:     l.integer("max", 1, most),
	}
	return replay.Job{
		Name: l.text("name"), Submitted: int64(l.integer("submitted_s", 0, latest)), Workers: l.integer("workers", 1, p.Most), Program: p,
	}
}

// job is one that names an application.
func (f *folder) job(l *line) replay.Job {
	j := replay.Job{Name: l.text("name"), Submitted: int64(l.integer("time", 0, latest)), Workers: l.integer("num_replicas", 1, most)}
	batch := l.integer("batch_size", 1, most)
	if l.err != nil {
		return j
	}
	program, err := f.program(kind{application: l.text("application"), batch: batch})
	if err != nil {
		l.err = err
		return j
	}
	if j.Workers > program.Max() {
		l.fault("num_replicas is %d, a batch of %d lets it be at most %d", j.Workers, batch, program.Max())
	}
	j.Program = program
	return j
}
