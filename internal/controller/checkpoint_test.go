package controller

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func withStorage(job *v1alpha1.TrainingJob) {
	job.Spec.Checkpoint.Storage = &v1alpha1.StorageSpec{URL: "s3://bucket/jobs", SecretName: "s3"}
	job.Spec.Checkpoint.Interval = &metav1.Duration{Duration: 5 * time.Minute}
	job.Spec.Checkpoint.Keep = ptr.To[int32](3)
	if job.Spec.Checkpoint.Memory == "" {
		job.Spec.Checkpoint.Memory = "64Mi"
	}
}

// The storage's credentials are in the uploader's container alone.
func TestTheUploaderAloneHasTheCredentials(t *testing.T) {
	job := jobWith(running)
	withStorage(job)
	pod := newPod(job, settings, 3, 0)
	beside := pod.Spec.InitContainers[1]
	if beside.Name != uploaderName || value(beside.RestartPolicy) != corev1.ContainerRestartPolicyAlways ||
		len(beside.EnvFrom) != 1 || beside.EnvFrom[0].SecretRef.Name != "s3" {
		t.Fatalf("the container beside the trainer is %+v", beside)
	}
	for _, container := range append(pod.Spec.Containers, pod.Spec.InitContainers[0]) {
		if len(container.EnvFrom) > 0 {
			t.Errorf("%s has %v", container.Name, container.EnvFrom)
		}
		for _, mount := range container.VolumeMounts {
			if mount.Name == credentialVolume {
				t.Errorf("%s mounts the credentials", container.Name)
			}
		}
	}
	job.Spec.Resize.Strategy = v1alpha1.ResizeRestart
	if n := len(newPod(job, settings, 3, 0).Spec.InitContainers); n != 1 {
		t.Errorf("a job whose programs keep checkpoints of their own has %d init containers", n)
	}
}

// A folder of checkpoints lies on a volume of the trainer, which the uploader mounts as well.
func TestTheUploaderMountsTheVolumeOfAFolder(t *testing.T) {
	trainer := &corev1.Container{VolumeMounts: []corev1.VolumeMount{
		{Name: "data", MountPath: "/mnt"}, {Name: "shared", MountPath: "/mnt/shared/"}, {Name: "other", MountPath: "/mnt/share"},
	}}
	for address, want := range map[string]string{
		"file:///mnt/shared/jobs": "shared", "file:///mnt/shared": "shared", "file:///mnt/else": "data", "file:///home": "", "s3://mnt/shared": "",
	} {
		found := ""
		if mount := mountOf(trainer, address); mount != nil {
			found = mount.Name
		}
		if found != want {
			t.Errorf("%s lies on %q, not on %q", address, found, want)
		}
	}
}

// Processes that share a namespace see each other's environment: with the uploader's credentials in it that is refused.
func TestCredentialsAreTheUploadersAlone(t *testing.T) {
	for name, row := range map[string]struct {
		secret string
		shared *bool
		fault  bool
	}{
		"shared, with a Secret":    {"s3", ptr.To(true), true},
		"shared, without a Secret": {"", ptr.To(true), false},
		"a Secret":                 {"s3", nil, false},
		"a Secret, and not shared": {"s3", ptr.To(false), false},
	} {
		job := jobWith(running, withStorage, func(j *v1alpha1.TrainingJob) {
			j.Spec.Checkpoint.Storage.SecretName = row.secret
			j.Spec.Workers.Template.Spec.ShareProcessNamespace = row.shared
		})
		if fault := templateFault(&job.Spec); (fault != "") != row.fault || row.fault && !strings.Contains(fault, "shareProcessNamespace") {
			t.Errorf("%s: %q", name, fault)
		}
	}
}

