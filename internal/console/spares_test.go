package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// members has the world of a job be of its first workers only.
func members(job *v1alpha1.TrainingJob, nodes ...string) {
	made := rendezvous.Record{}
	var all []rendezvous.NamedMember
	for i, node := range nodes {
		all = append(all, rendezvous.NamedMember{Ordinal: int32(i), Node: node})
	}
	made.Name(all)
	job.Status.World.Workers, job.Status.World.Members, job.Status.World.Nodes = ptr.To(int32(len(nodes))), made.Members, made.Nodes
}

// How many train now is said alike everywhere, whether spares are gone or workers are yet to come into the world.
func TestAllThatIsSaidIsOfThoseWhoTrain(t *testing.T) {
	for _, test := range []struct {
		name           string
		spares, trains int32
		pods           int
		next           []string
	}{
		{"its spares are gone", 2, 4, 4, []string{"With 3 workers on"}},
		{"newcomers are not in the world yet", 1, 3, 5, []string{"With 4 workers on", "With 2 workers on"}},
		{"it has its spare", 1, 3, 4, []string{"With 4 workers on", "With 2 workers on"}},
		{"its spare was lost", 1, 4, 4, []string{"With 3 workers on"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clusterOf(8)
			job := c.add("j", 1, 4, func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Spares = &test.spares })
			on := strings.Fields(strings.Repeat("n0 ", test.pods))
			c.trains(job, on...)
			members(job, on[:test.trains]...)
			job.Status.Speed.Sizes = []v1alpha1.SizeSpeed{{Workers: &test.trains, Nodes: ptr.To[int32](1), StepsPerSecond: "3", Steps: ptr.To[int64](1000),
				At: ago(20 * time.Second)}}
			text := explained(t, c.look(t), "j")
			var next []string
			for _, line := range strings.Split(text, "\n") {
				if at := strings.Index(line, " as many nodes"); at >= 0 {
					next = append(next, strings.TrimSpace(line[:at]))
				}
			}
			for _, want := range []string{fmt.Sprintf("It trains with %d workers", test.trains), fmt.Sprintf("With %d workers on 1 node it makes about 3 steps", test.trains)} {
				if !strings.Contains(text, want) {
					t.Errorf("%q is missing:\n%s", want, text)
				}
			}
			if strings.Join(next, "; ") != strings.Join(test.next, "; ") {
				t.Errorf("the sizes next to that are %q, want %q", next, test.next)
			}
		})
	}
}

// A job that has no workers beyond its min, or gets none, is told that it gets no spares, and why; they are not among those that it may have.
func TestWhoCannotHaveSparesIsToldSo(t *testing.T) {
	for because, change := range map[string]jobChange{
		"because spec.growth.policy is Off": func(job *v1alpha1.TrainingJob) { job.Spec.Growth.Policy = v1alpha1.GrowthOff },
		"because spec.preemption.policy is Never": func(job *v1alpha1.TrainingJob) {
			job.Spec.Preemption.Policy = v1alpha1.PreemptionNever
		},
		"because Kueue (label kueue.x-k8s.io/queue-name) decides its size": func(job *v1alpha1.TrainingJob) {
			job.Labels = map[string]string{v1alpha1.LabelKueueQueue: "gpus"}
		},
	} {
		for _, sizes := range [][]int32{nil, {2, 4}} {
			c := clusterOf(8)
			c.trains(c.add("j", 2, 4, change, func(job *v1alpha1.TrainingJob) {
				job.Spec.Workers.Spares, job.Spec.Workers.Sizes = ptr.To[int32](1), sizes
			}), "n0", "n0")
			c.trains(c.add("fixed", 2, 2, change, func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Spares = ptr.To[int32](1) }), "n0", "n0")
			text := explained(t, c.look(t), "j")
			legal := "It may have from 2 to 4 workers."
			if len(sizes) > 0 {
				legal = "It may have from 2 to 4 workers, of which these numbers are legal: 2 and 4."
			}
			for _, want := range []string{"No spare is ready, and it gets none, " + because, legal, "It has no spares beside them (spec.workers.spares is 1), " + because} {
				if !strings.Contains(text, want) {
					t.Errorf("%q is missing:\n%s", want, text)
				}
			}
			for _, wrong := range []string{"until another has come", "They include"} {
				if strings.Contains(text, wrong) {
					t.Errorf("%q:\n%s", wrong, text)
				}
			}
			if text := explained(t, c.look(t), "fixed"); !strings.Contains(text, "It has 2 workers or none.") || strings.Contains(text, "workers beyond min have") {
				t.Errorf("it has no workers beyond min:\n%s", text)
			}
		}
	}
}

// The spares that a job has it keeps, if it gets no more.
func TestSparesThatAreThere(t *testing.T) {
	c := clusterOf(8)
	job := c.add("j", 2, 2, func(job *v1alpha1.TrainingJob) {
		job.Spec.Growth.Policy, job.Spec.Workers.Spares = v1alpha1.GrowthOff, ptr.To[int32](2)
	})
	c.trains(job, "n0", "n0", "n0")
	members(job, "n0", "n0")
	job.Status.Workers.Spares = ptr.To[int32](1)
	want := "1 spare is ready to take the place of a worker that is lost, of 2; it gets no more, because spec.growth.policy is Off."
	if text := explained(t, c.look(t), "j"); !strings.Contains(text, want) {
		t.Errorf("%q is missing:\n%s", want, text)
	}
}

// The table of jobs has max and spares apart, as `kubectl get` has.
func TestTopTellsSparesApart(t *testing.T) {
	c := clusterOf(8)
	c.trains(c.add("j", 2, 4, func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Spares = ptr.To[int32](1) }), "n0", "n0")
	top := topOf(t, c, "name")
	if one := top.Jobs[0]; one.Min != 2 || one.Max != 4 || one.Spares != 1 {
		t.Errorf("it may have %d to %d workers, and %d spares", one.Min, one.Max, one.Spares)
	}
	var text strings.Builder
	if err := top.Write(&text, false); err != nil || !strings.Contains(text.String(), " 2-4+1 ") {
		t.Errorf("%v:\n%s", err, text.String())
	}
}
