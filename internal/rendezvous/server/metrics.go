package server

import (
	"errors"
	"slices"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// serverMetrics count what happens in all jobs together.
type serverMetrics struct {
	sessions   prometheus.Gauge
	floods     prometheus.Counter
	falls      prometheus.Counter
	endings    *prometheus.CounterVec
	decisions  *prometheus.CounterVec
	recordTime *prometheus.HistogramVec

	phases, lag             *prometheus.HistogramVec
	changes, aborts, losses *prometheus.CounterVec
}

func newServerMetrics() *serverMetrics {
	m := &serverMetrics{
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "concertina_rendezvous_sessions",
			Help: "Agents that have a session now.",
		}),
		floods: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "concertina_rendezvous_floods_total",
			Help: "Sessions on which reports came faster than they are read; the log names the worker.",
		}),
		falls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "concertina_rendezvous_panics_total",
			Help: "Panics in the rendezvous of one job, each a defect of the operator; the log has the stack. The job was taken over anew.",
		}),
		endings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "concertina_rendezvous_session_endings_total",
			Help: "Sessions that ended or were refused, by status code.",
		}, []string{"code"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "concertina_rendezvous_decisions_total",
			Help: "Decisions about terms and rounds: term, published, formed, adopted, burned, record-failed, deposed, " +
				"and about worlds that change: resizing, parked, lifted, doubted, cut-off, lost, broken, verdict, regrouping, fatal, finished.",
		}, []string{"decision"}),
		recordTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "concertina_rendezvous_record_seconds",
			Help:    "Time to make a term or a round durable, by result: written, deposed, gone, unclear.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"result"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "concertina_change_phase_seconds",
			Help: "Time that a change of a world spent in each of its phases: term, adopt, barrier, leave, regroup, snapshot, " +
				"record, form, publish (a part of form), step.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}, []string{"phase", "reason"}),
		lag: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "concertina_directive_lag_seconds",
			Help:    "Time from the publishing of a directive to the report of a member that has obeyed it: barrier, abort, world.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"directive"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "concertina_changes_total",
			Help: "Changes of worlds by outcome: done, called-off, left, ended, handed-over.",
		}, []string{"reason", "outcome"}),
		aborts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "concertina_aborts_total",
			Help: "Worlds that were left at once, by the reason for which that was decided.",
		}, []string{"reason"}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "concertina_losses_total",
			Help: "Members that were lost, by cause: exit, fault, hang, pod, session, silence, unheard, stuck.",
		}, []string{"cause"}),
	}
	for _, cause := range rendezvous.LossCauses {
		m.losses.WithLabelValues(string(cause)) // a first one is an increase
	}
	return m
}

// collectors are the metrics that are the same for all jobs.
func (m *serverMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.sessions, m.floods, m.falls, m.endings, m.decisions, m.recordTime, m.phases, m.lag, m.changes, m.aborts, m.losses,
	}
}

