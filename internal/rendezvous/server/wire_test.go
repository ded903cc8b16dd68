package server

import (
	"regexp"
	"strings"
	"testing"
)

// What is checked of each report by hand is what these expressions say.
func TestWhatReportsMayNameIsCheckedByHand(t *testing.T) {
	metric, digest := regexp.MustCompile(`^[A-Za-z0-9_]{1,32}$`), regexp.MustCompile(`^[0-9a-f]{64}$`)
	check := func(s string) {
		if isMetricName(s) != metric.MatchString(s) || isDigest(s) != digest.MatchString(s) {
			t.Errorf("%q: a metric's name %v, a digest %v", s, isMetricName(s), isDigest(s))
		}
	}
	for n := range 70 {
		check(strings.Repeat("a", n))
	}
	for c := range 0x180 {
		for _, around := range []string{"", "a", strings.Repeat("0", 31), strings.Repeat("f", 63)} {
			check(around + string(rune(c)))
			check(string(rune(c)) + around)
			check(around + string([]byte{byte(c)}))
		}
	}
}
