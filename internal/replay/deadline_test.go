package replay

import (
	"testing"
	"time"
)

// Of three jobs that are alike one has to be done earlier than its turn would be. It meets that where the planner is told of
// it and sees speeds, under both rules, and misses it otherwise.
func TestDeadlineIsMetWhereItIsKnown(t *testing.T) {
	cluster := Cluster{Nodes: 2, DevicesPerNode: 4}
	settings := shipped
	for _, test := range []struct {
		speeds bool
		late   int
	}{{true, 0}, {false, 1}} {
		var jobs []Job
		for _, name := range []string{"a", "b", "due"} {
			jobs = append(jobs, Job{Name: name, Workers: 4, Program: &Scaling{Steps: 12000, Parallel: 1, Serial: 0.001, Most: 8}})
		}
		jobs[2].Deadline = 3200
		sight := Sight{Speeds: test.speeds, Noise: 0.02, Seed: 1}
		ticks, err := PublishedTicks.Run(jobs, cluster, NewPlanned(cluster, settings, 30*time.Second, sight))
		if err != nil {
			t.Fatal(err)
		}
		events, err := Events{Join: 30 * time.Second, Pause: 300 * time.Millisecond, Settings: settings, Sight: sight}.Run(jobs, cluster)
		if err != nil {
			t.Fatal(err)
		}
		for rules, r := range map[string]*Result{"published": ticks, "own": events} {
			if r.Deadlines != 1 || r.Late != test.late || r.Jobs[2].Late != (test.late == 1) {
				t.Errorf("%s rules, speeds seen %v: %d of %d late, done at %.0f s", rules, test.speeds, r.Late, r.Deadlines, r.Jobs[2].Completed)
			}
		}
	}
	jobs := []Job{{Name: "late", Submitted: 10, Workers: 1, Deadline: 10, Program: &Scaling{Steps: 1, Parallel: 1, Most: 1}}}
	if _, err := PublishedTicks.Run(jobs, cluster, NewTiresias(cluster)); err == nil {
		t.Error("a job may be due before it is submitted")
	}
}
