package controller

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/share"
)

const mib, gib = 1 << 20, 1 << 30

// measured is a job whose volumes the operator chooses, and whose state was seen to have a size.
func measured(state, own, written int64) func(*v1alpha1.TrainingJob) {
	return func(job *v1alpha1.TrainingJob) {
		job.Spec.Checkpoint.Memory, job.Spec.Checkpoint.Copies = "", ptr.To[int32](2)
		job.Status.Checkpoint.Size = v1alpha1.StateSize{State: ptr.To(state), Own: ptr.To(own), Written: ptr.To(written)}
	}
}

// inShards has the state that was seen be in shards.
func inShards(job *v1alpha1.TrainingJob) {
	job.Status.Checkpoint.Size.Shards = job.Status.Checkpoint.Size.State
}

func TestVolumesAreAsLargeAsTheStateNeeds(t *testing.T) {
	unknown := func(job *v1alpha1.TrainingJob) { job.Spec.Checkpoint.Memory = "" }
	set := func(memory v1alpha1.MemorySize) func(*v1alpha1.TrainingJob) {
		return func(job *v1alpha1.TrainingJob) { job.Spec.Checkpoint.Memory = memory }
	}
	atLeast := func(workers int32) func(*v1alpha1.TrainingJob) {
		return func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Min = ptr.To(workers) }
	}
	for name, test := range map[string]struct {
		changes []func(*v1alpha1.TrainingJob)
		most    int64
		want    string
	}{
		"nothing is said, nothing known":         {changes: []func(*v1alpha1.TrainingJob){unknown}, want: "512Mi"},
		"auto, nothing known":                    {changes: []func(*v1alpha1.TrainingJob){set("auto")}, want: "512Mi"},
		"what no operator can read":              {changes: []func(*v1alpha1.TrainingJob){set("plenty")}, want: "512Mi"},
		"below nothing":                          {changes: []func(*v1alpha1.TrainingJob){set("-1Gi")}, want: "512Mi"},
		"a quantity, whatever the state has":     {changes: []func(*v1alpha1.TrainingJob){measured(8*gib, 0, 0), set("3Gi")}, most: gib, want: "3Gi"},
		"a number":                               {changes: []func(*v1alpha1.TrainingJob){set("1073741824")}, want: "1Gi"},
		"shares of the fewest workers":           {changes: []func(*v1alpha1.TrainingJob){measured(gib, 0, 0), atLeast(4)}, want: "1632Mi"},
		"auto, said aloud":                       {changes: []func(*v1alpha1.TrainingJob){measured(gib, 0, 0), atLeast(4), set("auto")}, want: "1632Mi"},
		"a worker was seen to write more":        {changes: []func(*v1alpha1.TrainingJob){measured(gib, 0, gib), atLeast(4)}, want: "3264Mi"},
		"shards, and the copies of others'":      {changes: []func(*v1alpha1.TrainingJob){measured(gib, 0, 0), inShards, atLeast(4)}, want: "1904Mi"},
		"shards, which one worker brings back":   {changes: []func(*v1alpha1.TrainingJob){measured(gib, 0, 0), inShards, withStorage, set("auto"), atLeast(4)}, want: "2448Mi"},
		"a storage needs more":                   {changes: []func(*v1alpha1.TrainingJob){measured(gib, 0, 0), atLeast(4), withStorage, set("auto")}, want: "2176Mi"},
		"a small state may grow":                 {changes: []func(*v1alpha1.TrainingJob){measured(mib, mib, mib)}, want: "512Mi"},
		"a small state, and less is allowed":     {changes: []func(*v1alpha1.TrainingJob){measured(mib, mib, mib)}, most: 100 * mib, want: "100Mi"},
		"more than is allowed":                   {changes: []func(*v1alpha1.TrainingJob){measured(gib, 0, 0)}, most: 2 * gib, want: "2Gi"},
		"nothing known, and less is allowed":     {changes: []func(*v1alpha1.TrainingJob){unknown}, most: 100 * mib, want: "100Mi"},
		"a program that says anything":           {changes: []func(*v1alpha1.TrainingJob){measured(1<<62, 1<<62, 1<<62)}, want: "64Gi"},
		"a status that nobody has written so":    {changes: []func(*v1alpha1.TrainingJob){measured(-1, -1, -1)}, want: "512Mi"},
		"a status with the whole of nothing":     {changes: []func(*v1alpha1.TrainingJob){measured(0, gib, 0)}, want: "512Mi"},
		"fewer workers than copies write it all": {changes: []func(*v1alpha1.TrainingJob){measured(gib, 0, 0), atLeast(1)}, want: "3264Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobWith(append([]func(*v1alpha1.TrainingJob){running, func(job *v1alpha1.TrainingJob) {
				job.Spec.Workers.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
			}}, test.changes...)...)
			with := settings
			with.MostMemory = test.most
			want := resource.MustParse(test.want)
			for _, make := range []func(*v1alpha1.TrainingJob, PodSettings, int32, int32) *corev1.Pod{newPod, newGrowthPod} {
				pod := make(job, with, 1, 0)
				volume := volumeOf(pod)
				if volume.Cmp(want) != 0 || volumeIn(pod).Cmp(want) != 0 {
					t.Errorf("the volume has %s, and is said to have %s, want %s", volumeIn(pod), &volume, test.want)
				}
				request := want.DeepCopy()
				request.Add(resource.MustParse("1Gi"))
				if got := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]; got.Cmp(request) != 0 {
					t.Errorf("the trainer requests %s, want %s", &got, &request)
				}
			}
			// The group asks for what its pods ask for.
			p := &planner{State: stateOf(job), settings: with}
			group, pods := p.batch("digits-1", []int32{0, 1}, p.Grant.Places)
			total := batchResources(pods[0], 2)
			if got := group.MinResources[corev1.ResourceMemory]; got.Cmp(total[corev1.ResourceMemory]) != 0 || got.Value() < 2*want.Value() {
				t.Errorf("the group requests %s of memory for volumes of %s", &got, test.want)
			}
		})
	}
}

