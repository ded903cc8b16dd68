package server

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"

	"github.com/go-logr/logr"
)

// A job that has something to say to all of its members says it to a few at a time, and agents that do not read keep
// the others from hearing it for a moment only.
func TestJobsSendAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(Options{Recorder: &obedient{}, RecordTimeout: time.Minute, Logger: logr.Discard(), ReconnectGrace: time.Minute},
			newServerMetrics())
		defer r.shutdown()
		uids := make([]string, 0, 3*sendersAtOnce)
		for i := range cap(uids) {
			uids = append(uids, fmt.Sprint("worker-", i))
		}
		gang := gangOf(1, uids...)
		j := newJob(r, rendezvous.JobKey{Namespace: "default", Name: "digits"}, gang.JobUID)
		j.step(rendezvous.GangExpected{Gang: gang})
		r.writes.Wait()
		var deaf atomic.Bool
		var sending, sent atomic.Int32
		read := make(chan struct{})
		for _, member := range gang.Members {
			s := mute(member.UID, j)
			s.send = func(*rendezvousv1.Directive) error {
				if deaf.Load() {
					sending.Add(1)
					<-read
					sent.Add(1)
				}
				return nil
			}
			if why := j.join(s, &hello{attempt: 1}, rendezvous.Report{}); why != nil {
				t.Fatal(why)
			}
		}
		synctest.Wait()
		deaf.Store(true)
		j.mu.Lock()
		for _, s := range j.sessions {
			s.publish()
		}
		j.mu.Unlock()
		for turn := int32(1); turn <= 3; turn++ {
			synctest.Wait()
			if got := sending.Load(); got != turn*sendersAtOnce {
				t.Errorf("in turn %d %d sessions send, want %d", turn, got, turn*sendersAtOnce)
			}
			time.Sleep(turnTime)
		}
		close(read)
		synctest.Wait()
		if got := sent.Load(); int(got) != len(uids) {
			t.Errorf("%d of %d sessions have sent", got, len(uids))
		}
	})
}
