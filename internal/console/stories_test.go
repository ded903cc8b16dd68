package console

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// TestStories compares what is written about whole clusters with golden files.
func TestStories(t *testing.T) {
	for name, story := range map[string]struct {
		cluster *cluster
		explain []string
	}{
		"a-queued-gang":              {queuedGang(), []string{"big", "small"}},
		"a-lender":                   {lender(), []string{"lender", "big"}},
		"gangs-on-the-same-nodes":    {sameNodes(), []string{"first", "second", "elsewhere"}},
		"larger-than-the-cluster":    {tooLarge(), []string{"huge"}},
		"at-rest":                    {atRest(), []string{"paused", "done", "failed", "retries"}},
		"a-quota-that-admits-little": {quotaBound(), []string{"grows", "waits"}},
		"bounds-and-policies":        {policies(), []string{"alone", "fixed", "full", "restarts"}},
		"several-devices-a-worker":   {severalDevices(), []string{"wide"}},
		"no-devices":                 {noDevices(), []string{"cpus"}},
		"spares":                     {withSpares(), []string{"keeps", "lacks"}},
		"speeds":                     {speeds(), []string{"scales", "flat", "doubted", "unknown"}},
		"speeds-that-do-not-count":   {speedsThatDoNotCount(), []string{"scales", "flat"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := story.cluster.look(t)
			var text strings.Builder
			plan := l.Plan("")
			if err := plan.Write(&text, true); err != nil {
				t.Fatal(err)
			}
			for _, one := range story.explain {
				text.WriteString("\n---\n" + explained(t, l, one))
			}
			golden(t, name, text.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-golden +now), -update writes it anew:\n%s", path, diff)
	}
}

// queuedGang has nothing to take from a job that is as small as it may be.
func queuedGang() *cluster {
	c := clusterOf(4)
	c.trains(c.add("small", 3, 6, func(job *v1alpha1.TrainingJob) {
		job.Spec.ActiveDeadline = &metav1.Duration{Duration: 90 * time.Minute}
	}), "n0", "n0", "n0")
	c.add("big", 4, 8, important, queued)
	return c
}

// withSpares has jobs with spares, one of which has lost its own.
func withSpares() *cluster {
	c := clusterOf(4, 4)
	c.settings = "sharing: ByValue"
	spares := func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Spares = ptr.To[int32](1) }
	keeps := c.add("keeps", 2, 3, spares)
	c.trains(keeps, "n0", "n0", "n1", "n1")
	made := rendezvous.Record{}
	made.Name([]rendezvous.NamedMember{{Ordinal: 0, Node: "n0"}, {Ordinal: 1, Node: "n0"}, {Ordinal: 2, Node: "n1"}})
	keeps.Status.World.Workers, keeps.Status.World.Members, keeps.Status.World.Nodes = ptr.To[int32](3), made.Members, made.Nodes
	keeps.Status.Workers.Spares = ptr.To[int32](1)
	keeps.Status.Speed.Sizes = []v1alpha1.SizeSpeed{{Workers: ptr.To[int32](3), Nodes: ptr.To[int32](2), StepsPerSecond: "3",
		Steps: ptr.To[int64](1000), At: ago(20 * time.Second)}}
	c.trains(c.add("lacks", 2, 2, spares), "n0", "n1")
	return c
}

// speeds has jobs that make much, little and nobody knows what of their workers, and share by that.
func speeds() *cluster {
	c := clusterOf(4, 4, 2, 2)
	c.settings = "sharing: ByValue"
	size := func(workers, nodes int32, pace string) v1alpha1.SizeSpeed {
		return v1alpha1.SizeSpeed{Workers: &workers, Nodes: &nodes, StepsPerSecond: pace, Steps: ptr.To[int64](1000), At: ago(20 * time.Second)}
	}
	measured := func(job *v1alpha1.TrainingJob, sizes ...v1alpha1.SizeSpeed) {
		job.Status.Speed = v1alpha1.SpeedStatus{Sizes: sizes, FirstTotalSteps: ptr.To[int64](9000)}
	}
	scales := c.add("scales", 2, 8)
	c.trains(scales, "n0", "n0", "n0", "n0")
	measured(scales, size(2, 1, "2"), size(4, 1, "4"))
	scales.Status.Resizes = []v1alpha1.Resize{{Round: ptr.To[int64](2), From: ptr.To[int32](2), To: ptr.To[int32](4), Reason: "CapacityAvailable",
		Pause: &metav1.Duration{Duration: 180 * time.Millisecond}, StepsLost: ptr.To[int64](0), At: ago(20 * time.Minute)}}
	flat := c.add("flat", 1, 8, func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Sizes = []int32{1, 2, 4, 8} })
	c.trains(flat, "n1", "n1", "n1", "n1")
	measured(flat, size(1, 1, "1"), size(2, 1, "1"), size(4, 1, "1"))
	flat.Status.Progress.TotalSteps = nil
	doubted := c.add("doubted", 2, 2)
	c.trains(doubted, "n2", "n2")
	measured(doubted, size(2, 1, "4"))
	doubted.Status.Speed.Doubt = "the program said first that the training has 1000 steps, and after 900 of them that it has 9000"
	c.trains(c.add("unknown", 2, 4), "n3", "n3")
	return c
}

// speedsThatDoNotCount has the same jobs, which share in equal parts.
func speedsThatDoNotCount() *cluster {
	c := speeds()
	c.settings = ""
	return c
}

