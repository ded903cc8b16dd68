package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/console/listing"
	"github.com/concertina-dev/concertina/internal/controller"
	"github.com/concertina-dev/concertina/internal/fleet"
)

const crdKey = "CustomResourceDefinition trainingjobs.training.concertina.dev"

var defaultObjects = []string{
	"ClusterRole concertina-operator",
	"ClusterRole concertina-trainingjob-admin",
	"ClusterRole concertina-trainingjob-edit",
	"ClusterRole concertina-trainingjob-view",
	"ClusterRoleBinding concertina-operator",
	"ConfigMap concertina-fleet",
	crdKey,
	"Deployment concertina",
	"NetworkPolicy concertina",
	"PriorityClass concertina-growth",
	"Role concertina-operator",
	"RoleBinding concertina-operator",
	"Service concertina-metrics",
	"Service concertina-rendezvous",
	"ServiceAccount concertina",
}

func names(found objects) []string { return slices.Sorted(maps.Keys(found)) }

func TestOptionsAddAndRemoveObjects(t *testing.T) {
	without := func(drop ...string) []string {
		return slices.DeleteFunc(slices.Clone(defaultObjects), func(name string) bool { return slices.Contains(drop, name) })
	}
	with := func(add ...string) []string {
		return slices.Sorted(slices.Values(append(slices.Clone(defaultObjects), add...)))
	}
	for name, test := range map[string]struct {
		values string
		want   []string
	}{
		"defaults": {"", defaultObjects},
		"no crds":  {"crds: {enabled: false}", without(crdKey)},
		"no rbac": {"rbac: {create: false}", without("ClusterRole concertina-operator", "ClusterRoleBinding concertina-operator",
			"Role concertina-operator", "RoleBinding concertina-operator")},
		"own account": {"serviceAccount: {create: false, name: mine}", without("ServiceAccount concertina")},
		"budget":      {"podDisruptionBudget: {enabled: true}", with("PodDisruptionBudget concertina")},
		"monitor":     {"serviceMonitor: {enabled: true}", with("ServiceMonitor concertina")},
		"alerts":      {"prometheusRule: {enabled: true}", with("PrometheusRule concertina")},
		"dashboard":   {"dashboard: {enabled: true}", with("ConfigMap concertina-dashboard")},
		"no policy":   {"networkPolicy: {enabled: false}", without("NetworkPolicy concertina")},
		"no class":    {"growthPriorityClass: {create: false}", without("PriorityClass concertina-growth")},
		"another class": {"growthPriorityClass: {name: spare}", slices.Sorted(slices.Values(append(without("PriorityClass concertina-growth"),
			"PriorityClass spare")))},
		"every other one": {everything, with("Certificate concertina-rendezvous", "PodDisruptionBudget concertina", "ServiceMonitor concertina")},
	} {
		t.Run(name, func(t *testing.T) {
			found := rendered(t, test.values)
			if diff := cmp.Diff(test.want, names(found)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			for key, object := range found {
				if got := object.GetLabels()["app.kubernetes.io/instance"]; got != release {
					t.Errorf("%s has the instance label %q", key, got)
				}
			}
		})
	}
}

// everything sets each value away from its default.
const everything = `
replicas: 2
image: {repository: example.com/operator, tag: v1, pullPolicy: Always}
imagePullSecrets: [{name: pull}]
agentImage: example.com/agent:v2
crds: {keep: false}
serviceAccount: {name: "", annotations: {a: b}}
rbac: {aggregate: false}
resources: {limits: {cpu: "1"}}
podAnnotations: {note: x}
podLabels: {team: vision}
nodeSelector: {disk: ssd}
tolerations: [{key: k, operator: Exists}]
affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname}]}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
priorityClassName: system-cluster-critical
growthPriorityClass: {value: -5}
drainTaints: [example.com/going, gone]
fleet: {minRuntime: 30s, capacity: Autoscaled, namespaces: {research: {weight: 3}}}
concurrentJobs: 1
kubeAPI: {qps: 12.5, burst: 7}
rendezvous: {maxConnections: 1000000}
certificate: {secretName: "", certManager: {enabled: true, issuerRef: {kind: ClusterIssuer, name: cluster, group: example.com}, duration: 48h, renewBefore: 24h}}
extraArgs: [--zap-log-level=debug]
podDisruptionBudget: {enabled: true, maxUnavailable: 50%}
serviceMonitor: {enabled: true, interval: 1m, labels: {release: prometheus}}
networkPolicy: {workersFrom: [{ipBlock: {cidr: 10.0.0.0/8}}], metricsFrom: [], apiServer: {ports: [16443], cidrs: [192.168.0.1/32, "fd00::1/128"]}}
`

func TestEveryValueIsUsed(t *testing.T) {
	found := rendered(t, everything)
	deployment := get[*appsv1.Deployment](t, found, "Deployment concertina")
	pod := deployment.Spec.Template.Spec
	container := pod.Containers[0]
	policy := get[*networkingv1.NetworkPolicy](t, found, "NetworkPolicy concertina").Spec
	for name, ok := range map[string]bool{
		"replicas":                  *deployment.Spec.Replicas == 2,
		"image":                     container.Image == "example.com/operator:v1",
		"pullPolicy":                container.ImagePullPolicy == corev1.PullAlways,
		"imagePullSecrets":          pod.ImagePullSecrets[0].Name == "pull",
		"agentImage":                slices.Contains(container.Args, "--agent-image=example.com/agent:v2"),
		"resources":                 container.Resources.Limits.Cpu().Value() == 1,
		"podAnnotations":            deployment.Spec.Template.Annotations["note"] == "x",
		"podLabels":                 deployment.Spec.Template.Labels["team"] == "vision",
		"nodeSelector":              pod.NodeSelector["disk"] == "ssd",
		"tolerations":               pod.Tolerations[0].Key == "k",
		"affinity":                  pod.Affinity.PodAntiAffinity != nil,
		"topologySpreadConstraints": pod.TopologySpreadConstraints[0].TopologyKey == "zone",
		"priorityClassName":         pod.PriorityClassName == "system-cluster-critical",
		"growthPriorityClass":       get[*schedulingv1.PriorityClass](t, found, "PriorityClass concertina-growth").Value == -5,
		"drainTaints":               slices.Contains(container.Args, "--drain-taints=example.com/going,gone"),
		"fleet.flag":                slices.Contains(container.Args, "--fleet-config=/etc/concertina/fleet.yaml"),
		"fleet.mount":               container.VolumeMounts[0].MountPath == "/etc/concertina" && pod.Volumes[0].ConfigMap.Name == "concertina-fleet",
		"fleet.settings":            fleetOf(t, found).Capacity == fleet.Autoscaled && *fleetOf(t, found).Namespaces["research"].Weight == 3,
		"concurrentJobs":            slices.Contains(container.Args, "--concurrent-jobs=1"),
		"kubeAPI.qps":               slices.Contains(container.Args, "--kube-api-qps=12.5"),
		"kubeAPI.burst":             slices.Contains(container.Args, "--kube-api-burst=7"),
		"rendezvous.maxConnections": slices.Contains(container.Args, "--rendezvous-max-connections=1000000"),
		"extraArgs":                 slices.Contains(container.Args, "--zap-log-level=debug"),
		"serviceAccount":            get[*corev1.ServiceAccount](t, found, "ServiceAccount concertina").Annotations["a"] == "b",
		"podDisruptionBudget":       get[*policyv1.PodDisruptionBudget](t, found, "PodDisruptionBudget concertina").Spec.MaxUnavailable.String() == "50%",
		"serviceMonitor.labels":     found["ServiceMonitor concertina"].GetLabels()["release"] == "prometheus",
		"networkPolicy.metricsFrom": len(policy.Ingress) == 1,
		"networkPolicy.workersFrom": policy.Ingress[0].From[0].IPBlock.CIDR == "10.0.0.0/8",
		"networkPolicy.ports":       len(policy.Egress) == 2 && len(policy.Egress[0].Ports) == 1 && policy.Egress[0].Ports[0].Port.IntValue() == 16443,
		"networkPolicy.cidrs":       len(policy.Egress[0].To) == 2 && policy.Egress[0].To[1].IPBlock.CIDR == "fd00::1/128",
	} {
		if !ok {
			t.Errorf("%s has no effect", name)
		}
	}
	monitor := get[*unstructured.Unstructured](t, found, "ServiceMonitor concertina")
	endpoints, _, _ := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
	if diff := cmp.Diff([]any{map[string]any{"port": "metrics", "interval": "1m", "honorLabels": true}}, endpoints); diff != "" {
		t.Errorf("ServiceMonitor endpoints (-want +got):\n%s", diff)
	}
	for _, name := range []string{"admin", "edit", "view"} {
		role := get[*rbacv1.ClusterRole](t, found, "ClusterRole concertina-trainingjob-"+name)
		if _, there := role.Labels["rbac.authorization.k8s.io/aggregate-to-"+name]; there {
			t.Errorf("rbac.aggregate has no effect on %s", role.Name)
		}
	}
}

// TestValuesOfAnEarlierRelease: helm upgrade --reuse-values brings none of those that came since. What is missing is what the chart
// comes with, in its notes too.
func TestValuesOfAnEarlierRelease(t *testing.T) {
	want, err := installed("")
	if err != nil {
		t.Fatal(err)
	}
	for _, values := range []string{
		"{checkpoint: null, tracing: null, certificate: null, networkPolicy: null, kubeAPI: null, rendezvous: null, serviceMonitor: null, " +
			"podDisruptionBudget: null, prometheusRule: null, agentFrom: null, concurrentJobs: null, extraArgs: null}",
		"{networkPolicy: {apiServer: null, workersFrom: null, metricsFrom: null, collectorAt: null}, certificate: {certManager: null}}",
		"{networkPolicy: {apiServer: {ports: null}, enabled: null}, kubeAPI: {qps: null}}",
	} {
		got, err := installed(values)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-default +got):\n%s", values, err, diff)
		}
	}
	// Without these the operator has its own, which are the same.
	for value, flag := range map[string]string{"drainTaints": "--drain-taints=", "rackLabel": "--rack-label="} {
		for _, arg := range get[*appsv1.Deployment](t, rendered(t, value+": null"), "Deployment concertina").Spec.Template.Spec.Containers[0].Args {
			if strings.HasPrefix(arg, flag) {
				t.Errorf("%s: null: the operator is told %s", value, arg)
			}
		}
	}
}

