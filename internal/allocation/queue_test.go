package allocation

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// inQueue are the names of the jobs that wait, in the order of their places.
func inQueue(c *Cluster) []string {
	plan := NewPlan(c)
	names := make([]string, len(c.Jobs))
	last := 0
	for id := range plan.Decisions {
		if place := int(plan.Decisions[id].Queue); place > 0 {
			names[place-1] = c.Jobs[id].UID
			last = max(last, place)
		}
	}
	return names[:last]
}

func queuedAt(at time.Time) func(*Job) { return func(j *Job) { j.Queued = at } }

// crowded is a cluster without room, in which five gangs wait: two ran before and say how much is left.
func crowded() *Cluster {
	c := newCluster().withNodes(1, 2)
	c.Namespaces = append(c.Namespaces, Namespace{Name: "other", Weight: 1, NeverAllowed: true, EvictAllowed: true})
	c.training("busy", 2, 2, []NodeID{0, 0})
	c.queued("long", 1, 4, withPace(linear.pace(1e6, exactly)))
	c.queued("fresh", 1, 4)
	c.queued("theirs", 1, 4, in(1), withPace(linear.pace(1e9, exactly)))
	c.queued("short", 1, 4, withPace(linear.pace(1e3, exactly)))
	c.queued("new", 1, 4)
	return c
}

// Those with least to do come first, who never ran before those of whom more is known; jobs of another namespace keep
// their place.
func TestGangsOfANamespaceStandByWhatIsLeft(t *testing.T) {
	c := crowded()
	if diff := cmp.Diff([]string{"fresh", "new", "theirs", "short", "long"}, inQueue(c)); diff != "" {
		t.Error(diff)
	}
	c.Settings.ByValue = false
	if diff := cmp.Diff([]string{"long", "fresh", "theirs", "short", "new"}, inQueue(c)); diff != "" {
		t.Errorf("in equal parts: %s", diff)
	}
}

// Who has waited for long is passed by nobody any more, however much it has to do; the plan says when that will be.
func TestWhoHasWaitedForLongStandsByAge(t *testing.T) {
	c := crowded()
	long := &c.Jobs[1]
	long.Queued = noon.Add(-9 * time.Minute)
	if next := NewPlan(c).Next; next.IsZero() || next.After(noon.Add(time.Minute)) {
		t.Errorf("looks again at %v, the gang will have waited for long a minute after noon", next)
	}
	c.at(time.Minute)
	if diff := cmp.Diff([]string{"long", "fresh", "theirs", "new", "short"}, inQueue(c)); diff != "" {
		t.Error(diff)
	}
	// A clock that jumped back says nothing.
	long.Queued = noon.Add(time.Hour)
	if got := inQueue(c); got[len(got)-1] != "long" {
		t.Errorf("queued in the future it stands in %v", got)
	}
}

// Priority is before all else, and a gang that has more to do does not wait for ever behind new ones that keep coming.
func TestNobodyIsPassedForEver(t *testing.T) {
	c := newCluster().withNodes(1, 1)
	long := c.queued("long", 1, 1, withPace(linear.pace(1e6, exactly)))
	urgent := c.queued("urgent", 1, 1, priority(1), withPace(linear.pace(1e9, exactly)))
	if plan := NewPlan(c); !plan.of(urgent).Start || plan.of(long).Start {
		t.Fatal("not the one of the higher priority starts")
	}
	c.Jobs[urgent] = Job{}
	for minute := 0; ; minute++ {
		// Each minute a job of a minute comes that is new.
		c.at(time.Duration(minute) * time.Minute)
		other := c.queued("new", 1, 1, queuedAt(c.Now))
		plan := NewPlan(c)
		if plan.of(long).Start {
			if minute == 0 {
				t.Error("it starts at once, before one that may be short")
			}
			return
		}
		if minute > 10 {
			t.Fatalf("it waits after %d minutes", minute)
		}
		if !plan.of(other).Start {
			t.Fatal("nobody starts")
		}
		c.Jobs[other] = Job{}
	}
}

