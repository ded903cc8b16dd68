package rendezvous

import "testing"

// Promise 9: a hang is its program's own, and who waits for others that were lost has done nothing.
func TestWhoDoesNotLeaveAWorldThatHangsIsAtFault(t *testing.T) {
	killed := &member{report: Report{Round: 3, Failure: Failure{Round: 3, Code: exitKilled, Killed: true}}}
	for name, c := range map[string]struct {
		broken  *recovery
		program bool
	}{
		"no step was made": {&recovery{hung: true}, true},
		"a loss":           {&recovery{reason: ReasonWorkerLost}, false},
		"nothing known":    {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Machine{broken: c.broken}
			if got := m.failureCause(killed); got.program != c.program {
				t.Errorf("started anew: %+v", got)
			}
			if got := m.exitOf(m.heardAt, killed); got.program != c.program {
				t.Errorf("ended: %+v", got)
			}
		})
	}
}
