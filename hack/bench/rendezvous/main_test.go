package rendezvous

import (
	"fmt"
	"os"
	"testing"
)

// TestMain is the processes of a trial too, as main is.
func TestMain(m *testing.M) {
	isRole, err := Role()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	if isRole {
		return
	}
	os.Exit(m.Run())
}
