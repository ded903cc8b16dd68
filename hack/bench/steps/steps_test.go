package steps

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	got, ok := Parse("stamp 4 17 2 1000000000 1000000005")
	want := Stamp{Round: 4, Step: 17, Rank: 2, Begun: time.Unix(1, 0), Done: time.Unix(1, 5)}
	if !ok || got != want {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, line := range []string{"", "stamp", "stamp 1 2 3 4", "stamp 1 2 3 4 x", "stamp 1 -2 3 4 5", "step 1/9 loss 2", "stamp 1 2 3 4 5 6"} {
		if _, ok := Parse(line); ok {
			t.Errorf("%q is taken for a stamp", line)
		}
	}
}
