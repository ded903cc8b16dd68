package traces

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
)

// line is one line of a table.
type line struct {
	file   string
	number int
	header []string
	cells  []string
	err    error
}

// readTable reads a file with a header that says exactly these columns, in any order, besides optional ones, and calls use for each line
// below. It stops at the first error.
func readTable(file string, columns []string, use func(*line) error, optional ...string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return readTableFrom(file, f, columns, use, optional...)
}

// readTableFrom reads what a file has.
func readTableFrom(file string, from io.Reader, columns []string, use func(*line) error, optional ...string) error {
	return scan(file, from, func(header []string) error {
		for _, c := range columns {
			if !slices.Contains(header, c) {
				return fmt.Errorf("column %s is missing", c)
			}
		}
		for i, h := range header {
			if !slices.Contains(columns, h) && !slices.Contains(optional, h) || slices.Contains(header[:i], h) {
				return fmt.Errorf("column %q is not expected", h)
			}
		}
		return nil
	}, use)
}

func scan(file string, from io.Reader, checkHeader func([]string) error, use func(*line) error) error {
	return scanLines(file, from, nil, checkHeader, use)
}

// scanWith reads lines without a header.
func scanWith(file string, from io.Reader, header []string, use func(*line) error) error {
	return scanLines(file, from, header, nil, use)
}

func scanLines(file string, from io.Reader, header []string, checkHeader func([]string) error, use func(*line) error) error {
	reader := csv.NewReader(from)
	reader.ReuseRecord = true
	reader.FieldsPerRecord = len(header)
	for {
		cells, err := reader.Read()
		if errors.Is(err, io.EOF) && header == nil {
			return fmt.Errorf("%s: the file is empty", file)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if wrong, ok := errors.AsType[*csv.ParseError](err); ok {
			return fmt.Errorf("%s:%d: %w", file, wrong.Line, wrong.Err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		number, _ := reader.FieldPos(0)
		if header == nil {
			header = slices.Clone(cells)
			err = checkHeader(header)
		} else {
			err = (&line{file: file, number: number, header: header, cells: cells}).read(use)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", file, number, err)
		}
	}
}

// read is the first error of the cells, else what use says.
func (l *line) read(use func(*line) error) error {
	err := use(l)
	if l.err != nil {
		return l.err
	}
	return err
}

func (l *line) text(column string) string { return l.cells[slices.Index(l.header, column)] }

// has says whether an optional column is there and not empty.
func (l *line) has(column string) bool {
	return slices.Contains(l.header, column) && l.text(column) != ""
}

// integer is a whole number within bounds.
func (l *line) integer(column string, least, most int) int {
	n, err := strconv.Atoi(l.text(column))
	if err != nil {
		l.fault("%s is %q, which is no whole number", column, l.text(column))
	} else if n < least || n > most {
		l.fault("%s is %d, it must be from %d to %d", column, n, least, most)
	}
	return n
}

// The bounds of numbers that are not whole: beyond them sums and quotients are no numbers any more.
const (
	leastDecimal = 1e-9
	mostDecimal  = 1e15
)

// decimal is a number within bounds.
func (l *line) decimal(column string, least, most float64) float64 {
	x, err := strconv.ParseFloat(l.text(column), 64)
	switch {
	case err != nil || math.IsNaN(x) || math.IsInf(x, 0):
		l.fault("%s is %q, which is no number", column, l.text(column))
	case x < least:
		l.fault("%s is %g, it must be at least %g", column, x, least)
	case x > most:
		l.fault("%s is %g, it must be at most %g", column, x, most)
	}
	return x
}

// positive is a number above 0.
func (l *line) positive(column string, most float64) float64 {
	x := l.decimal(column, 0, most)
	if x == 0 {
		l.fault("%s is 0, it must be above", column)
	} else if x < leastDecimal {
		l.fault("%s is %g, it must be at least %g", column, x, leastDecimal)
	}
	return x
}

// fault keeps the first fault of the line.
func (l *line) fault(format string, arguments ...any) {
	if l.err == nil {
		l.err = fmt.Errorf(format, arguments...)
	}
}

// whole is what a file has, read once: a pipe gives it only once. The name - is for what standard input has.
func whole(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(file)
}
