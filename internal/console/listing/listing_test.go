package listing

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/console/listing/listingtest"
	"github.com/concertina-dev/concertina/internal/fleet"
)

func listerOf(t *testing.T, server *listingtest.Server) *Lister {
	t.Helper()
	l, err := New(&rest.Config{Host: server.Start(t)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func nodeList(names ...string) *corev1.NodeList {
	list := &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	for _, name := range names {
		list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return list
}

func TestClusterListsAllKinds(t *testing.T) {
	server := listingtest.Whole()
	server.Objects[listingtest.Nodes] = nodeList("n0", "n1")
	server.Objects[listingtest.Jobs] = &v1alpha1.TrainingJobList{
		TypeMeta: metav1.TypeMeta{Kind: "TrainingJobList", APIVersion: v1alpha1.GroupVersion.String()},
		Items:    []v1alpha1.TrainingJob{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "digits"}}}}
	objects, err := listerOf(t, server).Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(objects.Nodes) != 2 || objects.Nodes[1].Name != "n1" || len(objects.Jobs) != 1 || objects.Jobs[0].Name != "digits" {
		t.Errorf("got %d nodes and %d jobs", len(objects.Nodes), len(objects.Jobs))
	}
}

func TestErrorsAreForPeople(t *testing.T) {
	for _, test := range []struct {
		name  string
		codes map[string]int
		want  []string
	}{
		{"no rights", map[string]int{listingtest.Nodes: 403, listingtest.Classes: 403},
			[]string{"you may not list nodes, priorityclasses.scheduling.k8s.io in the whole cluster", "docs/fleet.md"}},
		{"no definition", map[string]int{listingtest.Jobs: 404}, []string{"knows no TrainingJobs", "docs/install.md"}},
		{"not logged in", map[string]int{listingtest.Nodes: 401, listingtest.Pods: 401, listingtest.Jobs: 401}, []string{"does not accept your credentials"}},
		{"another error", map[string]int{listingtest.Quotas: http.StatusConflict}, []string{"list resourcequotas"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := listingtest.Whole()
			server.Codes = test.codes
			_, err := listerOf(t, server).Cluster(t.Context())
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
	}
}

func TestDeniedNamesTheNamespace(t *testing.T) {
	server := listingtest.Whole()
	pods := "/api/v1" + listingtest.In + "team/pods"
	server.Objects["/apis/training.concertina.dev/v1alpha1"+listingtest.In+"team/trainingjobs"] = server.Objects[listingtest.Jobs]
	server.Codes[pods] = 403
	_, err := listerOf(t, server).Jobs(t.Context(), "team")
	if err == nil || !strings.Contains(err.Error(), "list pods in namespace team") {
		t.Errorf("got %v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := New(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Cluster(t.Context())
	if err == nil || !strings.Contains(err.Error(), "cannot reach the cluster at http://127.0.0.1:1") || strings.Contains(err.Error(), "limit=") {
		t.Errorf("got %v", err)
	}
}

func TestSettings(t *testing.T) {
	all := "/api/v1" + listingtest.In + "concertina-system/configmaps"
	one := all + "/short-fleet"
	const autoscaled, wrong = "capacity: Autoscaled\n", "capacty: Autoscaled\n"
	with := func(name, text string) corev1.ConfigMap {
		return corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Data: map[string]string{"fleet.yaml": text}}
	}
	for _, test := range []struct {
		name   string
		asked  string
		labels []corev1.ConfigMap
		named  string
		codes  map[string]int
		want   fleet.Capacity
		err    string
	}{
		{name: "none has the label", err: ErrNoSettings.Error()},
		{name: "one has the label", labels: []corev1.ConfigMap{with("any", autoscaled)}, want: fleet.Autoscaled},
		{name: "two have the label", labels: []corev1.ConfigMap{with("b", autoscaled), with("a", autoscaled)}, err: "(a, b): choose one with --fleet-configmap"},
		{name: "it is wrong", labels: []corev1.ConfigMap{with("any", wrong)}, err: "ConfigMap concertina-system/any"},
		{name: "none may be listed", codes: map[string]int{all: 403}, err: "list configmaps in namespace concertina-system"},
		{name: "by name", asked: "short-fleet", named: autoscaled, codes: map[string]int{all: 403}, want: fleet.Autoscaled},
		{name: "none has the name", asked: "short-fleet", err: "configmaps"},
		{name: "it may not be read", asked: "short-fleet", codes: map[string]int{one: 403}, err: "get configmaps in namespace concertina-system"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := listingtest.Whole()
			server.Codes = test.codes
			server.Objects[all] = &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, Items: test.labels}
			if test.named != "" {
				named := with("short-fleet", test.named)
				server.Objects[one] = &named
			}
			got, err := listerOf(t, server).Settings(t.Context(), "concertina-system", test.asked)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("%v does not say %q", err, test.err)
				}
				return
			}
			if err != nil || got.Capacity != test.want {
				t.Errorf("got %q, %v; want %q", got.Capacity, err, test.want)
			}
		})
	}
}

func TestNoCluster(t *testing.T) {
	_, err := clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{}).ClientConfig()
	if got := NoCluster(err); got == nil || !strings.Contains(got.Error(), "set KUBECONFIG") {
		t.Errorf("without any: %v", got)
	}
	_, err = clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{CurrentContext: "there"}).ClientConfig()
	if got := NoCluster(err); got == nil || !strings.Contains(got.Error(), "get-contexts") {
		t.Errorf("with a context that is not there: %v", got)
	}
}
