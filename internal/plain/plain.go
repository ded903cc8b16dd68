// Package plain makes text that somebody else wrote fit for logs, events, conditions and terminals.
package plain

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text replaces by � whatever is no text: control characters, by which a terminal could be told to do
// something, but for tabs and the ends of lines; marks that turn the direction of what follows; and bytes that
// are no UTF-8. Ends of lines become \n.
func Text(text string) string {
	if fit(text) {
		return text
	}
	text = strings.ReplaceAll(strings.ToValidUTF8(text, string(utf8.RuneError)), "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			return '\n' // a progress bar
		case harmless(r):
			return r
		}
		return utf8.RuneError
	}, text)
}

func fit(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !harmless(r) }) < 0
}

func harmless(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return true
	case unicode.IsControl(r):
		return false
	}
	return !unicode.Is(unicode.Bidi_Control, r) && r != '\u2028' && r != '\u2029'
}
