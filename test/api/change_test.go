package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// running lets the operator's part of the status say how many workers run.
func running(ctx context.Context, object *unstructured.Unstructured, workers int64) {
	GinkgoHelper()
	set(object, workers, "status", "workers", "running")
	Expect(cluster.Status().Update(ctx, object)).To(Succeed())
}

var _ = Describe("A TrainingJob that is there", func() {
	// Each entry changes one field to another legal value.
	frozen := []TableEntry{
		Entry("min", "spec.workers.min cannot change while the job may have workers: set spec.suspend",
			field(int64(3), "spec.workers.min")),
		Entry("sizes", "spec.workers.sizes cannot change", field([]any{int64(2), int64(4)}, "spec.workers.sizes")),
		Entry("processesPerWorker", "spec.workers.processesPerWorker cannot change",
			field(int64(2), "spec.workers.processesPerWorker")),
		Entry("launch", "spec.workers.launch cannot change", field("PerWorker", "spec.workers.launch")),
		Entry("container", "spec.workers.container cannot change", field("main", "spec.workers.container")),
		Entry("the template", "spec.workers.template cannot change", pod([]any{container("main", "other")}, "containers")),
		Entry("a label of the template", "spec.workers.template cannot change",
			field(map[string]any{"a": "b"}, "spec.workers.template.metadata.labels")),
		Entry("the scheduler's name", "spec.gang cannot change", field("other", "spec.gang.schedulerName")),
		Entry("the strategy", "spec.resize cannot change", field("Restart", "spec.resize.strategy")),
		Entry("the checkpoint's signal", "spec.resize cannot change", field("SIGUSR1", "spec.resize.checkpointSignal")),
		Entry("the memory volume", "spec.checkpoint.memory cannot change", field("1Gi", "spec.checkpoint.memory")),
		Entry("the storage", "spec.checkpoint.storage cannot change", field(map[string]any{"url": "s3://bucket"}, "spec.checkpoint.storage")),
		Entry("what it begins with", "spec.checkpoint.restoreFrom cannot change",
			field(map[string]any{"storage": map[string]any{"url": "s3://bucket"}, "restoreFrom": "team/llama"}, "spec.checkpoint")),
		Entry("the start's timeout", "spec.gang cannot change", field("1m", "spec.gang.startTimeout")),
	}

	DescribeTable("keeps while it is not suspended",
		func(ctx context.Context, words string, change change) {
			object := job()
			create(ctx, object)
			change(object)
			expectRefusal(cluster.Update(ctx, object), words)
		}, frozen)

	DescribeTable("keeps while it is suspended and still has workers",
		func(ctx context.Context, words string, change change) {
			object := job()
			set(object, true, "spec", "suspend")
			create(ctx, object)
			running(ctx, object, 1)
			change(object)
			expectRefusal(cluster.Update(ctx, object), words)
		}, frozen)

	DescribeTable("keeps in the update that suspends it",
		func(ctx context.Context, words string, change change) {
			object := job()
			create(ctx, object)
			set(object, true, "spec", "suspend")
			change(object)
			expectRefusal(cluster.Update(ctx, object), words)
		}, frozen)

	DescribeTable("lets change once it is suspended and has no workers",
		func(ctx context.Context, _ string, change change) {
			object := job()
			set(object, true, "spec", "suspend")
			create(ctx, object)
			change(object)
			Expect(cluster.Update(ctx, object)).To(Succeed(), "before the operator has seen it")

			running(ctx, object, 0)
			set(object, int64(3), "spec", "workers", "min")
			set(object, nil, "spec", "workers", "sizes")
			set(object, false, "spec", "suspend")
			Expect(cluster.Update(ctx, object)).To(Succeed(), "in the update that resumes it")
		}, frozen)

	DescribeTable("lets change at any time",
		func(ctx context.Context, change change) {
			object := job()
			create(ctx, object)
			running(ctx, object, 2)
			change(object)
			Expect(cluster.Update(ctx, object)).To(Succeed())
		},
		Entry("max", field(int64(9), "spec.workers.max")),
		Entry("spares", field(int64(1), "spec.workers.spares")),
		Entry("suspend", field(true, "spec.suspend")),
		Entry("activeDeadline", field("2h", "spec.activeDeadline")),
		Entry("ttlAfterFinished", field("2h", "spec.ttlAfterFinished")),
		Entry("maxRestarts", field(int64(1), "spec.failure.maxRestarts")),
		Entry("heartbeatTimeout", field("20s", "spec.failure.heartbeatTimeout")),
		Entry("regroupTimeout", field("20s", "spec.failure.regroupTimeout")),
		Entry("hangTimeout", field("20s", "spec.failure.hangTimeout")),
		Entry("maxBackOff", field("1h", "spec.failure.maxBackOff")),
		Entry("memoryInterval", field("20s", "spec.checkpoint.memoryInterval")),
		Entry("the checkpoint's timeout", field("20s", "spec.checkpoint.timeout")),
		Entry("the checkpoints' interval", field("20s", "spec.checkpoint.interval")),
		Entry("how many checkpoints are kept", field(int64(9), "spec.checkpoint.keep")),
		Entry("stabilization", field("20s", "spec.growth.stabilization")),
		Entry("the growth's policy", field("Off", "spec.growth.policy")),
		Entry("what may be taken", field("Evict", "spec.preemption.policy")),
		Entry("the growth's priority", field("low", "spec.growth.priorityClassName")),
		Entry("who chooses the memory volume, said aloud", field("auto", "spec.checkpoint.memory")),
		Entry("how a duration is written", field("10m0s", "spec.gang.startTimeout")),
	)

	It("lets the operator choose the memory volume at any time, and takes it back only when it has no workers", func(ctx context.Context) {
		object := job()
		set(object, "512Mi", "spec", "checkpoint", "memory")
		create(ctx, object)
		running(ctx, object, 2)
		set(object, int64(512<<20), "spec", "checkpoint", "memory")
		Expect(cluster.Update(ctx, object)).To(Succeed(), "the same in another way")
		for _, chosen := range []any{"1Gi", int64(1 << 30)} {
			other := object.DeepCopy()
			set(other, chosen, "spec", "checkpoint", "memory")
			expectRefusal(cluster.Update(ctx, other), "spec.checkpoint.memory cannot change to another quantity")
		}
		set(object, "auto", "spec", "checkpoint", "memory")
		Expect(cluster.Update(ctx, object)).To(Succeed())
		for _, chosen := range []any{"512Mi", int64(1 << 30)} {
			other := object.DeepCopy()
			set(other, chosen, "spec", "checkpoint", "memory")
			expectRefusal(cluster.Update(ctx, other), "spec.checkpoint.memory cannot change to another quantity")
		}
		set(object, nil, "spec", "checkpoint", "memory")
		Expect(cluster.Update(ctx, object)).To(Succeed(), "nothing means auto")
	})

	It("has the size of its state for good", func(ctx context.Context) {
		object := job()
		create(ctx, object)
		set(object, map[string]any{"state": int64(1 << 40), "own": int64(0), "shards": int64(1 << 39), "written": int64(1 << 30)}, "status", "checkpoint", "size")
		Expect(cluster.Status().Update(ctx, object)).To(Succeed())
		var found v1alpha1.TrainingJob
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &found)).To(Succeed())
		Expect(found.Status.Checkpoint.Size).To(Equal(v1alpha1.StateSize{
			State: ptr.To[int64](1 << 40), Own: ptr.To[int64](0), Shards: ptr.To[int64](1 << 39), Written: ptr.To[int64](1 << 30)}))
	})

	It("compares large templates within the cost budget", func(ctx context.Context) {
		object := job()
		var containers []any
		for i := range 20 {
			c := container(fmt.Sprintf("c%d", i), "cat")
			var env []any
			for j := range 300 {
				env = append(env, map[string]any{"name": fmt.Sprintf("VARIABLE_%d", j), "value": strings.Repeat("x", 50)})
			}
			c["env"] = env
			containers = append(containers, c)
		}
		pod(containers, "containers")(object)
		field("c0", "spec.workers.container")(object)
		create(ctx, object)
		set(object, int64(9), "spec", "workers", "max")
		Expect(cluster.Update(ctx, object)).To(Succeed())
		field("c1", "spec.workers.container")(object)
		expectRefusal(cluster.Update(ctx, object), "spec.workers.container cannot change")
	})

	It("refuses a max below min and says how to stop all workers", func(ctx context.Context) {
		object := job()
		create(ctx, object)
		set(object, int64(1), "spec", "workers", "max")
		expectRefusal(cluster.Update(ctx, object), "to release all workers set spec.suspend")
	})

	It("keeps the file that says that a checkpoint is complete", func(ctx context.Context) {
		object := job()
		set(object, "Restart", "spec", "resize", "strategy")
		create(ctx, object)
		set(object, "**/.metadata", "spec", "resize", "completeWhen")
		expectRefusal(cluster.Update(ctx, object), "spec.resize cannot change")
	})

	DescribeTable("never changes its manager, suspended or not",
		func(ctx context.Context, before, after any) {
			object := job()
			set(object, true, "spec", "suspend")
			set(object, before, "spec", "managedBy")
			create(ctx, object)
			set(object, after, "spec", "managedBy")
			expectRefusal(cluster.Update(ctx, object), "spec.managedBy cannot change: delete the job and create it anew")
		},
		Entry("to another", "training.concertina.dev/operator", "example.com/queue"),
		Entry("from none", nil, "example.com/queue"),
		Entry("to none", "example.com/queue", nil),
	)
})

