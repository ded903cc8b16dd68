package server

import (
	"container/list"
	"time"
)

// beats are the members of a job in the order in which they were heard last, so that the one that was heard
// longest ago is found without looking at all.
type beats struct {
	order list.List // of *beat, the oldest first
	of    map[string]*list.Element
}

type beat struct {
	uid string
	at  time.Time
}

// heard notes a report.
func (b *beats) heard(uid string, now time.Time) {
	if known := b.of[uid]; known != nil {
		known.Value.(*beat).at = now
		b.order.MoveToBack(known)
		return
	}
	if b.of == nil {
		b.of = map[string]*list.Element{}
	}
	b.of[uid] = b.order.PushBack(&beat{uid, now})
}

// keep drops the members that do not belong to the job any more.
func (b *beats) keep(stays func(uid string) bool) {
	for uid, known := range b.of {
		if !stays(uid) {
			b.order.Remove(known)
			delete(b.of, uid)
		}
	}
}

// oldest is when the member was heard last that was heard longest ago, of those that are awaited; zero for none.
// Those that are not awaited are dropped: a report brings them back.
func (b *beats) oldest(awaited func(uid string) bool) time.Time {
	for first := b.order.Front(); first != nil; first = b.order.Front() {
		one := first.Value.(*beat)
		if awaited(one.uid) {
			return one.at
		}
		b.order.Remove(first)
		delete(b.of, one.uid)
	}
	return time.Time{}
}
