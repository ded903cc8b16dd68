package controller

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAddressesOfAPod(t *testing.T) {
	parse := func(texts ...string) []netip.Addr {
		var all []netip.Addr
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	for name, c := range map[string]struct {
		ip          string
		ips         []string
		annotations map[string]string
		want        []netip.Addr
	}{
		"none yet":   {"", nil, map[string]string{networkStatus[0]: `[{"ips":["10.9.0.1"]}]`}, nil},
		"one":        {"10.0.0.1", []string{"10.0.0.1"}, nil, parse("10.0.0.1")},
		"dual stack": {"10.0.0.1", []string{"10.0.0.1", "fd00::1"}, nil, parse("10.0.0.1", "fd00::1")},
		"several networks": {"10.0.0.1", []string{"10.0.0.1"}, map[string]string{
			networkStatus[0]: `[{"name":"a","default":true,"ips":["10.0.0.1"]},{"name":"b","interface":"net1","ips":["192.168.1.1","fd01::1"]}]`,
		}, parse("10.0.0.1", "192.168.1.1", "fd01::1")},
		"an older name": {"10.0.0.1", nil, map[string]string{networkStatus[1]: `[{"ips":["192.168.1.1"]}]`}, parse("10.0.0.1", "192.168.1.1")},
		"mapped":        {"::ffff:10.0.0.1", nil, nil, parse("10.0.0.1")},
		"nonsense":      {"10.0.0.1", nil, map[string]string{networkStatus[0]: `{"ips":`, networkStatus[1]: `[{"ips":["here"]}]`}, parse("10.0.0.1")},
		"much too long": {"10.0.0.1", nil, map[string]string{
			networkStatus[0]: `[{"ips":["192.168.1.1"],"name":"` + strings.Repeat("x", maxNetworkStatus) + `"}]`}, parse("10.0.0.1")},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: c.ip}}
			pod.Annotations = c.annotations
			for _, ip := range c.ips {
				pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
			}
			if got := addresses(pod); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// The rendezvous is told the addresses of every worker that it expects.
func TestExpectedWorkersHaveTheirAddresses(t *testing.T) {
	job := jobWith(running)
	at := func(ip string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Status.PodIPs = []corev1.PodIP{{IP: ip}} }
	}
	plan := NewPlan(stateOf(job, podOf(job, 1, 0, onNode("n1"), at("10.0.0.1")), podOf(job, 1, 1, onNode("n2"))), settings)
	known := plan.Actions.Expect.Addresses
	if len(known) != 1 || !slices.Equal(known["uid-digits-1-0"], []netip.Addr{netip.MustParseAddr("10.0.0.1")}) {
		t.Errorf("the addresses are %v", known)
	}
}
