package server

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// everybodyJoins has every member of a gang join, all in one moment.
func everybodyJoins(t *testing.T, j *job, gang rendezvous.Gang) {
	t.Helper()
	for i := range gang.Members {
		s := mute(gang.Members[i].UID, j)
		h := &hello{attempt: gang.Attempt, podUID: s.uid, address: netip.MustParseAddr("10.0.0.1")}
		if why := j.join(s, h, rendezvous.Report{Standby: true}); why != nil {
			t.Fatal(why)
		}
	}
}

// The members of a large job share a decision; those of a small one wait for nothing.
func TestManyJoinsShareADecision(t *testing.T) {
	for _, row := range []struct {
		members int
		rest    time.Duration
	}{{3, 0}, {1000, 1000 * restPerMember}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
			defer r.writes.Wait()
			defer r.shutdown()
			gang := gangOf(1, names(row.members)...)
			r.expect(digits, gang)
			synctest.Wait()
			everybodyJoins(t, r.jobs[digits], gang)
			synctest.Wait()
			if round := r.observe(digits).Round; (round == 1) != (row.rest == 0) {
				t.Errorf("%d members are in round %d at once", row.members, round)
			}
			time.Sleep(row.rest)
			synctest.Wait()
			if round := r.observe(digits).Round; round != 1 {
				t.Errorf("%d members are in round %d after %v", row.members, round, row.rest)
			}
		})
	}
}

// While one job is busy the others are told what they need, and their agents find them.
func TestABusyJobDelaysNoOther(t *testing.T) {
	r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
	defer r.writes.Wait()
	defer r.shutdown()
	other := rendezvous.JobKey{Namespace: "team-b", Name: "other"}
	busy := gangOf(1, "a")
	r.expect(digits, busy)
	r.jobs[digits].mu.Lock()
	waiting, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(waiting)
		r.expect(digits, busy)
		r.release(digits, "")
	}()
	go func() {
		defer close(over)
		r.expect(other, gangOf(1, "b"))
		if _, why := r.find(&hello{job: other, podUID: gangOf(1, "b").Members[0].UID}); why != nil {
			t.Error(why)
		}
		if !r.observe(other).Known {
			t.Error("the other job is not known")
		}
		r.release(other, "")
		r.forget(other, "")
	}()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Error("a job waits for another one that is busy")
	}
	r.jobs[digits].mu.Unlock()
	<-waiting
}

// Time passes for all others while one job is busy, and for that one as soon as it is not.
func TestABusyJobStopsNoClock(t *testing.T) {
	r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
	defer r.writes.Wait()
	defer r.shutdown()
	other := rendezvous.JobKey{Namespace: "team-b", Name: "other"}
	r.expect(digits, gangOf(1, "a"))
	r.expect(other, gangOf(1, "b"))
	ctx, cancel := context.WithCancel(t.Context())
	var ticks sync.WaitGroup
	defer ticks.Wait()
	defer cancel()
	told := func(key rendezvous.JobKey) time.Time {
		j := r.jobs[key]
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.told
	}
	busy := r.jobs[digits]
	busy.mu.Lock()
	release := sync.OnceFunc(busy.mu.Unlock)
	defer release()
	ticks.Go(func() { r.tick(ctx) })
	for range 3 { // the first time it may have come before the busy one
		before := told(other)
		waitFor(t, "the other job is told that time passes", func() bool { return told(other).After(before) })
	}
	if !busy.told.IsZero() || !busy.passing.Load() {
		t.Errorf("the busy job was told at %v, and waits to be told: %v", busy.told, busy.passing.Load())
	}
	release()
	waitFor(t, "the busy one is told too", func() bool { return !told(digits).IsZero() })
}

// A job that is made anew under its name while the old one is dropped belongs to its new pods only.
func TestAJobMadeAnewOwnsItsPodsOnly(t *testing.T) {
	r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
	defer r.writes.Wait()
	defer r.shutdown()
	first, second := gangOf(1, "a"), gangOf(1, "b")
	first.JobUID, second.JobUID = "first", "second"
	r.expect(digits, first)
	r.expect(digits, second)
	if len(r.pods) != 1 || r.pods[second.Members[0].UID] != digits {
		t.Errorf("pods that are expected: %v", r.pods)
	}
	r.forget(digits, second.JobUID)
	if len(r.pods) != 0 || len(r.jobs) != 0 || r.gone[digits].attempt != 1 {
		t.Errorf("after the end there are pods %v, jobs %v, gone %v", r.pods, r.jobs, r.gone)
	}
}

