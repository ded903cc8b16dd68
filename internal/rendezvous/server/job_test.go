package server

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"github.com/go-logr/logr"
)

// obedient is a Recorder that does what it is asked for, at once.
type obedient struct {
	mu   sync.Mutex
	last rendezvous.Record
}

func (o *obedient) Record(_ context.Context, _ rendezvous.JobKey, _, next rendezvous.Record) (rendezvous.Record, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = next
	return next, nil
}

// A worker contradicts the world that is adopted. Its session ends, and that others wait for the next world
// already makes this the moment to write it: what the end of a session leads to is done like the rest.
func TestWriteFromTheEndOfASession(t *testing.T) {
	recorder := &obedient{}
	r := newRegistry(Options{Recorder: recorder, RecordTimeout: time.Minute, Logger: logr.Discard(), ReconnectGrace: time.Second},
		newServerMetrics())
	defer r.shutdown()
	gang := gangOf(1, "a", "b", "c")
	gang.Minimum = 1
	uids := make([]string, 0, len(gang.Members))
	for i := range gang.Members {
		uids = append(uids, gang.Members[i].UID)
	}
	digest := rendezvous.MembersDigest(uids)
	gang.Durable = rendezvous.Record{Term: 1, Round: 1, Attempt: 1, Workers: 3, Processes: 3, MembersDigest: digest}
	j := newJob(r, rendezvous.JobKey{Namespace: "default", Name: "digits"}, gang.JobUID)
	j.step(rendezvous.GangExpected{Gang: gang})
	r.writes.Wait()
	for i, rank := range []uint32{0, 1, 1} {
		s := mute(uids[i], j)
		first := rendezvous.Report{
			Term: 1, Round: 1, Digest: digest, WorkerRank: rank, Out: true,
			Processes: []rendezvous.Process{{Waiting: rendezvous.WaitingAborted, Elastic: true}},
		}
		if why := j.join(s, &hello{attempt: 1}, first); why != nil && i < 2 {
			t.Fatal(why)
		}
		r.writes.Wait()
	}
	if recorder.last.Round < 2 {
		t.Errorf("no world was made durable after %+v", recorder.last)
	}
}