// Describe implements prometheus.Collector.
func (m *serverMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, collector := range m.collectors() {
		collector.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (m *serverMetrics) Collect(out chan<- prometheus.Metric) {
	for _, collector := range m.collectors() {
		collector.Collect(out)
	}
}

// ended counts the end of a session. A nil error is an agent that hung up.
func (m *serverMetrics) ended(err error) {
	code := codes.OK.String()
	if err != nil {
		code = status.Code(err).String()
	}
	m.endings.WithLabelValues(code).Inc()
}

func (m *serverMetrics) recorded(took time.Duration, err error) {
	result := "unclear"
	switch {
	case err == nil:
		result = "written"
	case errors.Is(err, rendezvous.ErrDeposed):
		result = "deposed"
	case errors.Is(err, rendezvous.ErrJobGone):
		result = "gone"
	}
	m.recordTime.WithLabelValues(result).Observe(took.Seconds())
}

// took counts a change that is over, and how long it was in each phase.
func (m *serverMetrics) took(e *episode) {
	reason := reasonLabel(e.reason())
	m.changes.WithLabelValues(reason, string(e.outcome)).Inc()
	total := map[rendezvous.Stage]time.Duration{}
	for _, p := range e.parts {
		total[p.stage] += p.ended.Sub(p.begun)
	}
	if p, ok := e.publishing(); ok {
		total[p.stage] = p.ended.Sub(p.begun)
	}
	for stage, took := range total {
		m.phases.WithLabelValues(string(stage), reason).Observe(max(0, took).Seconds())
	}
}

// reasonLabel bounds the values of a label: a reason may come from a record that somebody else has written.
func reasonLabel(reason rendezvous.Reason) string {
	if reason == reasonTakenOver || slices.Contains(rendezvous.Reasons, reason) {
		return string(reason)
	}
	return "Unknown"
}

var (
	jobLabels   = []string{"namespace", "job"}
	roundDesc   = prometheus.NewDesc("concertina_job_round", "Round of the job's world; 0 for none.", jobLabels, nil)
	stepDesc    = prometheus.NewDesc("concertina_job_step", "Steps done by every process of the job's world.", jobLabels, nil)
	phaseDesc   = prometheus.NewDesc("concertina_job_phase", "1 for what the job is in the middle of: Forming, Training, Resizing, Recovering, Regrouping.", append(jobLabels[:2:2], "phase"), nil)
	beatDesc    = prometheus.NewDesc("concertina_job_beat_age_seconds", "Time since the last report of the worker that was heard longest ago, of those that should train.", jobLabels, nil)
	savedDesc   = prometheus.NewDesc("concertina_job_snapshot_step", "Step of the state that the job could go back to from the memory of its workers.", jobLabels, nil)
	sizeDesc    = prometheus.NewDesc("concertina_job_snapshot_bytes", "Bytes of that state.", jobLabels, nil)
	copiesDesc  = prometheus.NewDesc("concertina_job_snapshot_copies", "On how many nodes each part of that state is, at least.", jobLabels, nil)
	missingDesc = prometheus.NewDesc("concertina_job_snapshot_copies_missing", "How many more there should be, of those that the nodes of the job's world allow.", jobLabels, nil)
	uploadDesc  = prometheus.NewDesc("concertina_job_upload_seconds", "How long the last checkpoint took to become durable.", jobLabels, nil)
	behindDesc  = prometheus.NewDesc("concertina_job_upload_lag_steps", "Steps done since the newest checkpoint in the job's storage.", jobLabels, nil)
	heardDesc   = prometheus.NewDesc("concertina_job_connected_workers", "Workers of the job whose agent has a session.", jobLabels, nil)
)

// Describe implements prometheus.Collector.
func (r *registry) Describe(out chan<- *prometheus.Desc) {
	out <- roundDesc
	out <- stepDesc
	out <- heardDesc
	out <- beatDesc
	out <- phaseDesc
	for _, desc := range []*prometheus.Desc{savedDesc, sizeDesc, copiesDesc, missingDesc, uploadDesc, behindDesc} {
		out <- desc
	}
}

// Collect implements prometheus.Collector: the values of each job that is known now.
func (r *registry) Collect(out chan<- prometheus.Metric) {
	for _, j := range r.all() {
		glance, connected, oldest := j.measure()
		if !glance.Known {
			continue
		}
		gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{j.key.Namespace, j.key.Name}, labels...)...)
		}
		gauge(phaseDesc, 1, string(glance.Phase))
		gauge(roundDesc, float64(glance.Round))
		gauge(stepDesc, float64(glance.Step))
		gauge(heardDesc, float64(connected))
		if s := &glance.Memory; s.Copies > 0 {
			gauge(savedDesc, float64(s.Step))
			gauge(sizeDesc, float64(s.Bytes))
			gauge(copiesDesc, float64(s.Copies))
			gauge(missingDesc, float64(max(0, s.Possible-s.Copies)))
		}
		if glance.Stored && glance.Step > 0 {
			gauge(behindDesc, float64(glance.Step)-float64(min(glance.Step, glance.Durable)))
		}
		if glance.UploadTook > 0 {
			gauge(uploadDesc, glance.UploadTook.Seconds())
		}
		if !oldest.IsZero() {
			gauge(beatDesc, r.now().Sub(oldest).Seconds())
		}
	}
}