// TestTheNotesTellOfImagesThatNobodyPulls: who gives a registry for one image only finds out before the first job does.
func TestTheNotesTellOfImagesThatNobodyPulls(t *testing.T) {
	const wrong = "No node pulls localhost/concertina-agent:v1, localhost/concertina-uploader:v1 from anywhere"
	for values, told := range map[string]bool{
		"image: {repository: example.com/operator, tag: v1}":                                                                             true,
		"{image: {repository: example.com/operator, tag: v1}, agentImage: example.com/agent:v1, uploaderImage: example.com/uploader:v1}": false,
	} {
		out, err := installed(values)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out, wrong) != told || !told && strings.Contains(out, "No node pulls") {
			t.Errorf("%s: %q is to be told: %t:\n%s", values, wrong, told, out[strings.Index(out, "NOTES:"):])
		}
	}
}

// fleetOf reads the settings that the operator would.
func fleetOf(t *testing.T, found objects) fleet.Settings {
	t.Helper()
	config := get[*corev1.ConfigMap](t, found, "ConfigMap concertina-fleet")
	settings, err := fleet.ParseSettings([]byte(config.Data["fleet.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	return settings
}

// TestTheSettingsOfTheExampleHold: what two teams share by is read as it is meant.
func TestTheSettingsOfTheExampleHold(t *testing.T) {
	values, err := os.ReadFile(filepath.Join(root, "examples/teams/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	settings := fleetOf(t, rendered(t, string(values)))
	research := settings.Namespaces["research"]
	if *settings.Namespaces["vision"].Weight != 3 || *research.HeadRoom != 25 || !*research.AllowEvict || *settings.DefaultNamespace.AllowEvict {
		t.Errorf("%+v", settings)
	}
}

// TestThePluginFindsTheSettings: by their label, whatever the release and the chart are called.
func TestThePluginFindsTheSettings(t *testing.T) {
	for values, name := range map[string]string{
		"": "concertina-fleet", "fullnameOverride: short": "short-fleet", "nameOverride: trainer": release + "-trainer-fleet",
	} {
		found := rendered(t, values)
		if got := get[*corev1.ConfigMap](t, found, "ConfigMap "+name).Labels[listing.LabelSettings]; got != listing.SettingsOfFleet {
			t.Errorf("values %q: label %q", values, got)
		}
		for key, object := range found {
			if _, labelled := object.GetLabels()[listing.LabelSettings]; labelled && key != "ConfigMap "+name {
				t.Errorf("values %q: %s has the label too", values, key)
			}
		}
	}
}

// TestThePluginReadsTheFlagsOfTheOperator: what it plans with is what the operator is started with.
func TestThePluginReadsTheFlagsOfTheOperator(t *testing.T) {
	for _, values := range []string{"", everything, "{drainTaints: [], checkpoint: {memoryMost: 1073741824}, agentFrom: image-volume}"} {
		found := rendered(t, values)
		var told listing.Operator
		if err := yaml.UnmarshalStrict([]byte(get[*corev1.ConfigMap](t, found, "ConfigMap concertina-fleet").Data["operator.yaml"]), &told); err != nil {
			t.Fatal(err)
		}
		args := get[*appsv1.Deployment](t, found, "Deployment concertina").Spec.Template.Spec.Containers[0].Args
		for _, want := range []string{"--drain-taints=" + strings.Join(told.DrainTaints, ","), "--agent-from=" + told.AgentFrom} {
			if !slices.Contains(args, want) {
				t.Errorf("values %q: the plugin is told %s, the operator %v", values, want, args)
			}
		}
		for _, arg := range args {
			if most, is := strings.CutPrefix(arg, "--checkpoint-memory-most="); is && told.CheckpointMemoryMost.Cmp(resource.MustParse(most)) != 0 {
				t.Errorf("values %q: the plugin is told %s, the operator %s", values, &told.CheckpointMemoryMost, arg)
			}
		}
	}
}

// TestAlertsAreOfMetricsThatThereAre: docs/reasons.md has each that is the operator's own, with the labels by which an alert tells.
func TestAlertsAreOfMetricsThatThereAre(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/reasons.md"))
	if err != nil {
		t.Fatal(err)
	}
	rule := get[*unstructured.Unstructured](t, rendered(t, "prometheusRule: {enabled: true, labels: {release: prometheus}}"), "PrometheusRule concertina")
	groups, _, err := unstructured.NestedSlice(rule.Object, "spec", "groups")
	if err != nil || len(groups) != 1 || rule.GetLabels()["release"] != "prometheus" {
		t.Fatalf("%v: %v", err, rule.Object)
	}
	rules, _, _ := unstructured.NestedSlice(groups[0].(map[string]any), "rules")
	if len(rules) < 5 {
		t.Errorf("%d rules", len(rules))
	}
	for _, one := range rules {
		alert := one.(map[string]any)
		expr, _ := alert["expr"].(string)
		summary, _, _ := unstructured.NestedString(alert, "annotations", "summary")
		if severity, _, _ := unstructured.NestedString(alert, "labels", "severity"); alert["alert"] == "" || expr == "" || summary == "" || severity == "" {
			t.Errorf("%v is not complete", alert)
		}
		for _, metric := range regexp.MustCompile(`concertina_\w+`).FindAllString(expr, -1) {
			row := regexp.MustCompile("(?m)^\\|.*`" + metric + "`.*$").FindString(string(page))
			if row == "" {
				t.Errorf("%s: docs/reasons.md has no %s", alert["alert"], metric)
			}
			for _, label := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(summary, -1) {
				if !strings.Contains(row, "`"+label[1]+"`") {
					t.Errorf("%s: %s has no label %s", alert["alert"], metric, label[1])
				}
			}
		}
	}
}

// TestTheCertificateIsMounted: the operator serves with the Secret, and cert-manager makes it for the name
// under which workers look for the rendezvous.
func TestTheCertificateIsMounted(t *testing.T) {
	for values, secret := range map[string]string{
		"certificate: {secretName: mine}":                                         "mine",
		"certificate: {certManager: {enabled: true, issuerRef: {name: cluster}}}": "concertina-rendezvous-tls",
	} {
		found := rendered(t, values)
		pod := get[*appsv1.Deployment](t, found, "Deployment concertina").Spec.Template.Spec
		if got := pod.Volumes[1].Secret.SecretName; got != secret {
			t.Errorf("%s: the Secret %s is mounted", values, got)
		}
		if arg := "--rendezvous-certificate=" + pod.Containers[0].VolumeMounts[1].MountPath; !slices.Contains(pod.Containers[0].Args, arg) {
			t.Errorf("%s: the operator is not told %s", values, arg)
		}
		if secret == "mine" {
			continue
		}
		spec, _, _ := unstructured.NestedMap(get[*unstructured.Unstructured](t, found, "Certificate concertina-rendezvous").Object, "spec")
		service := get[*corev1.Service](t, found, "Service concertina-rendezvous")
		want := map[string]any{
			"secretName": secret, "dnsNames": []any{service.Name + "." + service.Namespace + ".svc"},
			"usages": []any{"digital signature", "server auth"}, "duration": "2160h", "renewBefore": "720h",
			"privateKey": map[string]any{"algorithm": "ECDSA", "size": float64(256), "rotationPolicy": "Always"},
			"issuerRef":  map[string]any{"kind": "Issuer", "name": "cluster"},
		}
		if diff := cmp.Diff(want, spec); diff != "" {
			t.Errorf("the Certificate (-want +got):\n%s", diff)
		}
	}
}

func TestWrongValuesAreRefusedByName(t *testing.T) {
	for values, want := range map[string]string{
		"replica: 2":                                  "'replica' not allowed",
		"replicas: -1":                                "/replicas",
		"fullnameOverride: UPPER":                     "/fullnameOverride",
		"nameOverride: a_b":                           "/nameOverride",
		"image: {pullPolicy: Sometimes}":              "/image/pullPolicy",
		"image: {repository: ''}":                     "/image/repository",
		"agentImage: 3":                               "/agentImage",
		"growthPriorityClass: {value: 2000000000}":    "/growthPriorityClass/value",
		"growthPriorityClass: {name: A}":              "/growthPriorityClass/name",
		"drainTaints: ['a,b']":                        "/drainTaints/0",
		"checkpoint: {uploadRate: -1}":                "/checkpoint/uploadRate",
		"checkpoint: {uploadRate: 1.5}":               "/checkpoint/uploadRate",
		"checkpoint: {uploadRate: fast}":              "/checkpoint/uploadRate",
		"checkpoint: {memoryMost: 0}":                 "/checkpoint/memoryMost",
		"checkpoint: {memoryMost: much}":              "/checkpoint/memoryMost",
		"concurrentJobs: 0":                           "/concurrentJobs",
		"kubeAPI: {qps: 0}":                           "/kubeAPI/qps",
		"kubeAPI: {burst: 0}":                         "/kubeAPI/burst",
		"rendezvous: {maxConnections: 0}":             "/rendezvous/maxConnections",
		"certificate: {certManager: {enabled: true}}": "/certificate/certManager/issuerRef/name",
		"certificate: {secretName: mine, certManager: {enabled: true, issuerRef: {name: ca}}}": "/certificate/secretName",
		"certificate: {secretName: Mine}":             "/certificate/secretName",
		"extraArgs: [leader-elect]":                   "/extraArgs/0",
		"podDisruptionBudget: {maxUnavailable: half}": "/podDisruptionBudget/maxUnavailable",
		"serviceMonitor: {interval: often}":           "/serviceMonitor/interval",
		"tracing: {endpoint: 'collector:4317'}":       "/tracing/endpoint",
		"tracing: {env: [{name: PATH}]}":              "/tracing/env/0/name",
		"networkPolicy: {collectorAt: []}":            "/networkPolicy/collectorAt",
		"networkPolicy: {apiServer: {ports: []}}":     "/networkPolicy/apiServer/ports",
		"networkPolicy: {apiServer: {cidrs: [here]}}": "/networkPolicy/apiServer/cidrs/0",
	} {
		_, err := helm(values)
		if err == nil {
			t.Errorf("%s is accepted", values)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error does not speak of %s: %v", values, want, err)
		}
	}
}

// TestTheChartAndTheOperatorAgreeOnSettings: what the operator would not start with is refused before it is installed.
func TestTheChartAndTheOperatorAgreeOnSettings(t *testing.T) {
	for _, test := range []struct {
		settings string
		fine     bool
	}{
		{"minRuntime: 1h", true}, {"minRuntime: 60m0.001s", false}, {"minRuntime: 0s", true},
		{"attemptTimeout: 168h", true}, {"attemptTimeout: 9s", false},
		{"reclaimTimeout: 60s", true}, {"reclaimTimeout: 10m", false}, {"reclaimTimeout: 999ms", false},
		{"backfill: 168h", true}, {"backfill: 169h", false},
		{"coolDown: 24h1ms", false}, {"firstRegrow: 25h", false}, {"lastRegrow: 1.5h", true},
		{"firstRegrow: 6m", false}, {"firstRegrow: 6m, lastRegrow: 6m", true}, {"firstRegrow: 2s, lastRegrow: 1999ms", false},
		{"lastRegrow: 500ms", false},
	} {
		if _, err := fleet.ParseSettings([]byte("{" + test.settings + "}")); (err == nil) != test.fine {
			t.Errorf("the operator says of %s: %v", test.settings, err)
		}
		_, err := helm("fleet: {" + test.settings + "}")
		if (err == nil) != test.fine {
			t.Errorf("the chart says of %s: %v", test.settings, err)
		}
		if err != nil && !strings.Contains(err.Error(), "fleet.") {
			t.Errorf("the chart does not say what of %s is wrong: %v", test.settings, err)
		}
	}
}

func TestTheDefinitionIsTheGeneratedOne(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "config/crd/bases/training.concertina.dev_trainingjobs.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := get[*apiextensionsv1.CustomResourceDefinition](t, decode(t, string(content)), crdKey)
	for values, keep := range map[string]string{"": "keep", "crds: {keep: false}": ""} {
		got := get[*apiextensionsv1.CustomResourceDefinition](t, rendered(t, values), crdKey)
		if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
			t.Errorf("values %q: definition (-generated +chart):\n%s", values, diff)
		}
		if policy := got.Annotations["helm.sh/resource-policy"]; policy != keep {
			t.Errorf("values %q: resource policy %q", values, policy)
		}
	}
}

// TestTheWorkersFindTheRendezvous: flag, Service and ports must name one thing.
func TestTheWorkersFindTheRendezvous(t *testing.T) {
	for name, values := range map[string]string{"concertina": "", "short": "fullnameOverride: short"} {
		found := rendered(t, values)
		service := get[*corev1.Service](t, found, "Service "+name+"-rendezvous")
		if len(service.Spec.Selector) != 0 {
			t.Errorf("%s has the selector %v: the leader alone writes its EndpointSlice", service.Name, service.Spec.Selector)
		}
		if port := service.Spec.Ports[0]; port.Name != "rendezvous" || port.Port != 8443 {
			t.Errorf("%s has the port %+v", service.Name, port)
		}
		args := get[*appsv1.Deployment](t, found, "Deployment "+name).Spec.Template.Spec.Containers[0].Args
		for _, want := range []string{"--rendezvous-service=" + service.Name, "--rendezvous-bind-address=:8443"} {
			if !slices.Contains(args, want) {
				t.Errorf("no flag %s in %v", want, args)
			}
		}
	}
}

func TestServicesAndBudgetSelectTheOperator(t *testing.T) {
	found := rendered(t, everything)
	labels := get[*appsv1.Deployment](t, found, "Deployment concertina").Spec.Template.Labels
	for name, selector := range map[string]map[string]string{
		"deployment": get[*appsv1.Deployment](t, found, "Deployment concertina").Spec.Selector.MatchLabels,
		"metrics":    get[*corev1.Service](t, found, "Service concertina-metrics").Spec.Selector,
		"budget":     get[*policyv1.PodDisruptionBudget](t, found, "PodDisruptionBudget concertina").Spec.Selector.MatchLabels,
		"policy":     get[*networkingv1.NetworkPolicy](t, found, "NetworkPolicy concertina").Spec.PodSelector.MatchLabels,
	} {
		if len(selector) == 0 {
			t.Errorf("%s selects every pod", name)
		}
		for key, value := range selector {
			if labels[key] != value {
				t.Errorf("%s selects %s=%s, which the pods do not have", name, key, value)
			}
		}
	}
}

// TestGrowthPreemptsNobody: neither way to install may have growth pods push others out.
func TestGrowthPreemptsNobody(t *testing.T) {
	chart := get[*schedulingv1.PriorityClass](t, rendered(t, ""), "PriorityClass concertina-growth")
	kustomize := get[*schedulingv1.PriorityClass](t, kustomized(t, "config/default"), "PriorityClass concertina-growth")
	for way, class := range map[string]*schedulingv1.PriorityClass{"chart": chart, "kustomize": kustomize} {
		if class.PreemptionPolicy == nil || *class.PreemptionPolicy != corev1.PreemptNever || class.GlobalDefault {
			t.Errorf("%s: preemption policy %v, default for all: %t", way, class.PreemptionPolicy, class.GlobalDefault)
		}
		if class.Value >= 0 {
			t.Errorf("%s: the value %d is not below that of pods without a class", way, class.Value)
		}
	}
	crd := get[*apiextensionsv1.CustomResourceDefinition](t, rendered(t, ""), crdKey)
	growth := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["growth"].Properties["priorityClassName"]
	if got, want := string(growth.Default.Raw), strconv.Quote(chart.Name); got != want {
		t.Errorf("jobs name %s by default, the chart makes %s", got, want)
	}
}

// TestDrainTaintsAreTheOperatorsOwn: what the chart shows as its default is what the operator does
// without being told.
func TestDrainTaintsAreTheOperatorsOwn(t *testing.T) {
	want := "--drain-taints=" + strings.Join(controller.DefaultDrainTaints, ",")
	for way, found := range map[string]objects{"chart": rendered(t, ""), "kustomize": kustomized(t, "config/default")} {
		args := get[*appsv1.Deployment](t, found, "Deployment concertina").Spec.Template.Spec.Containers[0].Args
		if !slices.Contains(args, want) {
			t.Errorf("%s: no %s in %v", way, want, args)
		}
	}
	none := get[*appsv1.Deployment](t, rendered(t, "drainTaints: []"), "Deployment concertina").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(none, "--drain-taints=") {
		t.Errorf("an empty list leaves the operator with its own: %v", none)
	}
}

// TestTheRackLabelIsTheOperatorsOwn: so is this default, and it can be emptied.
func TestTheRackLabelIsTheOperatorsOwn(t *testing.T) {
	own := "--rack-label=" + controller.DefaultRackLabel
	for want, found := range map[string][]objects{
		own:                      {rendered(t, ""), kustomized(t, "config/default")},
		"--rack-label=":          {rendered(t, `rackLabel: ""`)},
		"--rack-label=acme/row1": {rendered(t, "rackLabel: acme/row1")},
	} {
		for _, objects := range found {
			args := get[*appsv1.Deployment](t, objects, "Deployment concertina").Spec.Template.Spec.Containers[0].Args
			if !slices.Contains(args, want) {
				t.Errorf("no %s in %v", want, args)
			}
		}
	}
}

func TestBoundsOfCheckpoints(t *testing.T) {
	for want, values := range map[string]string{
		"--checkpoint-upload-rate=0":         "",
		"--checkpoint-upload-rate=50Mi":      "checkpoint: {uploadRate: 50Mi}",
		"--checkpoint-upload-rate=500000000": `checkpoint: {uploadRate: "500000000"}`,
		"--checkpoint-upload-rate=800000000": "checkpoint: {uploadRate: 800000000}",
		"--checkpoint-memory-most=64Gi":      "checkpoint: {uploadRate: 50Mi}",
		"--checkpoint-memory-most=1.5Gi":     "checkpoint: {memoryMost: 1.5Gi}",
		"--checkpoint-memory-most=800000000": "checkpoint: {memoryMost: 800000000}",
	} {
		args := get[*appsv1.Deployment](t, rendered(t, values), "Deployment concertina").Spec.Template.Spec.Containers[0].Args
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %v", want, args)
		}
	}
}

func TestUsersMayScaleWhatTheyMayWrite(t *testing.T) {
	found := rendered(t, "")
	for name, want := range map[string][]string{"admin": {"*"}, "edit": {"get", "update", "patch"}, "view": {"get"}} {
		role := get[*rbacv1.ClusterRole](t, found, "ClusterRole concertina-trainingjob-"+name)
		index := slices.IndexFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "trainingjobs/scale") })
		if index < 0 || !slices.Equal(role.Rules[index].Verbs, want) {
			t.Errorf("%s: rules %+v, want %v on trainingjobs/scale", name, role.Rules, want)
		}
	}
}

