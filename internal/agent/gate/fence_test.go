package gate

import "testing"

// A program's store of entered may still be on its way when the program has looked at stop. After the fence it is there.
func TestArmSeesAStepThatOnlyTheFenceShows(t *testing.T) {
	page, err := New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := page.Close(); err != nil {
			t.Error(err)
		}
	})
	fences := 0
	page.fence = func() {
		fences++
		if stop := page.mem.load(agentLine(0), wordStop); stop != 17 {
			t.Errorf("at the fence stop is %d", stop)
		}
		page.mem.store(programLine(0), wordEntered, 18)
	}
	if got := page.Arm(0, 17); got != 18 {
		t.Errorf("armed at %d", got)
	}
	if got := page.Arm(0, 20); got != 20 || fences != 1 {
		t.Errorf("raised to %d with %d fences: nothing can slip through any more", got, fences)
	}
}
