package api

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
		Entry("suspend", field(true, "spec.suspend")),
		Entry("activeDeadline", field("2h", "spec.activeDeadline")),
		Entry("ttlAfterFinished", field("2h", "spec.ttlAfterFinished")),
		Entry("maxRestarts", field(int64(1), "spec.failure.maxRestarts")),
		Entry("heartbeatTimeout", field("20s", "spec.failure.heartbeatTimeout")),
		Entry("how a duration is written", field("10m0s", "spec.gang.startTimeout")),
	)

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
