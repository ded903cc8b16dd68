package kube

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func pod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	p.Spec.NodeName = node
	for _, c := range change {
		c(p)
	}
	return p
}

func ownedBy(kind string) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: &yes}}
	}
}

func static(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }

// server pretends an API server whose disruption budgets refuse each pod as
// often as refusals says, and which deletes a pod that it evicts.
func server(refusals int, objects ...runtime.Object) (*fake.Clientset, *[]string) {
	set := fake.NewClientset(objects...)
	asked := map[string]int{}
	evicted := &[]string{}
	set.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		name := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction).Name
		if asked[name]++; asked[name] <= refusals {
			return true, nil, apierrors.NewTooManyRequests("budget", 1)
		}
		*evicted = append(*evicted, name)
		err := set.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), action.GetNamespace(), name)
		return true, nil, err
	})
	// The tracker knows no field selectors.
	set.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		all, err := set.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"),
			corev1.SchemeGroupVersion.WithKind("Pod"), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		list := all.(*corev1.PodList)
		fields := action.(clienttesting.ListAction).GetListRestrictions().Fields
		list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
			node, wanted := fields.RequiresExactMatch("spec.nodeName")
			return wanted && p.Spec.NodeName != node
		})
		return true, list, nil
	})
	return set, evicted
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, evicted := server(3,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
			pod("a", "n1"), pod("job", "n1", ownedBy("Job")), pod("elsewhere", "n2"),
			pod("daemon", "n1", ownedBy("DaemonSet")), pod("static", "n1", static))
		c := Client{typed: set}
		if err := c.Drain(t.Context(), "n1", time.Minute); err != nil {
			t.Fatal(err)
		}
		slices.Sort(*evicted)
		if diff := cmp.Diff([]string{"a", "job"}, *evicted); diff != "" {
			t.Errorf("evicted (-want +got):\n%s", diff)
		}
		node, err := set.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || !node.Spec.Unschedulable {
			t.Errorf("the node takes new pods: %v", err)
		}
	})
}

func TestDrainGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, _ := server(1000, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, pod("a", "n1"))
		err := Client{typed: set}.Drain(t.Context(), "n1", 10*time.Second)
		if err == nil || !strings.Contains(err.Error(), "default/a") {
			t.Errorf("Drain = %v, want an error that names the pod that stays", err)
		}
	})
}

func readyNode(heartbeat time.Time) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(heartbeat),
	}}
	return n
}

func TestAReportFromBeforeIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alive := func() bool { return true }
		began := time.Now()
		stale := Client{typed: fake.NewClientset(readyNode(began.Add(-time.Minute)))}
		if err := stale.WaitForNode(t.Context(), "n1", began, alive); err == nil {
			t.Error("a dead kubelet's report passes for the new one's")
		}
		fresh := Client{typed: fake.NewClientset(readyNode(began.Truncate(time.Second)))}
		if err := fresh.WaitForNode(t.Context(), "n1", began, alive); err != nil {
			t.Error(err)
		}
	})
}

func TestNobodyWaitsForTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := Client{typed: fake.NewClientset()}.WaitForNode(t.Context(), "n1", began, func() bool { return false })
		if err == nil || time.Since(began) > time.Second {
			t.Errorf("WaitForNode = %v after %s, want an error at once", err, time.Since(began))
		}
	})
}

func TestSetDevices(t *testing.T) {
	set := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	if err := (Client{typed: set}).SetDevices(t.Context(), "n1", 4); err != nil {
		t.Fatal(err)
	}
	patch := set.Actions()[0].(clienttesting.PatchAction)
	var body struct {
		Status struct{ Capacity, Allocatable map[string]string }
	}
	if err := json.Unmarshal(patch.GetPatch(), &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"example.com/gpu": "4"}
	if patch.GetSubresource() != "status" || !cmp.Equal(body.Status.Capacity, want) || !cmp.Equal(body.Status.Allocatable, want) {
		t.Errorf("patched %q with %s", patch.GetSubresource(), patch.GetPatch())
	}
}

func TestNodesCountPodsThatHaveNotFinished(t *testing.T) {
	set := fake.NewClientset(readyNode(time.Now()), pod("a", "n1"), pod("pending", ""),
		pod("done", "n1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	nodes, err := Client{typed: set}.Nodes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]NodeStatus{"n1": {Ready: "True", Pods: 1}}
	if diff := cmp.Diff(want, nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}
