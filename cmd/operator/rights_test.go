package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const root = "../.."

// right is one verb on one kind of object, and a line of code that needs it; several in one file share a line.
type right struct{ what, verb, file, code string }

// rights are all that the operator may do, and why.
var rights = []right{
	// Caches list and watch.
	{"limitranges", "list", "internal/controller/setup.go", "Watches(&corev1.LimitRange{}"},
	{"limitranges", "watch", "internal/controller/setup.go", "Watches(&corev1.LimitRange{}"},
	{"namespaces", "list", "internal/fleet/source.go", "{s.whole, &corev1.Namespace{}"},
	{"namespaces", "watch", "internal/fleet/source.go", "{s.whole, &corev1.Namespace{}"},
	{"nodes", "list", "internal/fleet/source.go", "{s.whole, &corev1.Node{}"},
	{"nodes", "watch", "internal/fleet/source.go", "{s.whole, &corev1.Node{}"},
	{"resourcequotas", "list", "internal/controller/setup.go", "Watches(&corev1.ResourceQuota{}"},
	{"resourcequotas", "watch", "internal/controller/setup.go", "Watches(&corev1.ResourceQuota{}"},
	{"pods", "list", "internal/controller/setup.go", "Watches(&corev1.Pod{}"},
	{"pods", "watch", "internal/controller/setup.go", "Watches(&corev1.Pod{}"},
	{"priorityclasses.scheduling.k8s.io", "list", "internal/fleet/source.go", "{s.whole, &schedulingv1.PriorityClass{}"},
	{"priorityclasses.scheduling.k8s.io", "watch", "internal/fleet/source.go", "{s.whole, &schedulingv1.PriorityClass{}"},
	{"trainingjobs.training.concertina.dev", "list", "internal/controller/setup.go", "Watches(&v1alpha1.TrainingJob{}"},
	{"trainingjobs.training.concertina.dev", "watch", "internal/controller/setup.go", "Watches(&v1alpha1.TrainingJob{}"},

	{"nodes", "list", "cmd/operator/main.go", "live.List(ctx, &nodes)"},
	{"nodes", "get", "internal/controller/nodes.go", "r.Live.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})"},
	{"pods", "get", "internal/controller/make.go", "r.Live.Get(ctx, client.ObjectKeyFromObject(pod), found)"},
	{"pods", "create", "internal/controller/make.go", "r.Client.Create(ctx, pod)"},
	{"pods", "create", "internal/controller/ask.go", "r.Client.Create(ctx, pod, client.DryRunAll)"},
	{"pods", "delete", "internal/controller/apply.go", "r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID"},
	{"pods/status", "patch", "internal/controller/apply.go", "r.Client.Status().Patch(ctx, marked,"},
	{"pods", "patch", "internal/controller/trust.go", "r.Client.Apply(ctx, config, client.FieldOwner(trustManager)"},
	{"trainingjobs.training.concertina.dev", "get", "internal/record/record.go", "s.Live.Get(ctx, client.ObjectKey{"},
	{"trainingjobs.training.concertina.dev", "get", "internal/controller/ownwrites.go", "r.Live.Get(ctx, client.ObjectKeyFromObject(job), live)"},
	{"trainingjobs.training.concertina.dev", "delete", "internal/controller/apply.go", "r.Client.Delete(ctx, state.Job,"},
	{"trainingjobs.training.concertina.dev/status", "patch", "internal/record/record.go", "s.Writer.Apply(ctx, config,"},
	{"trainingjobs.training.concertina.dev/status", "patch", "internal/record/older.go", "s.Writer.Apply(ctx, client.ApplyConfigurationFromUnstructured("},
	{"trainingjobs.training.concertina.dev/status", "patch", "internal/controller/status.go", "r.Client.Status().Apply(ctx,"},
	// The owner of a pod may keep it from being deleted first: the API server asks who may say so.
	{"trainingjobs.training.concertina.dev/finalizers", "update", "internal/controller/pods.go", "metav1.NewControllerRef(job"},
	{"podgroups.scheduling.x-k8s.io", "create", "internal/gang/coscheduling.go", "c.Client.Create(ctx, podGroup)"},
	{"podgroups.scheduling.x-k8s.io", "get", "internal/gang/coscheduling.go", "c.Client.Get(ctx,"},
	{"podgroups.scheduling.x-k8s.io", "list", "internal/gang/coscheduling.go", "c.Client.List(ctx, &list"},
	{"podgroups.scheduling.x-k8s.io", "delete", "internal/gang/coscheduling.go", "c.Client.Delete(ctx, found"},
	{"podgroups.scheduling.x-k8s.io", "patch", "internal/gang/coscheduling.go", "c.Client.Patch(ctx, podGroup"},
	// An event that is there already is counted up.
	{"events.events.k8s.io", "create", "cmd/operator/main.go", `mgr.GetEventRecorder("concertina")`},
	{"events.events.k8s.io", "patch", "cmd/operator/main.go", `mgr.GetEventRecorder("concertina")`},
	{"tokenreviews.authentication.k8s.io", "create", "internal/identity/identity.go", "r.reviews.Create(ctx,"},
	{"tokenreviews.authentication.k8s.io", "create", "internal/inspection/inspection.go", "p.users.Create(ctx,"},
	{"subjectaccessreviews.authorization.k8s.io", "create", "internal/inspection/inspection.go", "p.rights.Create(ctx,"},
	{"/.well-known/openid-configuration", "get", "internal/identity/identity.go", "get(ctx, discoveryPath)"},
	{"/openid/v1/jwks", "get", "internal/identity/identity.go", "get(ctx, keysPath)"},

	// In the operator's own namespace. The leader's lease has events of its own.
	{"events in concertina-system", "create", "cmd/operator/main.go", "LeaderElectionID:"},
	{"events in concertina-system", "patch", "cmd/operator/main.go", "LeaderElectionID:"},
	{"leases.coordination.k8s.io in concertina-system", "create", "cmd/operator/main.go", "LeaderElectionID:"},
	{"leases.coordination.k8s.io concertina-operator in concertina-system", "get", "cmd/operator/main.go", "LeaderElectionID:"},
	{"leases.coordination.k8s.io concertina-operator in concertina-system", "update", "cmd/operator/main.go", "LeaderElectionID:"},
	{"secrets in concertina-system", "create", "internal/pki/pki.go", "a.client.Create(ctx, secret)"},
	{"secrets concertina-authority in concertina-system", "get", "internal/pki/pki.go", "a.client.Get(ctx, a.secret, secret)"},
	{"secrets concertina-authority in concertina-system", "update", "internal/pki/pki.go", "a.client.Update(ctx, secret)"},
	{"endpointslices.discovery.k8s.io in concertina-system", "create", "internal/endpoint/endpoint.go", "l.Client.Apply(ctx, slice"},
	{"endpointslices.discovery.k8s.io concertina-rendezvous in concertina-system", "patch", "internal/endpoint/endpoint.go", "l.Client.Apply(ctx, slice"},
}

