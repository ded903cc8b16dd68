package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/concertina-dev/concertina/internal/release"
)

func TestTheMetricOfTheVersion(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	if err := RegisterBuildInfo(registry); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%v, %v", families, err)
	}
	labels := map[string]string{}
	for _, pair := range families[0].GetMetric()[0].GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	if families[0].GetName() != "concertina_build_info" || labels["version"] != release.Get().Version || labels["protocol"] != "2" || labels["manifest"] != "3" {
		t.Errorf("%s %v", families[0].GetName(), labels)
	}
	if RegisterBuildInfo(registry) == nil {
		t.Error("it is registered twice")
	}
}
