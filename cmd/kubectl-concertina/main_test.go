package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/console"
	"github.com/concertina-dev/concertina/internal/console/listing/listingtest"
	"github.com/concertina-dev/concertina/internal/release"
)

// run runs the command against a server.
func run(t *testing.T, server *listingtest.Server, arguments ...string) (out, messages string, err error) {
	t.Helper()
	return runAs(t, release.Get(), server, arguments...)
}

// runAs runs that of a version.
func runAs(t *testing.T, own release.Info, server *listingtest.Server, arguments ...string) (out, messages string, err error) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}],
contexts: [{name: c, context: {cluster: c, namespace: team}}]}`, server.Start(t))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(own)
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(append(arguments, "--kubeconfig", config))
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// withJob is a cluster without nodes and with one job that waits.
func withJob() *listingtest.Server {
	server := listingtest.Whole()
	job := v1alpha1.TrainingJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "digits", UID: "uid"}}
	job.Spec.Workers.Min, job.Spec.Workers.Max = ptr.To[int32](2), ptr.To[int32](4)
	job.Spec.Suspend = ptr.To(true)
	list := &v1alpha1.TrainingJobList{TypeMeta: metav1.TypeMeta{Kind: "TrainingJobList", APIVersion: v1alpha1.GroupVersion.String()},
		Items: []v1alpha1.TrainingJob{job}}
	server.Objects[listingtest.Jobs] = list
	server.Objects["/apis/training.concertina.dev/v1alpha1"+listingtest.In+"team/trainingjobs"] = list
	server.Objects["/api/v1"+listingtest.In+"team/pods"] = server.Objects[listingtest.Pods]
	return server
}

func TestEveryCommandHasAnExample(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if !strings.Contains(cmd.Example, "kubectl concertina") {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(command(release.Get()))
	out, _, err := run(t, listingtest.Whole(), "explain", "--help")
	if err != nil || !strings.Contains(out, "kubectl concertina explain digits") || !strings.Contains(out, "--context") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPlanCommand(t *testing.T) {
	out, _, err := run(t, withJob(), "plan", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var plan console.Plan
	if err := json.Unmarshal([]byte(out), &plan); err != nil || len(plan.Jobs) != 1 || plan.Jobs[0].Reason != "Suspended" {
		t.Errorf("%v: %s", err, out)
	}
	if out, _, err = run(t, withJob(), "plan", "--all"); err != nil || !strings.Contains(out, "1 job, 0 change, 0 wait; no node offers anything") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestExplainCommand(t *testing.T) {
	out, _, err := run(t, withJob(), "explain", "tj/digits")
	if err != nil || !strings.Contains(out, "It is suspended") {
		t.Errorf("%v: %s", err, out)
	}
	if _, _, err = run(t, withJob(), "explain", "digts"); err == nil || !strings.Contains(err.Error(), "did you mean digits?") {
		t.Errorf("got %v", err)
	}
	if _, _, err = run(t, withJob(), "explain"); err == nil {
		t.Error("no job was named")
	}
}

// Who may not see the cluster still learns what the job says, and which rights are missing.
func TestExplainCommandWithFewRights(t *testing.T) {
	server := withJob()
	server.Codes[listingtest.Nodes], server.Codes[listingtest.Jobs] = 403, 403
	out, messages, err := run(t, server, "explain", "digits")
	if err != nil || !strings.Contains(out, "It is suspended") || !strings.Contains(messages, "list nodes") {
		t.Errorf("%v: %s%s", err, out, messages)
	}
	if _, _, err = run(t, server, "plan"); err == nil || !strings.Contains(err.Error(), "you may not list nodes") {
		t.Errorf("plan: %v", err)
	}
}

func TestPlanCommandWithoutTheOperatorsSettings(t *testing.T) {
	all := "/api/v1" + listingtest.In + "concertina-system/configmaps"
	for name, test := range map[string]struct {
		path      string
		code      int
		arguments []string
	}{
		"none has the label":  {path: all},
		"none may be listed":  {all, 403, nil},
		"it may not be read":  {all + "/short-fleet", 403, []string{"--fleet-configmap", "short-fleet"}},
		"there is none of it": {all + "/short-fleet", 404, []string{"--fleet-configmap", "short-fleet"}},
	} {
		server := withJob()
		server.Objects[all] = &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}}
		server.Codes[test.path] = test.code
		_, messages, err := run(t, server, append([]string{"plan"}, test.arguments...)...)
		if err != nil || !strings.Contains(messages, "default settings") {
			t.Errorf("%s: %v: %s", name, err, messages)
		}
	}
}

// The settings are found whatever the release is called.
func TestPlanCommandWithTheOperatorsSettings(t *testing.T) {
	server := withJob()
	path := "/api/v1" + listingtest.In + "elsewhere/configmaps"
	settings := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "trainer-fleet"}, Data: map[string]string{"fleet.yaml": "minRuntime: 1m\n"}}
	server.Objects[path] = &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, Items: []corev1.ConfigMap{settings}}
	if _, messages, err := run(t, server, "plan", "--operator-namespace", "elsewhere"); err != nil || messages != "" {
		t.Errorf("%v: %s", err, messages)
	}
}

// A plan depends on flags of the operator as well: how large its volumes for snapshots become, and which taints end a node.
func TestPlanCommandHasTheFlagsOfTheOperator(t *testing.T) {
	const flags = "checkpointMemoryMost: 16Gi\ndrainTaints: [example.com/going]\nlater: {a: b}\n"
	server := func(operator string) *listingtest.Server {
		server := withJob()
		list := server.Objects[listingtest.Jobs].(*v1alpha1.TrainingJobList)
		spec := &list.Items[0].Spec
		spec.Suspend, spec.Workers.Min, spec.Workers.Max = nil, ptr.To[int32](1), ptr.To[int32](1)
		spec.Checkpoint.Memory, spec.Workers.ProcessesPerWorker = "auto", ptr.To[int32](1)
		list.Items[0].Status.Checkpoint.Size.State = ptr.To(int64(40) << 30)
		some := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourceCPU: resource.MustParse("1")}
		spec.Workers.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.com/training", Command: []string{"train"},
			Resources: corev1.ResourceRequirements{Requests: some}}}
		spec.Workers.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		node.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourceCPU: resource.MustParse("8"),
			corev1.ResourcePods: resource.MustParse("10")}
		server.Objects[listingtest.Nodes] = &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []corev1.Node{node}}
		settings := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "concertina-fleet"}, Data: map[string]string{"fleet.yaml": "{}", "operator.yaml": operator}}
		server.Objects["/api/v1"+listingtest.In+"concertina-system/configmaps"] = &corev1.ConfigMapList{
			TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, Items: []corev1.ConfigMap{settings}}
		return server
	}
	settings := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(settings, []byte("minRuntime: 1s"), 0o600); err != nil {
		t.Fatal(err)
	}
	tainted := func(server *listingtest.Server) *listingtest.Server {
		node := &server.Objects[listingtest.Nodes].(*corev1.NodeList).Items[0]
		node.Spec.Taints = []corev1.Taint{{Key: "example.com/going", Effect: corev1.TaintEffectPreferNoSchedule}}
		return server
	}
	for name, test := range map[string]struct {
		server    *listingtest.Server
		arguments []string
		starts    bool
	}{
		"of an older chart":            {server(""), nil, false},
		"volumes that are bounded":     {server(flags), nil, true},
		"beside a file":                {server(flags), []string{"--fleet-config", settings}, true},
		"others that are given":        {server(flags), []string{"--checkpoint-memory-most", "64Gi"}, false},
		"a node that is about to go":   {tainted(server(flags)), nil, false},
		"which is none, as it is told": {tainted(server(flags)), []string{"--drain-taints", ""}, true},
	} {
		out, messages, err := run(t, test.server, append([]string{"plan", "--all"}, test.arguments...)...)
		if err != nil || messages != "" || strings.Contains(out, "there is room for all 1 workers") != test.starts {
			t.Errorf("%s: it starts is to be %t: %v: %s%s", name, test.starts, err, out, messages)
		}
	}
	if _, _, err := run(t, server("drainTaints: 5"), "plan"); err == nil || !strings.Contains(err.Error(), "concertina-system/concertina-fleet, key operator.yaml") {
		t.Errorf("flags that cannot be read: %v", err)
	}
}

// A job is named as kubectl takes names, and an answer that is empty says where it was looked.
func TestNamesAreTakenAsKubectlTakesThem(t *testing.T) {
	for _, arguments := range [][]string{{"digits"}, {"tj/digits"}, {"tj", "digits"}, {"trainingjobs", "tj/digits"}} {
		if out, _, err := run(t, withJob(), append([]string{"explain"}, arguments...)...); err != nil || !strings.Contains(out, "It is suspended") {
			t.Errorf("%v: %v: %s", arguments, err, out)
		}
	}
	for _, arguments := range [][]string{{}, {"digits", "letters"}, {"tj", "digits", "letters"}} {
		for _, command := range []string{"explain", "ranks"} {
			if _, _, err := run(t, withJob(), append([]string{command}, arguments...)...); err == nil || !strings.Contains(err.Error(), "name one job, such as: kubectl concertina "+command+" digits") {
				t.Errorf("%s %v: %v", command, arguments, err)
			}
		}
	}
	server := withJob()
	server.Objects["/apis/training.concertina.dev/v1alpha1"+listingtest.In+"empty/trainingjobs"] = &v1alpha1.TrainingJobList{
		TypeMeta: metav1.TypeMeta{Kind: "TrainingJobList", APIVersion: v1alpha1.GroupVersion.String()}}
	server.Objects["/api/v1"+listingtest.In+"empty/pods"] = server.Objects[listingtest.Pods]
	if out, _, err := run(t, server, "top", "-n", "empty"); err != nil || out != "no jobs in namespace empty: --all-namespaces shows those of all\n" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestVersionCommand(t *testing.T) {
	out, _, err := run(t, withJob(), "version")
	if err != nil || !strings.HasPrefix(out, "dev (protocol of agents 2, manifests of checkpoints up to 3") {
		t.Errorf("%v: %s", err, out)
	}
	var flag bytes.Buffer
	cmd := command(release.Get())
	cmd.SetOut(&flag)
	cmd.SetArgs([]string{"--version"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(flag.String(), strings.TrimSpace(out)) {
		t.Errorf("%v: --version says %s", err, flag.String())
	}
	if out, _, err = run(t, withJob(), "version", "-o", "json"); err != nil || !strings.Contains(out, `"protocol": 2`) {
		t.Errorf("%v: %s", err, out)
	}
}

// A plan of another version than the operator's is told to be one.
func TestAnOperatorOfAnotherVersion(t *testing.T) {
	operator := func(namespace, image string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "operator", UID: "o", Labels: map[string]string{"app.kubernetes.io/component": "operator"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "proxy", Image: "proxy:v9.9.9"}, {Name: "operator", Image: image}}},
		}
	}
	for _, c := range []struct {
		name, own string
		pod       corev1.Pod
		warns     string
	}{
		{"older", "v1.3.0", operator("concertina-system", "registry:5000/team/concertina-operator:v1.2.0"), "version v1.2.0, and this program of v1.3.0"},
		{"with a digest", "v1.3.0", operator("concertina-system", "concertina-operator:v1.2.0@sha256:00"), "v1.2.0"},
		{"the same", "1.3.0", operator("concertina-system", "concertina-operator:v1.3.0"), ""},
		{"no version here", "dev", operator("concertina-system", "concertina-operator:v1.3.0"), ""},
		{"no version there", "v1.3.0", operator("concertina-system", "registry:5000/concertina-operator"), ""},
		{"a digest alone", "v1.3.0", operator("concertina-system", "concertina-operator@sha256:00"), ""},
		{"somebody else's", "v1.3.0", operator("other", "some-operator:v1.2.0"), ""},
	} {
		for _, arguments := range [][]string{{"plan"}, {"explain", "digits"}} {
			server := withJob()
			server.Objects[listingtest.Pods] = &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{c.pod}}
			_, messages, err := runAs(t, release.Info{Version: c.own}, server, arguments...)
			told := strings.Contains(messages, "the operator is of version")
			if err != nil || told != (c.warns != "") || !strings.Contains(messages, c.warns) {
				t.Errorf("%s, %s: %v: %s", c.name, arguments, err, messages)
			}
		}
	}
}

func TestNoKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	cmd := command(release.Get())
	cmd.SetArgs([]string{"top"})
	cmd.SetErr(&bytes.Buffer{})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "set KUBECONFIG") {
		t.Errorf("got %v", err)
	}
}

func TestTopCommand(t *testing.T) {
	out, _, err := run(t, withJob(), "top", "-o", "yaml")
	if err != nil || !strings.Contains(out, "name: digits") {
		t.Errorf("%v: %s", err, out)
	}
	for _, wrong := range [][]string{{"top", "-o", "wide"}, {"top", "--sort-by", "beauty"}, {"top", "-A", "-n", "team"}, {"plan", "-A", "-n", "team"}} {
		if _, _, err = run(t, withJob(), wrong...); err == nil {
			t.Errorf("%v is accepted", wrong)
		}
	}
}

func TestReplayFromCluster(t *testing.T) {
	server := withJob()
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}
	node.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	server.Objects[listingtest.Nodes] = &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []corev1.Node{node}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "llama", UID: "1"}}
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: node.Status.Allocatable}}}
	began := metav1.NewTime(time.Now().Add(-time.Hour))
	pod.CreationTimestamp, pod.Status.StartTime, pod.Status.Phase = began, &began, corev1.PodRunning
	server.Objects[listingtest.Pods] = &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{pod}}
	out, said, err := run(t, server, "replay", "--from-cluster", "--policy", "tiresias")
	if err != nil || !strings.Contains(out, "1 job on 1 node with 8 devices each") || !strings.Contains(said, "do not ask for nvidia.com/gpu: 1") {
		t.Errorf("%v: %s%s", err, out, said)
	}
	out, _, err = run(t, server, "replay", "--from-cluster", "-o", "csv", "--nodes", "2")
	if err != nil || !strings.Contains(out, "\nteam/llama,0,8,16,72") {
		t.Errorf("%v: %s", err, out)
	}
	for _, wrong := range [][]string{{}, {"jobs.csv", "--from-cluster"}, {"jobs.csv", "-o", "csv"}, {"--from-cluster", "--widen", "0"}, {"--from-cluster", "--device", "tpu"}} {
		if _, _, err := run(t, server, append([]string{"replay"}, wrong...)...); err == nil {
			t.Errorf("%v: no error", wrong)
		}
	}
}

func TestRanksCommand(t *testing.T) {
	out, _, err := run(t, withJob(), "ranks", "tj/digits")
	if err != nil || out != "team/digits: nobody has a rank, there is no world\n" {
		t.Errorf("%v: %s", err, out)
	}
	if _, _, err = run(t, withJob(), "ranks", "digts"); err == nil || !strings.Contains(err.Error(), "did you mean digits?") {
		t.Errorf("got %v", err)
	}
}

// What an operator shares by decides what becomes of jobs: the settings are taken as they are, and an answer says which it is.
func TestReplayTakesSharingFromTheSettings(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	jobs := file("jobs.csv", "name,submitted_s,workers,max,steps,serial_s,parallel_s,near_s,far_s\na,0,2,2,100,0,2,0,0\n")
	byValue, even, neither := file("value.yaml", "sharing: ByValue"), file("even.yaml", "sharing: Even"), file("neither.yaml", "minRuntime: 1s")
	for _, test := range []struct {
		arguments []string
		sharing   string // empty: it is refused
	}{
		{nil, "Even"},
		{[]string{"--speeds"}, "ByValue"},
		{[]string{"--fleet-config", byValue}, "ByValue"},
		{[]string{"--fleet-config", byValue, "--speeds", "--noise", "0"}, "ByValue"},
		{[]string{"--fleet-config", byValue, "--noise", "0"}, "ByValue"},
		{[]string{"--fleet-config", even}, "Even"},
		{[]string{"--fleet-config", neither}, "Even"},
		{[]string{"--fleet-config", neither, "--speeds"}, "ByValue"},
		{[]string{"--fleet-config", even, "--speeds"}, ""},
		{[]string{"--fleet-config", byValue, "--speeds=false"}, ""},
		{[]string{"--noise", "0.1"}, ""},
		{[]string{"--hide-steps"}, ""},
		{[]string{"--warm-up", "1s"}, ""},
		{[]string{"--stragglers", "0.1"}, ""},
		{[]string{"--keep-halves=false"}, ""},
		{[]string{"--widen", "2"}, ""},
		{[]string{"--device", "example.com/gpu"}, ""},
	} {
		out, _, err := run(t, listingtest.Whole(), append([]string{"replay", jobs, "--nodes", "1", "--policy", "events"}, test.arguments...)...)
		if refused := err != nil; refused != (test.sharing == "") || !refused && !strings.Contains(out, "sharing: "+test.sharing) {
			t.Errorf("%v: %v: %s", test.arguments, err, out)
		}
	}
}

func TestReplayCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jobs.csv")
	text := "name,submitted_s,workers,max,steps,serial_s,parallel_s,near_s,far_s\na,0,2,2,100,0,2,0,0\nb,30,1,1,50,0,1,0,0\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	small := []string{"replay", file, "--nodes", "1", "--devices", "2", "--pause", "1s"}
	out, _, err := run(t, listingtest.Whole(), small...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 jobs on 1 node with 2 devices each", "tiresias     240 ", "optimus      188 ", "concertina   188 ", "events       133 "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	out, _, err = run(t, listingtest.Whole(), append(small, "--policy", "events", "-o", "json")...)
	if err != nil {
		t.Fatal(err)
	}
	var answer console.Replay
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatal(err)
	}
	if len(answer.Runs) != 1 || answer.Runs[0].Policy != "events" || answer.Runs[0].Average != 133 || answer.Runs[0].Jobs[1].JCT != 80 {
		t.Errorf("the answer is %s", out)
	}
	if _, _, err := run(t, listingtest.Whole(), append(small, "--policy", "events", "--speeds", "--keep-halves=false", "--warm-up", "10s", "--stragglers", "0.1")...); err != nil {
		t.Error(err)
	}
	for _, wrong := range [][]string{
		{"--policy", "best"}, {"--interval", "1500ms"}, {"--interval", "0s"}, {"--restart", "-1s"}, {"--pause", "-1s"}, {"--join", "-1s"}, {"--warm-up", "-1s"}, {"--stragglers", "2"}, {"--noise", "NaN"},
		{"--nodes", "0"}, {"--nodes", "2000000000", "--policy", "concertina"}, {"--policy", ""}, {"-o", "picture"}, {"--fleet-config", "absent.yaml"},
	} {
		if _, _, err := run(t, listingtest.Whole(), append(small, wrong...)...); err == nil {
			t.Errorf("%v: no error", wrong)
		}
	}
}