// TestTheOperatorRunsRestricted checks the rules of the Pod Security Standard by name.
func TestTheOperatorRunsRestricted(t *testing.T) {
	pod := get[*appsv1.Deployment](t, rendered(t, ""), "Deployment concertina").Spec.Template.Spec
	context := pod.Containers[0].SecurityContext
	for rule, ok := range map[string]bool{
		"runAsNonRoot":             *pod.SecurityContext.RunAsNonRoot,
		"seccompProfile":           pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		"allowPrivilegeEscalation": !*context.AllowPrivilegeEscalation,
		"capabilities":             slices.Equal(context.Capabilities.Drop, []corev1.Capability{"ALL"}) && len(context.Capabilities.Add) == 0,
		"readOnlyRootFilesystem":   *context.ReadOnlyRootFilesystem,
		"no host namespaces":       !pod.HostNetwork && !pod.HostPID && !pod.HostIPC,
		"volumes":                  len(pod.Volumes) == 1 && pod.Volumes[0].ConfigMap != nil,
	} {
		if !ok {
			t.Errorf("%s is violated", rule)
		}
	}
}

func TestTheReadmeNamesEveryValue(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "charts/concertina/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, "charts/concertina/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(content, &values); err != nil {
		t.Fatal(err)
	}
	for name := range values {
		if !strings.Contains(string(readme), "`"+name) {
			t.Errorf("README.md does not speak of %s", name)
		}
	}
}

