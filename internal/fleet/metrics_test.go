package fleet

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/concertina-dev/concertina/internal/allocation"
)

func TestMetricsTellOfPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(*allocation.Cluster) allocation.Plan {
			time.Sleep(2 * time.Second) // of the bubble's clock
			return allocation.Plan{}
		}
		c := New(optionsOf(func(o *Options) { o.Plan, o.Now = slow, time.Now }))
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		c.SetNode(nodeOf("a"))
		c.SetNode(nodeOf("b"))
		c.SetPod(podOf("stranger", "1", on("a")))
		c.PlanNow()
		c.PlanNow()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() != "concertina_fleet_plan_seconds" {
				continue
			}
			if h := family.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 4 {
				t.Errorf("%d plans took %v s", h.GetSampleCount(), h.GetSampleSum())
			}
		}
		want := `
# HELP concertina_fleet_objects What the planner looks at, by kind: nodes, pods, jobs.
# TYPE concertina_fleet_objects gauge
concertina_fleet_objects{kind="jobs"} 0
concertina_fleet_objects{kind="nodes"} 2
concertina_fleet_objects{kind="pods"} 1
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "concertina_fleet_objects"); err != nil {
			t.Error(err)
		}
		if n, err := testutil.GatherAndCount(registry, "concertina_fleet_plan_seconds"); err != nil || n != 1 {
			t.Errorf("%d histograms: %v", n, err)
		}
	})
}
