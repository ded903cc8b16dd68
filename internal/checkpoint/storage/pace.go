package storage

import (
	"context"
	"sync"
	"time"
)

// pace says when pieces may be sent, so that over time they are at most so many bytes a second. A piece goes as soon as
// all before it are paid for, so there is no more at once than one piece for each time that nothing was sent.
//
// It is not a limiter of golang.org/x/time/rate: one that waits there keeps the time that it was given when the rate changes, and
// a piece may have been given an hour by a rate that is lifted a second later because a world stands and waits.
type pace struct {
	now func() time.Time

	mu   sync.Mutex
	rate uint64
	// owed are the bytes that were sent and that time had not paid for at a moment.
	owed float64
	at   time.Time
	// changed is closed when the rate changes.
	changed chan struct{}
}

func newPace(now func() time.Time) *pace {
	return &pace{now: now, at: now(), changed: make(chan struct{})}
}

// set changes the rate; 0 is none. What is owed is owed at the new one.
func (p *pace) set(rate uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rate == p.rate {
		return
	}
	p.settle()
	p.rate = rate
	if rate == 0 {
		p.owed = 0
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// wait waits until so many bytes may be sent, and counts them as sent. It is an error when ctx ends before that.
func (p *pace) wait(ctx context.Context, bytes int) error {
	for {
		left, changed := p.take(bytes)
		if left <= 0 {
			return ctx.Err()
		}
		timer := time.NewTimer(left)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// take counts bytes as sent, or says how long to wait before asking again, unless the rate changes.
func (p *pace) take(bytes int) (left time.Duration, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settle(); p.owed < 1 {
		p.pay(bytes)
		return 0, p.changed
	}
	seconds := min(p.owed/float64(p.rate), longest.Seconds())
	return max(time.Duration(seconds*float64(time.Second)), 1), p.changed
}

// longest bounds a wait; whoever has waited asks again.
const longest = 24 * time.Hour

// spend counts bytes that are sent whether it is time for them or not.
func (p *pace) spend(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle()
	p.pay(bytes)
}

// settle takes off what is owed what time has paid.
func (p *pace) settle() {
	now := p.now()
	p.owed = max(0, p.owed-max(0, now.Sub(p.at).Seconds())*float64(p.rate))
	p.at = now
}

func (p *pace) pay(bytes int) {
	if p.rate > 0 {
		p.owed += float64(bytes)
	}
}