// TestKustomizeInstallsTheSame: who prefers kubectl gets what the chart's defaults give.
func TestKustomizeInstallsTheSame(t *testing.T) {
	chart, kustomize := rendered(t, ""), kustomized(t, "config/default")
	if diff := cmp.Diff(append(slices.Clone(defaultObjects), "Namespace "+namespace), names(kustomize),
		cmp.Transformer("sort", func(in []string) []string { return slices.Sorted(slices.Values(in)) })); diff != "" {
		t.Errorf("objects (-chart +kustomize):\n%s", diff)
	}
	compare := func(name string, want, got any) {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-chart +kustomize):\n%s", name, diff)
		}
	}
	a, b := get[*appsv1.Deployment](t, chart, "Deployment concertina"), get[*appsv1.Deployment](t, kustomize, "Deployment concertina")
	compare("growth", get[*schedulingv1.PriorityClass](t, chart, "PriorityClass concertina-growth").Value,
		get[*schedulingv1.PriorityClass](t, kustomize, "PriorityClass concertina-growth").Value)
	compare("fleet", get[*corev1.ConfigMap](t, chart, "ConfigMap concertina-fleet").Data, get[*corev1.ConfigMap](t, kustomize, "ConfigMap concertina-fleet").Data)
	if got := get[*corev1.ConfigMap](t, kustomize, "ConfigMap concertina-fleet").Labels[listing.LabelSettings]; got != listing.SettingsOfFleet {
		t.Errorf("kubectl concertina does not find the settings that kustomize installs: %s=%q", listing.LabelSettings, got)
	}
	compare("pod", a.Spec.Template.Spec, b.Spec.Template.Spec)
	for _, role := range []string{"operator", "trainingjob-admin", "trainingjob-edit", "trainingjob-view"} {
		a, b := get[*rbacv1.ClusterRole](t, chart, "ClusterRole concertina-"+role), get[*rbacv1.ClusterRole](t, kustomize, "ClusterRole concertina-"+role)
		compare(role, a.Rules, b.Rules)
	}
	compare("role", get[*rbacv1.Role](t, chart, "Role concertina-operator").Rules, get[*rbacv1.Role](t, kustomize, "Role concertina-operator").Rules)
	compare("binding", get[*rbacv1.RoleBinding](t, chart, "RoleBinding concertina-operator").Subjects,
		get[*rbacv1.RoleBinding](t, kustomize, "RoleBinding concertina-operator").Subjects)
	compare("ingress", get[*networkingv1.NetworkPolicy](t, chart, "NetworkPolicy concertina").Spec.Ingress,
		get[*networkingv1.NetworkPolicy](t, kustomize, "NetworkPolicy concertina").Spec.Ingress)
	compare("egress", get[*networkingv1.NetworkPolicy](t, chart, "NetworkPolicy concertina").Spec.Egress,
		get[*networkingv1.NetworkPolicy](t, kustomize, "NetworkPolicy concertina").Spec.Egress)
	compare("rendezvous", get[*corev1.Service](t, chart, "Service concertina-rendezvous").Spec, get[*corev1.Service](t, kustomize, "Service concertina-rendezvous").Spec)
}

