package server

import (
	"errors"
	"time"

	"github.com/concertina-dev/concertina/internal/rendezvous"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
)

// serverMetrics count what happens in all jobs together.
type serverMetrics struct {
	sessions   prometheus.Gauge
	endings    *prometheus.CounterVec
	decisions  *prometheus.CounterVec
	recordTime *prometheus.HistogramVec
}

func newServerMetrics() *serverMetrics {
	return &serverMetrics{
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "concertina_rendezvous_sessions",
			Help: "Agents that have a session now.",
		}),
		endings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "concertina_rendezvous_session_endings_total",
			Help: "Sessions that ended or were refused, by RPC code.",
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
	}
}

// Describe implements prometheus.Collector.
func (m *serverMetrics) Describe(out chan<- *prometheus.Desc) {
	m.sessions.Describe(out)
	m.endings.Describe(out)
	m.decisions.Describe(out)
	m.recordTime.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *serverMetrics) Collect(out chan<- prometheus.Metric) {
	m.sessions.Collect(out)
	m.endings.Collect(out)
	m.decisions.Collect(out)
	m.recordTime.Collect(out)
}

// ended counts the end of a session. A nil error is an agent that hung up.
func (m *serverMetrics) ended(err error) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
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

var (
	jobLabels = []string{"namespace", "job"}
	roundDesc = prometheus.NewDesc("concertina_job_round", "Round of the job's world; 0 for none.", jobLabels, nil)
	stepDesc  = prometheus.NewDesc("concertina_job_step", "Steps done by every process of the job's world.", jobLabels, nil)
	phaseDesc = prometheus.NewDesc("concertina_job_phase", "1 for what the job is in the middle of: Forming, Training, Resizing, Recovering, Regrouping.", append(jobLabels[:2:2], "phase"), nil)
	heardDesc = prometheus.NewDesc("concertina_job_connected_workers", "Workers of the job whose agent has a session.", jobLabels, nil)
)

// Describe implements prometheus.Collector.
func (r *registry) Describe(out chan<- *prometheus.Desc) {
	out <- roundDesc
	out <- stepDesc
	out <- heardDesc
	out <- phaseDesc
}

// Collect implements prometheus.Collector: the values of each job that is known now.
func (r *registry) Collect(out chan<- prometheus.Metric) {
	for _, j := range r.all() {
		observed := j.observe(r.now())
		if !observed.Known {
			continue
		}
		connected := 0
		for _, member := range observed.Members {
			if member.Connected {
				connected++
			}
		}
		out <- prometheus.MustNewConstMetric(phaseDesc, prometheus.GaugeValue, 1, j.key.Namespace, j.key.Name, string(observed.Phase))
		for desc, value := range map[*prometheus.Desc]float64{
			roundDesc: float64(observed.Round),
			stepDesc:  float64(observed.Progress.Step),
			heardDesc: float64(connected),
		} {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, j.key.Namespace, j.key.Name)
		}
	}
}