// A pod keeps its class of service: that of one with processors of its own, too.
func TestTheUploaderKeepsThePodsClass(t *testing.T) {
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	for name, row := range map[string]struct {
		resources  corev1.ResourceRequirements
		guaranteed bool
	}{
		"limits alone":           {corev1.ResourceRequirements{Limits: amounts("4", "8Gi")}, true},
		"requests as limits":     {corev1.ResourceRequirements{Requests: amounts("4", "8Gi"), Limits: amounts("4", "8Gi")}, true},
		"fewer requests":         {corev1.ResourceRequirements{Requests: amounts("1", "8Gi"), Limits: amounts("4", "8Gi")}, false},
		"requests alone":         {corev1.ResourceRequirements{Requests: amounts("4", "8Gi")}, false},
		"a limit of memory only": {corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")}}, false},
	} {
		job := jobWith(running, withStorage, func(j *v1alpha1.TrainingJob) { j.Spec.Workers.Template.Spec.Containers[0].Resources = row.resources })
		beside := newPod(job, settings, 1, 0).Spec.InitContainers[1]
		if got := guaranteed(&beside); got != row.guaranteed {
			t.Errorf("%s: the uploader has %+v", name, beside.Resources)
		}
	}
}

// A folder that no volume holds would die with its pod.
func TestAFolderOnNoVolumeIsRefused(t *testing.T) {
	job := jobWith(running, withStorage, func(j *v1alpha1.TrainingJob) { j.Spec.Checkpoint.Storage.URL = "file:///mnt/jobs" })
	if fault := templateFault(&job.Spec); !strings.Contains(fault, "mounts no volume there") {
		t.Errorf("without a volume: %q", fault)
	}
	spec := &job.Spec.Workers.Template.Spec
	spec.Volumes = []corev1.Volume{{Name: "shared"}}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "shared", MountPath: "/mnt"}}
	if fault := templateFault(&job.Spec); fault != "" {
		t.Errorf("with one: %q", fault)
	}
}

// The workers of a job that is suspended stay until their state is durable, and for a while only.
func TestASuspendedJobIsParkedFirst(t *testing.T) {
	job := trains(2, withStorage, func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(true) })
	state := elasticState(job, crewOf(job)...)
	plan := look(state)
	if plan.Actions.Expect == nil || plan.Actions.Expect.Storage.Park == "" || plan.Actions.Release || len(plan.Actions.Delete) > 0 {
		t.Fatalf("it does %+v", plan.Actions)
	}
	state.World.Durable = rendezvous.Durable{Snapshot: rendezvous.Snapshot{Round: 1, Step: 42}, Path: "team/digits/uid/attempt-1/1-42"}
	parked := *state
	parked.Job = job.DeepCopy()
	parked.World.Parked = true
	for range 2 { // the first look makes the decision durable
		plan = look(&parked)
	}
	if !plan.Actions.Release || value(plan.Status.Checkpoint.Step) != 42 {
		t.Errorf("once it is parked it does %+v, checkpoint %+v", plan.Actions, plan.Status.Checkpoint)
	}
	state.Now = state.Now.Add(value(job.Spec.Checkpoint.Timeout).Duration + uploadLimit)
	plan = look(state)
	if value(plan.Status.Workers.Target) != 0 {
		t.Error("a storage that takes nothing keeps the workers for ever")
	}
	expectNote(t, plan, v1alpha1.EventStorageTrouble, "could not be made durable")
}

// The rendezvous is told how fast workers may upload.
func TestTheRateOfUploadsIsTold(t *testing.T) {
	job := trains(2, withStorage)
	state := elasticState(job, crewOf(job)...)
	state.UploadRate = 1000
	if s := look(state).Actions.Expect.Storage; s.Rate != 1000 {
		t.Errorf("it is told %+v", s)
	}
}

// A job that is evicted for another stops first, as long as a planned change may take and no longer.
func TestAnEvictedJobIsParkedFirst(t *testing.T) {
	job := trains(2, withStorage)
	state := elasticState(job, crewOf(job)...)
	state.Grant.Known, state.Grant.Evict, state.World.Progress.Step = true, "team/big", 1200
	plan := look(state)
	if plan.Actions.Expect == nil || plan.Actions.Expect.Storage.Park == "" || value(plan.Status.Workers.Target) != 2 {
		t.Fatalf("it does %+v", plan.Actions)
	}
	expectNote(t, plan, v1alpha1.EventParking, "team/big has a higher priority", "released once their state is durable")

	parked := *state
	parked.Job = job.DeepCopy()
	parked.World.Parked = true
	parked.World.Durable = rendezvous.Durable{Snapshot: rendezvous.Snapshot{Round: 1, Step: 1201}, Path: "team/digits/uid/attempt-1/1-1201"}
	expectNote(t, look(&parked), v1alpha1.EventEvicted, "it goes on after step 1201, which is in its storage", "queues again")

	state.Now = state.Now.Add(value(job.Spec.Checkpoint.Timeout).Duration)
	plan = look(state)
	expectNote(t, plan, v1alpha1.EventStorageTrouble, "could not be made durable")
	expectNote(t, plan, v1alpha1.EventEvicted, "of 1200")
}

