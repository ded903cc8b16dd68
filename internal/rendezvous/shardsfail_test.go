package rendezvous

import "testing"

// Who could not reach a holder once makes copies of the next state as others do; who is full does not.
func TestWhatPassesMakesNobodyCopyless(t *testing.T) {
	for why, want := range map[string]bool{
		"dial tcp 10.0.0.3:7070: connect: connection refused":                           false,
		"write /snapshots/fetch-1.part: no space left on device":                        true,
		"fetch snapshot 1-4: write /snapshots/fetch-1.part: disk quota exceeded (10.0)": true,
	} {
		f, l := cutUp(t, 4)
		m := l.machine
		_ = copiedOnce(f, l)
		for _, uid := range f.uids() {
			f.pods[uid].copyless = true
		}
		f.settleSteps()
		f.periodic(f.uids()...)
		f.turns(l, 1)
		c := m.copying
		if c == nil || len(c.orders["p01"]) == 0 {
			t.Fatalf("what is copied: %+v", c)
		}
		m.members["p01"].report.Uncopied = Uncopied{c.Round, c.Step, why}
		m.copyShards(f.now)
		if got := m.members["p01"].isFull(f.now); got != want {
			t.Errorf("%q: full %t, want %t", why, got, want)
		}
		if len(c.orders["p01"]) > 0 {
			t.Errorf("%q: it is to get %v still", why, c.orders["p01"])
		}
	}
}

// Who had no room for copies is asked again after a while, and in the next world, and makes them once there is room.
func TestWhoWasFullIsAskedAgain(t *testing.T) {
	f, l := cutUp(t, 4)
	m := l.machine
	_ = copiedOnce(f, l)
	asked := func(full bool) bool {
		t.Helper()
		f.turns(l, 3)
		f.settleSteps()
		f.pods["p01"].full = false // for what it writes itself
		f.periodic(f.uids()...)
		f.pods["p01"].full = full
		f.turns(l, 6)
		is := f.pods["p01"].toCopy == f.pods["p01"].latest()
		if got := m.memory(); got.Copies != 2 || m.copying != nil {
			t.Errorf("the copies: %+v, %+v", got, m.copying)
		}
		return is
	}
	first, second := asked(true), asked(true)
	m.members["p01"].fullAt = m.members["p01"].fullAt.Add(-fullTime)
	third, fourth := asked(false), asked(false)
	if !first || second || !third || !fourth {
		t.Errorf("it is asked %t, then %t, and with room after a while %t, and %t", first, second, third, fourth)
	}
	m.members["p01"].fullAt = f.now
	m.copyAnew()
	if m.members["p01"].isFull(f.now) {
		t.Error("it is full in the next world too")
	}
}

// The same failure in other words is no news.
func TestTheSameFailureIsNoNews(t *testing.T) {
	m := &Machine{}
	said := Uncopied{1, 4, "read tcp 10.0.0.2:41234->10.0.0.3:7070: connection reset by peer"}
	m.hearCopies(said, Uncopied{1, 4, "read tcp 10.0.0.2:41236->10.0.0.3:7070: connection reset by peer"})
	if m.look {
		t.Error("another port is news")
	}
	for _, news := range []Uncopied{{1, 5, said.Why}, {2, 4, said.Why}, {}} {
		m.look = false
		m.hearCopies(said, news)
		if !m.look {
			t.Errorf("%+v is none", news)
		}
	}
}
