package server

import (
	"maps"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
)

// series are the metrics of a family, by the values of their labels in the order of the labels' names.
func (f *fixture) series(t *testing.T, family string) map[string]*dto.Metric {
	t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*dto.Metric{}
	for _, one := range families {
		if one.GetName() != family {
			continue
		}
		for _, metric := range one.GetMetric() {
			key := ""
			for _, label := range metric.GetLabel() {
				key += "/" + label.GetValue()
			}
			found[key] = metric
		}
	}
	return found
}

// counts are the samples of a family of histograms, or the values of counters.
func (f *fixture) counts(t *testing.T, family string) map[string]int {
	t.Helper()
	found := map[string]int{}
	for key, metric := range f.series(t, family) {
		if h := metric.GetHistogram(); h != nil {
			found[key] = int(h.GetSampleCount())
		} else if n := int(metric.GetCounter().GetValue()); n > 0 {
			found[key] = n
		}
	}
	return found
}

// grow brings up a job of two workers that train, and has it grow to three.
func grow(t *testing.T, f *fixture) (a, b, c *rendezvoustest.Agent) {
	t.Helper()
	gang := gangOf(1, "a", "b")
	gang.Minimum, gang.Target = 1, 3
	f.Expect(digits, gang)
	last := func(c *rendezvoustest.Config) { c.LastStep = 1 << 40 }
	a, b = f.elastic(t, "a", last), f.elastic(t, "b", last)
	f.eventually(t, "the world trains", func(o rendezvous.Observation) bool { return o.Progress.Step > 3 && o.Elastic && !o.Untold })
	gang = gangOf(1, "a", "b", "c")
	gang.Minimum, gang.Target = 1, 3
	f.Expect(digits, gang)
	c = f.elastic(t, "c", last)
	f.eventually(t, "the change is told", func(o rendezvous.Observation) bool { return len(o.Changes) == 2 })
	return a, b, c
}

// A change is measured phase by phase, what is said by when it is obeyed, and a loss by its cause.
func TestChangesAreMeasured(t *testing.T) {
	f := serve(t, nil)
	_, _, c := grow(t, f)

	const grown = string(rendezvous.ReasonCapacityAvailable)
	phases := f.counts(t, "concertina_change_phase_seconds")
	want := map[string]int{
		"/record/Start": 1, "/form/Start": 1, "/step/Start": 1, "/publish/Start": 1,
		"/barrier/" + grown: 1, "/snapshot/" + grown: 1, "/record/" + grown: 1, "/form/" + grown: 1,
		"/step/" + grown: 1, "/publish/" + grown: 1,
	}
	// The first step of a world may be made before the last report that it has formed: then there is no wait for it.
	for _, step := range []string{"/step/Start", "/step/" + grown} {
		if phases[step] == 0 {
			delete(want, step)
		}
	}
	if !maps.Equal(phases, want) {
		t.Errorf("the phases are %v, want %v", phases, want)
	}
	if got, want := f.counts(t, "concertina_changes_total"), map[string]int{"/done/Start": 1, "/done/" + grown: 1}; !maps.Equal(got, want) {
		t.Errorf("the changes are %v, want %v", got, want)
	}
	// Two enter the first world, two are given a barrier, which each of them may move once, three enter the second. A world's
	// first step may be told before its last member says that it has entered: then nobody waits for that.
	entered := 5
	if phases["/step/Start"] == 0 || phases["/step/"+grown] == 0 {
		entered = 4
	}
	if got := f.counts(t, "concertina_directive_lag_seconds"); got["/world"] < entered || got["/world"] > 5 || got["/barrier"] < 2 || got["/barrier"] > 6 || len(got) != 2 {
		t.Errorf("directives were obeyed %v", got)
	}

	gang := gangOf(1, "a", "b", "c")
	gang.Minimum, gang.Target = 1, 2
	f.Expect(digits, gang)
	c.Exit(9)
	f.eventually(t, "the recovery is told", func(o rendezvous.Observation) bool { return len(o.Changes) == 3 })
	if got, want := f.counts(t, "concertina_losses_total"), map[string]int{"/exit": 1}; !maps.Equal(got, want) {
		t.Errorf("the losses are %v, want %v", got, want)
	}
	aborts := 0
	for _, n := range f.counts(t, "concertina_aborts_total") {
		aborts += n
	}
	if aborts != 1 {
		t.Errorf("the aborts are %v", f.counts(t, "concertina_aborts_total"))
	}
	if n := f.counts(t, "concertina_change_phase_seconds")["/leave/"+string(rendezvous.ReasonProgramFailed)]; n != 1 {
		t.Errorf("the phases are %v", f.counts(t, "concertina_change_phase_seconds"))
	}
	if n := f.counts(t, "concertina_directive_lag_seconds")["/abort"]; n != 2 {
		t.Errorf("%d survivors have left their world", n)
	}
}

