package rendezvous

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain raises the number of random histories: rare ones matter here, and make test-long plays many more.
// -rapid.checks on the command line still wins.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "5000"); err != nil {
		panic(err)
	}
	flag.Parse()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString("leaked goroutines: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}
