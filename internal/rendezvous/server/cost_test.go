package server

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"

	"google.golang.org/protobuf/proto"
)

// throng is a job of so many members whose world trains, and their sessions by rank. What is sent is encoded, as for a
// connection, and goes nowhere.
type throng struct {
	job      *job
	sessions []*session
	reports  []*rendezvousv1.Report
	// sending is called before something is sent on a session.
	sending atomic.Pointer[func(i int)]
}

func newThrong(tb testing.TB, members int) *throng {
	tb.Helper()
	r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
	tb.Cleanup(r.writes.Wait)
	tb.Cleanup(r.shutdown)
	gang := gangOf(1, names(members)...)
	r.expect(digits, gang)
	r.writes.Wait()
	c := &throng{job: r.jobs[digits]}
	for i := range gang.Members {
		s := newSession(gang.Members[i].UID, c.job, func(d *rendezvousv1.Directive) error { return c.send(i, d) }, func() {}, func(*rendezvous.Refusal) {})
		h := &hello{attempt: 1, podUID: s.uid, address: netip.MustParseAddr("10.0.0.1"), serves: rendezvous.Server{Port: 1}}
		if why := c.job.join(s, h, rendezvous.Report{Standby: true}); why != nil {
			tb.Fatal(why)
		}
		c.sessions = append(c.sessions, s)
	}
	for round := uint64(0); round == 0; round = r.observe(digits).Round {
		time.Sleep(time.Millisecond)
	}
	for _, s := range c.sessions {
		s.senders.Wait()
		d, ok := c.job.directive(s)
		if !ok {
			tb.Fatal("a member is told nothing")
		}
		c.reports = append(c.reports, &rendezvousv1.Report{
			Term: d.Term, Round: d.Round, MembersDigest: d.World.Digest, WorkerRank: uint32(d.World.WorkerRank), StepNanos: 1e9,
			PauseNanos: proto.Uint64(0),
			Processes: []*rendezvousv1.Process{{
				Phase: rendezvousv1.Phase_PHASE_STEP, Elastic: true,
				Metrics: []*rendezvousv1.Metric{{Name: "loss", Value: 1}, {Name: "accuracy", Value: 0.5}, {Name: "lr", Value: 0.1}},
			}},
		})
	}
	for range 2 {
		for i := range c.sessions {
			c.beat(tb, i)
		}
	}
	return c
}

func (c *throng) send(i int, message *rendezvousv1.Directive) error {
	if sending := c.sending.Load(); sending != nil {
		(*sending)(i)
	}
	_, err := proto.Marshal(message)
	return err
}

// beat has a member report that it has made another step, and get its answer.
func (c *throng) beat(tb testing.TB, i int) {
	report, s := c.reports[i], c.sessions[i]
	report.Sequence++
	report.Processes[0].Entered, report.Processes[0].Done = report.Sequence+1, report.Sequence
	if why := s.reply(report); why != nil {
		tb.Fatal(why)
	}
}

// BenchmarkReport is what a report and its answer cost beside its connection, when the members of a job take turns.
func BenchmarkReport(b *testing.B) {
	for _, members := range []int{8, 1000, 10000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			c := newThrong(b, members)
			b.ReportAllocs()
			b.ResetTimer()
			before := used(b)
			for i := range b.N {
				c.beat(b, i%members)
			}
			b.ReportMetric(float64(used(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// used is the processor time of this process: others may use the machine as well.
func used(tb testing.TB) time.Duration {
	var times syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &times); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(times.Utime.Nano() + times.Stime.Nano())
}
