package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Up gives the machine the cluster's interface, routes and rules. It may run
// again on top of itself.
func Up(ctx context.Context) error {
	if err := addInterface(ctx, hostInterface); err != nil {
		return err
	}
	if err := addAddress(ctx, HostIP); err != nil {
		return err
	}
	for _, r := range routes() {
		if err := run(ctx, "ip", append([]string{"route", "replace"}, r...)...); err != nil {
			return err
		}
	}
	for chain, rules := range chains() {
		if err := fillChain(ctx, chain, rules, jumps()[chain]); err != nil {
			return err
		}
	}
	return nil
}

// Down takes back everything that Up, AddNode and the pods' bridges have left.
func Down(ctx context.Context) error {
	errs := []error{removeChains(ctx, nil, ownChains)}
	for _, r := range routes() {
		_ = quiet(ctx, "ip", append([]string{"route", "del"}, r...)...)
	}
	interfaces, err := Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		if strings.HasPrefix(i.Name, bridgePrefix) {
			errs = append(errs, run(ctx, "ip", "link", "del", i.Name))
		}
	}
	return errors.Join(errs...)
}

// RemoveServiceRules takes back what kube-proxy has made, but for the chains
// that were there before it. kube-proxy must not run; its own way of clearing
// up leaves some behind.
func RemoveServiceRules(ctx context.Context, before []string) error {
	return removeChains(ctx, before, serviceChains)
}

// AddNode gives the machine the address of a node.
func AddNode(ctx context.Context, number int) error { return addAddress(ctx, NodeIP(number)) }

// CutOff drops the packets between the pods of a node and everybody else, or
// those addresses alone, until Rejoin. Nobody is told: connections stay open and
// silent.
func CutOff(ctx context.Context, number int, from []netip.Prefix) error {
	return fillChain(ctx, cutChain(number), cutRules(number, from), "FORWARD", "INPUT")
}

// Rejoin takes back CutOff.
func Rejoin(ctx context.Context, number int) error { return removeChains(ctx, nil, cutChain(number)) }

// Unplug takes a node off the network at once: what its processes still send when
// they die, a last FIN or RST, reaches nobody, as when the power fails.
func Unplug(ctx context.Context, number int) error {
	if _, err := net.InterfaceByName(Bridge(number)); err != nil {
		return nil // no pod has ever run there
	}
	return run(ctx, "ip", "link", "set", Bridge(number), "down")
}

// RemoveNode takes back a node's address and its pods' bridge.
func RemoveNode(ctx context.Context, number int) error {
	var errs []error
	if _, err := net.InterfaceByName(Bridge(number)); err == nil {
		errs = append(errs, run(ctx, "ip", "link", "del", Bridge(number)))
	}
	_ = quiet(ctx, "ip", "address", "del", NodeIP(number).String()+"/32", "dev", hostInterface)
	errs = append(errs, Rejoin(ctx, number))
	return errors.Join(errs...)
}

func addInterface(ctx context.Context, name string) error {
	if _, err := net.InterfaceByName(name); err != nil {
		if err := run(ctx, "ip", "link", "add", name, "type", "bridge"); err != nil {
			return err
		}
	}
	return run(ctx, "ip", "link", "set", name, "up")
}

// addAddress adds an address for itself alone: the rest of its range stays
// with the black hole.
func addAddress(ctx context.Context, address netip.Addr) error {
	return run(ctx, "ip", "address", "replace", address.String()+"/32", "dev", hostInterface)
}

// fillChain makes a chain of these rules, which is entered from others.
func fillChain(ctx context.Context, chain string, rules []rule, from ...string) error {
	_ = quiet(ctx, "iptables", "-w", "-N", chain) // fails when it exists
	if err := run(ctx, "iptables", "-w", "-F", chain); err != nil {
		return err
	}
	for _, r := range rules {
		if err := run(ctx, "iptables", append([]string{"-w", "-A", chain}, r...)...); err != nil {
			return err
		}
	}
	for _, entry := range from {
		if quiet(ctx, "iptables", "-w", "-C", entry, "-j", chain) {
			continue
		}
		if err := run(ctx, "iptables", "-w", "-I", entry, "-j", chain); err != nil {
			return err
		}
	}
	return nil
}

// Interfaces lists the machine's interfaces with their IPv4 addresses.
func Interfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var found []Interface
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		one := Interface{Name: i.Name}
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is4() {
				one.Addresses = append(one.Addresses, prefix)
			}
		}
		found = append(found, one)
	}
	return found, nil
}

// sysctls are what the kernel must do: pass packets on between bridges, and
// show packets inside a bridge to the service rules.
var sysctls = map[string]string{
	"net/ipv4/ip_forward":                "1",
	"net/bridge/bridge-nf-call-iptables": "1",
}

// BridgeFilter makes sure that the kernel can show bridged packets to iptables.
func BridgeFilter(ctx context.Context) error {
	if _, err := os.Stat("/proc/sys/net/bridge"); err == nil {
		return nil
	}
	if err := run(ctx, "modprobe", "br_netfilter"); err != nil {
		return fmt.Errorf("missing: the kernel module br_netfilter, and it cannot be loaded (Debian package kmod has modprobe): %w", err)
	}
	return nil
}

// Sysctls returns the values that the kernel settings have now.
func Sysctls() (map[string]string, error) {
	now := map[string]string{}
	for name := range sysctls {
		raw, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return nil, fmt.Errorf("read kernel setting: %w", err)
		}
		now[name] = strings.TrimSpace(string(raw))
	}
	return now, nil
}

// SetSysctls gives the kernel settings the values that the cluster needs.
func SetSysctls() error { return RestoreSysctls(sysctls) }

// RestoreSysctls gives the kernel settings the given values.
func RestoreSysctls(values map[string]string) error {
	var errs []error
	for name, value := range values {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("set kernel setting %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// quiet runs a command whose failure is an answer.
func quiet(ctx context.Context, name string, args ...string) bool {
	return exec.CommandContext(ctx, name, args...).Run() == nil
}
