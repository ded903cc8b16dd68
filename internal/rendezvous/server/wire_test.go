package server

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
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

// How long a process works is what it says; what cannot be is not known.
func TestOwnTimesAreRead(t *testing.T) {
	for nanos, want := range map[uint64]time.Duration{0: 0, 1e9: time.Second, 1 << 63: 0, math.MaxUint64: 0} {
		read, refused := readReport(&rendezvousv1.Report{Processes: []*rendezvousv1.Process{{}, {OwnNanos: nanos}}})
		if refused != nil || read.Processes[0].OwnTime != 0 || read.Processes[1].OwnTime != want {
			t.Errorf("%d ns are read as %v, %v", nanos, read.Processes, refused)
		}
	}
}

// However much there is to say of why a world is left, its members are told no more than fits into a message.
func TestAReasonIsCut(t *testing.T) {
	for _, text := range []string{"", "p00 leaves", strings.Repeat("p00 leaves; ", 1<<13), strings.Repeat("…", 1<<13)} {
		got := cut(text, maxReasonBytes)
		if len(got) > maxReasonBytes || !strings.HasPrefix(text, strings.TrimSuffix(got, "…")) || len(text) <= maxReasonBytes && got != text {
			t.Errorf("of %d bytes %d are left", len(text), len(got))
		}
	}
}