// The fleet is told that nothing is lost with all workers only while that is so.
func TestWhatIsDurable(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*State)
		want   bool
	}{
		"its storage has a checkpoint":         {func(*State) {}, true},
		"nothing is stored yet":                {func(s *State) { s.World.UploadTook = 0 }, false},
		"an upload takes too long":             {func(s *State) { s.World.UploadTook = 31 * time.Second }, false},
		"two are to come":                      {func(s *State) { s.World.UploadTook, s.World.BestWaits = 16*time.Second, true }, false},
		"two are short":                        {func(s *State) { s.World.UploadTook, s.World.BestWaits = 14*time.Second, true }, true},
		"it has no storage":                    {func(s *State) { s.Job.Spec.Checkpoint.Storage = nil }, false},
		"its storage cannot be reached":        {func(s *State) { s.World.Storage = "timeout" }, false},
		"too few are left":                     {func(s *State) { s.World.Phase = rendezvous.PhaseRegrouping }, false},
		"its program restarts for each change": {func(s *State) { s.Job.Spec.Resize.Strategy = v1alpha1.ResizeRestart }, false},
	} {
		job := trains(2, withStorage, func(j *v1alpha1.TrainingJob) { j.Spec.Checkpoint.Timeout = &metav1.Duration{Duration: time.Minute} })
		state := elasticState(job, crewOf(job)...)
		state.World.UploadTook = 10 * time.Second
		row.change(state)
		if got := look(state).Facts.Durable; got != row.want {
			t.Errorf("%s: durable is %v", name, got)
		}
	}
}

// A suspended job whose workers cannot come to a barrier is released at once.
func TestWhatCannotStopIsNotParked(t *testing.T) {
	job := trains(2, withStorage, func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(true) })
	for name, change := range map[string]func(*State){
		"too few are left":        func(s *State) { s.World.Phase = rendezvous.PhaseRegrouping },
		"its pods are gone":       func(s *State) { s.Pods = nil },
		"it cannot go on":         func(s *State) { s.World.Fatal = "no snapshot is left" },
		"no world was formed yet": func(s *State) { s.World.Round = 0 },
		"nobody of it is there":   func(s *State) { s.World.Known = false; s.Pods = nil },
	} {
		state := elasticState(job, crewOf(job)...)
		change(state)
		if plan := look(state); value(plan.Status.Workers.Target) != 0 {
			t.Errorf("%s, and its workers stay: %+v", name, plan.Actions.Expect)
		}
	}
}

// An operator that begins to lead while a job is suspended does not know its world yet: the workers stay until it does, or
// until it has taken too long, and the world is told to stop.
func TestASuspendedJobIsTakenOverBeforeItsWorkersGo(t *testing.T) {
	job := trains(2, withStorage, func(j *v1alpha1.TrainingJob) { j.Spec.Suspend = ptr.To(true) })
	state := elasticState(job, crewOf(job)...)
	state.World.Known = false
	plan := look(state)
	expect := plan.Actions.Expect
	if value(plan.Status.Workers.Target) != 2 || expect == nil || expect.Storage == nil || expect.Storage.Park == "" || len(expect.Members) != 2 {
		t.Fatalf("the workers of a world that is not known yet are not kept, or nobody asks for it: %+v", expect)
	}
	state.Memory.Elastic = plan.Elastic
	state.Now = state.Now.Add(value(job.Spec.Checkpoint.Timeout).Duration + uploadLimit)
	if plan := look(state); value(plan.Status.Workers.Target) != 0 {
		t.Error("workers that nobody hears of stay for ever")
	}
}

