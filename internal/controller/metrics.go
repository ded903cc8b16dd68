package controller

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// Metrics tell of all jobs together, and of the workers of each. They follow from what was written into
// the jobs' statuses, so they count nothing twice and nothing that did not happen.
type Metrics struct {
	mu   sync.Mutex
	jobs map[types.UID]jobFigures

	states, workers, checkpoint, best, straggler *prometheus.Desc
	firstStep                                    prometheus.Histogram
	queueWait, pause                             *prometheus.HistogramVec
	stepsLost, restarts, growth, refusals        *prometheus.CounterVec
}

// jobFigures are what one job counts for now.
type jobFigures struct {
	namespace, name, state   string
	target, running, standby int32
	// checkpoint is when its newest checkpoint was made, before the first one when the job began; zero for a job
	// without a storage or without workers.
	checkpoint time.Time
	// best is the one with the best score; nil for none.
	best       *v1alpha1.BestCheckpoint
	stragglers []v1alpha1.Straggler
}

// NewMetrics makes metrics that registerer collects.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		jobs:       map[types.UID]jobFigures{},
		states:     prometheus.NewDesc("concertina_jobs", "Jobs by what they are doing, as in status.state.", []string{"namespace", "state"}, nil),
		workers:    prometheus.NewDesc("concertina_job_workers", "Workers of a job: its target, those that run, and those of them in no world yet.", []string{"namespace", "job", "kind"}, nil),
		checkpoint: prometheus.NewDesc("concertina_job_checkpoint_timestamp_seconds", "When the newest checkpoint in the job's storage was made, before the first one when the job began, in Unix time.", []string{"namespace", "job"}, nil),
		best:       prometheus.NewDesc("concertina_job_best_score", "The score of the best checkpoint in the job's storage, by the metric by which the job keeps its best ones.", []string{"namespace", "job", "metric"}, nil),
		straggler:  prometheus.NewDesc("concertina_job_straggler_factor", "How many times as long as most a process works in a step that has kept the others waiting for minutes; nothing where none has.", []string{"namespace", "job", "rank", "pod", "node"}, nil),
		queueWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "concertina_queue_wait_seconds",
			Help: "Time that gangs waited before they were made.", Buckets: prometheus.ExponentialBuckets(0.1, 4, 10)}, []string{"namespace"}),
		firstStep: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "concertina_first_step_seconds",
			Help: "Time from the start of a job to its first step.", Buckets: prometheus.ExponentialBuckets(0.5, 2, 12)}),
		pause: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "concertina_pause_seconds",
			Help: "Time that training stood still in a change of its world, by reason.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 12)}, []string{"reason"}),
		stepsLost: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "concertina_steps_lost_total",
			Help: "Steps that had to be made again, by the reason of the change."}, []string{"reason"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "concertina_restarts_total",
			Help: "Gangs that were lost, by cause: the job's own program, the infrastructure, or evicted for another job."}, []string{"cause"}),
		growth: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "concertina_growth_total",
			Help: "Workers beyond the gang that were made, and times that growth was withdrawn."}, []string{"outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "concertina_refusals_total",
			Help: "Times that a job was refused its pods, by reason."}, []string{"reason"}),
	}
	for _, collector := range []prometheus.Collector{m, m.queueWait, m.firstStep, m.pause, m.stepsLost, m.restarts, m.growth, m.refusals} {
		if err := registerer.Register(collector); err != nil {
			return nil, wrapf(err, "register the metrics of jobs")
		}
	}
	return m, nil
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.states
	out <- m.workers
	out <- m.checkpoint
	out <- m.best
	out <- m.straggler
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	states := map[[2]string]int{}
	for _, job := range m.jobs {
		states[[2]string{job.namespace, job.state}]++
		for kind, n := range map[string]int32{"target": job.target, "running": job.running, "standby": job.standby} {
			out <- prometheus.MustNewConstMetric(m.workers, prometheus.GaugeValue, float64(n), job.namespace, job.name, kind)
		}
		if !job.checkpoint.IsZero() {
			out <- prometheus.MustNewConstMetric(m.checkpoint, prometheus.GaugeValue, float64(job.checkpoint.Unix()), job.namespace, job.name)
		}
		if job.best != nil {
			if score, err := strconv.ParseFloat(job.best.Score, 64); err == nil {
				out <- prometheus.MustNewConstMetric(m.best, prometheus.GaugeValue, score, job.namespace, job.name, job.best.Metric)
			}
		}
		for i := range job.stragglers {
			one := &job.stragglers[i]
			if factor, err := strconv.ParseFloat(one.Factor, 64); err == nil {
				rank := strconv.Itoa(int(value(one.Rank)))
				out <- prometheus.MustNewConstMetric(m.straggler, prometheus.GaugeValue, factor, job.namespace, job.name, rank, one.Pod, one.Node)
			}
		}
	}
	for key, n := range states {
		out <- prometheus.MustNewConstMetric(m.states, prometheus.GaugeValue, float64(n), key[0], key[1])
	}
}

