package figures

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		samples []time.Duration
		want    time.Duration
	}{
		{nil, 0}, {[]time.Duration{7}, 7}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{9, 1, 5, 3}, 4},
	} {
		if got := Median(test.samples); got != test.want {
			t.Errorf("the median of %v is %d, want %d", test.samples, got, test.want)
		}
	}
}

func TestMedianLeavesItsSamplesAlone(t *testing.T) {
	t.Parallel()
	samples := []time.Duration{3, 1, 2}
	Median(samples)
	if diff := cmp.Diff([]time.Duration{3, 1, 2}, samples); diff != "" {
		t.Error(diff)
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	all := Durations("start_first_step", []time.Duration{1500 * time.Millisecond, 2 * time.Second, 1234567 * time.Microsecond})
	all = append(all, Durations("nothing", nil)...)
	var out strings.Builder
	if err := Print(&out, all); err != nil {
		t.Fatal(err)
	}
	want := "start_first_step_p50 1.500 s\nstart_first_step_max 2.000 s\n"
	if out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}
