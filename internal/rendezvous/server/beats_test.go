package server

import (
	"net/netip"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// BenchmarkBeat is what a report that says nothing new costs in a job of 1,000 workers, without its connection.
func BenchmarkBeat(b *testing.B) {
	gang := gangOf(1, names(1000)...)
	r := newRegistry(Options{Recorder: &memoryRecorder{records: map[rendezvous.JobKey]rendezvous.Record{}}, RecordTimeout: time.Second}, newServerMetrics())
	defer r.writes.Wait()
	defer r.shutdown()
	r.expect(digits, gang)
	r.writes.Wait()
	j := r.jobs[digits]
	var sessions []*session
	for i := range gang.Members {
		s := mute(gang.Members[i].UID, j)
		h := &hello{attempt: 1, podUID: s.uid, address: netip.MustParseAddr("10.0.0.1"), serves: rendezvous.Server{Port: 1}}
		if why := j.join(s, h, rendezvous.Report{Standby: true}); why != nil {
			b.Fatal(why)
		}
		sessions = append(sessions, s)
	}
	for r.observe(digits).Round == 0 {
		r.writes.Wait()
	}
	texts := make([][]byte, len(sessions))
	for i, s := range sessions {
		d, _ := j.directive(s)
		m := &rendezvousv1.Report{Term: d.Term, Round: d.Round, MembersDigest: d.World.Digest, WorkerRank: uint32(d.World.WorkerRank),
			Processes: []*rendezvousv1.Process{{Elastic: true, Phase: 3, Entered: 5, Done: 4, Samples: 100, Metrics: []*rendezvousv1.Metric{{Name: "loss", Value: 0.5}}}}, Sequence: 7, StepNanos: 1e9, MasterPort: 4000}
		texts[i], _ = proto.Marshal(m)
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		s := sessions[i%len(sessions)]
		m := &rendezvousv1.Report{}
		_ = proto.Unmarshal(texts[i%len(sessions)], m)
		read, _ := readReport(m)
		if why := j.hear(s, 1, read); why != nil {
			b.Fatal(why)
		}
		d, _ := j.directive(s)
		_, _ = proto.Marshal(directiveMessage(&d, 1))
		i++
	}
}
