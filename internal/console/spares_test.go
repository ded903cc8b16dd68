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