func TestOptionalKustomizationsDecode(t *testing.T) {
	if found := kustomized(t, "config/prometheus"); len(found) != 1 {
		t.Errorf("config/prometheus: %v", names(found))
	}
}

// TestNothingElseIsLetThrough: the operator's doors are those of its ports, and it goes nowhere but to the API
// server and to DNS.
func TestNothingElseIsLetThrough(t *testing.T) {
	for way, found := range map[string]objects{"chart": rendered(t, ""), "kustomize": kustomized(t, "config/default")} {
		policy := get[*networkingv1.NetworkPolicy](t, found, "NetworkPolicy concertina").Spec
		if !slices.Contains(policy.PolicyTypes, networkingv1.PolicyTypeIngress) || !slices.Contains(policy.PolicyTypes, networkingv1.PolicyTypeEgress) {
			t.Errorf("%s: it is a policy for %v only", way, policy.PolicyTypes)
		}
		ports := func(all []networkingv1.NetworkPolicyPort) []int {
			var numbers []int
			for _, port := range all {
				numbers = append(numbers, port.Port.IntValue())
			}
			return numbers
		}
		var in, out []int
		for _, rule := range policy.Ingress {
			if len(rule.From) == 0 {
				t.Errorf("%s: %v is open to everybody", way, ports(rule.Ports))
			}
			in = append(in, ports(rule.Ports)...)
		}
		for _, rule := range policy.Egress {
			out = append(out, ports(rule.Ports)...)
		}
		if !slices.Equal(in, []int{8443, 8080}) || !slices.Equal(out, []int{443, 6443, 8443, 16443, 53, 53}) {
			t.Errorf("%s: ports in %v, out %v", way, in, out)
		}
	}
}

