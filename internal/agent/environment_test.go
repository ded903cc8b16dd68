package agent

import (
	"slices"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

func TestAProgramIsToldToLookAtItsDeviceFirst(t *testing.T) {
	for _, check := range []bool{true, false} {
		// What the agent itself was told is about the first start only.
		for _, inherited := range [][]string{nil, {"CONCERTINA_CHECK_DEVICE=1"}} {
			for _, round := range []uint64{0, 3} {
				found := environment(inherited, Config{Processes: 1}, lifecycle.Start{Round: round, Check: check}, 0)
				if told := slices.Contains(found, "CONCERTINA_CHECK_DEVICE=1"); told != check {
					t.Errorf("round %d: told %v, want %v: %v", round, told, check, found)
				}
			}
		}
	}
}