// refusalReasons are the reasons of notes that say that a job may have no pods.
var refusalReasons = []string{v1alpha1.ReasonInvalidTemplate, v1alpha1.ReasonQuotaExceeded, v1alpha1.ReasonPodsForbidden, v1alpha1.ReasonPodGroupsMissing}

// written takes in what a plan has changed, once it is durable. A nil Metrics counts nothing.
func (m *Metrics) written(state *State, plan *Plan) {
	if m == nil {
		return
	}
	job, old, next := state.Job, &state.Job.Status, &plan.Status
	figures := jobFigures{
		namespace: job.Namespace, name: job.Name, state: next.State,
		target: value(next.Workers.Target), running: value(next.Workers.Running), standby: value(next.Workers.Standby),
		checkpoint: checkpointTime(&job.Spec, next), stragglers: slices.Clone(next.Stragglers),
	}
	if best := next.Checkpoint.Best; len(best) > 0 {
		figures.best = best[0].DeepCopy()
	}
	m.mu.Lock()
	m.jobs[job.UID] = figures
	m.mu.Unlock()
	if value(old.Workers.Target) == 0 && value(next.Workers.Target) > 0 {
		var waited time.Duration
		if since := old.Queue.Since; since != nil {
			waited = state.Now.Sub(since.Time)
			if retry := old.RetryTime; retry != nil && retry.After(since.Time) {
				waited = state.Now.Sub(retry.Time) // an attempt before was made for what it waited until then
			}
		}
		m.queueWait.WithLabelValues(job.Namespace).Observe(max(0, waited).Seconds())
	}
	if old.Progress.Since == nil && next.Progress.Since != nil && next.StartTime != nil {
		m.firstStep.Observe(max(0, next.Progress.Since.Sub(next.StartTime.Time)).Seconds())
	}
	last := newestRound(old.Resizes)
	for i := range next.Resizes {
		resize := &next.Resizes[i]
		if uint64(value(resize.Round)) <= last {
			continue
		}
		if resize.Pause != nil {
			m.pause.WithLabelValues(resize.Reason).Observe(resize.Pause.Seconds())
		}
		m.stepsLost.WithLabelValues(resize.Reason).Add(float64(value(resize.StepsLost)))
	}
	m.restarts.WithLabelValues("program").Add(float64(max(0, value(next.Restarts.Program)-value(old.Restarts.Program))))
	m.restarts.WithLabelValues("infrastructure").Add(float64(max(0, value(next.Restarts.Infrastructure)-value(old.Restarts.Infrastructure))))
	if slices.ContainsFunc(plan.Notes, func(note Note) bool { return note.Reason == v1alpha1.EventEvicted }) {
		m.restarts.WithLabelValues("evicted").Inc()
	}
	m.growth.WithLabelValues("made").Add(float64(len(plan.Actions.Grow)))
	for _, note := range plan.Notes {
		switch {
		case note.Reason == v1alpha1.EventGrowthWithdrawn:
			m.growth.WithLabelValues("withdrawn").Inc()
		case slices.Contains(refusalReasons, note.Reason):
			m.refusals.WithLabelValues(note.Reason).Inc()
		}
	}
}

// growthRefused counts growth that the API server has ended. A nil Metrics counts nothing.
func (m *Metrics) growthRefused() {
	if m != nil {
		m.growth.WithLabelValues("withdrawn").Inc()
	}
}

// forget drops a job that is gone.
func (m *Metrics) forget(job types.UID) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, job)
}

// checkpointTime is what jobFigures.checkpoint says.
func checkpointTime(spec *v1alpha1.TrainingJobSpec, status *v1alpha1.TrainingJobStatus) time.Time {
	switch {
	case spec.Checkpoint.Storage == nil || value(status.Workers.Target) == 0:
		return time.Time{}
	case status.Checkpoint.At != nil:
		return status.Checkpoint.At.Time
	case status.StartTime != nil:
		return status.StartTime.Time
	default:
		return time.Time{}
	}
}
