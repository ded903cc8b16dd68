// Package record makes rounds durable in the status of their job. It is the only writer of
// status.world, under a field manager of its own.
package record

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	apply "github.com/concertina-dev/concertina/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// FieldManager owns status.world.
const FieldManager = "concertina-rendezvous"

// Status is a rendezvous.Recorder on status.world.
type Status struct {
	// Live reads from the API server: a cache would make the comparison worthless.
	Live client.Reader
	// Writer writes the status.
	Writer client.StatusWriter
}

var _ rendezvous.Recorder = Status{}

// Record implements rendezvous.Recorder.
//
// Server-side apply alone is no compare-and-swap, and the resourceVersion alone is too strict:
// the controller writes the rest of the status. So the world is compared on a live read, and the
// write carries the uid and the resourceVersion of that read; when it conflicts the comparison is
// made anew. A record that already reads next is not taken for success: two leaders that take the
// job over at once ask for the same record, and only one of them may believe that it is its own. A
// job that is being deleted counts as gone, and so does one whose place another of its name has taken. Where
// the definition is of an operator before this one, what it has no place for is left out of the record, as of one
// that such an operator has written.
func (s Status) Record(ctx context.Context, job rendezvous.JobKey, prev, next rendezvous.Record) (rendezvous.Record, error) {
	for {
		current := &v1alpha1.TrainingJob{}
		err := s.Live.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: job.Name}, current)
		if apierrors.IsNotFound(err) {
			return rendezvous.Record{}, rendezvous.ErrJobGone
		}
		if err != nil {
			return rendezvous.Record{}, fmt.Errorf("read the world of job %s: %w", job, err)
		}
		if !current.DeletionTimestamp.IsZero() || next.JobUID != "" && next.JobUID != string(current.UID) {
			return rendezvous.Record{}, rendezvous.ErrJobGone
		}
		found := FromStatus(current)
		if !same(found, prev) {
			return found, fmt.Errorf("job %s is at term %d, round %d, not at term %d, round %d: %w",
				job, found.Term, found.Round, prev.Term, prev.Round, rendezvous.ErrDeposed)
		}
		written, err := s.write(ctx, current, next)
		switch {
		case err == nil:
			return written, nil
		case apierrors.IsConflict(err):
			continue
		case apierrors.IsNotFound(err):
			return rendezvous.Record{}, rendezvous.ErrJobGone
		default:
			return rendezvous.Record{}, fmt.Errorf("write the world of job %s: %w", job, err)
		}
	}
}

// write returns what stands there afterwards: next, but for what an older definition has no place for.
func (s Status) write(ctx context.Context, job *v1alpha1.TrainingJob, next rendezvous.Record) (rendezvous.Record, error) {
	config := apply.TrainingJob(job.Name, job.Namespace).WithUID(job.UID).WithResourceVersion(job.ResourceVersion).
		WithStatus(apply.TrainingJobStatus().WithWorld(toStatus(next)))
	err := s.Writer.Apply(ctx, config, client.FieldOwner(FieldManager), client.ForceOwnership)
	if len(Undeclared(err)) > 0 {
		return s.writeWithout(ctx, job, config, err)
	}
	return next, err
}

// same compares records by all that was decided; the time of writing loses its fraction on the way.
func same(a, b rendezvous.Record) bool {
	a.StartedAt = b.StartedAt
	return a == b
}

// FromStatus reads the record out of a job's status; the zero record when there is none, or one of another job.
func FromStatus(job *v1alpha1.TrainingJob) rendezvous.Record {
	world := job.Status.World
	if world == nil || world.JobUID != "" && world.JobUID != string(job.UID) {
		return rendezvous.Record{}
	}
	return rendezvous.Record{
		Term:           uint64(ptr.Deref(world.Term, 0)),
		Round:          uint64(ptr.Deref(world.Round, 0)),
		Attempt:        ptr.Deref(world.Attempt, 0),
		Parent:         uint64(ptr.Deref(world.Parent, 0)),
		Workers:        ptr.Deref(world.Workers, 0),
		Processes:      ptr.Deref(world.Processes, 0),
		FromStep:       uint64(ptr.Deref(world.FromStep, 0)),
		MembersDigest:  world.MembersDigest,
		ParentDigest:   world.ParentDigest,
		ParentFromStep: uint64(ptr.Deref(world.ParentFromStep, 0)),
		Grandparent:    uint64(ptr.Deref(world.Grandparent, 0)),
		Members:        world.Members,
		Nodes:          world.Nodes,
		Racks:          world.Racks,
		Master:         rendezvous.Endpoint{Address: world.MasterAddress, Port: uint32(ptr.Deref(world.MasterPort, 0))},
		StartedAt:      ptr.Deref(world.StartedAt, metav1.Time{}).Time,
		Reason:         rendezvous.Reason(world.Reason),
		From:           ptr.Deref(world.From, 0),
		Recoveries:     world.Recoveries,
		JobUID:         world.JobUID,
		Leader:         world.Leader,
	}
}

// Ranks are the worker ranks in the newest world of a job, by the ordinals of its members' pods, which are those of an attempt.
// They are nil when there is no world, or its record names nobody. No pod carries its rank: n pods would be n writes for each
// world.
func Ranks(job *v1alpha1.TrainingJob) (ranks map[int32]int32, attempt int32) {
	made := FromStatus(job)
	ordinals := made.Ordinals()
	if ordinals == nil {
		return nil, made.Attempt
	}
	ranks = make(map[int32]int32, len(ordinals))
	for rank, ordinal := range ordinals {
		ranks[ordinal] = int32(rank)
	}
	return ranks, made.Attempt
}

func toStatus(record rendezvous.Record) *apply.WorldStatusApplyConfiguration {
	world := apply.WorldStatus().
		WithTerm(int64(record.Term)).
		WithRound(int64(record.Round)).
		WithAttempt(record.Attempt).
		WithParent(int64(record.Parent)).
		WithWorkers(record.Workers).
		WithProcesses(record.Processes).
		WithFromStep(int64(record.FromStep)).
		WithMembersDigest(record.MembersDigest).
		WithReason(string(record.Reason)).
		WithFrom(record.From)
	if record.ParentDigest != "" {
		world = world.WithParentDigest(record.ParentDigest)
	}
	if record.ParentFromStep > 0 {
		world = world.WithParentFromStep(int64(record.ParentFromStep))
	}
	if record.Grandparent > 0 {
		world = world.WithGrandparent(int64(record.Grandparent))
	}
	if record.Members != "" {
		world = world.WithMembers(record.Members)
	}
	if record.Nodes != "" {
		world = world.WithNodes(record.Nodes)
	}
	if record.Racks != "" {
		world = world.WithRacks(record.Racks)
	}
	if record.Recoveries != "" {
		world = world.WithRecoveries(record.Recoveries)
	}
	if record.Master.Address != "" {
		world = world.WithMasterAddress(record.Master.Address)
	}
	if record.Master.Port > 0 {
		world = world.WithMasterPort(int32(record.Master.Port))
	}
	if record.JobUID != "" {
		world = world.WithJobUID(record.JobUID)
	}
	if record.Leader != "" {
		world = world.WithLeader(record.Leader)
	}
	if !record.StartedAt.IsZero() {
		world = world.WithStartedAt(metav1.NewTime(record.StartedAt))
	}
	return world
}