// A job was at attempt 3 when it was deleted, and is made anew: its pods may connect before it is expected, at attempt 1.
func TestPodsOfAJobMadeAnewAreNotThoseOfTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
		defer r.writes.Wait()
		defer r.shutdown()
		before, first, second := gangOf(2, "z"), gangOf(3, "a", "b"), gangOf(1, "c", "d")
		before.JobUID, first.JobUID, second.JobUID = "first", "first", "second"
		r.expect(digits, before)
		synctest.Wait()
		r.expect(digits, first)
		synctest.Wait()
		r.release(digits, "first")
		r.forget(digits, "first")
		refused := func(attempt int32, pod string) rendezvous.RefusalKind {
			_, why := r.find(&hello{job: digits, attempt: attempt, podUID: pod})
			if why == nil {
				t.Fatalf("%s is not refused", pod)
			}
			return why.Kind
		}
		for _, member := range first.Members {
			if kind := refused(3, member.UID); kind != rendezvous.RefusedForGood {
				t.Errorf("a pod of the job that is gone is refused as %v", kind)
			}
		}
		if kind := refused(2, before.Members[0].UID); kind != rendezvous.RefusedForGood {
			t.Errorf("a pod of its attempt before is refused as %v", kind)
		}
		for _, member := range second.Members {
			if kind := refused(1, member.UID); kind != rendezvous.RefusedForNow {
				t.Errorf("a pod of the next job is refused as %v", kind)
			}
		}
		r.expect(digits, second)
		synctest.Wait()
		if _, why := r.find(&hello{job: digits, attempt: 1, podUID: second.Members[0].UID}); why != nil {
			t.Errorf("a pod of the next job is refused once that is expected: %v", why)
		}
	})
}

// A word that was meant for a job comes when another one has its name: deleted, made anew, and expected before the word.
func TestAWordForAJobDoesNotTouchItsSuccessor(t *testing.T) {
	for word, say := range map[string]func(*registry, string){
		"release": func(r *registry, uid string) { r.release(digits, uid) },
		"forget":  func(r *registry, uid string) { r.forget(digits, uid) },
	} {
		for _, uid := range []string{"first", ""} {
			t.Run(fmt.Sprintf("%s %q", word, uid), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
					defer r.writes.Wait()
					defer r.shutdown()
					first, second := gangOf(1, "a"), gangOf(1, "b")
					first.JobUID, second.JobUID = "first", "second"
					r.expect(digits, first)
					r.expect(digits, second)
					synctest.Wait()
					say(r, uid)
					j, why := r.find(&hello{job: digits, attempt: 1, podUID: second.Members[0].UID})
					if why != nil {
						t.Fatalf("a member of the second job is refused: %v", why)
					}
					everybodyJoins(t, j, second)
					synctest.Wait()
					if seen := r.observe(digits); seen.JobUID != "second" || seen.Round != 1 {
						t.Errorf("job %q is in round %d", seen.JobUID, seen.Round)
					}
				})
			})
		}
	}
}

// Nothing is kept of jobs and pods that are gone, however many there were, when nobody reads metrics.
func TestNothingIsKeptOfWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
		defer r.writes.Wait()
		defer r.shutdown()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.tick(ctx)
		go r.deliverChanges(ctx)
		for i := range 100 {
			key := rendezvous.JobKey{Namespace: "team", Name: fmt.Sprint("digits", i)}
			gang := gangOf(1, fmt.Sprint("a", i))
			r.expect(key, gang)
			everybodyJoins(t, r.jobs[key], gang)
			r.release(key, "")
			r.forget(key, "")
			<-r.changed
		}
		for i := range 100 {
			gang := gangOf(int32(i+1), fmt.Sprint("w", i))
			r.expect(digits, gang)
			everybodyJoins(t, r.jobs[digits], gang)
			select {
			case <-r.changed:
			default:
			}
		}
		for quiet := false; !quiet; {
			select {
			case <-r.changed:
			case <-time.After(time.Minute):
				quiet = true
			}
		}
		synctest.Wait()
		j := r.jobs[digits]
		if len(r.changes.paced) > 0 || len(r.jobs) != 1 || len(r.pods) != 1 {
			t.Errorf("%d paces, %d jobs, %d pods", len(r.changes.paced), len(r.jobs), len(r.pods))
		}
		if len(j.beats.of) != 1 || j.beats.order.Len() != 1 || len(j.addresses) != 1 {
			t.Errorf("the beats of %d members, the addresses of %d", len(j.beats.of), len(j.addresses))
		}
	})
}

// mute is a session of an agent that takes every directive.
func mute(uid string, j *job) *session {
	return newSession(uid, j, func(*rendezvousv1.Directive) error { return nil }, func() {}, func(*rendezvous.Refusal) {})
}

// BenchmarkGang is what a job of 10,000 workers costs from the first hello to a world that all have entered, without
// its connections.
func BenchmarkGang(b *testing.B) {
	gang := gangOf(1, names(10000)...)
	for b.Loop() {
		r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
		r.expect(digits, gang)
		r.writes.Wait()
		j := r.jobs[digits]
		var sessions []*session
		for i := range gang.Members {
			s := mute(gang.Members[i].UID, j)
			h := &hello{attempt: 1, podUID: s.uid, address: netip.MustParseAddr("10.0.0.1")}
			if why := j.join(s, h, rendezvous.Report{Standby: true}); why != nil {
				b.Fatal(why)
			}
			sessions = append(sessions, s)
		}
		for r.observe(digits).Round == 0 {
			r.writes.Wait()
		}
		for _, s := range sessions {
			d, _ := j.directive(s)
			entered := rendezvous.Report{Term: d.Term, Round: d.Round, Digest: d.World.Digest, WorkerRank: uint32(d.World.WorkerRank), Processes: []rendezvous.Process{{Elastic: true}}}
			if why := j.hear(s, 1, entered); why != nil {
				b.Fatal(why)
			}
		}
		r.shutdown()
		r.writes.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(gang.Members)), "us/member")
}

// names are those of so many workers.
func names(members int) []string {
	all := make([]string, members)
	for i := range all {
		all[i] = fmt.Sprintf("w-%05d", i)
	}
	return all
}
