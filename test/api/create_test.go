package api

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

type change func(*unstructured.Unstructured)

// field returns the change of one field; a nil value removes it.
func field(value any, path string) change {
	return func(object *unstructured.Unstructured) { set(object, value, strings.Split(path, ".")...) }
}

// pod returns the change of one field of the pod template.
func pod(value any, path string) change { return field(value, "spec.workers.template.spec."+path) }

func container(name string, command ...any) map[string]any {
	c := map[string]any{"name": name, "image": "digits"}
	if len(command) > 0 {
		c["command"] = command
	}
	return c
}

var _ = Describe("A new TrainingJob", func() {
	DescribeTable("is refused with the field and the remedy",
		func(ctx context.Context, words string, changes ...change) {
			object := job()
			for _, change := range changes {
				change(object)
			}
			expectRefusal(cluster.Create(ctx, object), words)

			var left v1alpha1.TrainingJobList
			Expect(cluster.List(ctx, &left, client.InNamespace("default"))).To(Succeed())
			Expect(left.Items).To(BeEmpty())
		},
		Entry("min above max", "spec.workers.max is below spec.workers.min: raise max or lower min",
			field(int64(5), "spec.workers.min")),
		Entry("min 0", "spec.workers.min in body should be greater than or equal to 1",
			field(int64(0), "spec.workers.min")),
		Entry("no min", "spec.workers.min: Required value", field(nil, "spec.workers.min")),
		Entry("no max", "spec.workers.max: Required value", field(nil, "spec.workers.max")),
		Entry("no template", "spec.workers.template: Required value", field(nil, "spec.workers.template")),
		Entry("a template without a pod", "spec.workers.template.spec is missing: give the pod that trains",
			field(map[string]any{}, "spec.workers.template")),
		Entry("sizes without min", "spec.workers.sizes does not contain spec.workers.min: add min to sizes",
			field([]any{int64(3), int64(4)}, "spec.workers.sizes")),
		Entry("no sizes in sizes", "spec.workers.sizes in body should have at least 1 items",
			field([]any{}, "spec.workers.sizes")),
		Entry("the same size twice", "Duplicate value: 2",
			field([]any{int64(2), int64(2)}, "spec.workers.sizes")),
		Entry("no processes", "spec.workers.processesPerWorker in body should be greater than or equal to 1",
			field(int64(0), "spec.workers.processesPerWorker")),
		Entry("an unknown launch", `supported values: "PerProcess", "PerWorker"`, field("Once", "spec.workers.launch")),
		Entry("an unknown preemption policy", `supported values: "Shrink", "Evict", "Never"`, field("Maybe", "spec.preemption.policy")),
		Entry("an unknown growth policy", `supported values: "Auto", "Off"`, field("Never", "spec.growth.policy")),
		Entry("an unknown gang scheduler", `supported values: "Coscheduling"`, field("Volcano", "spec.gang.scheduler")),

		Entry("no containers", "spec.workers.template.spec.containers is empty: give the container that trains",
			pod([]any{}, "containers")),
		Entry("no command", "the training container in spec.workers.template has no command: set command",
			pod([]any{container("main")}, "containers")),
		Entry("no command in the trainer", "the training container in spec.workers.template has no command",
			pod([]any{container("logs", "cat"), container("trainer")}, "containers")),
		Entry("no command in the named container", "the training container in spec.workers.template has no command",
			pod([]any{container("logs", "cat"), container("net")}, "containers"), field("net", "spec.workers.container")),
		Entry("two containers, none of them the trainer",
			"spec.workers.template has several containers and none is named trainer: say in spec.workers.container which one trains",
			pod([]any{container("a", "cat"), container("b", "cat")}, "containers")),
		Entry("a container that is not there", "spec.workers.container names no container of spec.workers.template",
			field("trainer", "spec.workers.container")),
		Entry("restartPolicy Always", "spec.workers.template.spec.restartPolicy must be Never or left out",
			pod("Always", "restartPolicy")),
		Entry("hostNetwork", "spec.workers.template.spec.hostNetwork must be false or left out", pod(true, "hostNetwork")),
		Entry("a volume name of the agent", "uses a name that starts with concertina-, which the agent needs: rename that volume",
			pod([]any{map[string]any{"name": "concertina-agent", "emptyDir": map[string]any{}}}, "volumes")),
		Entry("a container name of the agent", "has a container whose name starts with concertina-, which the agent needs",
			pod([]any{container("concertina-main", "cat")}, "containers")),
		Entry("an init container name of the agent", "has a container whose name starts with concertina-, which the agent needs",
			pod([]any{container("concertina-init", "cat")}, "initContainers")),

		Entry("a name of 49 letters", "metadata.name is longer than 48 characters",
			field(strings.Repeat("a", 49), "metadata.name")),
		Entry("a name with a dot", "metadata.name must be a DNS label", field("digits.v2", "metadata.name")),

		Entry("a heartbeat below a second", "spec.failure.heartbeatTimeout must be a duration such as 90s, 15m or 24h, from 1s to 1h",
			field("500ms", "spec.failure.heartbeatTimeout")),
		Entry("a heartbeat beyond an hour", "spec.failure.heartbeatTimeout must be a duration",
			field("1h1s", "spec.failure.heartbeatTimeout")),
		Entry("a start beyond a week", "spec.gang.startTimeout must be a duration such as 90s, 15m or 24h, from 1s to 168h",
			field("169h", "spec.gang.startTimeout")),
		Entry("a deadline of nothing", "spec.activeDeadline must be a duration such as 90s, 15m or 24h, from 1s to 8760h",
			field("0s", "spec.activeDeadline")),
		Entry("a deadline in words", "spec.activeDeadline must be a duration", field("3 days", "spec.activeDeadline")),
		Entry("a deadline that no clock holds", "spec.activeDeadline", field("99999999999999h", "spec.activeDeadline")),
		Entry("a negative ttl", "spec.ttlAfterFinished must be a duration such as 90s, 15m or 24h, from 0s to 8760h",
			field("-1s", "spec.ttlAfterFinished")),
		Entry("in place with a launcher",
			"spec.resize.strategy is InPlace, but with spec.workers.launch PerWorker a launcher such as torchrun starts the processes, and cannot take them into another world: set strategy to Restart",
			field("PerWorker", "spec.workers.launch"), field("InPlace", "spec.resize.strategy")),
		Entry("an unknown strategy", `supported values: "InPlace", "Restart"`, field("Rolling", "spec.resize.strategy")),
		Entry("a signal that no program can handle", `supported values: "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM"`,
			field("SIGKILL", "spec.resize.checkpointSignal")),
		Entry("a file to wait for in place", "spec.resize.completeWhen means nothing with strategy InPlace, where the SDK writes snapshots: set spec.resize.strategy to Restart",
			field("**/.metadata", "spec.resize.completeWhen")),
		Entry("no file to wait for", "spec.resize.completeWhen in body should be at least 1 chars long",
			field("Restart", "spec.resize.strategy"), field("", "spec.resize.completeWhen")),
		Entry("a volume that holds nothing", "spec.checkpoint.memory must be auto or a quantity of bytes such as 512Mi or 4Gi, from 1Mi to 16Ti",
			field("0", "spec.checkpoint.memory")),
		Entry("a volume as a small number", "spec.checkpoint.memory must be auto or a quantity of bytes", field(int64(512), "spec.checkpoint.memory")),
		Entry("a volume beyond any node", "spec.checkpoint.memory must be auto or a quantity of bytes", field("17Ti", "spec.checkpoint.memory")),
		Entry("a volume below nothing", "spec.checkpoint.memory must be auto or a quantity of bytes", field("-1Gi", "spec.checkpoint.memory")),
		Entry("a volume in words", "spec.checkpoint.memory", field("4 GB", "spec.checkpoint.memory")),
		Entry("a volume that chooses itself in other words", "spec.checkpoint.memory must be auto or a quantity of bytes", field("Auto", "spec.checkpoint.memory")),
		Entry("a volume in very many digits", "spec.checkpoint.memory must be auto or a quantity of bytes",
			field(strings.Repeat("0", 40)+"512Mi", "spec.checkpoint.memory")),
		Entry("an interval below a second", "spec.checkpoint.memoryInterval must be auto or a duration such as 90s, 15m or 24h, from 1s to 24h",
			field("999ms", "spec.checkpoint.memoryInterval")),
		Entry("an interval in words", "spec.checkpoint.memoryInterval must be auto or a duration", field("often", "spec.checkpoint.memoryInterval")),
		Entry("a barrier below a second", "spec.checkpoint.timeout must be a duration such as 90s, 15m or 1h, from 1s to 1h",
			field("0s", "spec.checkpoint.timeout")),
		Entry("a barrier beyond an hour", "spec.checkpoint.timeout must be a duration", field("61m", "spec.checkpoint.timeout")),
		Entry("a storage of another kind", "spec.checkpoint.storage.url must begin with s3://, gs://, azblob:// or file:///",
			field("ftp://host/folder", "spec.checkpoint.storage.url")),
		Entry("a storage on a host", "spec.checkpoint.storage.url must begin with", field("file://host/folder", "spec.checkpoint.storage.url")),
		Entry("a checkpoint outside of the storage", "spec.checkpoint.restoreFrom must be a path such as NAMESPACE/NAME, without ..",
			field("s3://bucket", "spec.checkpoint.storage.url"), field("team/../other", "spec.checkpoint.restoreFrom")),
		Entry("a checkpoint without a storage", "spec.checkpoint.restoreFrom needs spec.checkpoint.storage",
			field("team/llama", "spec.checkpoint.restoreFrom")),
		Entry("a storage for programs that are started anew", "spec.checkpoint.storage means nothing with strategy Restart",
			field("Restart", "spec.resize.strategy"), field("s3://bucket", "spec.checkpoint.storage.url")),
		Entry("a storage for programs that a launcher starts", "or, with launch PerProcess and a program with the SDK's loop, set",
			field("PerWorker", "spec.workers.launch"), field("s3://bucket", "spec.checkpoint.storage.url")),
		Entry("the best by nothing", "spec.checkpoint.storage.best.metric", field("s3://bucket", "spec.checkpoint.storage.url"),
			field(map[string]any{"order": "Maximize"}, "spec.checkpoint.storage.best")),
		Entry("the best by a path", "spec.checkpoint.storage.best.metric must be the name of a metric", field("s3://bucket", "spec.checkpoint.storage.url"),
			field(map[string]any{"metric": "a/b", "order": "Maximize"}, "spec.checkpoint.storage.best")),
		Entry("the best in no order", "spec.checkpoint.storage.best.order", field("s3://bucket", "spec.checkpoint.storage.url"),
			field(map[string]any{"metric": "accuracy"}, "spec.checkpoint.storage.best")),
		Entry("the best in another order", `supported values: "Maximize", "Minimize"`, field("s3://bucket", "spec.checkpoint.storage.url"),
			field(map[string]any{"metric": "accuracy", "order": "max"}, "spec.checkpoint.storage.best")),
		Entry("none of the best", "spec.checkpoint.storage.best.keep", field("s3://bucket", "spec.checkpoint.storage.url"),
			field(map[string]any{"metric": "accuracy", "order": "Maximize", "keep": int64(0)}, "spec.checkpoint.storage.best")),
		Entry("checkpoints all the time", "spec.checkpoint.interval must be a duration such as 90s, 15m or 1h, from 10s to 24h",
			field("1s", "spec.checkpoint.interval")),
		Entry("no checkpoint at all", "spec.checkpoint.keep in body should be greater than or equal to 1", field(int64(0), "spec.checkpoint.keep")),
		Entry("a growth window of nothing", "spec.growth.stabilization must be a duration such as 90s, 15m or 1h, from 1s to 1h",
			field("0s", "spec.growth.stabilization")),
		Entry("an empty priority class", "spec.growth.priorityClassName in body should be at least 1 chars long",
			field("", "spec.growth.priorityClassName")),
		Entry("a regroup below a second", "spec.failure.regroupTimeout must be a duration such as 90s, 15m or 24h, from 1s to 24h",
			field("10ms", "spec.failure.regroupTimeout")),
		Entry("a hang below ten seconds", "spec.failure.hangTimeout must be a duration such as 90s, 15m or 24h, from 10s to 24h",
			field("9s", "spec.failure.hangTimeout")),
		Entry("a back-off below a second", "spec.failure.maxBackOff must be a duration such as 90s, 15m or 24h, from 1s to 1h",
			field("500ms", "spec.failure.maxBackOff")),
		Entry("a back-off beyond an hour", "spec.failure.maxBackOff must be a duration", field("61m", "spec.failure.maxBackOff")),
		Entry("a hang beyond a day", "spec.failure.hangTimeout must be a duration", field("25h", "spec.failure.hangTimeout")),
		Entry("max 0", "spec.workers.max is below spec.workers.min: raise max or lower min; to release all workers set spec.suspend",
			field(int64(0), "spec.workers.max")),
		Entry("spares below none", "spec.workers.spares in body should be greater than or equal to 0",
			field(int64(-1), "spec.workers.spares")),
		Entry("spares beyond the largest job", "spec.workers.max and spec.workers.spares are more than 10000 together",
			field(int64(10000), "spec.workers.max"), field(int64(1), "spec.workers.spares")),
		Entry("restarts below none", "spec.failure.maxRestarts in body should be greater than or equal to 0",
			field(int64(-1), "spec.failure.maxRestarts")),
	)

	DescribeTable("is accepted",
		func(ctx context.Context, changes ...change) {
			object := job()
			for _, change := range changes {
				change(object)
			}
			create(ctx, object)
		},
		Entry("with one container of any name"),
		Entry("with a name of 48 letters", field(strings.Repeat("a", 48), "metadata.name")),
		Entry("with spares", field(int64(2), "spec.workers.spares")),
		Entry("with the most spares that there may be", field(int64(9900), "spec.workers.max"), field(int64(100), "spec.workers.spares")),
		Entry("with sizes beyond max", field([]any{int64(8), int64(2)}, "spec.workers.sizes")),
		Entry("with a trainer beside a container without a command",
			pod([]any{container("logs"), container("trainer", "cat")}, "containers")),
		Entry("with the training container named",
			pod([]any{container("trainer"), container("net", "cat")}, "containers"), field("net", "spec.workers.container")),
		Entry("with restartPolicy Never", pod("Never", "restartPolicy")),
		Entry("with a ttl of nothing", field("0s", "spec.ttlAfterFinished")),
		Entry("with restarts of a launcher", field("PerWorker", "spec.workers.launch"), field("Restart", "spec.resize.strategy")),
		Entry("with a file that a launcher's program writes", field("PerWorker", "spec.workers.launch"),
			field("**/.metadata", "spec.resize.completeWhen")),
		Entry("with restarts of a program without SDK", field("Restart", "spec.resize.strategy"),
			field("**/.metadata", "spec.resize.completeWhen"), field("SIGTERM", "spec.resize.checkpointSignal")),
		Entry("with a memory volume in bytes", field(int64(1<<30), "spec.checkpoint.memory")),
		Entry("with a memory volume that the operator chooses", field("auto", "spec.checkpoint.memory")),
		Entry("with the smallest memory volume", field("1Mi", "spec.checkpoint.memory")),
		Entry("with snapshots every second", field("1s", "spec.checkpoint.memoryInterval")),
		Entry("with a deadline in parts", field("1h30m0.5s", "spec.activeDeadline")),
	)

	DescribeTable("is accepted as in config/samples",
		func(ctx context.Context, file string) {
			content, err := os.ReadFile(filepath.Join(root, "config", "samples", file))
			Expect(err).NotTo(HaveOccurred())
			object := &unstructured.Unstructured{}
			Expect(yaml.UnmarshalStrict(content, &object.Object)).To(Succeed())
			object.SetNamespace("default")
			create(ctx, object)
		},
		Entry("with the SDK", "training_v1alpha1_trainingjob.yaml"),
		Entry("with torchrun", "training_v1alpha1_trainingjob_torchrun.yaml"),
	)

	It("gets the defaults that the documentation names", func(ctx context.Context) {
		object := job()
		create(ctx, object)
		var got v1alpha1.TrainingJob
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &got)).To(Succeed())

		Expect(got.Spec.Workers.ProcessesPerWorker).To(HaveValue(BeEquivalentTo(1)))
		Expect(got.Spec.Workers.Launch).To(Equal(v1alpha1.LaunchPerProcess))
		Expect(got.Spec.Gang.Scheduler).To(Equal(v1alpha1.GangSchedulerCoscheduling))
		Expect(got.Spec.Gang.SchedulerName).To(Equal("coscheduling"))
		Expect(got.Spec.Gang.StartTimeout.Duration).To(Equal(10 * time.Minute))
		Expect(got.Spec.Failure.MaxRestarts).To(HaveValue(BeEquivalentTo(10)))
		Expect(got.Spec.Failure.HeartbeatTimeout.Duration).To(Equal(5 * time.Second))
		Expect(got.Spec.Failure.RegroupTimeout.Duration).To(Equal(2 * time.Minute))
		Expect(got.Spec.Failure.HangTimeout.Duration).To(Equal(10 * time.Minute))
		Expect(got.Spec.Resize.Strategy).To(BeEmpty(), "it follows from launch")
		Expect(got.Spec.Strategy()).To(Equal(v1alpha1.ResizeInPlace))
		Expect(got.Spec.Resize.CheckpointSignal).To(Equal(v1alpha1.DefaultCheckpointSignal))
		Expect(got.Spec.Resize.CompleteWhen).To(BeEmpty())
		Expect(got.Spec.Checkpoint.Memory).To(BeEmpty(), "which means auto: operators of before can read it")
		Expect(got.Spec.Checkpoint.MemoryInterval).To(Equal(v1alpha1.MemoryIntervalAuto))
		Expect(got.Spec.Checkpoint.Timeout.Duration).To(Equal(time.Minute))
		Expect(got.Spec.Growth.Stabilization.Duration).To(Equal(30 * time.Second))
		Expect(got.Spec.Growth.Policy).To(Equal(v1alpha1.GrowthAuto))
		Expect(got.Spec.Preemption.Policy).To(Equal(v1alpha1.PreemptionShrink))
		Expect(got.Spec.Growth.PriorityClassName).To(Equal("concertina-growth"))
		Expect(got.Spec.Suspend).To(HaveValue(BeFalse()))
		Expect(got.Spec.ActiveDeadline).To(BeNil())
		Expect(got.Spec.TTLAfterFinished).To(BeNil())
		Expect(got.Spec.ManagedBy).To(BeEmpty())
	})

	It("keeps labels and annotations of the template", func(ctx context.Context) {
		object := job()
		field(map[string]any{"team": "vision"}, "spec.workers.template.metadata.labels")(object)
		field(map[string]any{"note": "nightly"}, "spec.workers.template.metadata.annotations")(object)
		create(ctx, object)
		var got v1alpha1.TrainingJob
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &got)).To(Succeed())
		Expect(got.Spec.Workers.Template.Labels).To(HaveKeyWithValue("team", "vision"))
		Expect(got.Spec.Workers.Template.Annotations).To(HaveKeyWithValue("note", "nightly"))
	})

	It("comes back as it was when a typed client writes it", func(ctx context.Context) {
		typed := &v1alpha1.TrainingJob{}
		typed.Namespace, typed.GenerateName = "default", "typed-"
		typed.Spec.Workers.Min, typed.Spec.Workers.Max = ptr.To[int32](2), ptr.To[int32](2)
		typed.Spec.Workers.Template.Spec.Containers = []corev1.Container{{
			Name: "trainer", Image: "digits", Command: []string{"train"},
			Ports: []corev1.ContainerPort{{ContainerPort: 80}},
		}}
		Expect(cluster.Create(ctx, typed)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(cluster.Delete(ctx, typed)).To(Succeed()) })
		Expect(typed.Spec.Workers.Template.Spec.Containers[0].Command).To(Equal([]string{"train"}))
		Expect(typed.Status).To(Equal(v1alpha1.TrainingJobStatus{}))
	})
})
