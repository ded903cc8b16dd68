package console

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"time"

	"github.com/concertina-dev/concertina/internal/replay"
)

// The picture of a replay, in pixels: a row for each job, in the order of the workload, and one part below the other for each
// policy, all on one scale of time.
const (
	svgWidth, svgLeft, svgRight = 1200, 160, 20
	svgRow, svgGap, svgHead     = 8, 2, 40
)

// WriteSVG draws the workers of each job over time: the darker, the more. What a job had, and why, shows on hover.
func (r *Replay) WriteSVG(out io.Writer) error {
	end, most := 1.0, 2
	for i := range r.Runs {
		for _, j := range r.Runs[i].Jobs {
			end, most = max(end, j.Completed), max(most, j.Largest)
		}
	}
	part := svgHead + r.Jobs*(svgRow+svgGap)
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="8">`+"\n", svgWidth, part*len(r.Runs)+svgGap)
	fmt.Fprintln(w, `<rect width="100%" height="100%" fill="white"/>`)
	for i := range r.Runs {
		run := &r.Runs[i]
		top := i * part
		fmt.Fprintf(w, `<text x="4" y="%d" font-size="14">%s: %.0f s on average, %s in all</text>`+"\n", top+24, html.EscapeString(run.Policy), run.Average,
			span(time.Duration(run.Makespan*float64(time.Second))))
		for n := range run.Jobs {
			drawJob(w, &run.Jobs[n], top+svgHead+n*(svgRow+svgGap), end, most)
		}
	}
	fmt.Fprintln(w, "</svg>")
	return w.Flush()
}

// drawJob draws one row. Errors stay with the writer until it is flushed.
func drawJob(w *bufio.Writer, j *replay.JobResult, top int, end float64, most int) {
	at := func(seconds float64) float64 { return svgLeft + seconds/end*(svgWidth-svgLeft-svgRight) }
	draw := func(from, to float64, fill, words string) {
		fmt.Fprintf(w, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
			at(from), top, max(0.2, at(to)-at(from)), svgRow, fill, html.EscapeString(words))
	}
	when := func(seconds float64) string { return span(time.Duration(seconds * float64(time.Second))) }
	fmt.Fprintf(w, `<text x="4" y="%d">%s</text>`+"\n", top+svgRow-1, html.EscapeString(j.Name))
	from := j.Submitted
	for i := 0; i <= len(j.Sizes); i++ {
		workers, why, to := 0, "it waits to start", j.Completed
		if i > 0 {
			workers, why = j.Sizes[i-1].Workers, j.Sizes[i-1].Why
		}
		if i < len(j.Sizes) {
			to = j.Sizes[i].At
		}
		if to > from {
			draw(from, to, shade(workers, most), fmt.Sprintf("%s: %s from %s to %s: %s", j.Name, count(workers, "worker"), when(from), when(to), why))
		}
		from = max(from, to)
	}
}

// shade is light for one worker and dark for the most; grey for none.
func shade(workers, most int) string {
	if workers == 0 {
		return "#dddddd"
	}
	light := 75 - 50*math.Log2(float64(workers))/math.Log2(float64(most))
	return fmt.Sprintf("hsl(210,70%%,%.0f%%)", light)
}