// TestTracesAreSentWhereTheChartSays: there is a collector only when it is named, and the policy lets the operator out
// to its port.
func TestTracesAreSentWhereTheChartSays(t *testing.T) {
	for endpoint, port := range map[string]int{
		"":                              0,
		"http://collector.obs:4318":     4318,
		"https://traces.example.com":    443,
		"http://collector/otlp":         80,
		"https://[fd00::1]:4318":        4318,
		"http://10.0.0.7:14318/tenants": 14318,
	} {
		found := rendered(t, fmt.Sprintf("tracing: {endpoint: %q, env: [{name: OTEL_TRACES_SAMPLER, value: always_on}]}", endpoint))
		said := map[string]string{}
		for _, variable := range get[*appsv1.Deployment](t, found, "Deployment concertina").Spec.Template.Spec.Containers[0].Env {
			said[variable.Name] = variable.Value
		}
		if said["OTEL_EXPORTER_OTLP_ENDPOINT"] != endpoint || (said["OTEL_TRACES_SAMPLER"] == "always_on") != (endpoint != "") {
			t.Errorf("%q: the operator's variables are %v", endpoint, said)
		}
		egress := get[*networkingv1.NetworkPolicy](t, found, "NetworkPolicy concertina").Spec.Egress
		if port == 0 {
			if len(egress) != 2 {
				t.Errorf("without a collector the policy has %d ways out", len(egress))
			}
			continue
		}
		if len(egress) != 3 || egress[2].Ports[0].Port.IntValue() != port || len(egress[2].To) != 1 || egress[2].To[0].NamespaceSelector == nil {
			t.Errorf("%s: the ways out are %v", endpoint, egress)
		}
	}
}

