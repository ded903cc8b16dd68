package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
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
	plan.Status.Stragglers = []v1alpha1.Straggler{{Rank: ptr.To[int32](7), Pod: "other-1-3", Node: "n2", Factor: "1.80"}}
	m.written(state, &plan)

	want := `
# HELP concertina_growth_total Workers beyond the gang that were made, and times that growth was withdrawn.
# TYPE concertina_growth_total counter
concertina_growth_total{outcome="made"} 0
concertina_growth_total{outcome="withdrawn"} 1
# HELP concertina_job_straggler_factor How many times as long as most a process works in a step that has kept the others waiting for minutes; nothing where none has.
# TYPE concertina_job_straggler_factor gauge
concertina_job_straggler_factor{job="other",namespace="team",node="n2",pod="other-1-3",rank="7"} 1.8
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
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "concertina_growth_total", "concertina_job_straggler_factor", "concertina_job_workers",
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

// figures reads the values of one metric by their labels: of a histogram how many there are, and their sum.
func figures(t *testing.T, registry *prometheus.Registry, name string) map[string]string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			text := strconv.FormatFloat(metric.GetCounter().GetValue()+metric.GetGauge().GetValue(), 'g', -1, 64)
			if h := metric.GetHistogram(); h != nil {
				text = fmt.Sprintf("%d, %v s", h.GetSampleCount(), h.GetSampleSum())
			}
			if text != "0" {
				found[strings.Join(labels, " ")] = text
			}
		}
	}
	return found
}

// Each metric follows from one thing that happens to a job of team, and from nothing else.
// makesOne is an API server that makes one pod, and refuses those after it.
type makesOne struct {
	orderClient
	made *atomic.Bool
}

func (c makesOne) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	if c.made.Swap(true) {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, object.GetName(), errors.New("exceeded quota"))
	}
	object.SetUID("made")
	return nil
}

// generousFleet grants what is asked for, and hears nothing.
type generousFleet struct{ lavishFleet }

func (generousFleet) Report(*v1alpha1.TrainingJob, fleet.Facts) {}

// Of workers that the API server does not make all, those are counted that it made, and that growth ended there.
func TestGrowthThatIsRefusedIsCounted(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	state := regroups(1)
	said := &order{}
	r := &Reconciler{
		Client: makesOne{orderClient{order: said}, &atomic.Bool{}}, Rendezvous: orderRendezvous{order: said}, Fleet: generousFleet{},
		Events: events.NewFakeRecorder(9), Metrics: m, CABundle: func() []byte { return []byte(settings.CABundle) }, Now: func() time.Time { return state.Now },
	}
	plan := Plan{Status: *state.Job.Status.DeepCopy()}
	for ordinal := range int32(3) {
		plan.Actions.Grow = append(plan.Actions.Grow, newGrowthPod(state.Job, settings, 1, 7+ordinal))
	}
	if err := r.carryOut(t.Context(), state, &plan); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"made": "1", "withdrawn": "1"}
	if diff := cmp.Diff(want, figures(t, registry, "concertina_growth_total")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEachMetricFollowsFromWhatItTells(t *testing.T) {
	at := func(second int) *metav1.Time {
		return ptr.To(metav1.NewTime(start.Add(time.Duration(second) * time.Second)))
	}
	resize := func(round int64, reason string, pause time.Duration, lost int64) v1alpha1.Resize {
		return v1alpha1.Resize{Round: ptr.To(round), Reason: reason, Pause: &metav1.Duration{Duration: pause}, StepsLost: ptr.To(lost)}
	}
	for _, test := range []struct {
		name, metric string
		before       func(*v1alpha1.TrainingJob)
		happens      func(*Plan)
		want         map[string]string
	}{
		{"a state", "concertina_jobs", nil, func(p *Plan) { p.Status.State = "Regrouping" }, map[string]string{"team Regrouping": "1"}},
		{"workers", "concertina_job_workers", nil, func(p *Plan) {
			p.Status.Workers = v1alpha1.WorkersStatus{Target: ptr.To[int32](4), Running: ptr.To[int32](3), Standby: ptr.To[int32](1)}
		}, map[string]string{"digits target team": "4", "digits running team": "3", "digits standby team": "1"}},
		{"a gang that waited", "concertina_queue_wait_seconds", func(j *v1alpha1.TrainingJob) { j.Status.Queue.Since = at(18) },
			func(p *Plan) { p.Status.Workers.Target = ptr.To[int32](2) }, map[string]string{"team": "1, 42 s"}},
		{"a gang that did not", "concertina_queue_wait_seconds", nil,
			func(p *Plan) { p.Status.Workers.Target = ptr.To[int32](2) }, map[string]string{"team": "1, 0 s"}},
		{"a gang that waited again, after an attempt that came to nothing", "concertina_queue_wait_seconds",
			func(j *v1alpha1.TrainingJob) { j.Status.Queue.Since, j.Status.RetryTime = at(18), at(25) },
			func(p *Plan) { p.Status.Workers.Target = ptr.To[int32](2) }, map[string]string{"team": "1, 35 s"}},
		{"a gang that waits on", "concertina_queue_wait_seconds", func(j *v1alpha1.TrainingJob) { j.Status.Queue.Since = at(18) }, func(*Plan) {}, nil},
		{"a job that grows", "concertina_queue_wait_seconds", running, func(p *Plan) { p.Status.Workers.Target = ptr.To[int32](3) }, nil},
		{"the first step", "concertina_first_step_seconds", running, func(p *Plan) { p.Status.Progress.Since = at(30) }, map[string]string{"": "1, 30 s"}},
		{"a later step", "concertina_first_step_seconds", func(j *v1alpha1.TrainingJob) { running(j); j.Status.Progress.Since = at(3) },
			func(p *Plan) { p.Status.Progress.Step = ptr.To[int64](7) }, map[string]string{"": "0, 0 s"}},
		{"pauses", "concertina_pause_seconds", func(j *v1alpha1.TrainingJob) {
			j.Status.Resizes = []v1alpha1.Resize{resize(2, "Start", time.Hour, 0)}
		}, func(p *Plan) {
			p.Status.Resizes = append(p.Status.Resizes, resize(3, "Reclaimed", time.Second, 0), resize(4, "WorkerLost", 2*time.Second, 20),
				resize(5, "WorkerLost", 3*time.Second, 1))
		}, map[string]string{"Reclaimed": "1, 1 s", "WorkerLost": "2, 5 s"}},
		{"a pause that nobody knows", "concertina_pause_seconds", nil, func(p *Plan) {
			p.Status.Resizes = []v1alpha1.Resize{{Round: ptr.To[int64](3), Reason: "Evened"}}
		}, nil},
		{"lost steps", "concertina_steps_lost_total", func(j *v1alpha1.TrainingJob) {
			j.Status.Resizes = []v1alpha1.Resize{resize(2, "WorkerLost", 0, 900)}
		}, func(p *Plan) {
			p.Status.Resizes = append(p.Status.Resizes, resize(4, "WorkerLost", 0, 20), resize(5, "Hung", 0, 3))
		}, map[string]string{"WorkerLost": "20", "Hung": "3"}},
		{"the program failed", "concertina_restarts_total", func(j *v1alpha1.TrainingJob) { j.Status.Restarts.Program = ptr.To[int32](1) },
			func(p *Plan) { p.Status.Restarts.Program = ptr.To[int32](2) }, map[string]string{"program": "1"}},
		{"the infrastructure failed", "concertina_restarts_total", func(j *v1alpha1.TrainingJob) { j.Status.Restarts.Infrastructure = ptr.To[int32](1) },
			func(p *Plan) { p.Status.Restarts.Infrastructure = ptr.To[int32](4) }, map[string]string{"infrastructure": "3"}},
		{"an eviction", "concertina_restarts_total", nil,
			func(p *Plan) { p.Notes = []Note{{Reason: v1alpha1.EventEvicted}} }, map[string]string{"evicted": "1"}},
		{"workers made", "concertina_growth_total", nil, func(p *Plan) { p.Actions.Grow = make([]*corev1.Pod, 3) }, map[string]string{"made": "3"}},
		{"workers withdrawn", "concertina_growth_total", nil,
			func(p *Plan) { p.Notes = []Note{{Reason: v1alpha1.EventGrowthWithdrawn}} }, map[string]string{"withdrawn": "1"}},
		{"refusals", "concertina_refusals_total", nil, func(p *Plan) {
			p.Notes = []Note{{Reason: v1alpha1.ReasonInvalidTemplate}, {Reason: v1alpha1.ReasonPodsForbidden}, {Reason: v1alpha1.ReasonPodGroupsMissing},
				{Reason: v1alpha1.ReasonQuotaExceeded}, {Reason: v1alpha1.EventQueued}}
		}, map[string]string{"InvalidTemplate": "1", "PodsForbidden": "1", "PodGroupsMissing": "1", "QuotaExceeded": "1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			registry := prometheus.NewPedanticRegistry()
			m, err := NewMetrics(registry)
			if err != nil {
				t.Fatal(err)
			}
			job := jobWith()
			if test.before != nil {
				test.before(job)
			}
			plan := Plan{Status: *job.Status.DeepCopy()}
			m.written(stateOf(job), &Plan{Status: *job.Status.DeepCopy()}) // nothing happens
			test.happens(&plan)
			m.written(stateOf(job), &plan)
			if diff := cmp.Diff(test.want, figures(t, registry, test.metric), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.metric, diff)
			}
		})
	}
}

// The best score has the metric as a label, and stays when the job has ended.
func TestMetricsTellTheBestScore(t *testing.T) {
	m, err := NewMetrics(prometheus.NewPedanticRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		best []v1alpha1.BestCheckpoint
		want string
	}{
		"some": {[]v1alpha1.BestCheckpoint{{Metric: "loss", Score: "0.25"}, {Metric: "loss", Score: "0.5"}}, `
# HELP concertina_job_best_score The score of the best checkpoint in the job's storage, by the metric by which the job keeps its best ones.
# TYPE concertina_job_best_score gauge
concertina_job_best_score{job="digits",metric="loss",namespace="team"} 0.25
`},
		"none":     {nil, ""},
		"nonsense": {[]v1alpha1.BestCheckpoint{{Metric: "loss", Score: "low"}}, ""},
	} {
		state := stateOf(jobWith(func(j *v1alpha1.TrainingJob) { j.Status.Checkpoint.Best = c.best }))
		m.written(state, &Plan{Status: state.Job.Status})
		if err := testutil.CollectAndCompare(m, strings.NewReader(c.want), "concertina_job_best_score"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