// volumeIn is the bound of the volume of a pod.
func volumeIn(pod *corev1.Pod) *resource.Quantity {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == memoryVolume {
			return volume.EmptyDir.SizeLimit
		}
	}
	return &resource.Quantity{}
}

// Workers of an operator that did not write down how large a volume is have what is in their pod, which is none for a job that
// said nothing.
func TestVolumesOfEarlierOperators(t *testing.T) {
	for memory, want := range map[v1alpha1.MemorySize]string{"3Gi": "3Gi", "": "0", "auto": "512Mi"} {
		job := jobWith(running, func(job *v1alpha1.TrainingJob) { job.Spec.Checkpoint.Memory = memory })
		pod := newPod(job, settings, 1, 0)
		delete(pod.Annotations, v1alpha1.AnnotationMemory)
		if memory == "" {
			pod.Spec.Volumes = nil
		}
		if got := volumeOf(slimmed(pod)); got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("with %q it is %s, want %s", memory, &got, want)
		}
	}
	state := grown(mib)
	for _, pod := range state.Pods {
		delete(pod.Annotations, v1alpha1.AnnotationMemory)
		delete(pod.Annotations, v1alpha1.AnnotationMemoryUnknown)
	}
	if is := fits(look(state)); is == nil || is.Status != metav1.ConditionFalse || !strings.Contains(is.Message, "digits-1-0 has 0 for its snapshots") {
		t.Errorf("of workers without a volume the condition is %+v", is)
	}
}

