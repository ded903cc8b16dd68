package agent

import (
	"slices"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/lifecycle"
)

func TestAProgramIsToldToLookAtItsDeviceFirst(t *testing.T) {
	for _, check := range []bool{true, false} {
		found := environment(nil, Config{Processes: 1}, lifecycle.Start{Check: check}, 0)
		if told := slices.Contains(found, "CONCERTINA_CHECK_DEVICE=1"); told != check {
			t.Errorf("told %v, want %v: %v", told, check, found)
		}
	}
}