// TestOnlyTheOperatorWritesTheRecord: nobody else may write a job's status, whatever roles a user has from
// here, and nobody may hand out more.
func TestOnlyTheOperatorWritesTheRecord(t *testing.T) {
	for way, found := range map[string]objects{"chart": rendered(t, ""), "kustomize": kustomized(t, "config/default")} {
		writers := map[string]bool{}
		for key, object := range found {
			var rules []rbacv1.PolicyRule
			switch role := object.(type) {
			case *rbacv1.ClusterRole:
				rules = role.Rules
				if role.AggregationRule != nil {
					t.Errorf("%s: %s takes rights from elsewhere", way, key)
				}
			case *rbacv1.Role:
				rules = role.Rules
			default:
				continue
			}
			for _, rule := range rules {
				if writesStatus(rule) {
					writers[key] = true
				}
				for _, verb := range rule.Verbs {
					if slices.Contains([]string{"escalate", "bind", "impersonate"}, verb) {
						t.Errorf("%s: %s may %s", way, key, verb)
					}
				}
			}
		}
		if !maps.Equal(writers, map[string]bool{"ClusterRole concertina-operator": true}) {
			t.Errorf("%s: the status of jobs is written by %v", way, writers)
		}
		crd := get[*apiextensionsv1.CustomResourceDefinition](t, found, crdKey)
		for _, version := range crd.Spec.Versions {
			if version.Subresources == nil || version.Subresources.Status == nil {
				t.Errorf("%s: whoever writes a job of %s writes its status", way, version.Name)
			}
		}
		binding := get[*rbacv1.ClusterRoleBinding](t, found, "ClusterRoleBinding concertina-operator")
		if len(binding.Subjects) != 1 || binding.Subjects[0].Kind != rbacv1.ServiceAccountKind || binding.Subjects[0].Namespace != namespace {
			t.Errorf("%s: the operator's rights go to %v", way, binding.Subjects)
		}
	}
}