// How long ago the slowest worker was heard is told of each job as long as it is there.
func TestBeatAge(t *testing.T) {
	f := serve(t, nil)
	f.Expect(digits, gangOf(1, "a", "b"))
	a := f.agent(t, "a")
	f.agent(t, "b")
	await(t, a, func(s rendezvoustest.Snapshot) bool { return s.Round == 1 })
	f.eventually(t, "both are in the world", func(o rendezvous.Observation) bool {
		return o.Members["uid-a"].InWorld && o.Members["uid-b"].InWorld
	})
	ages := f.series(t, "concertina_job_beat_age_seconds")
	if len(ages) != 1 || ages["/digits/team"] == nil {
		t.Fatalf("the series are %v", ages)
	}
	observed := f.Observe(digits)
	oldest := observed.Members["uid-a"].LastSeen
	if b := observed.Members["uid-b"].LastSeen; b.Before(oldest) {
		oldest = b
	}
	if got, most := ages["/digits/team"].GetGauge().GetValue(), time.Since(oldest).Seconds(); got < 0 || got > most+60 {
		t.Errorf("the age is %gs, and the oldest report %gs", got, most)
	}
	f.Forget(digits, "")
	for _, family := range []string{"concertina_job_beat_age_seconds", "concertina_job_round", "concertina_job_phase", "concertina_job_connected_workers"} {
		if left := f.series(t, family); len(left) > 0 {
			t.Errorf("a job that is gone still has %s: %v", family, left)
		}
	}
}

// The oldest beat is that of who is awaited, whatever the order of the reports.
func TestOldestBeat(t *testing.T) {
	var b beats
	at := time.Unix(1000, 0)
	all := func(string) bool { return true }
	if !b.oldest(all).IsZero() {
		t.Error("nobody was heard, and somebody was heard first")
	}
	for i, uid := range []string{"a", "b", "c", "a"} {
		b.heard(uid, at.Add(time.Duration(i)*time.Second))
	}
	if got := b.oldest(all); !got.Equal(at.Add(time.Second)) {
		t.Errorf("the oldest is %s, not b's", got)
	}
	if got := b.oldest(func(uid string) bool { return uid == "a" }); !got.Equal(at.Add(3 * time.Second)) {
		t.Errorf("the oldest is %s, not a's", got)
	}
	if len(b.of) != 1 || b.order.Len() != 1 {
		t.Errorf("%d members are kept that nobody awaits", len(b.of)-1)
	}
}

// A reason that the operator does not know makes no series of its own.
func TestReasonsAreBounded(t *testing.T) {
	m := newServerMetrics()
	for _, reason := range []rendezvous.Reason{"Nonsense", "More", rendezvous.ReasonStart} {
		m.took(&episode{kind: kindStart, underway: rendezvous.Underway{Reason: reason}, outcome: outcomeDone})
	}
	known := map[string]bool{reasonLabel("Nonsense"): true, reasonLabel("More"): true, reasonLabel(rendezvous.ReasonStart): true}
	if !maps.Equal(known, map[string]bool{"Unknown": true, "Start": true}) {
		t.Errorf("the labels are %v", known)
	}
}
