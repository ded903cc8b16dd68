package live

import (
	"fmt"
	"math"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Look says for whom a Model is rendered.
type Look struct {
	// Columns and Rows bound the text; at least 40 and 10 are assumed.
	Columns, Rows int
	// Colour allows escape sequences for colours.
	Colour bool
}

const (
	// messageRows is how many rows the message of one condition may take.
	messageRows = 3
	// eventRows is how many events are shown.
	eventRows = 6
)

// Render shows a Model as text: lines without a newline at the end. What is least important is
// left out first when the terminal is small.
func Render(m Model, look Look) string {
	look.Columns, look.Rows = max(look.Columns, 40), max(look.Rows, 10)
	p := page{look: look}
	p.title(m)
	p.conditions(m.Conditions)
	p.training(m.Training)
	p.workers(m.Workers)
	p.events(m.Events)
	return strings.Join(p.lines[:min(len(p.lines), look.Rows-1)], "\n")
}

// page collects lines, each at most look.Columns-1 wide.
type page struct {
	look  Look
	lines []string
}

func (p *page) title(m Model) {
	parts := []string{"TrainingJob " + m.Name, clock(m.Elapsed)}
	if m.Attempt > 0 {
		parts = append(parts, fmt.Sprintf("attempt %d", m.Attempt))
	}
	if m.Round > 0 {
		parts = append(parts, fmt.Sprintf("round %d, term %d", m.Round, m.Term))
	}
	if restarts := m.ProgramRestarts + m.InfrastructureRestarts; restarts > 0 {
		parts = append(parts, fmt.Sprintf("restarts: %d program, %d infrastructure", m.ProgramRestarts, m.InfrastructureRestarts))
	}
	p.add(text(bold, strings.Join(parts, "  ·  ")))
	p.add()
}

func (p *page) conditions(conditions []Condition) {
	for _, c := range conditions {
		mark, style, message := "·", plain, c.Message
		switch {
		case c.Status == metav1.ConditionTrue && c.Type == v1alpha1.ConditionFailed:
			mark, style = "✗", red
		case c.Status == metav1.ConditionTrue:
			mark, style = "✓", green
		case c.Status == metav1.ConditionFalse && c.Reason != "":
			message = c.Reason + ": " + c.Message
		}
		for i, row := range wrap(message, p.look.Columns-21, messageRows) {
			if i > 0 {
				mark, c.Type = " ", ""
			}
			p.add(text(style, mark), text(plain, fmt.Sprintf(" %-14s ", c.Type)), text(plain, row))
		}
	}
	p.add()
}

func (p *page) training(t Training) {
	width := min(40, p.look.Columns-32)
	if t.Total > 0 {
		p.add(text(plain, fmt.Sprintf("  %-9s %-11s ", "step", fmt.Sprintf("%d/%d", t.Step, t.Total))), text(green, bar(t.Step, t.Total, width)),
			text(plain, fmt.Sprintf(" %3d%%", 100*min(t.Step, t.Total)/t.Total)))
	} else {
		p.add(text(plain, fmt.Sprintf("  %-9s –", "step")))
	}
	if loss, known := t.Loss(); known {
		p.add(text(plain, fmt.Sprintf("  %-9s %-11.4f ", "loss", loss)), text(plain, sparkline(t.Losses, width)))
	} else {
		p.add(text(plain, fmt.Sprintf("  %-9s –", "loss")))
	}
	if t.Accuracy != nil {
		p.add(text(plain, fmt.Sprintf("  %-9s ", "accuracy")), text(bold, fmt.Sprintf("%.2f%%", 100**t.Accuracy)))
	} else {
		p.add(text(plain, fmt.Sprintf("  %-9s –", "accuracy")))
	}
	if t.SamplesPerSecond > 0 {
		p.add(text(plain, fmt.Sprintf("  %-9s %d samples/s", "speed", t.SamplesPerSecond)))
	}
	p.add()
}

func (p *page) workers(workers []Worker) {
	if len(workers) == 0 {
		return
	}
	name := len("worker")
	for _, w := range workers {
		name = max(name, len(w.Name))
	}
	row := fmt.Sprintf("  %%-6s%%-%ds  %%-10s%%s", name)
	p.add(text(dim, fmt.Sprintf(row, "rank", "worker", "node", "state")))
	for _, w := range workers {
		rank, node := "–", w.Node
		if w.Rank >= 0 {
			rank = fmt.Sprint(w.Rank)
		}
		if node == "" {
			node = "–"
		}
		p.add(text(plain, fmt.Sprintf(row, rank, w.Name, node+" ", w.State)))
	}
	p.add()
}

func (p *page) events(events []Event) {
	room := min(eventRows, p.look.Rows-2-len(p.lines))
	if len(events) == 0 || room < 1 {
		return
	}
	p.add(text(dim, "  last events"))
	for _, e := range events[max(0, len(events)-room):] {
		style := plain
		if e.Warning {
			style = yellow
		}
		p.add(text(dim, fmt.Sprintf("  %5s ", age(e.Age))), text(style, e.Reason), text(plain, " "+oneLine(e.Message)))
	}
}

// bar is a progress bar of so many columns.
func bar(done, total int64, columns int) string {
	filled := int(float64(columns) * float64(min(done, total)) / float64(total))
	return strings.Repeat("█", filled) + strings.Repeat("░", columns-filled)
}

var levels = []rune("▁▂▃▄▅▆▇█")

// sparkline draws the losses on a logarithmic scale, for they fall by orders of magnitude. Each
// column is the last loss of its share of them.
func sparkline(losses []Loss, columns int) string {
	if len(losses) < 2 {
		return ""
	}
	columns = min(columns, len(losses))
	heights := make([]float64, columns)
	low, high := math.Inf(1), math.Inf(-1)
	for i := range heights {
		heights[i] = math.Log(max(losses[(i+1)*len(losses)/columns-1].Value, 1e-9))
		low, high = min(low, heights[i]), max(high, heights[i])
	}
	var b strings.Builder
	for _, height := range heights {
		level := 0
		if high > low {
			level = int(math.Round((height - low) / (high - low) * float64(len(levels)-1)))
		}
		b.WriteRune(levels[level])
	}
	return b.String()
}

// clock is a duration as minutes and seconds.
func clock(d time.Duration) string {
	seconds := int(max(0, d).Seconds())
	return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
}

// age is a duration in its largest unit.
func age(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	default:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
}
