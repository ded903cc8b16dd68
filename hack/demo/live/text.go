package live

import (
	"strings"
	"unicode"
)

// style is how a piece of text looks where colours are allowed: an SGR parameter.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// span is a piece of one line in one style.
type span struct {
	style style
	text  string
}

func text(style style, text string) span { return span{style: style, text: text} }

// add appends one line, cut to the width of the page.
func (p *page) add(spans ...span) {
	var b strings.Builder
	left := p.look.Columns - 1
	for _, s := range spans {
		piece := clip(strings.Map(printable, s.text), left)
		left -= len([]rune(piece))
		if p.look.Colour && s.style != plain && piece != "" {
			piece = "\x1b[" + string(s.style) + "m" + piece + "\x1b[0m"
		}
		b.WriteString(piece)
	}
	p.lines = append(p.lines, strings.TrimRight(b.String(), " "))
}

// printable keeps what others wrote from steering the terminal.
func printable(r rune) rune {
	if unicode.IsControl(r) {
		return -1
	}
	return r
}

// clip cuts text to a number of columns; what is cut off leaves an ellipsis.
func clip(text string, columns int) string {
	runes := []rune(text)
	switch {
	case len(runes) <= columns:
		return text
	case columns < 1:
		return ""
	default:
		return string(runes[:columns-1]) + "…"
	}
}

// wrap breaks text at spaces into rows of so many columns; what does not fit into the last row is
// cut off. There is always at least one row.
func wrap(text string, columns, rows int) []string {
	wrapped := []string{""}
	for _, word := range strings.Fields(text) {
		last := &wrapped[len(wrapped)-1]
		switch {
		case *last == "":
			*last = word
		case len(wrapped) == rows || len([]rune(*last))+1+len([]rune(word)) <= columns:
			*last += " " + word
		default:
			wrapped = append(wrapped, word)
		}
	}
	for i := range wrapped {
		wrapped[i] = clip(wrapped[i], columns)
	}
	return wrapped
}

// oneLine is text without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
