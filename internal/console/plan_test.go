package console

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

func TestPlanIsTheSameWhateverTheOrderOfTheList(t *testing.T) {
	one, other := lender(), lender()
	slices.Reverse(other.Jobs)
	slices.Reverse(other.Pods)
	slices.Reverse(other.Nodes)
	if diff := cmp.Diff(one.look(t).Plan(""), other.look(t).Plan("")); diff != "" {
		t.Error(diff)
	}
}

func TestPlanDecodesFromJSON(t *testing.T) {
	plan := lender().look(t).Plan("")
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var back Plan
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan, back); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	want := []Leaver{{Pod: "lender-1-3", For: "team/big", Why: "team/big needs its room"}, {Pod: "lender-1-4", For: "team/big", Why: "team/big needs its room"}}
	if diff := cmp.Diff(want, back.Jobs[0].Leaving); diff != "" {
		t.Error(diff)
	}
}

func TestPlanShowsWhatChangesOrWaits(t *testing.T) {
	c := clusterOf(8)
	c.add("starts", 2, 2, queued)
	c.trains(c.add("rests", 1, 1), "n0")
	c.add("elsewhere", 1, 1, queued, in("research"))
	for _, test := range []struct {
		name, namespace string
		all             bool
		shown           []string
		last            string
	}{
		{"all that change", "", false, []string{"research/elsewhere", "team/starts"}, "3 jobs, 2 change, 0 wait; 7 of 8 devices free"},
		{"one namespace", "team", false, []string{"team/starts"}, "2 jobs, 1 changes, 0 wait; 7 of 8 devices free"},
		{"those at rest too", "team", true, []string{"team/starts", "team/rests"}, "2 jobs, 1 changes, 0 wait; 7 of 8 devices free"},
		{"nobody", "empty", true, nil, "0 jobs, 0 change, 0 wait; 7 of 8 devices free"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var text strings.Builder
			plan := c.look(t).Plan(test.namespace)
			if err := plan.Write(&text, test.all); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(text.String()), "\n")
			var shown []string
			for _, line := range lines[:len(lines)-1] {
				if first, _, _ := strings.Cut(line, " "); strings.Contains(first, "/") {
					shown = append(shown, first)
				}
			}
			if diff := cmp.Diff(test.shown, shown); diff != "" {
				t.Error(diff)
			}
			if got := lines[len(lines)-1]; got != test.last {
				t.Errorf("the last line is %q, want %q", got, test.last)
			}
		})
	}
}

func TestPlanOfAnEvictionNamesTheJobThatNeedsTheRoom(t *testing.T) {
	c := clusterOf(4)
	c.trains(c.add("victim", 4, 4, func(job *v1alpha1.TrainingJob) { job.Spec.Preemption.Policy = v1alpha1.PreemptionEvict }), "n0", "n0", "n0", "n0")
	c.add("big", 4, 4, important, queued)
	l := c.look(t)
	victim := l.Plan("").Jobs[0]
	if victim.Name != "victim" || victim.EvictedFor != "team/big" || victim.Planned != 0 || victim.Now != 4 {
		t.Errorf("the victim is to go for team/big: %+v", victim)
	}
	if text := explained(t, l, "victim"); !strings.Contains(text, "job team/big of higher priority needs the room") {
		t.Error(text)
	}
}

