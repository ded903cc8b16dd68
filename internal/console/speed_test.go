package console

import (
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/fleet"
)

// Who may not see the whole cluster is told how fast a job is, and no price: that depends on others.
func TestSpeedWithoutAPlan(t *testing.T) {
	c := speeds()
	l := NewPartialLook(fleet.Objects{Jobs: c.Jobs, Pods: c.Pods}, options(t))
	text := explained(t, l, "scales")
	for _, want := range []string{"about 4 steps per second", "With 5 workers on as many nodes it would make about 5 (+25%), and end 5m57s earlier", "a pause of 180ms (as measured)"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if strings.Contains(text, "By what workers are worth") {
		t.Errorf("a price cannot be known:\n%s", text)
	}
}

// The sizes next to that which a job has are legal ones.
func TestSizesNextToThatOfAJob(t *testing.T) {
	l := speeds().look(t)
	for name, want := range map[string][]string{
		"scales":  {"With 5 workers on", "With 3 workers on"},
		"flat":    {"With 8 workers on", "With 2 workers on"},
		"doubted": nil,
	} {
		var got []string
		for _, line := range strings.Split(explained(t, l, name), "\n") {
			if at := strings.Index(line, " as many nodes"); at >= 0 {
				got = append(got, strings.TrimSpace(line[:at]))
			}
		}
		if strings.Join(got, "; ") != strings.Join(want, "; ") {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// What becomes of a deadline: with how many workers it is met, that it will not be, or why that cannot be told.
func TestDeadlineIsExplained(t *testing.T) {
	for _, test := range []struct {
		job  string
		in   time.Duration
		even bool
		want string
	}{
		{"scales", 2 * time.Hour, false, "to be complete in 120m, at "},
		{"scales", 2 * time.Hour, false, "; 2 workers would do."},
		{"scales", 20 * time.Minute, false, "it needs 8 workers for that."},
		{"scales", 20 * time.Minute, false, "It could have 5 at most: it takes none for that, and will be late."},
		{"scales", time.Second, false, "it will be late with any number of workers"},
		{"flat", time.Hour, false, "cannot be told yet"},
		{"unknown", time.Hour, false, "cannot be told yet"},
		{"scales", time.Hour, true, "changes nothing: workers are shared evenly here."},
		{"scales", -time.Hour, false, "It was to be complete 60m ago"},
	} {
		c := speeds()
		if test.even {
			c.settings = ""
		}
		for _, job := range c.Jobs {
			if job.Name == test.job {
				job.Spec.Deadline = ago(-test.in)
			}
		}
		if text := explained(t, c.look(t), test.job); !strings.Contains(text, test.want) {
			t.Errorf("%s, deadline in %s: %q is missing:\n%s", test.job, test.in, test.want, text)
		}
	}
}
