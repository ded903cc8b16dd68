package speed

import "math"

const (
	// grownBy is by what part of the least one a total may grow, and overrun by what part more steps than that may be
	// made, before a job's reports are believed no longer.
	grownBy = 0.10
	overrun = 0.15
)

// Progress is what a program reports of its steps, as far as it is believed. The zero value has had no report.
type Progress struct {
	done, first, least, total float64
	blind                     bool
}

// Resume is the progress of a job of which it is known which total it told first, and which was the least, 0 for none, and
// whether it is believed no longer.
func Resume(first, least float64, blind bool) Progress {
	if least == 0 {
		least = first
	}
	return Progress{first: first, least: least, blind: blind}
}

// Report is told how many steps were made and how many there will be in all, 0 where the program does not say. What no
// number of steps can be is left out. A total that grows, or is passed, by more than a little makes the job one of which
// nothing is known, until it ends: else who always has little left would be first for ever.
func (p *Progress) Report(done, total float64) {
	if steps(done) {
		p.done = done
	}
	if steps(total) && total > 0 {
		p.total = total
		if p.first == 0 {
			p.first, p.least = total, total
		}
	}
	p.blind = p.blind || p.total > 0 && (p.total > p.least*(1+grownBy) || p.done > p.total*(1+overrun))
	// Who says a thousand times as many as there are, and then always that little is left, grows from the little.
	if p.total > 0 {
		p.least = min(p.least, p.total)
	}
}

func steps(n float64) bool { return n >= 0 && n <= math.MaxInt64 }

// First is the first total that was told, 0 for none.
func (p *Progress) First() float64 { return p.first }

// Least is the least total that was told, 0 for none.
func (p *Progress) Least() float64 { return p.least }

// Blind says whether the job's totals are believed no longer.
func (p *Progress) Blind() bool { return p.blind }

// Done is how many steps were made.
func (p *Progress) Done() float64 { return p.done }

// Left is how many steps are left, at least 1; 0 where that is not known or not believed.
func (p *Progress) Left() float64 {
	if p.blind || p.total == 0 {
		return 0
	}
	return max(1, p.total-p.done)
}
