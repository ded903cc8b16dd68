package lifecycle

import (
	"strings"
	"testing"
)

// A world without a snapshot is entered where the state is handed over in it, by a process that knows of that.
func TestOnlyWhoKnowsOfItEntersAHandover(t *testing.T) {
	for name, row := range map[string]struct {
		handover, able bool
		want           string
	}{
		"all is well":         {true, true, "give0(3) tell"},
		"the program is old":  {true, false, "deny0"},
		"there is no handing": {false, true, "refuse"},
	} {
		m := New(epoch, DefaultLimits(30e9), Shape{Programs: 1, Processes: 1})
		m.Step(epoch, with(Heard{Directive: Directive{Term: 1}}, func(d *Directive) { d.Standby = true }))
		connected := says(0, Connected)
		connected.HandsOver = row.able
		m.Step(epoch, connected)
		m.Step(epoch, says(0, Joined))
		if m.HandsOver() != row.able {
			t.Errorf("%s: it says %v of it", name, m.HandsOver())
		}
		world := worldOf("b")
		world.Processes, world.Parent, world.FromStep, world.Restore, world.Handover = 1, 2, 7, true, row.handover
		got := text(m.Step(epoch, Heard{Directive: Directive{Term: 1, Round: 3, World: world}}))
		if !strings.HasSuffix(got, row.want) {
			t.Errorf("%s: %q, want %q at its end", name, got, row.want)
		}
	}
}