// A worker that has found no room has too little, whatever was reckoned.
func TestAVolumeThatIsFullIsTold(t *testing.T) {
	for _, said := range []string{
		"snapshot of step 7: no room for the snapshot: give the worker more memory for snapshots: write /m/7.3.0.part: no space left on device",
		"No space left on device: /m/7.3.part: two snapshots beside this one must fit", "write /m/7.3.0.part: disk quota exceeded",
	} {
		for _, written := range []uint64{0, mib} {
			state := grown(written)
			state.Job.Status.Checkpoint.Size = v1alpha1.StateSize{State: ptr.To[int64](mib), Own: ptr.To[int64](mib), Written: ptr.To[int64](mib)}
			member := state.World.Members[string(state.Pods[1].UID)]
			member.SnapshotTrouble = said
			state.World.Members[string(state.Pods[1].UID)] = member
			plan := look(state)
			is := fits(plan)
			if is == nil || is.Status != metav1.ConditionFalse || value(plan.Status.Workers.Target) == 0 {
				t.Fatalf("of one that says %q the condition is %+v", said, is)
			}
			for _, text := range []string{"digits-1-1 has 512Mi for its snapshots, and its last one found no room", said, "spec.checkpoint.memory: 513Mi may do"} {
				if !strings.Contains(is.Message, text) {
					t.Errorf("%q is not in %q", text, is.Message)
				}
			}
			member.SnapshotTrouble = "the process is in the middle of a step"
			state.World.Members[string(state.Pods[1].UID)] = member
			if is := fits(look(state)); written > 0 && (is == nil || is.Status != metav1.ConditionTrue) {
				t.Errorf("of another trouble the condition is %+v", is)
			}
		}
	}
}

// Who waits for room, or for more of it, is told how much of that is for snapshots.
func TestWhoWaitsIsToldWhatSnapshotsAskFor(t *testing.T) {
	const words = "a worker asks for 3264Mi of memory for its snapshots"
	for name, test := range map[string]struct {
		change func(*v1alpha1.TrainingJob)
		told   bool
	}{
		"a large state":  {measured(gib, gib, gib), true},
		"a small one":    {measured(mib, mib, mib), false},
		"nobody knows":   {func(job *v1alpha1.TrainingJob) { job.Spec.Checkpoint.Memory = "" }, false},
		"the user chose": {func(job *v1alpha1.TrainingJob) { measured(gib, gib, gib)(job); job.Spec.Checkpoint.Memory = "4Gi" }, false},
		"another program": {func(job *v1alpha1.TrainingJob) {
			measured(gib, gib, gib)(job)
			job.Spec.Resize.Strategy = v1alpha1.ResizeRestart
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			state := stateOf(jobWith(test.change))
			state.Grant = fleet.Grant{Known: true, Why: "waits for 2 places", Queue: fleet.Queue{Position: 3}}
			if waits := look(state).Status.Queue.WaitsFor; strings.Contains(waits, words) != test.told || !strings.HasPrefix(waits, "waits for 2 places") {
				t.Errorf("it waits for %q", waits)
			}
		})
	}
	state := grown(mib, func(job *v1alpha1.TrainingJob) { measured(gib, gib, gib)(job) })
	state.Grant = fleet.Grant{Known: true, Count: 2, Reason: "NoRoom", Why: "there is no room for more workers"}
	if is := meta.FindStatusCondition(look(state).Status.Conditions, v1alpha1.ConditionFullSize); is == nil || !strings.Contains(is.Message, words) {
		t.Errorf("the condition is %+v", is)
	}
}

// grown is a world of two on two nodes, whose operator chooses the volumes, and of which each worker writes all of a state.
func grown(bytes uint64, changes ...func(*v1alpha1.TrainingJob)) *State {
	job := trains(2, append([]func(*v1alpha1.TrainingJob){func(job *v1alpha1.TrainingJob) {
		job.Spec.Checkpoint.Memory, job.Spec.Checkpoint.Copies = "", ptr.To[int32](2)
		job.Spec.Workers.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
	}}, changes...)...)
	state := elasticState(job, crewOf(job)...)
	state.free("16Gi")
	state.World.Progress.Step = 7
	state.measure(bytes)
	return state
}

// measure has the members of the world say that each writes all of a state.
func (s *State) measure(bytes uint64) {
	s.World.Size = share.Size{State: bytes, Own: 0, Written: bytes}
	for uid, member := range s.World.Members {
		member.Written = bytes
		s.World.Members[uid] = member
	}
}

// follow has a plan's status be the job's.
func (s *State) follow(plan Plan) {
	world := s.Job.Status.World
	s.Job.Status = plan.Status
	s.Job.Status.World = world
	s.Memory.Elastic = plan.Elastic
}

func fits(plan Plan) *metav1.Condition {
	return meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionSnapshotsFit)
}

