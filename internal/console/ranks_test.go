package console

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// Who has which rank is told by the record of the world: it names those whose pods are gone as well, and nobody else.
func TestRanks(t *testing.T) {
	c := clusterOf(8, 8)
	job := c.add("digits", 2, 4)
	c.trains(job, "n0", "n1", "n1")
	made := rendezvous.Record{Workers: 3}
	made.Name([]rendezvous.NamedMember{{Ordinal: 2, Node: "n1"}, {Ordinal: 0, Node: "n0"}, {Ordinal: 7, Node: "n9"}})
	job.Status.World.Members, job.Status.World.Nodes = made.Members, made.Nodes
	look := NewPartialLook(fleet.Objects{Jobs: c.Jobs, Pods: c.Pods}, options(t))
	told, found := look.Ranks(types.NamespacedName{Namespace: "team", Name: "digits"})
	var text strings.Builder
	if err := told.Write(&text); err != nil || !found {
		t.Fatal(err, found)
	}
	const want = "RANK   WORKER       NODE\n0      digits-1-2   n1\n1      digits-1-0   n0\n2      -            n9\n"
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", text.String(), want)
	}
	if one := told.Members[1]; one.Rank != 1 || one.FirstRank != 1 || one.Ranks != 1 {
		t.Errorf("%+v", one)
	}
	job.Spec.Workers.ProcessesPerWorker = ptr.To[int32](8)
	told, _ = look.Ranks(types.NamespacedName{Namespace: "team", Name: "digits"})
	text.Reset()
	if err := told.Write(&text); err != nil {
		t.Fatal(err)
	}
	// The ranks of processes are those that programs, metrics and stragglers have.
	const several = "RANKS   WORKER       NODE\n0-7     digits-1-2   n1\n8-15    digits-1-0   n0\n16-23   -            n9\n"
	if text.String() != several {
		t.Errorf("got\n%swant\n%s", text.String(), several)
	}
	if one := told.Members[1]; one.Rank != 1 || one.FirstRank != 8 || one.Ranks != 8 {
		t.Errorf("%+v", one)
	}
	if _, found = look.Ranks(types.NamespacedName{Namespace: "team", Name: "nobody"}); found {
		t.Error("a job that is not there has ranks")
	}
}
