package rendezvous

import (
	"fmt"
	"testing"
	"time"
)

// crowd is a gang of so many workers.
func crowd(members int) Gang {
	gang := Gang{Attempt: 1, ProcessesPerWorker: 1, HeartbeatTimeout: 5 * time.Second}
	for i := range members {
		name := fmt.Sprintf("w-%05d", i)
		gang.Members = append(gang.Members, Member{UID: "uid-" + name, Name: name, Ordinal: int32(i), Node: "n"})
	}
	return gang
}

func TestBeatsFollowTheSizeOfTheJob(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, row := range []struct {
		members      int
		beat, silent time.Duration
	}{
		{3, 0, 5 * time.Second},
		{1000, 0, 5 * time.Second},
		{1001, 2 * time.Second, 6 * time.Second},
		{5000, 5 * time.Second, 15 * time.Second},
		{10000, 10 * time.Second, 30 * time.Second},
	} {
		m := NewMachine(0, "leader")
		gang := crowd(row.members)
		out := m.Handle(now, GangExpected{gang})
		m.Handle(now, RecordAnswered{Found: out.Write.Next})
		d, ok := m.Directive(gang.Members[0].UID)
		if !ok || d.Beat != row.beat {
			t.Errorf("%d members have a beat of %v (%v), want %v", row.members, d.Beat, ok, row.beat)
		}
		if m.gang.HeartbeatTimeout != row.silent {
			t.Errorf("of %d members one is silent after %v, want %v", row.members, m.gang.HeartbeatTimeout, row.silent)
		}
	}
}

// Who has been told of long beats must hear of shorter ones at once: its next report would come too late.
func TestAShorterBeatIsTold(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := NewMachine(0, "leader")
	out := m.Handle(now, GangExpected{crowd(1001)})
	m.Handle(now, RecordAnswered{Found: out.Write.Next})
	if out := m.Handle(now, GangExpected{crowd(1000)}); !out.Publish {
		t.Error("the members of a job that is smaller now were not told of its beat")
	}
	if out := m.Handle(now, GangExpected{crowd(999)}); out.Publish {
		t.Error("members were told of a beat that is the same")
	}
}