// What was measured is durable, and outlives the workers. It is written anew for no few bytes, which every snapshot differs by.
func TestTheSizeOfTheStateIsDurable(t *testing.T) {
	state := grown(100 * mib)
	plan := look(state)
	if size := plan.Status.Checkpoint.Size; value(size.State) != 100*mib || value(size.Written) != 100*mib || size.Own == nil {
		t.Fatalf("the size is %+v", size)
	}
	state.follow(plan)
	state.measure(100*mib + 4096)
	if size := look(state).Status.Checkpoint.Size; value(size.State) != 100*mib {
		t.Errorf("for a few bytes more it is %d", value(size.State))
	}
	state.measure(120 * mib)
	state.World.Size.Written = 0 // a new world has taken no snapshot yet
	plan = look(state)
	if size := plan.Status.Checkpoint.Size; value(size.State) != 120*mib || value(size.Written) != 100*mib {
		t.Errorf("in another world it is %d, with %d written", value(size.State), value(size.Written))
	}
	state.follow(plan)
	// A checkpoint that has become durable takes nothing of it along.
	withStorage(state.Job)
	state.Job.Spec.Checkpoint.Memory = ""
	state.World.Durable = rendezvous.Durable{Snapshot: rendezvous.Snapshot{Round: 3, Step: 7}, Path: "team/digits"}
	plan = look(state)
	if status := plan.Status.Checkpoint; value(status.Size.State) != 120*mib || value(status.Step) != 7 {
		t.Errorf("with a checkpoint of step %d the size is %d", value(status.Step), value(status.Size.State))
	}
	state.follow(plan)
	for name, change := range map[string]func(*State){
		"a new leader": func(s *State) { s.World = rendezvous.Observation{} },
		"no worker":    func(s *State) { s.Job.Spec.Suspend, s.Pods, s.World = ptr.To(true), nil, rendezvous.Observation{} },
		"a new attempt": func(s *State) {
			s.Job.Status.Workers.Target, s.Pods, s.World = ptr.To[int32](0), nil, rendezvous.Observation{}
		},
	} {
		then := *state
		then.Job = state.Job.DeepCopy()
		change(&then)
		if size := NewPlan(&then, settings).Status.Checkpoint.Size; value(size.State) != 120*mib {
			t.Errorf("%s knows the size %d", name, value(size.State))
		}
	}
}

// What an attempt has measured is not forgotten because the next one begins with a small state.
func TestTheSizeOfTheStateIsTheLargestOne(t *testing.T) {
	state := grown(100 * mib)
	state.World.Size.Own = 40 * mib
	for _, size := range []share.Size{{State: 100 * mib, Own: 40 * mib, Written: 70 * mib}, {State: mib, Own: mib, Written: mib}, {State: 90 * mib, Own: 0, Written: 60 * mib}} {
		state.World.Size = size
		state.follow(look(state))
	}
	if size := state.Job.Status.Checkpoint.Size; value(size.State) != 100*mib || value(size.Own) != 40*mib || value(size.Written) != 70*mib {
		t.Errorf("the size is %d, %d of each worker's own, %d written", value(size.State), value(size.Own), value(size.Written))
	}
	state.World.Size = share.Size{State: 200 * mib, Own: 0, Written: 80 * mib} // it comes in shares now
	if size := look(state).Status.Checkpoint.Size; value(size.State) != 200*mib || value(size.Own) != 0 || value(size.Written) != 80*mib {
		t.Errorf("of a larger state the size is %d, %d of each worker's own, %d written", value(size.State), value(size.Own), value(size.Written))
	}
}

