package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// A gang whose volumes would be larger than those before, and that fits into no empty cluster with these, has those of before after a while.
func TestVolumesThatFitNowhere(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*State)
		bound  bool
	}{
		"no node is large enough":    {func(*State) {}, true},
		"larger than the cluster":    {func(s *State) { s.Grant.Reason = "LargerThanCluster" }, true},
		"others have the room":       {func(s *State) { s.Grant.Reason = "NoRoom" }, false},
		"it has hardly had no place": {func(s *State) { s.Memory.NoPlaceSince = now.Add(-time.Minute) }, false},
		"it had a place until now":   {func(s *State) { s.Memory.NoPlaceSince = time.Time{} }, false},
		"the user has chosen":        {func(s *State) { s.Job.Spec.Checkpoint.Memory = "8Gi" }, false},
		"nobody has trained":         {func(s *State) { s.Job.Status.Checkpoint.Size.Volume = nil }, false},
		"as large as before":         {func(s *State) { s.Job.Status.Checkpoint.Size.Volume = ptr.To[int64](3264 * mib) }, false},
		"larger before":              {func(s *State) { s.Job.Status.Checkpoint.Size.Volume = ptr.To[int64](8 * gib) }, false},
		"what no operator writes":    {func(s *State) { s.Job.Status.Checkpoint.Size.Volume = ptr.To[int64](-1) }, false},
		"a storage without a state":  {func(s *State) { withStorage(s.Job); s.Job.Spec.Checkpoint.Memory = "auto" }, true},
		"a checkpoint has no room": {func(s *State) {
			withStorage(s.Job)
			s.Job.Spec.Checkpoint.Memory, s.Job.Status.Checkpoint.Step = "auto", ptr.To[int64](7)
		}, false},
		"a checkpoint has room": {func(s *State) {
			withStorage(s.Job)
			s.Job.Spec.Checkpoint.Memory, s.Job.Status.Checkpoint.Step = "auto", ptr.To[int64](7)
			s.Job.Status.Checkpoint.Size.Volume = ptr.To[int64](2 * gib)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			state := stateOf(jobWith(measured(gib, gib, gib), func(job *v1alpha1.TrainingJob) {
				job.Status.Checkpoint.Size.Volume = ptr.To[int64](512 * mib)
				job.Status.Queue.Since = ptr.To(metav1.NewTime(now.Add(-time.Hour)))
			}))
			state.Grant = fleet.Grant{Known: true, Reason: "NoNode", Why: "no node is large enough for one of its workers"}
			state.Memory.NoPlaceSince = now.Add(-time.Hour)
			row.change(state)
			had := value(state.Job.Status.Checkpoint.Size.Volume)
			plan := look(state)
			if got := value(plan.Status.Checkpoint.Size.VolumeAtMost); (got == had && got > 0) != row.bound {
				t.Fatalf("volumes have %d at most", got)
			}
			if !row.bound {
				return
			}
			expectNote(t, plan, v1alpha1.ReasonVolumeTooSmall, "no place for workers with the", "no node is large enough")
			state.follow(plan)
			if next := volumeSize(state.Job, settings); next.Value() != had || isUnknown(state.Job) {
				t.Errorf("the next workers have %s", &next)
			}
			if again := look(state); value(again.Status.Checkpoint.Size.VolumeAtMost) != had || len(again.Notes) > 0 {
				t.Errorf("it is decided again: %+v", again.Notes)
			}
			// It is that of one attempt, and of all plans until it has begun.
			state.Grant = fleet.Grant{Known: true, Start: true, Count: 2}
			if plan = NewPlan(state, settings); value(plan.Status.Checkpoint.Size.VolumeAtMost) != had || value(plan.Status.Workers.Target) == 0 {
				t.Fatalf("the attempt that begins has %d at most, and %d workers", value(plan.Status.Checkpoint.Size.VolumeAtMost), value(plan.Status.Workers.Target))
			}
			// It comes to nothing, and what the job has waited counts on.
			state.follow(plan)
			state.Grant = fleet.Grant{Known: true, Why: "another gang has its room"}
			if plan = NewPlan(state, settings); value(plan.Status.Workers.Target) != 0 || plan.Status.Queue.Since == nil {
				t.Fatalf("without room the attempt has %d workers, and waits since %v", value(plan.Status.Workers.Target), plan.Status.Queue.Since)
			}
			state.follow(plan)
			if plan = NewPlan(state, settings); plan.Status.Checkpoint.Size.VolumeAtMost != nil {
				t.Error("the next attempt has no more than this one")
			}
		})
	}
}

// A node that is away for a while costs no gang its snapshots, however long that has queued.
func TestANodeThatIsAwayForAWhileCostsNoSnapshots(t *testing.T) {
	state := stateOf(jobWith(measured(gib, gib, gib), func(job *v1alpha1.TrainingJob) {
		job.Status.Checkpoint.Size.Volume = ptr.To[int64](512 * mib)
		job.Status.Queue.Since = ptr.To(metav1.NewTime(now.Add(-time.Hour)))
	}))
	away := fleet.Grant{Known: true, Reason: "NoNode", Why: "no node is large enough for one of its workers"}
	back := fleet.Grant{Known: true, Reason: "NoRoom", Why: "others have the room"}
	for i, step := range []struct {
		after time.Duration
		grant fleet.Grant
		bound bool
	}{
		{0, away, false}, {boundAfter - time.Second, away, false}, {time.Second / 2, back, false},
		{time.Second, away, false}, {boundAfter - time.Second, away, false}, {time.Second, away, true},
	} {
		state.Now, state.Grant = state.Now.Add(step.after), step.grant
		plan := look(state)
		if bound := value(plan.Status.Checkpoint.Size.VolumeAtMost) > 0; bound != step.bound {
			t.Fatalf("look %d: %d at most", i, value(plan.Status.Checkpoint.Size.VolumeAtMost))
		}
		if step.grant.Reason == "NoNode" && !step.bound && (plan.After <= 0 || plan.After > boundAfter) {
			t.Fatalf("look %d: the next one is in %s", i, plan.After)
		}
	}
}

// What the world trains with is written down, and what is too small by a bound is told with that.
func TestTheVolumesOfTheWorldAreRemembered(t *testing.T) {
	state := grown(gib, func(job *v1alpha1.TrainingJob) {
		job.Status.World.StartedAt = ptr.To(metav1.NewTime(now.Add(-time.Hour)))
	})
	state.Pods[0].Annotations[v1alpha1.AnnotationMemory] = "700Mi"
	plan := look(state)
	if got := value(plan.Status.Checkpoint.Size.Volume); got != 512*mib {
		t.Errorf("the smallest volume is remembered as %d", got)
	}
	state.follow(plan)
	state.Job.Status.Checkpoint.Size.VolumeAtMost = ptr.To[int64](512 * mib)
	if is := fits(look(state)); is == nil || is.Status != metav1.ConditionFalse || !strings.Contains(is.Message, "workers with 3264Mi had no place in the cluster") {
		t.Errorf("the condition is %+v", is)
	}
	state.Job.Spec.Suspend, state.Pods, state.World = ptr.To(true), nil, rendezvous.Observation{}
	state.Job.Status.Workers.Target = nil
	if plan := NewPlan(state, settings); plan.Status.Checkpoint.Size.VolumeAtMost != nil || value(plan.Status.Checkpoint.Size.Volume) != 512*mib {
		t.Errorf("of a suspended job is known %+v", plan.Status.Checkpoint.Size)
	}
}
