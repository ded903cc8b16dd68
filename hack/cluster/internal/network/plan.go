// Package network gives the cluster its addresses, routes and packet filter
// rules, and takes them back.
//
// The cluster's addresses are its own: nothing depends on the machine's
// network, and nothing of the cluster listens on it.
package network

import (
	"fmt"
	"net/netip"
	"strings"
)

const (
	// ClusterDomain is the DNS suffix of services.
	ClusterDomain = "cluster.local"
	// MaxNodes is how many nodes have room in the address plan.
	MaxNodes = 200

	// bridgePrefix names the interfaces: 0 carries the addresses of the control
	// plane and the nodes, N the pods of node N.
	bridgePrefix = "concertina"
	firstNodeIP  = 10
)

// The ranges of the cluster.
var (
	// PodRange holds all pods, and in its first /24 the nodes.
	PodRange = netip.MustParsePrefix("10.244.0.0/16")
	// ServiceRange holds the services' virtual addresses.
	ServiceRange = netip.MustParsePrefix("10.96.0.0/16")
	// HostIP is where the API server and the DNS server listen.
	HostIP = netip.MustParseAddr("10.244.0.1")
	// KubernetesIP is the virtual address of the API server.
	KubernetesIP = netip.MustParseAddr("10.96.0.1")
	// DNSIP is the virtual address of the DNS server.
	DNSIP = netip.MustParseAddr("10.96.0.10")
)

// NodeIP returns the address of the node with the given number (1 to MaxNodes).
func NodeIP(number int) netip.Addr {
	octets := PodRange.Addr().As4()
	octets[3] = byte(firstNodeIP + number)
	return netip.AddrFrom4(octets)
}

// PodSubnet returns the range of the pods of the node with the given number.
func PodSubnet(number int) netip.Prefix {
	octets := PodRange.Addr().As4()
	octets[2] = byte(number)
	return netip.PrefixFrom(netip.AddrFrom4(octets), 24)
}

// Bridge returns the name of the interface that the pods of a node hang on.
func Bridge(number int) string { return fmt.Sprintf("%s%d", bridgePrefix, number) }

// hostInterface carries the addresses of the control plane and the nodes.
var hostInterface = Bridge(0)

// route is one line of the machine's routing table, in the words of ip-route(8).
type route []string

// routes keep every packet for the cluster on the machine. The bridges' own
// routes are narrower than the black hole and win where pods are. A service
// address must have a route for a connection to begin at all; what the rules
// of kube-proxy do not translate ends on the loopback interface.
func routes() []route {
	return []route{
		{"blackhole", PodRange.String()},
		{ServiceRange.String(), "dev", "lo", "src", HostIP.String()},
	}
}

// rule is one packet filter rule in the words of iptables(8), without its chain.
type rule []string

const (
	forwardChain = ownChains + "FORWARD"
	inputChain   = ownChains + "INPUT"
)

// chains returns the cluster's own chains of the filter table: pods reach each
// other and the machine whatever the machine's firewall says to strangers, and
// nobody outside the machine reaches a pod or is reached by one.
func chains() map[string][]rule {
	pods := PodRange.String()
	return map[string][]rule{
		forwardChain: {
			{"-s", pods, "-d", pods, "-j", "ACCEPT"},
			{"-s", pods, "-j", "REJECT"},
			{"-d", pods, "-j", "REJECT"},
		},
		inputChain: {{"-s", pods, "-d", pods, "-j", "ACCEPT"}},
	}
}

// jumps says from which built-in chain each of ours is entered.
func jumps() map[string]string {
	return map[string]string{forwardChain: "FORWARD", inputChain: "INPUT"}
}

// cutChain is the chain that holds what a node that is cut off does not get.
func cutChain(number int) string { return fmt.Sprintf("%sCUT-%03d", ownChains, number) }

// cutRules drop what the pods of a node send to others and what others send to
// them; with addresses, only what goes to and from those. Pods of one node reach
// each other, and their kubelet reaches them.
func cutRules(number int, from []netip.Prefix) []rule {
	subnet := PodSubnet(number).String()
	if len(from) == 0 {
		return []rule{
			{"-s", subnet, "-d", subnet, "-j", "RETURN"},
			{"-s", subnet, "-j", "DROP"},
			{"-d", subnet, "-j", "DROP"},
		}
	}
	var rules []rule
	for _, other := range from {
		rules = append(rules,
			rule{"-s", subnet, "-d", other.String(), "-j", "DROP"},
			rule{"-s", other.String(), "-d", subnet, "-j", "DROP"})
	}
	return rules
}

// Interface is an interface of the machine with its addresses.
type Interface struct {
	Name      string
	Addresses []netip.Prefix
}

// Conflicts says which interfaces of somebody else use the cluster's ranges.
func Conflicts(interfaces []Interface) []string {
	var found []string
	for _, i := range interfaces {
		if strings.HasPrefix(i.Name, bridgePrefix) {
			continue
		}
		for _, address := range i.Addresses {
			// A wide network such as 10.0.0.0/8 does no harm as long as the machine's
			// own address lies elsewhere: the cluster's routes are narrower.
			for _, own := range []netip.Prefix{PodRange, ServiceRange} {
				if own.Contains(address.Addr()) || (own.Overlaps(address) && address.Bits() >= own.Bits()) {
					found = append(found, fmt.Sprintf("interface %s has %s, inside %s which the cluster needs: take that interface down first",
						i.Name, address, own))
				}
			}
		}
	}
	return found
}