// A state that grows all the time ends no more than one attempt, whatever was measured before.
func TestAStateThatGrowsEndsOneAttempt(t *testing.T) {
	for name, first := range map[string]uint64{"nobody knows": 0, "an attempt was lost after its first snapshot": mib} {
		t.Run(name, func(t *testing.T) {
			ended := 0
			var status v1alpha1.TrainingJobStatus
			if first > 0 {
				state := grown(first)
				status = look(state).Status
			}
			for range 20 {
				state := grown(first, func(job *v1alpha1.TrainingJob) { job.Status.Checkpoint = status.Checkpoint })
				for bytes := uint64(mib); bytes < gib; bytes *= 2 {
					state.measure(bytes)
					state.follow(look(state)) // the size is durable first
					plan := look(state)
					state.follow(plan)
					status = plan.Status
					if value(status.Workers.Target) == 0 {
						ended++
						break
					}
				}
			}
			want := 1
			if first > 0 {
				want = 0
			}
			if ended != want {
				t.Errorf("%d attempts were ended, want %d", ended, want)
			}
		})
	}
}

// A volume that is too small is a condition with the size that would do, and an event when it begins to be.
func TestAVolumeThatIsTooSmallIsTold(t *testing.T) {
	late := func(job *v1alpha1.TrainingJob) {
		job.Status.World.StartedAt = ptr.To(metav1.NewTime(now.Add(-time.Hour)))
	}
	for name, test := range map[string]struct {
		changes []func(*v1alpha1.TrainingJob)
		bytes   uint64
		want    []string
	}{
		"auto": {[]func(*v1alpha1.TrainingJob){late}, gib, []string{
			"digits-1-0 has 512Mi for its snapshots and needs 3Gi", "workers that are made from now on have 3264Mi", "begins at step 0"}},
		"auto, with a storage": {[]func(*v1alpha1.TrainingJob){late, withStorage, func(job *v1alpha1.TrainingJob) { job.Spec.Checkpoint.Memory = "auto" }}, gib,
			[]string{"needs 4Gi", "have 4352Mi", "goes on from its last checkpoint"}},
		"a quantity": {[]func(*v1alpha1.TrainingJob){func(job *v1alpha1.TrainingJob) { job.Spec.Checkpoint.Memory = "1Gi" }}, gib, []string{
			"has 1Gi for its snapshots and needs 3Gi", "spec.checkpoint.memory: 3264Mi would do, or auto"}},
		"more than is allowed": {[]func(*v1alpha1.TrainingJob){late}, 100 * gib, []string{
			"the operator gives 64Gi at most", "spec.checkpoint.memory: 326400Mi would do"}},
	} {
		t.Run(name, func(t *testing.T) {
			state := grown(test.bytes, test.changes...)
			plan := look(state)
			expectNote(t, plan, v1alpha1.ReasonVolumeTooSmall, "needs")
			is := fits(plan)
			if is == nil || is.Status != metav1.ConditionFalse || is.Reason != v1alpha1.ReasonVolumeTooSmall {
				t.Fatalf("the condition is %+v", is)
			}
			for _, text := range test.want {
				if !strings.Contains(is.Message, text) {
					t.Errorf("%q is not in %q", text, is.Message)
				}
			}
			state.follow(plan)
			plan = look(state)
			for _, note := range plan.Notes {
				if note.Reason == v1alpha1.ReasonVolumeTooSmall {
					t.Errorf("it is told again: %s", note.Message)
				}
			}
			// The next world writes less.
			state.follow(plan)
			state.measure(mib)
			if is := fits(look(state)); is == nil || is.Status != metav1.ConditionTrue || is.Reason != v1alpha1.ReasonVolumesFit {
				t.Errorf("of a state that fits the condition is %+v", is)
			}
			state.Job.Spec.Suspend, state.Pods, state.World = ptr.To(true), nil, rendezvous.Observation{}
			if is := fits(NewPlan(state, settings)); is != nil {
				t.Errorf("without workers it is %+v", is)
			}
		})
	}
}

