package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

const (
	serviceChains = "KUBE-"
	ownChains     = "CONCERTINA-"
	// proxyChain is there while a kube-proxy in iptables mode serves the machine.
	proxyChain = "KUBE-SERVICES"
)

// filters are the packet filters of the two versions of IP; kube-proxy fills
// both.
var filters = []string{"iptables", "ip6tables"}

// ServiceChains lists the chains that kube-proxies and kubelets have made on
// this machine, of either version of IP.
func ServiceChains(ctx context.Context) ([]string, error) {
	var found []string
	for _, filter := range filters {
		saved, err := save(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, table := range parseTables(saved) {
			for _, chain := range table.chains {
				if strings.HasPrefix(chain, serviceChains) && !slices.Contains(found, chain) {
					found = append(found, chain)
				}
			}
		}
	}
	return found, nil
}

// Serves reports whether the chains are those of a kube-proxy at work.
func Serves(chains []string) bool { return slices.Contains(chains, proxyChain) }

// removeChains takes back the chains with one of the prefixes, but for those to
// keep, and every rule that leads to them, table by table in one stroke.
func removeChains(ctx context.Context, keep []string, prefixes ...string) error {
	var errs []error
	for _, filter := range filters {
		saved, err := save(ctx, filter)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		undo := undo(parseTables(saved), keep, prefixes)
		if undo == "" {
			continue
		}
		cmd := exec.CommandContext(ctx, filter+"-restore", "-w", "--noflush")
		cmd.Stdin = strings.NewReader(undo)
		if out, err := cmd.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove packet filter chains: %s-restore: %w: %s", filter, err, bytes.TrimSpace(out)))
		}
	}
	return errors.Join(errs...)
}

func save(ctx context.Context, filter string) (string, error) {
	out, err := exec.CommandContext(ctx, filter+"-save").Output()
	if err != nil {
		return "", fmt.Errorf("read the packet filter: %s-save: %w", filter, err)
	}
	return string(out), nil
}

// table is a part of what iptables-save prints.
type table struct {
	name   string
	chains []string
	rules  []string
}

func parseTables(saved string) []table {
	var tables []table
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			tables = append(tables, table{name: name})
		}
		if len(tables) == 0 || line == "" {
			continue
		}
		last := &tables[len(tables)-1]
		switch line[0] {
		case ':':
			name, _, _ := strings.Cut(line[1:], " ")
			last.chains = append(last.chains, name)
		case '-':
			last.rules = append(last.rules, line)
		}
	}
	return tables
}

// undo writes what iptables-restore needs to remove the chains with one of the
// prefixes. It is empty when there are none.
func undo(tables []table, keep, prefixes []string) string {
	var all strings.Builder
	for _, t := range tables {
		gone := map[string]bool{}
		for _, chain := range t.chains {
			hasPrefix := func(p string) bool { return strings.HasPrefix(chain, p) }
			if slices.ContainsFunc(prefixes, hasPrefix) && !slices.Contains(keep, chain) {
				gone[chain] = true
			}
		}
		if len(gone) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(&all, "*%s\n", t.name)
		for _, r := range t.rules {
			from, to := ends(r)
			if !gone[from] && gone[to] {
				_, _ = fmt.Fprintf(&all, "-D%s\n", strings.TrimPrefix(r, "-A"))
			}
		}
		for _, step := range []string{"-F", "-X"} {
			for _, chain := range t.chains {
				if gone[chain] {
					_, _ = fmt.Fprintf(&all, "%s %s\n", step, chain)
				}
			}
		}
		all.WriteString("COMMIT\n")
	}
	return all.String()
}

// ends returns the chain that a rule stands in and the one that it leads to.
func ends(rule string) (from, to string) {
	words := strings.Fields(rule)
	for i, word := range words[:len(words)-1] {
		switch word {
		case "-A":
			from = words[i+1]
		case "-j", "-g":
			to = words[i+1]
		}
	}
	return from, to
}
