package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

func TestMetricsFollowFromWhatWasWritten(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	queued := stateOf(jobWith(func(j *v1alpha1.TrainingJob) { j.Status.Queue.Since = ptr.To(metav1.NewTime(start)) }))
	started := Plan{Status: *queued.Job.Status.DeepCopy()}
	started.Status.State, started.Status.Workers.Target = "Starting", ptr.To[int32](2)
	m.written(queued, &started)

	job := trains(3)
	job.UID, job.Name = "another", "other"
	state := elasticState(job, crewOf(job)...)
	job.Status.Resizes = []v1alpha1.Resize{{Round: ptr.To[int64](2), Reason: "Reclaimed", Pause: &metav1.Duration{Duration: time.Second}}}
	plan := Plan{Status: *job.Status.DeepCopy(), Notes: []Note{{Reason: v1alpha1.EventGrowthWithdrawn}, {Reason: v1alpha1.ReasonQuotaExceeded}}}
	plan.Status.State, plan.Status.Restarts.Program = "Training", ptr.To[int32](1)
	plan.Status.Resizes = append(plan.Status.Resizes, v1alpha1.Resize{
		Round: ptr.To[int64](3), Reason: "WorkerLost", StepsLost: ptr.To[int64](20), Pause: &metav1.Duration{Duration: 2 * time.Second}})
	m.written(state, &plan)

	want := `
# HELP concertina_growth_total Workers beyond the gang that were made, and times that growth was withdrawn.
# TYPE concertina_growth_total counter
concertina_growth_total{outcome="made"} 0
concertina_growth_total{outcome="withdrawn"} 1
# HELP concertina_job_workers Workers of a job: its target, those that run, and those of them in no world yet.
# TYPE concertina_job_workers gauge
concertina_job_workers{job="digits",kind="running",namespace="team"} 0
concertina_job_workers{job="digits",kind="standby",namespace="team"} 0
concertina_job_workers{job="digits",kind="target",namespace="team"} 2
concertina_job_workers{job="other",kind="running",namespace="team"} 0
concertina_job_workers{job="other",kind="standby",namespace="team"} 0
concertina_job_workers{job="other",kind="target",namespace="team"} 3
# HELP concertina_jobs Jobs by what they are doing, as in status.state.
# TYPE concertina_jobs gauge
concertina_jobs{namespace="team",state="Starting"} 1
concertina_jobs{namespace="team",state="Training"} 1
# HELP concertina_refusals_total Times that a job was refused its pods, by reason.
# TYPE concertina_refusals_total counter
concertina_refusals_total{reason="QuotaExceeded"} 1
# HELP concertina_restarts_total Gangs that were lost, by cause: the job's own program, the infrastructure, or evicted for another job.
# TYPE concertina_restarts_total counter
concertina_restarts_total{cause="infrastructure"} 0
concertina_restarts_total{cause="program"} 1
# HELP concertina_steps_lost_total Steps that had to be made again, by the reason of the change.
# TYPE concertina_steps_lost_total counter
concertina_steps_lost_total{reason="WorkerLost"} 20
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "concertina_growth_total", "concertina_job_workers",
		"concertina_jobs", "concertina_refusals_total", "concertina_restarts_total", "concertina_steps_lost_total"); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		sum := 0.0
		for _, metric := range family.GetMetric() {
			sum += metric.GetHistogram().GetSampleSum()
		}
		if wants := map[string]float64{"concertina_pause_seconds": 2, "concertina_queue_wait_seconds": 60}; wants[family.GetName()] != sum {
			t.Errorf("%s sums up to %v, want %v", family.GetName(), sum, wants[family.GetName()])
		}
	}
	m.forget(job.UID)
	if n := testutil.CollectAndCount(m, "concertina_job_workers"); n != 3 {
		t.Errorf("%d figures of workers are left, want 3", n)
	}
}

func TestMetricsTellHowOldACheckpointIs(t *testing.T) {
	stored := func(j *v1alpha1.TrainingJob) {
		j.Spec.Checkpoint.Storage = &v1alpha1.StorageSpec{URL: "s3://bucket/jobs"}
		j.Status.StartTime, j.Status.Workers.Target = ptr.To(metav1.NewTime(start)), ptr.To[int32](2)
	}
	saved := func(j *v1alpha1.TrainingJob) { j.Status.Checkpoint.At = ptr.To(metav1.NewTime(start.Add(time.Minute))) }
	for _, test := range []struct {
		name    string
		changes []func(*v1alpha1.TrainingJob)
		want    time.Time
	}{
		{"it has one", []func(*v1alpha1.TrainingJob){stored, saved}, start.Add(time.Minute)},
		{"it has none yet", []func(*v1alpha1.TrainingJob){stored}, start},
		{"it has no storage", []func(*v1alpha1.TrainingJob){stored, func(j *v1alpha1.TrainingJob) { j.Spec.Checkpoint.Storage = nil }}, time.Time{}},
		{"it has no workers", []func(*v1alpha1.TrainingJob){stored, saved, func(j *v1alpha1.TrainingJob) { j.Status.Workers.Target = ptr.To[int32](0) }}, time.Time{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := NewMetrics(prometheus.NewPedanticRegistry())
			if err != nil {
				t.Fatal(err)
			}
			state := stateOf(jobWith(test.changes...))
			m.written(state, &Plan{Status: state.Job.Status})
			want := ""
			if !test.want.IsZero() {
				want = fmt.Sprintf(`
# HELP concertina_job_checkpoint_timestamp_seconds When the newest checkpoint in the job's storage was made, before the first one when the job began, in Unix time.
# TYPE concertina_job_checkpoint_timestamp_seconds gauge
concertina_job_checkpoint_timestamp_seconds{job="digits",namespace="team"} %d
`, test.want.Unix())
			}
			if err := testutil.CollectAndCompare(m, strings.NewReader(want), "concertina_job_checkpoint_timestamp_seconds"); err != nil {
				t.Error(err)
			}
		})
	}
}