// Where each worker has its own shard of the state it keeps copies of those of others, on as many nodes as there are.
func TestAVolumeOfShards(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*State)
		needs  string
	}{
		"two copies":               {func(*State) {}, "needs 7Gi"},
		"more copies than nodes":   {func(s *State) { s.Job.Spec.Checkpoint.Copies = ptr.To[int32](4) }, "needs 7Gi"},
		"both workers on one node": {func(s *State) { s.Pods[1].Spec.NodeName = s.Pods[0].Spec.NodeName }, "needs 5Gi"},
		"one copy":                 {func(s *State) { s.Job.Spec.Checkpoint.Copies = ptr.To[int32](1) }, "needs 5Gi"},
		"with a storage":           {func(s *State) { withStorage(s.Job); s.Job.Spec.Checkpoint.Memory = "auto" }, "needs 8Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			state := grown(gib, func(job *v1alpha1.TrainingJob) {
				job.Status.World.StartedAt = ptr.To(metav1.NewTime(now.Add(-time.Hour)))
			})
			state.World.Size = share.Size{State: 2 * gib, Shards: 2 * gib, Written: gib}
			state.Pods[0].Spec.NodeName, state.Pods[1].Spec.NodeName = "n0", "n1"
			row.change(state)
			plan := look(state)
			if size := plan.Status.Checkpoint.Size; value(size.Shards) != 2*gib || value(size.State) != 2*gib {
				t.Errorf("the size is %d, of it %d in shards", value(size.State), value(size.Shards))
			}
			if is := fits(plan); is == nil || is.Status != metav1.ConditionFalse || !strings.Contains(is.Message, row.needs) {
				t.Errorf("the condition is %+v, want %s", is, row.needs)
			}
			// So does whoever leads next, before any world has told of its state.
			state.follow(plan)
			if expect := look(state).Actions.Expect; expect == nil || !expect.Sharded {
				t.Errorf("what is expected is %+v", expect)
			}
		})
	}
}

// An attempt whose volumes were made when nothing was known, and are too small, begins anew while that costs next to nothing.
func TestAnAttemptBeginsAnewForLargerVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*State)
		anew   bool
	}{
		"at once":              {func(*State) {}, true},
		"just in time":         {func(s *State) { s.Now = s.Job.Status.World.StartedAt.Add(early) }, true},
		"too late":             {func(s *State) { s.Now = s.Job.Status.World.StartedAt.Add(early + time.Second) }, false},
		"the user has chosen":  {func(s *State) { s.Job.Spec.Checkpoint.Memory = "512Mi" }, false},
		"a state that fits":    {func(s *State) { s.measure(mib) }, false},
		"nobody has written":   {func(s *State) { s.measure(0) }, false},
		"a world that changes": {func(s *State) { s.World.Phase = rendezvous.PhaseRecovering }, false},
		"another world":        {func(s *State) { s.Job.Status.World.From = ptr.To[int32](3) }, false},
		"more than is allowed": {func(s *State) { s.measure(100 * gib); s.Job.Status.Checkpoint.Size.State = ptr.To[int64](100 * gib) }, false},
		"room for one of two":  {func(s *State) { s.free("5503Mi") }, false},
		"room for both":        {func(s *State) { s.free("5504Mi") }, true},
		"nodes that are gone":  {func(s *State) { clear(s.Nodes.ByName) }, false},
		"room nobody knows of": {func(s *State) { clear(s.Nodes.FreeMemory) }, false},
		"a node is cordoned":   {func(s *State) { s.Nodes.ByName["n0"].Spec.Unschedulable = true }, false},
		"a worker is to leave": {func(s *State) {
			s.Grant.Leave = map[types.UID]fleet.Leave{s.Pods[1].UID: {Reason: fleet.Evened, For: "team/other"}}
		}, false},
		"a quota that is full": {func(s *State) { s.Quotas = append(s.Quotas, bounded(corev1.ResourceLimitsMemory, "5503Mi")) }, false},
		"a quota of requests":  {func(s *State) { s.Quotas = append(s.Quotas, bounded(corev1.ResourceMemory, "1Gi")) }, false},
		"a quota with room":    {func(s *State) { s.Quotas = append(s.Quotas, bounded(corev1.ResourceRequestsMemory, "5504Mi")) }, true},
		"a quota of others": {func(s *State) {
			s.Quotas = append(s.Quotas, bounded(corev1.ResourceMemory, "1Gi"), bounded(corev1.ResourceRequestsStorage, "1Mi"))
			s.Quotas[0].Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}
		}, true},
		"containers are bounded": {func(s *State) { s.Limits = append(s.Limits, limited(corev1.LimitTypeContainer)) }, false},
		"pods are bounded":       {func(s *State) { s.Limits = append(s.Limits, limited(corev1.LimitTypePod)) }, false},
		"claims are bounded":     {func(s *State) { s.Limits = append(s.Limits, limited(corev1.LimitTypePersistentVolumeClaim)) }, true},
		"it has done so before": {func(s *State) {
			for _, pod := range s.Pods {
				pod.Annotations[v1alpha1.AnnotationMemory] = "600Mi"
				delete(pod.Annotations, v1alpha1.AnnotationMemoryUnknown)
			}
		}, false},
		"something was known": {func(s *State) {
			for _, pod := range s.Pods {
				delete(pod.Annotations, v1alpha1.AnnotationMemoryUnknown)
			}
		}, false},
		"nobody is to know yet": {func(s *State) { s.Job.Status.Checkpoint.Size = v1alpha1.StateSize{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			state := grown(gib)
			first := look(state)
			for _, note := range first.Notes {
				if note.Reason == v1alpha1.ReasonVolumeTooSmall || note.Reason == v1alpha1.EventVolumesEnlarged {
					t.Errorf("before the size is durable is told: %s", note.Message)
				}
			}
			state.follow(first)
			test.change(state)
			plan := look(state)
			if anew := value(plan.Status.Workers.Target) == 0; anew != test.anew {
				t.Fatalf("it begins anew: %v", anew)
			}
			if !test.anew {
				return
			}
			expectNote(t, plan, v1alpha1.EventVolumesEnlarged, "begins anew with volumes of 3264Mi, and makes 7 steps again")
			if value(plan.Status.Restarts.Program) != 0 || value(plan.Status.Restarts.Infrastructure) != 0 || value(plan.Status.Retries) != 0 {
				t.Errorf("it is counted as a failure: %+v, %d", plan.Status.Restarts, value(plan.Status.Retries))
			}
			state.follow(plan)
			if next := volumeSize(state.Job, settings); next.String() != "3264Mi" {
				t.Errorf("the next workers have %s", &next)
			}
		})
	}
}

