package controller

import (
	"encoding/json"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// networkStatus are the annotations in which the plugins of further networks say which addresses a pod has
// there; the second is the name that older ones use.
var networkStatus = []string{"k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status"}

// maxNetworkStatus is the longest annotation in bytes that is read.
const maxNetworkStatus = 64 << 10

// addresses are those that the pod has in all of its networks. They are unknown (nil) until its kubelet has
// said which it has in the first one: an annotation alone proves nothing.
func addresses(pod *corev1.Pod) []netip.Addr {
	var all []netip.Addr
	add := func(text string) {
		if address, err := netip.ParseAddr(text); err == nil && !slices.Contains(all, address.Unmap()) {
			all = append(all, address.Unmap())
		}
	}
	add(pod.Status.PodIP)
	for _, ip := range pod.Status.PodIPs {
		add(ip.IP)
	}
	if len(all) == 0 {
		return nil
	}
	for _, key := range networkStatus {
		text := pod.Annotations[key]
		if text == "" || len(text) > maxNetworkStatus {
			continue
		}
		var networks []struct {
			IPs []string `json:"ips"`
		}
		if json.Unmarshal([]byte(text), &networks) != nil {
			continue
		}
		for _, network := range networks {
			for _, ip := range network.IPs {
				add(ip)
			}
		}
	}
	return all
}

// addressesOf are the addresses of pods that have any, by uid.
func addressesOf(pods []*corev1.Pod) map[string][]netip.Addr {
	known := make(map[string][]netip.Addr, len(pods))
	for _, pod := range pods {
		if all := addresses(pod); len(all) > 0 {
			known[string(pod.UID)] = all
		}
	}
	return known
}