// Workers that have all left the world, and are all to go, are not waited for once what they have done is durable.
func TestWorkersThatAllLeaveGoOnceTheirStateIsDurable(t *testing.T) {
	for name, c := range map[string]struct {
		durable uint64
		change  func(*State)
		over    bool
	}{
		"all is durable":           {1200, nil, true},
		"a step is not":            {1199, nil, false},
		"one stays":                {1200, func(s *State) { s.Pods[0].DeletionTimestamp = nil }, false},
		"another is about to come": {1200, func(s *State) { s.Grant.Places, s.Grant.Count = []fleet.Place{{Node: "n9"}}, 3 }, false},
	} {
		job := trains(2, withStorage)
		pods := crewOf(job)
		state := elasticState(job, pods...)
		state.World.Phase, state.World.Progress.Step = rendezvous.PhaseRegrouping, 1200
		state.World.Durable = rendezvous.Durable{Snapshot: rendezvous.Snapshot{Round: 3, Step: c.durable}, Path: "team/digits/uid/attempt-1/3-1200"}
		for _, pod := range pods {
			pod.DeletionTimestamp = ptr.To(metav1.NewTime(state.Now.Add(time.Minute)))
		}
		if c.change != nil {
			c.change(state)
		}
		plan := look(state)
		if over := value(plan.Status.Workers.Target) == 0; over != c.over {
			t.Errorf("%s: %d workers, %v", name, value(plan.Status.Workers.Target), plan.Notes)
		}
		if c.over {
			expectNote(t, plan, v1alpha1.EventGangReleased, "goes on after step 1200")
		}
	}
}

// What an attempt begins with is told once.
func TestWhatWasRestoredIsTold(t *testing.T) {
	job := trains(2, withStorage)
	state := elasticState(job, crewOf(job)...)
	state.World.Restored = "the attempt goes on from step 42: team/digits/uid/attempt-1/1-42"
	expectNote(t, look(state), v1alpha1.EventRestored, "from step 42")
	for _, note := range look(state).Notes {
		if note.Reason == v1alpha1.EventRestored {
			t.Errorf("it is told again: %+v", note)
		}
	}
}

// Snapshots that are on too few nodes are told of when that lasts, once, and not while another one is under way.
func TestMissingCopiesAreTold(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.World.Memory = rendezvous.Memory{Snapshot: rendezvous.Snapshot{Round: 1, Step: 40}, Copies: 1, Asked: 2, Possible: 2}
	state.World.Progress.Step = 41
	told := func(plan Plan) (n int) {
		for _, note := range plan.Notes {
			if note.Reason == v1alpha1.EventCopiesMissing {
				n++
			}
		}
		state.Memory.Elastic = plan.Elastic
		return n
	}
	if plan := look(state); told(plan) != 0 || value(plan.Status.Checkpoint.Memory.Step) != 40 || value(plan.Status.Checkpoint.Memory.Copies) != 1 {
		t.Errorf("at first: %+v, %+v", plan.Notes, plan.Status.Checkpoint.Memory)
	}
	state.Now = state.Now.Add(copiesPatience)
	if n := told(look(state)); n != 1 {
		t.Errorf("after a while it is told %d times", n)
	}
	if n := told(look(state)); n != 0 {
		t.Errorf("it is told again, %d times", n)
	}
	state.World.Memory.Copies = 2
	_ = told(look(state))
	state.World.Memory.Copies = 1
	if n := told(look(state)); n != 0 {
		t.Error("a snapshot that is being written is told of")
	}
	state.World.Memory.Possible = 1
	state.Now = state.Now.Add(copiesPatience)
	if n := told(look(state)); n != 0 {
		t.Error("a world on one node is told of")
	}
	// With the workers the state is gone.
	state.Job.Status.Checkpoint.Memory.Step, state.Job.Spec.Suspend = ptr.To[int64](40), ptr.To(true)
	if plan := look(state); plan.Status.Checkpoint.Memory != (v1alpha1.MemoryStatus{}) {
		t.Errorf("without workers there is %+v", plan.Status.Checkpoint.Memory)
	}
}

// States that differ where they should be the same are told of, once.
func TestStatesThatDifferAreTold(t *testing.T) {
	job := trains(2)
	state := elasticState(job, crewOf(job)...)
	state.World.Differ = "digits-1-0 on n1 against digits-1-1 on n2"
	plan := look(state)
	expectNote(t, plan, v1alpha1.EventReplicasDiffer, "digits-1-0 on n1")
	state.Memory.Elastic = plan.Elastic
	for _, note := range look(state).Notes {
		if note.Reason == v1alpha1.EventReplicasDiffer {
			t.Errorf("it is told again: %+v", note)
		}
	}
}
