package record_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/record"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// olderServer is an API server with one job, whose definition lacks some fields of a world. Of several it names only the first, unless all is true.
type olderServer struct {
	client.Reader
	client.StatusWriter
	lacks []string
	all   bool
	world *v1alpha1.WorldStatus
}

func (o *olderServer) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	*into.(*v1alpha1.TrainingJob) = v1alpha1.TrainingJob{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace, UID: "mine", ResourceVersion: "1"},
		Status:     v1alpha1.TrainingJobStatus{World: o.world.DeepCopy()},
	}
	return nil
}

func (o *olderServer) Apply(_ context.Context, config runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	encoded, err := json.Marshal(config)
	if err != nil {
		return err
	}
	var asked struct {
		Metadata metav1.ObjectMeta
		Status   struct{ World map[string]any }
	}
	if err := json.Unmarshal(encoded, &asked); err != nil {
		return err
	}
	var unknown []string
	for _, field := range o.lacks {
		if _, there := asked.Status.World[field]; (there || field == "") && (o.all || unknown == nil) {
			unknown = append(unknown, strings.TrimSuffix("  .status.world."+field, ".")+": field not declared in schema")
		}
	}
	if unknown != nil {
		return errors.New("failed to create typed patch object (team/digits; training.concertina.dev/v1alpha1, Kind=TrainingJob): errors:\n" +
			strings.Join(unknown, "\n"))
	}
	if asked.Metadata.UID != "mine" || asked.Metadata.ResourceVersion != "1" {
		return errors.New("it is written without the uid and the resourceVersion of what was read")
	}
	if encoded, err = json.Marshal(asked.Status.World); err != nil {
		return err
	}
	o.world = &v1alpha1.WorldStatus{}
	return json.Unmarshal(encoded, o.world)
}

// An older definition loses what it has no place for, and one world after another is durable.
func TestAnOlderDefinitionHasWorlds(t *testing.T) {
	for name, test := range map[string]struct {
		lacks []string
		all   bool
		lost  func(*rendezvous.Record)
		fails bool
	}{
		"all is known": {nil, true, func(*rendezvous.Record) {}, false},
		"one":          {[]string{"grandparent"}, true, func(r *rendezvous.Record) { r.Grandparent = 0 }, false},
		"several":      {[]string{"grandparent", "parentFromStep", "leader"}, true, func(r *rendezvous.Record) { r.Grandparent, r.ParentFromStep, r.Leader = 0, 0, "" }, false},
		"one by one":   {[]string{"grandparent", "parentFromStep", "leader"}, false, func(r *rendezvous.Record) { r.Grandparent, r.ParentFromStep, r.Leader = 0, 0, "" }, false},
		"its number":   {[]string{"grandparent", "round"}, true, nil, true},
		"no worlds":    {[]string{""}, true, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := &olderServer{lacks: test.lacks, all: test.all}
			status := record.Status{Live: server, Writer: server}
			var prev rendezvous.Record
			for round := uint64(1); round <= 4; round++ {
				next := rendezvous.Record{
					Term: 1, Round: round, Parent: round - 1, Workers: 2, JobUID: "mine", Leader: "me", StartedAt: time.Unix(1e9, 0),
					Members: "packed", ParentFromStep: round - 1, Grandparent: max(round, 2) - 2,
				}
				found, err := status.Record(t.Context(), rendezvous.JobKey{Namespace: "team", Name: "digits"}, prev, next)
				if test.fails {
					if err == nil || server.world != nil {
						t.Fatalf("%+v was written: %v", server.world, err)
					}
					return
				}
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				test.lost(&next)
				if !found.Equal(next) {
					t.Fatalf("%+v is said to stand there, and it is %+v", found, next)
				}
				prev = found
			}
		})
	}
}
