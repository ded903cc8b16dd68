package controller

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/concertina-dev/concertina/internal/release"
)

// RegisterBuildInfo has registerer collect which version of the operator this is.
func RegisterBuildInfo(registerer prometheus.Registerer) error {
	info := release.Get()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "concertina_build_info", Help: "1; its labels say which version this is, and what it can talk to.",
		ConstLabels: prometheus.Labels{"version": info.Version, "revision": info.Revision, "goversion": info.Go,
			"protocol": strconv.Itoa(info.Protocol), "manifest": strconv.Itoa(info.Manifest)},
	})
	gauge.Set(1)
	return wrapf(registerer.Register(gauge), "register the metric of the version")
}
