package fleet

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// planMetrics say how large the fleet is and what planning costs.
type planMetrics struct {
	cluster *Cluster
	plans   prometheus.Histogram
	objects *prometheus.Desc
}

func newPlanMetrics(c *Cluster) *planMetrics {
	return &planMetrics{
		cluster: c,
		plans: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "concertina_fleet_plan_seconds",
			Help:    "Time to make one plan for all jobs.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		objects: prometheus.NewDesc("concertina_fleet_objects", "What the planner looks at, by kind: nodes, pods, jobs.", []string{"kind"}, nil),
	}
}

func (m *planMetrics) took(duration time.Duration) { m.plans.Observe(duration.Seconds()) }

// Describe implements prometheus.Collector.
func (c *Cluster) Describe(out chan<- *prometheus.Desc) {
	c.metrics.plans.Describe(out)
	out <- c.metrics.objects
}

// Collect implements prometheus.Collector.
func (c *Cluster) Collect(out chan<- prometheus.Metric) {
	c.metrics.plans.Collect(out)
	c.mu.Lock()
	sizes := map[string]int{"nodes": len(c.nodes.index), "pods": len(c.pods), "jobs": len(c.jobs)}
	c.mu.Unlock()
	for kind, size := range sizes {
		out <- prometheus.MustNewConstMetric(c.metrics.objects, prometheus.GaugeValue, float64(size), kind)
	}
}
