package agent

import (
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/durable"
)

// While a worker brings something back, only what is wrong with that is told: an upload that has failed before says nothing of it.
func TestWhatIsWrongWithTheStorage(t *testing.T) {
	for _, c := range []struct {
		state durable.State
		want  string
	}{
		{durable.State{Failure: "503"}, "503"},
		{durable.State{Failure: "503", Waiting: "no route"}, "503"},
		{durable.State{Failure: "503", Waiting: "no route", Bringing: true}, "no route"},
		{durable.State{Failure: "503", Bringing: true}, ""},
	} {
		if got := troubleOf(&c.state); got != c.want {
			t.Errorf("of %+v it says %q", c.state, got)
		}
	}
}