// cached are calls that a cache or another package answers: they need no right of their own.
var cached = []right{
	{"", "", "internal/controller/reconciler.go", "r.Client.Get(ctx, req.NamespacedName, job)"},
	{"", "", "internal/controller/gather.go", "r.Client.List(ctx, &quotas"},
	{"", "", "internal/controller/gather.go", "r.Client.List(ctx, &limits"},
	{"", "", "internal/controller/gather.go", "reader.List(ctx, &list"}, // the cache, or pods of the API server
	{"", "", "internal/controller/forgive.go", "r.Client.List(ctx, &jobs"},
	{"", "", "internal/controller/forgive.go", "r.Client.List(ctx, &quotas"},
	{"", "", "internal/controller/groups.go", "r.Gang."},                  // internal/gang asks
	{"", "", "internal/controller/setup.go", "all.Update(ctx, e, queue)"}, // an event, no request
	{"", "", "internal/controller/vanished.go", "h.EventHandler.Update(ctx, e, queue)"},
}

// granted are the rights in the generated roles, in the words of the table.
func granted(t *testing.T) map[[2]string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "config/rbac/role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[[2]string]bool{}
	decoder := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(bytes.NewReader(text)), 4096)
	for {
		// A Role has the fields of a ClusterRole that matter here.
		var role rbacv1.ClusterRole
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, what := range named(rule, role.Namespace) {
				for _, verb := range rule.Verbs {
					all[[2]string{what, verb}] = true
				}
			}
		}
	}
}

// named is what a rule is about, in the words of the table.
func named(rule rbacv1.PolicyRule, namespace string) []string {
	words := slices.Clone(rule.NonResourceURLs)
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			kind, sub, _ := strings.Cut(resource, "/")
			if group != "" {
				kind += "." + group
			}
			if sub != "" {
				kind += "/" + sub
			}
			for _, name := range append(slices.Clone(rule.ResourceNames), "") {
				if (name == "") != (len(rule.ResourceNames) == 0) {
					continue
				}
				word := strings.TrimSpace(kind + " " + name)
				if namespace != "" {
					word += " in " + namespace
				}
				words = append(words, word)
			}
		}
	}
	return words
}

// TestEveryRightIsUsed: each verb that is granted has a line of code that needs it, and each line in the table
// is there and has its verb.
func TestEveryRightIsUsed(t *testing.T) {
	unused := granted(t)
	has := granted(t)
	for _, r := range rights {
		if !has[[2]string{r.what, r.verb}] {
			t.Errorf("%s may not %s %s, and calls %s", r.file, r.verb, r.what, r.code)
		}
		delete(unused, [2]string{r.what, r.verb})
		text, err := os.ReadFile(filepath.Join(root, r.file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), r.code) {
			t.Errorf("%s does not call %s any more: is %s %s still needed?", r.file, r.code, r.verb, r.what)
		}
	}
	for r := range unused {
		t.Errorf("the operator may %s %s, and nothing does", r[1], r[0])
	}
}

// call is a request to the API server, or to a cache of it.
var call = regexp.MustCompile(`\.(Get|List|Create|Update|Patch|Delete|DeleteAllOf|Apply|Watch)\(ctx\b`)

// TestEveryRequestIsKnown: a request that is new has to say which right it needs.
func TestEveryRequestIsKnown(t *testing.T) {
	known := append(slices.Clone(rights), cached...)
	seen := 0
	for _, folder := range []string{"cmd/operator", "internal/controller", "internal/endpoint", "internal/fleet", "internal/gang",
		"internal/identity", "internal/inspection", "internal/pki", "internal/record", "internal/rendezvous"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			for number, line := range strings.Split(string(text), "\n") {
				if !call.MatchString(line) {
					continue
				}
				seen++
				if !slices.ContainsFunc(known, func(r right) bool { return r.file == file && strings.Contains(line, r.code) }) {
					t.Errorf("%s:%d: the table of rights does not know %s", file, number+1, strings.TrimSpace(line))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen == 0 {
		t.Error("no request was found: the test looks for the wrong thing")
	}
}