// writesStatus says whether a rule lets somebody write the status of jobs.
func writesStatus(rule rbacv1.PolicyRule) bool {
	one := func(all []string, names ...string) bool {
		return slices.ContainsFunc(all, func(name string) bool { return slices.Contains(names, name) })
	}
	return one(rule.APIGroups, v1alpha1.GroupVersion.Group, "*") &&
		one(rule.Resources, "trainingjobs/status", "*/status", "trainingjobs/*", "*") &&
		one(rule.Verbs, "update", "patch", "create", "*")
}

func TestWhoWritesAStatus(t *testing.T) {
	group := v1alpha1.GroupVersion.Group
	for _, c := range []struct {
		rule rbacv1.PolicyRule
		want bool
	}{
		{rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{"trainingjobs"}, Verbs: []string{"*"}}, false},
		{rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{"trainingjobs/status"}, Verbs: []string{"get"}}, false},
		{rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{"pods", "trainingjobs/status"}, Verbs: []string{"get", "patch"}}, true},
		{rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"update"}}, true},
		{rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{"*/status"}, Verbs: []string{"*"}}, true},
		{rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"*"}, Verbs: []string{"*"}}, false},
	} {
		if got := writesStatus(c.rule); got != c.want {
			t.Errorf("%+v: %t", c.rule, got)
		}
	}
}

// TestRightsByName: the operator's own objects are the only ones of their kind that it may touch.
func TestRightsByName(t *testing.T) {
	for name, values := range map[string]string{"concertina": "", "short": "fullnameOverride: short"} {
		role := get[*rbacv1.Role](t, rendered(t, values), "Role "+name+"-operator")
		names := map[string][]string{}
		for _, rule := range role.Rules {
			for _, verb := range rule.Verbs {
				if verb != "create" && rule.Resources[0] != "events" {
					names[rule.Resources[0]] = rule.ResourceNames
				}
			}
		}
		want := map[string][]string{"secrets": {"concertina-authority"}, "leases": {"concertina-operator"}, "endpointslices": {name + "-rendezvous"}}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s: objects by kind (-want +got):\n%s", name, diff)
		}
	}
}

// TestThePolicyForWorkersDecodes: what docs/security.md tells people to apply can be applied, and speaks of the
// label and the port that there are.
func TestThePolicyForWorkersDecodes(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the page shows no policy")
	}
	policy := get[*networkingv1.NetworkPolicy](t, decode(t, text), "NetworkPolicy training").Spec
	if key := policy.PodSelector.MatchExpressions[0].Key; key != v1alpha1.LabelJob {
		t.Errorf("workers have the label %s, and the policy is for %s", v1alpha1.LabelJob, key)
	}
	if port := policy.Egress[1].Ports[0].Port.IntValue(); port != 8443 {
		t.Errorf("the operator is at port 8443, and the policy is for %d", port)
	}
}

func TestSamplesDecode(t *testing.T) {
	found := kustomized(t, "config/samples")
	if len(found) != 2 {
		t.Errorf("samples: %v", names(found))
	}
	for key := range found {
		get[*v1alpha1.TrainingJob](t, found, key)
	}
}
