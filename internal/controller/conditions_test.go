package controller

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A program's last words are in conditions and events: short, with their end, and nothing for a terminal to do.
func TestMessagesAreShortAndPlain(t *testing.T) {
	words := "begin \x1b[2J" + strings.Repeat("größer ", 1000) + "ValueError: end"
	got := cut(words, maxMessage)
	if len(got) > maxMessage || !utf8.ValidString(got) || strings.ContainsRune(got, '\x1b') ||
		!strings.HasPrefix(got, "begin ") || !strings.HasSuffix(got, "ValueError: end") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