// sameNodes has two gangs wait for the same nodes, and a third one for others.
func sameNodes() *cluster {
	c := clusterOf(4, 2)
	ends := func(job *v1alpha1.TrainingJob) {
		job.Spec.ActiveDeadline = &metav1.Duration{Duration: 90 * time.Minute}
	}
	on := func(node string) jobChange {
		return func(job *v1alpha1.TrainingJob) {
			job.Spec.Workers.Template.Spec.NodeSelector = map[string]string{"node": node}
		}
	}
	for _, node := range c.Nodes {
		node.Labels = map[string]string{"node": node.Name}
	}
	c.trains(c.add("runs", 3, 3, ends), "n0", "n0", "n0")
	c.trains(c.add("fills", 2, 2), "n1", "n1")
	c.add("first", 4, 4, important, queued, on("n0"))
	c.add("second", 2, 2, queued, on("n0"))
	c.add("elsewhere", 1, 1, queued, on("n1"))
	return c
}

// lender gives a worker to a gang, which another one is marked for already.
func lender() *cluster {
	c := clusterOf(4, 2)
	job := c.add("lender", 2, 6)
	pods := c.trains(job, "n0", "n0", "n0", "n0", "n1")
	fleet.Mark{Reason: fleet.Reclaimed, For: "team/big", At: ago(12 * time.Second).Time}.Put(pods[4])
	job.Status.Resizes = []v1alpha1.Resize{
		{Round: ptr.To[int64](2), From: ptr.To[int32](2), To: ptr.To[int32](5), Reason: "CapacityAvailable",
			Pause: &metav1.Duration{Duration: 180 * time.Millisecond}, StepsLost: ptr.To[int64](0), At: ago(20 * time.Minute)},
		{Round: ptr.To[int64](3), From: ptr.To[int32](5), To: ptr.To[int32](5), Reason: "WorkerLost", Message: "node n2 was lost",
			Pause: &metav1.Duration{Duration: 2340 * time.Millisecond}, StepsLost: ptr.To[int64](1), At: ago(10 * time.Minute)},
	}
	job.Status.Restarts.Infrastructure = ptr.To[int32](1)
	c.add("big", 3, 3, important, queued)
	return c
}

func tooLarge() *cluster {
	c := clusterOf(4, 4)
	c.add("huge", 12, 12, queued)
	return c
}

func atRest() *cluster {
	c := clusterOf(4)
	c.add("paused", 2, 4, condition(v1alpha1.ConditionSuspended, "Suspended", "spec.suspend is true"), func(job *v1alpha1.TrainingJob) {
		job.Spec.Suspend = ptr.To(true)
	})
	c.add("done", 2, 4, condition(v1alpha1.ConditionComplete, "Complete", "every process ended with exit code 0"), func(job *v1alpha1.TrainingJob) {
		job.Status.Progress = v1alpha1.ProgressStatus{Step: ptr.To[int64](9000), TotalSteps: ptr.To[int64](9000), Goodput: "0.950"}
	})
	c.add("failed", 2, 4, condition(v1alpha1.ConditionFailed, "DeadlineExceeded", "the job was not complete within spec.activeDeadline"))
	c.add("retries", 2, 4, func(job *v1alpha1.TrainingJob) {
		job.Status.State, job.Status.RetryTime = "BackOff", ptr.To(metav1.NewTime(start.Add(40*time.Second)))
		job.Status.Restarts.Program, job.Status.Attempt = ptr.To[int32](3), ptr.To[int32](3)
	}, condition(v1alpha1.ConditionTraining, v1alpha1.ReasonBackOff, "the next attempt is due at 2030-01-01T12:00:40Z; attempt 3 ended: container main of retries-3-0 ended with exit code 1"))
	return c
}

// quotaBound has room enough, and a quota that is smaller than what is used already.
func quotaBound() *cluster {
	c := clusterOf(8)
	c.trains(c.add("grows", 2, 4), "n0", "n0")
	c.add("waits", 2, 2, queued)
	c.bounded(corev1.ResourceList{"requests.example.com/gpu": resource.MustParse("1"), "services": resource.MustParse("-1"), "x": resource.MustParse("3")})
	return c
}

func policies() *cluster {
	c := clusterOf(8)
	c.trains(c.add("alone", 2, 4, func(job *v1alpha1.TrainingJob) { job.Spec.Preemption.Policy = v1alpha1.PreemptionNever }), "n0", "n0")
	c.trains(c.add("fixed", 1, 4, func(job *v1alpha1.TrainingJob) { job.Spec.Growth.Policy = v1alpha1.GrowthOff }), "n0")
	c.trains(c.add("full", 1, 2, func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Sizes, job.Spec.Preemption.Policy = []int32{2, 1}, v1alpha1.PreemptionEvict
	}), "n0", "n0")
	c.trains(c.add("restarts", 1, 1, func(job *v1alpha1.TrainingJob) { job.Spec.Workers.Launch = v1alpha1.LaunchPerWorker }), "n0")
	return c
}

func severalDevices() *cluster {
	c := clusterOf(4, 4)
	c.trains(c.add("wide", 1, 2, func(job *v1alpha1.TrainingJob) {
		job.Spec.Workers.Template.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("4")
	}), "n0")
	c.trains(c.add("other", 1, 1), "n1")
	return c
}

func noDevices() *cluster {
	c := clusterOf(0)
	c.add("cpus", 20, 20, queued, func(job *v1alpha1.TrainingJob) {
		delete(job.Spec.Workers.Template.Spec.Containers[0].Resources.Requests, gpu)
	})
	return c
}
