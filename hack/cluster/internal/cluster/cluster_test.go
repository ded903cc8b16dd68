package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
	"github.com/concertina-dev/concertina/hack/cluster/internal/network"
)

func TestRecordSurvives(t *testing.T) {
	c := Cluster{Layout: layout.Layout{State: t.TempDir()}}
	if r, err := c.load(); err != nil || r.Running {
		t.Fatalf("load with no cluster = %+v, %v", r, err)
	}
	r := newRecord(2, 4)
	r.Sysctls = map[string]string{"net/ipv4/ip_forward": "0"}
	if err := c.save(r); err != nil {
		t.Fatal(err)
	}
	again, err := c.load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again); diff != "" {
		t.Errorf("record (-saved +loaded):\n%s", diff)
	}
}

func TestNodesOfTheRecord(t *testing.T) {
	r := newRecord(3, 4)
	if r.ProxyNode != "node-1" {
		t.Errorf("kube-proxy bears the name %q, want that of a node", r.ProxyNode)
	}
	smaller := r.without("node-2")
	if len(r.Nodes) != 3 {
		t.Error("without changed the record that it was asked of")
	}
	number, err := smaller.freeNumber()
	if err != nil || number != 2 {
		t.Errorf("freeNumber = %d, %v, want the gap 2", number, err)
	}
	again := smaller.with(nodeRecord{Name: "new", Number: 2}).with(nodeRecord{Name: "new", Number: 2, Down: true})
	var names []string
	for _, n := range again.Nodes {
		names = append(names, n.Name)
	}
	if diff := cmp.Diff([]string{"node-1", "new", "node-3"}, names); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if n, found := again.find("new"); !found || !n.Down {
		t.Errorf("find = %+v, %t, want the newer record", n, found)
	}
	if _, err := again.mustFind("nope"); err == nil || !strings.Contains(err.Error(), "node-1, new, node-3") {
		t.Errorf("mustFind = %v, want an error that lists the nodes", err)
	}
}

func TestTheAddressPlanMayBeFull(t *testing.T) {
	full := newRecord(network.MaxNodes, 1)
	if number, err := full.freeNumber(); err == nil {
		t.Errorf("freeNumber = %d in a full cluster", number)
	}
}

func TestUpRefusesWhatCannotBe(t *testing.T) {
	c := Cluster{Layout: layout.Layout{State: t.TempDir()}}
	for _, sizes := range [][2]int{{0, 1}, {-1, 1}, {network.MaxNodes + 1, 1}, {1, -1}} {
		if err := c.Up(t.Context(), sizes[0], sizes[1]); err == nil || !strings.Contains(err.Error(), "--") {
			t.Errorf("Up(%d, %d) = %v, want an error that names the flag", sizes[0], sizes[1], err)
		}
	}
	if left, _ := os.ReadDir(c.Layout.State); len(left) > 0 {
		t.Errorf("a refused start leaves %v behind", left)
	}
}

func TestParseCapabilities(t *testing.T) {
	set, err := parseCapabilities("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001fffeffffff\n")
	if err != nil || set != 0x1fffeffffff {
		t.Errorf("parseCapabilities = %x, %v", set, err)
	}
	for _, broken := range []string{"", "CapEff:\tzz\n"} {
		if _, err := parseCapabilities(broken); err == nil {
			t.Errorf("%q passes for capabilities", broken)
		}
	}
}

func TestLogNamesTheComponents(t *testing.T) {
	c := Cluster{Layout: layout.Layout{State: t.TempDir()}}
	if _, err := c.Log("etcd"); err == nil {
		t.Error("a cluster that never ran has a log")
	}
	if err := os.MkdirAll(c.Layout.Logs(), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{c.Layout.Log("etcd"), filepath.Join(c.Layout.State, "secret.log")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if path, err := c.Log("etcd"); err != nil || path != c.Layout.Log("etcd") {
		t.Errorf("Log = %s, %v", path, err)
	}
	for _, name := range []string{"etdc", "../secret", ""} {
		if _, err := c.Log(name); err == nil || !strings.Contains(err.Error(), "etcd") {
			t.Errorf("Log(%q) = %v, want an error that lists the components", name, err)
		}
	}
}
