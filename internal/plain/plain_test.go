package plain

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"ValueError: loss is NaN":       "ValueError: loss is NaN",
		"one\n\ttwo – größer 大":         "one\n\ttwo – größer 大",
		"\x1b]0;owned\x07red \x1b[31mx": "�]0;owned�red �[31mx",
		"50%\r100%\r\nend":              "50%\n100%\nend",
		"\x00\x7f\u009b31m":             "���31m",
		"no \xff utf":                   "no � utf",
		"admin\u202egnp.exe":            "admin�gnp.exe",
		"a line\u2028another":           "a line�another",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, seed := range []string{"", "x\x1b[2J", "\xff\r\n", "\u202e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Text(text)
		if !utf8.ValidString(got) || strings.IndexFunc(got, func(r rune) bool {
			return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
		}) >= 0 {
			t.Errorf("%q becomes %q", text, got)
		}
		if again := Text(got); again != got {
			t.Errorf("%q becomes %q and then %q", text, got, again)
		}
	})
}