// An attempt whose volumes cannot hold the checkpoint that it should begin with tells how large that is before it ends.
func TestACheckpointThatIsTooLargeIsMeasured(t *testing.T) {
	job := jobWith(scheduled, withStorage, func(job *v1alpha1.TrainingJob) {
		job.Spec.Checkpoint.Memory, job.Spec.Checkpoint.Copies = v1alpha1.MemoryAuto, ptr.To[int32](2)
	})
	state := stateOf(job, podOf(job, 1, 0, trainerRuns), podOf(job, 1, 1, trainerRuns))
	state.World = worldOf(0, state.Pods...)
	state.World.Fatal, state.World.Size = "the checkpoint has 1073741824 bytes, and spec.checkpoint.memory is too small for them", share.Size{State: gib}
	plan := NewPlan(state, settings)
	if value(plan.Status.Workers.Target) != 0 || value(plan.Status.Checkpoint.Size.State) != gib {
		t.Fatalf("the attempt goes on with %d workers, and the size is %d", value(plan.Status.Workers.Target), value(plan.Status.Checkpoint.Size.State))
	}
	state.follow(plan)
	if next := volumeSize(state.Job, settings); next.String() != "4352Mi" {
		t.Errorf("the next workers have %s", &next)
	}
}

// free has that much memory be free on the nodes, beside what the workers have.
func (s *State) free(memory string) {
	free := resource.MustParse(memory)
	s.Nodes.FreeMemory = map[string]int64{}
	for name := range s.Nodes.ByName {
		s.Nodes.FreeMemory[name] = free.Value()
	}
}

// bounded is a quota of which so much is free.
func bounded(name corev1.ResourceName, free string) corev1.ResourceQuota {
	hard := resource.MustParse(free)
	hard.Add(resource.MustParse("3Gi"))
	return corev1.ResourceQuota{Status: corev1.ResourceQuotaStatus{
		Hard: corev1.ResourceList{name: hard}, Used: corev1.ResourceList{name: resource.MustParse("3Gi")},
	}}
}

func limited(kind corev1.LimitType) corev1.LimitRange {
	return corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: kind, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Ti")},
	}}}}
}
