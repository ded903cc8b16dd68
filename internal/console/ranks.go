package console

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
)

// Ranks is who is in the newest world of a job.
type Ranks struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Round is that of the world; 0 when there is none.
	Round int64 `json:"round"`
	// Members are in rank order; left out when the record of the world names nobody.
	Members []Member `json:"members,omitempty"`
}

// Member is one worker of a world.
type Member struct {
	// Rank is that of the worker; its processes have Ranks ranks from FirstRank on, those that a program knows as RANK.
	Rank      int32 `json:"rank"`
	FirstRank int32 `json:"firstRank"`
	Ranks     int32 `json:"ranks"`
	// Worker is its pod; empty when that has ended or is gone.
	Worker string `json:"worker,omitempty"`
	Node   string `json:"node"`
}

// Ranks tells who is in the world of the job of a name; false when there is no such job.
func (l *Look) Ranks(name types.NamespacedName) (Ranks, bool) {
	j := l.find(name)
	if j == nil {
		return Ranks{}, false
	}
	made := record.FromStatus(j.object)
	told := Ranks{Namespace: name.Namespace, Name: name.Name, Round: int64(made.Round)}
	pods := map[string]string{}
	for _, pod := range j.pods {
		if pod.Labels[v1alpha1.LabelAttempt] == strconv.Itoa(int(made.Attempt)) {
			pods[pod.Name] = pod.Name
		}
	}
	each := max(value(j.object.Spec.Workers.ProcessesPerWorker), 1)
	for rank, member := range made.Named() {
		pod := fmt.Sprintf("%s-%d-%d", name.Name, made.Attempt, member.Ordinal)
		told.Members = append(told.Members, Member{Rank: int32(rank), FirstRank: int32(rank) * each, Ranks: each, Worker: pods[pod], Node: member.Node})
	}
	return told, true
}

// Write writes a table.
func (r *Ranks) Write(out io.Writer) error {
	if len(r.Members) == 0 {
		_, err := fmt.Fprintf(out, "%s/%s: nobody has a rank, there is no world\n", r.Namespace, r.Name)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	title := "RANK"
	if r.Members[0].Ranks > 1 {
		title = "RANKS"
	}
	fmt.Fprintf(table, "%s\tWORKER\tNODE\n", title)
	for _, one := range r.Members {
		ranks := strconv.Itoa(int(one.FirstRank))
		if one.Ranks > 1 {
			ranks += "-" + strconv.Itoa(int(one.FirstRank+one.Ranks-1))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", ranks, dash(one.Worker), one.Node)
	}
	return table.Flush()
}