var _ = Describe("status.world", func() {
	world := func(term, round int64) map[string]any {
		return map[string]any{"term": term, "round": round, "workers": int64(2), "processes": int64(2)}
	}
	var object *unstructured.Unstructured
	BeforeEach(func(ctx context.Context) {
		object = job()
		create(ctx, object)
		set(object, world(3, 7), "status", "world")
		Expect(cluster.Status().Update(ctx, object)).To(Succeed())
	})

	DescribeTable("never goes back",
		func(ctx context.Context, words string, term, round int64) {
			set(object, world(term, round), "status", "world")
			expectRefusal(cluster.Status().Update(ctx, object), words)
		},
		Entry("in term", "status.world.term never decreases", int64(2), int64(7)),
		Entry("in term, even for a higher round", "status.world.term never decreases", int64(2), int64(8)),
		Entry("in round", "status.world.round never decreases", int64(3), int64(6)),
		Entry("in round, even for a higher term", "status.world.round never decreases", int64(4), int64(6)),
	)

	DescribeTable("goes on",
		func(ctx context.Context, term, round int64) {
			set(object, world(term, round), "status", "world")
			Expect(cluster.Status().Update(ctx, object)).To(Succeed())
		},
		Entry("in term", int64(4), int64(7)),
		Entry("in round", int64(3), int64(8)),
		Entry("in neither", int64(3), int64(7)),
	)

	It("says why it was made", func(ctx context.Context) {
		next := world(3, 8)
		next["reason"], next["from"] = "WorkerLost", int64(3)
		set(object, next, "status", "world")
		Expect(cluster.Status().Update(ctx, object)).To(Succeed())
		reason, _, err := unstructured.NestedString(object.Object, "status", "world", "reason")
		Expect(err).NotTo(HaveOccurred())
		Expect(reason).To(Equal("WorkerLost"))
	})

	It("is never removed", func(ctx context.Context) {
		set(object, nil, "status", "world")
		expectRefusal(cluster.Status().Update(ctx, object), "status.world is never removed")
	})

	It("is never removed with the whole status", func(ctx context.Context) {
		set(object, nil, "status")
		expectRefusal(cluster.Status().Update(ctx, object), "status.world is never removed")
	})

	It("has a term from the start", func(ctx context.Context) {
		fresh := job()
		create(ctx, fresh)
		set(fresh, map[string]any{"round": int64(1)}, "status", "world")
		expectRefusal(cluster.Status().Update(ctx, fresh), "status.world.term: Required value")
	})
})