// Of gangs that wait the one whose deadline would be missed if it waited for as long as any may stands before those that may wait longer,
// and no longer once no start could make it: it says so then.
func TestAGangStandsByItsLastChanceToBeInTime(t *testing.T) {
	const takes = 5000 * time.Second // with the two workers for which the cluster is large enough, and a pause
	for _, test := range []struct {
		name string
		in   time.Duration
		want []string
		late bool
	}{
		{"no deadline", 0, []string{"fresh", "new", "theirs", "short", "long"}, false},
		{"far from it", 100 * time.Hour, []string{"fresh", "new", "theirs", "short", "long"}, false},
		{"soon", takes*11/10 + time.Minute, []string{"long", "fresh", "theirs", "new", "short"}, false},
		{"too late", takes * 9 / 10, []string{"fresh", "new", "theirs", "short", "long"}, true},
		{"passed", -time.Second, []string{"fresh", "new", "theirs", "short", "long"}, false},
	} {
		c := crowded()
		c.Jobs[1].Pace = linear.pace(1e4, exactly)
		if test.in != 0 {
			deadline(test.in)(&c.Jobs[1])
		}
		if diff := cmp.Diff(test.want, inQueue(c)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
		d := NewPlan(c).of(1)
		if d.Late != test.late || strings.Contains(d.Why.Text, "will miss its deadline") != test.late || d.Why.Reason != "NoRoom" {
			t.Errorf("%s: late %v: %s: %s", test.name, d.Late, d.Why.Reason, d.Why.Text)
		}
	}
}

// When its turn comes because of its deadline the plan says beforehand, and of two such gangs the one that can wait less is first.
func TestLastChancesComeByThemselves(t *testing.T) {
	c := crowded()
	c.Jobs[1].Pace = linear.pace(1e4, exactly)
	deadline(6570 * time.Second)(&c.Jobs[1]) // it takes 5000 s, which may be off by a tenth, and backfill is 10 minutes
	if next := NewPlan(c).Next; next.IsZero() || next.After(noon.Add(8*time.Minute)) {
		t.Errorf("looks again at %v", next)
	}

	c.at(8 * time.Minute)
	for i := range c.Jobs[1:] {
		c.Jobs[i+1].Queued = c.Now
	}
	if got := inQueue(c); got[0] != "long" {
		t.Errorf("they stand in %v", got)
	}
	deadline(8*time.Minute + 500*time.Second + 2*time.Minute)(&c.Jobs[4])
	if got := inQueue(c); got[0] != "short" || got[1] != "long" {
		t.Errorf("they stand in %v", got)
	}
}

// However long it takes, a gang stands before others from backfill before its last chance on, at the latest, until that has passed. Before
// that nobody says that it will be late, nor where its pace would have to be off by less than a twentieth.
func TestHoweverLongItTakesAGangStandsByItsLastChance(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Second, 20 * time.Minute, time.Hour, 5 * time.Hour, 100 * time.Hour} {
		for over := 5 * time.Hour; over >= -time.Hour; over -= 277 * time.Second {
			c := newCluster().withNodes(1, 4)
			c.Settings.Backfill = 10 * time.Minute
			c.training("holds", 4, 4, []NodeID{0, 0, 0, 0})
			c.queued("short", 1, 4, withPace(linear.pace(0.5, exactly)))
			due := c.queued("due", 1, 4, withPace(linear.pace(4*takes.Seconds(), exactly)), deadline(takes+over))
			d := NewPlan(c).of(due)
			pause := c.Jobs[due].PauseExpected()
			chance, far, gone := over >= pause, over > c.Settings.Backfill+takes/8+2*pause, takes+pause > (takes+over)*107/100
			switch {
			case chance && d.Late, far && d.Queue == 1, chance && over <= c.Settings.Backfill && d.Queue != 1:
				t.Fatalf("it takes %s, with %s to spare: place %d, late %v: %s", takes, over, d.Queue, d.Late, d.Why.Text)
			case takes+over > 0 && gone && (!d.Late || d.Queue == 1):
				t.Fatalf("it takes %s, and has its last chance %s ago: place %d, late %v: %s", takes, -over, d.Queue, d.Late, d.Why.Text)
			}
		}
	}
}
