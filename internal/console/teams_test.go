package console

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// teams is the cluster of examples/teams with eight devices, some of them held by plain pods.
func teams(t *testing.T, held int64) *cluster {
	t.Helper()
	c := clusterOf(8 - held)
	c.Nodes[0].Status.Allocatable["nvidia.com/gpu"] = c.Nodes[0].Status.Allocatable[gpu]
	c.Nodes[0].Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("64Gi")
	for _, file := range []string{"classes", "namespaces"} {
		for document := range strings.SplitSeq(read(t, file), "\n---\n") {
			var kind struct{ Kind string }
			parse(t, document, &kind)
			switch kind.Kind {
			case "PriorityClass":
				c.Classes = append(c.Classes, &schedulingv1.PriorityClass{})
				parse(t, document, c.Classes[len(c.Classes)-1])
			case "ResourceQuota":
				quota := &corev1.ResourceQuota{}
				parse(t, document, quota)
				quota.Status.Hard = quota.Spec.Hard
				c.Quotas = append(c.Quotas, quota)
			}
		}
	}
	return c
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/teams/" + file + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func parse(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

// addFrom adds the job of a file, with the defaults of the API server.
func (c *cluster) addFrom(t *testing.T, file string) *v1alpha1.TrainingJob {
	t.Helper()
	return c.add(file, 0, 0, func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers = v1alpha1.WorkersSpec{}
		parse(t, read(t, file), job)
		limits := &job.Spec.Workers.Template.Spec.Containers[0].Resources
		limits.Requests["nvidia.com/gpu"] = limits.Limits["nvidia.com/gpu"]
	})
}

// What the README of examples/teams tells of its two jobs is what the planner does.
func TestTheTwoTeams(t *testing.T) {
	var values struct{ Fleet any }
	parse(t, read(t, "values"), &values)
	settings, err := yaml.Marshal(values.Fleet)
	if err != nil {
		t.Fatal(err)
	}
	sweep, nightly := types.NamespacedName{Namespace: "research", Name: "sweep"}, types.NamespacedName{Namespace: "vision", Name: "nightly"}

	c := teams(t, 0)
	c.trains(c.addFrom(t, "sweep"), "n0", "n0")
	if got := NewLook(c.Objects, optionsOf(t, string(settings))).find(sweep).decision.Count; got != 6 {
		t.Errorf("sweep grows to %d workers alone", got)
	}

	c = teams(t, 0)
	c.trains(c.addFrom(t, "sweep"), "n0", "n0", "n0", "n0", "n0", "n0")
	queued(c.addFrom(t, "nightly"))
	l := NewLook(c.Objects, optionsOf(t, string(settings)))
	if got, why := l.find(sweep).decision.Count, l.find(nightly).decision.Why; got != 4 || why.Reason != "Reclaiming" {
		t.Errorf("sweep keeps %d workers beside nightly: %+v", got, why)
	}

	c = teams(t, 4)
	c.trains(c.addFrom(t, "sweep"), "n0", "n0", "n0", "n0")
	queued(c.addFrom(t, "nightly"))
	l = NewLook(c.Objects, optionsOf(t, string(settings)))
	if d := l.find(sweep).decision; !d.Evict {
		t.Errorf("sweep stays although nightly cannot start beside it: %+v", l.find(nightly).decision.Why)
	}
	c.Jobs[0].Spec.Preemption.Policy = v1alpha1.PreemptionShrink
	l = NewLook(c.Objects, optionsOf(t, string(settings)))
	if d := l.find(sweep).decision; d.Evict || d.Count != 4 {
		t.Errorf("with Shrink sweep is to have %d workers, all gone: %t", d.Count, d.Evict)
	}
}
