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
		if got := m.members["p01"].copyless; got != want {
			t.Errorf("%q: copyless %t, want %t", why, got, want)
		}
		if len(c.orders["p01"]) > 0 {
			t.Errorf("%q: it is to get %v still", why, c.orders["p01"])
		}
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