// Nothing is lost of a job whose checkpoint is in its storage, so a job of higher priority may have all of its room.
func TestPlanKnowsWhichJobsLoseNothing(t *testing.T) {
	stored := func(job *v1alpha1.TrainingJob) {
		job.Spec.Checkpoint.Storage = &v1alpha1.StorageSpec{URL: "s3://bucket/jobs"}
	}
	saved := func(job *v1alpha1.TrainingJob) { job.Status.Checkpoint.Round = ptr.To[int64](3) }
	restarted := func(job *v1alpha1.TrainingJob) { job.Spec.Resize.Strategy = v1alpha1.ResizeRestart }
	never := func(job *v1alpha1.TrainingJob) { job.Spec.Preemption.Policy = v1alpha1.PreemptionNever }
	const told = "its state is in the storage, so a job of higher priority may take all of it"
	for _, test := range []struct {
		name, settings string
		changes        []jobChange
		goes           bool
	}{
		{"with a checkpoint", "", []jobChange{stored, saved}, true},
		{"without one yet", "", []jobChange{stored}, false},
		{"without a storage", "", []jobChange{saved}, false},
		{"its program is started anew", "", []jobChange{stored, saved, restarted}, false},
		{"it gives nothing", "", []jobChange{stored, saved, never}, false},
		{"the administrator forbids it", "defaultNamespace: {allowEvict: false}", []jobChange{stored, saved}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clusterOf(4)
			c.trains(c.add("victim", 4, 4, test.changes...), "n0", "n0", "n0", "n0")
			c.add("big", 4, 4, important, queued)
			l := NewLook(c.Objects, optionsOf(t, test.settings))
			if got := l.find(types.NamespacedName{Namespace: "team", Name: "victim"}).decision.Evict; got != test.goes {
				t.Errorf("all of it goes: %v, want %v", got, test.goes)
			}
			if text := explained(t, l, "victim"); strings.Contains(text, told) != test.goes {
				t.Errorf("%q is to be told: %v\n%s", told, test.goes, text)
			}
		})
	}
}

// What is taken from a job that goes depends on its state, and on the policy that it asks for.
func TestExplainTellsWhatIsLostByAWholeJobThatGoes(t *testing.T) {
	stored := func(job *v1alpha1.TrainingJob) {
		job.Spec.Checkpoint.Storage, job.Status.Checkpoint.Round = &v1alpha1.StorageSpec{URL: "s3://bucket/jobs"}, ptr.To[int64](3)
	}
	evict := func(job *v1alpha1.TrainingJob) { job.Spec.Preemption.Policy = v1alpha1.PreemptionEvict }
	const (
		kept = "and its state is in the storage. It stops after a checkpoint, queues again, and goes on from there."
		lost = "what its program has not saved is lost"
	)
	for name, test := range map[string]struct {
		changes     []jobChange
		want, wrong string
	}{
		"Shrink, and durable":    {[]jobChange{stored}, kept, lost},
		"Evict, and durable":     {[]jobChange{stored, evict}, kept, lost},
		"Evict, and not durable": {[]jobChange{evict}, lost, kept},
	} {
		c := clusterOf(4)
		c.trains(c.add("victim", 4, 4, test.changes...), "n0", "n0", "n0", "n0")
		c.add("big", 4, 4, important, queued)
		text := explained(t, c.look(t), "victim")
		if !strings.Contains(text, test.want) || strings.Contains(text, test.wrong) || strings.Contains(text, "Shrink") && strings.Contains(text, "policy is Evict") {
			t.Errorf("%s: %q is missing, or more is told:\n%s", name, test.want, text)
		}
	}
}

func TestRemedyIsTheLeastThatHelps(t *testing.T) {
	for _, test := range []struct {
		name, job string
		cluster   *cluster
		want      remedy
	}{
		{"a gang lacks three places", "big", queuedGang(), remedy{places: 3, size: 4}},
		{"a gang is larger than the cluster", "huge", tooLarge(), remedy{places: 4, size: 12}},
		{"a worker takes a whole node", "wide", severalDevices(), remedy{places: 1, size: 2}},
		{"only a quota stands in the way", "grows", quotaBound(), remedy{places: 0, size: 3, quotas: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := test.cluster.look(t)
			before, err := json.Marshal(l.cluster)
			if err != nil {
				t.Fatal(err)
			}
			for i := range l.jobs {
				if j := &l.jobs[i]; j.object.Name == test.job {
					if got, helps := l.remedy(j); !helps || got != test.want {
						t.Errorf("got %+v, want %+v", got, test.want)
					}
				}
			}
			after, err := json.Marshal(l.cluster)
			if err != nil {
				t.Fatal(err)
			}
			if string(before) != string(after) {
				t.Error("the cluster was changed")
			}
		})
	}
}

func TestRemedyIsNotOfferedWhereNoRoomHelps(t *testing.T) {
	l := policies().look(t)
	for i := range l.jobs {
		if r, helps := l.remedy(&l.jobs[i]); helps {
			t.Errorf("%s is offered %+v", l.jobs[i].in.Name, r)
		}
	}
}
