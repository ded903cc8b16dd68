package server

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// publish has the job say the same to all of its members again.
func (c *throng) publish() {
	c.job.mu.Lock()
	defer c.job.mu.Unlock()
	for _, s := range c.sessions {
		s.publish()
	}
}

// What a large job says to all of its members at once is said by a few of its sessions at a time: those of other jobs do not wait for
// all of them.
func TestALargeJobLeavesProcessorsToOthers(t *testing.T) {
	c := newThrong(t, smallJob+1)
	var sending, most, sent atomic.Int64
	send := func(int) {
		now := sending.Add(1)
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		runtime.Gosched()
		sending.Add(-1)
		sent.Add(1)
	}
	c.sending.Store(&send)
	c.publish()
	for i, s := range c.sessions {
		c.beat(t, i)
		s.senders.Wait()
	}
	if most.Load() > int64(cap(c.job.turns)) {
		t.Errorf("%d sessions send at the same time, of %d that may", most.Load(), cap(c.job.turns))
	}
	if sent.Load() < int64(len(c.sessions)) {
		t.Errorf("%d of %d members are told", sent.Load(), len(c.sessions))
	}
}

// Agents that do not read keep no others waiting.
func TestWhoDoesNotReadKeepsNoTurn(t *testing.T) {
	c := newThrong(t, smallJob+1)
	reads := make(chan struct{})
	deaf := c.sessions[:2*cap(c.job.turns)]
	send := func(i int) {
		if i < len(deaf) {
			<-reads
		}
	}
	c.sending.Store(&send)
	c.publish()
	for i, s := range c.sessions[len(deaf):] {
		s.senders.Wait()
		c.beat(t, len(deaf)+i)
	}
	close(reads)
	for _, s := range deaf {
		s.senders.Wait()
	}
}

// Reports are heard while others have all the turns, as agents that do not read do one after another; the answers come once there is one.
func TestReportsWaitForNoTurn(t *testing.T) {
	c := newThrong(t, smallJob+1)
	for _, s := range c.sessions {
		s.senders.Wait()
	}
	var sent atomic.Int64
	send := func(int) { sent.Add(1) }
	c.sending.Store(&send)
	var taken []*turn
	for range cap(c.job.turns) {
		taken = append(taken, c.job.turn())
	}
	for range 2 {
		for i := range c.sessions {
			c.beat(t, i)
		}
	}
	for i, s := range c.sessions {
		if got := s.sequence.Load(); got != c.reports[i].Sequence {
			t.Fatalf("report %d of %s is heard last, of %d", got, s.uid, c.reports[i].Sequence)
		}
	}
	if n := sent.Load(); n > 0 {
		t.Errorf("%d are answered out of turn", n)
	}
	for _, turn := range taken {
		turn.end()
	}
	for _, s := range c.sessions {
		s.senders.Wait()
	}
	if n := sent.Load(); n < int64(len(c.sessions)) {
		t.Errorf("%d of %d members are answered", n, len(c.sessions))
	}
}