var _ = Describe("status.resizes", func() {
	resize := func(round int64) map[string]any {
		return map[string]any{"round": round, "from": int64(2), "to": int64(3), "reason": "CapacityAvailable",
			"message": "room for one more", "pause": "180ms", "stepsLost": int64(0), "at": "2026-01-01T00:00:00Z"}
	}

	It("holds sixteen changes and no more, and each round once", func(ctx context.Context) {
		object := job()
		create(ctx, object)
		var all []any
		for round := range int64(16) {
			all = append(all, resize(round+1))
		}
		set(object, all, "status", "resizes")
		Expect(cluster.Status().Update(ctx, object)).To(Succeed())

		set(object, append(all, resize(17)), "status", "resizes")
		expectRefusal(cluster.Status().Update(ctx, object), "status.resizes: Too many: 17: must have at most 16 items")
		set(object, []any{resize(4), resize(4)}, "status", "resizes")
		expectRefusal(cluster.Status().Update(ctx, object), "status.resizes[1]: Duplicate value")
	})

	It("comes back as a typed client wrote it", func(ctx context.Context) {
		object := job()
		create(ctx, object)
		var typed v1alpha1.TrainingJob
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &typed)).To(Succeed())
		at := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Local())
		want := v1alpha1.Resize{Round: ptr.To[int64](4), From: ptr.To[int32](4), To: ptr.To[int32](6), Reason: "CapacityAvailable",
			Pause: &metav1.Duration{Duration: 180 * time.Millisecond}, StepsLost: ptr.To[int64](0), At: &at}
		typed.Status.Resizes = []v1alpha1.Resize{want}
		typed.Status.Progress.Goodput = "0.993"
		Expect(cluster.Status().Update(ctx, &typed)).To(Succeed())
		Expect(typed.Status.Resizes).To(Equal([]v1alpha1.Resize{want}))
		Expect(typed.Status.Progress.Goodput).To(Equal("0.993"))
	})
})
