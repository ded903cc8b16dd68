package rendezvous

import (
	"testing"

	"pgregory.net/rapid"
)

// TestStartedAnewAgainstModel plays random histories of programs that are started anew in each world, as
// TestChangesAgainstModel does: most of them look at the gate, and save when they are told to leave. A round that says
// after which step it begins begins after the last one that was made, and its programs find the state after just that.
func TestStartedAnewAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { newFleetOf(t, Restart).play(t) })
}
