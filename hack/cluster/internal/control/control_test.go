package control

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/hack/cluster/internal/layout"
)

func written(t *testing.T) layout.Layout {
	t.Helper()
	l := layout.Layout{State: t.TempDir(), Bin: "/cache/bin"}
	if err := Write(l); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestEveryFileOnACommandLineIsThere(t *testing.T) {
	l := written(t)
	for _, component := range Components {
		spec := ProxySpec(l, "node-1", nil)
		if component != Proxy {
			spec = Spec(l, component, nil)
		}
		if spec.Name != component || spec.Path != l.Binary(component) {
			t.Errorf("%s is started as %s from %s", component, spec.Name, spec.Path)
		}
		for _, arg := range spec.Args {
			_, value, found := strings.Cut(arg, "=")
			if !found {
				value = arg
			}
			// etcd makes its data folder itself.
			if !strings.HasPrefix(value, l.State) || value == l.Etcd() {
				continue
			}
			if _, err := os.Stat(value); err != nil {
				t.Errorf("%s %s: %v", component, arg, err)
			}
		}
	}
}

func TestKubeconfigsNameTheServerAndDiffer(t *testing.T) {
	l := written(t)
	files, err := filepath.Glob(filepath.Join(l.PKI(), "*.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	var users []string
	for _, file := range append(files, l.Kubeconfig()) {
		config, err := clientcmd.LoadFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		current := config.Contexts[config.CurrentContext]
		if config.Clusters[current.Cluster].Server != ServerURL() {
			t.Errorf("%s leads to %s, want %s", file, config.Clusters[current.Cluster].Server, ServerURL())
		}
		if slices.Contains(users, current.AuthInfo) {
			t.Errorf("%s: user %s has another kubeconfig", file, current.AuthInfo)
		}
		users = append(users, current.AuthInfo)
	}
	if len(users) != 6 {
		t.Errorf("kubeconfigs of %v, want the administrator's and five components'", users)
	}
	info, err := os.Stat(l.Kubeconfig())
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the administrator's kubeconfig is %v (%v): others must not read it", info.Mode(), err)
	}
}

func TestCoschedulingConfig(t *testing.T) {
	l := written(t)
	text, err := os.ReadFile(coschedulingFile(l))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Kind             string
		ClientConnection struct{ Kubeconfig string }
		Profiles         []struct{ SchedulerName string }
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if config.Kind != "KubeSchedulerConfiguration" || config.Profiles[0].SchedulerName != "coscheduling" ||
		config.ClientConnection.Kubeconfig != kubeconfig(l, Coscheduler) {
		t.Errorf("configuration %+v", config)
	}
}

// CoreDNS runs its plugins in an order of its own, in which template comes
// before kubernetes: in one block it would answer everything.
func TestTheAnswerToStrangeNamesHasItsOwnBlock(t *testing.T) {
	l := written(t)
	text, err := os.ReadFile(corefile(l))
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "\n}") {
		if strings.Contains(block, "kubernetes ") && strings.Contains(block, "template ") {
			t.Errorf("one block has both:\n%s", block)
		}
	}
}
