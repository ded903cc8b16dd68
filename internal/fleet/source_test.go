package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/concertina-dev/concertina/api/v1alpha1"
)

// fakeCaches are informers whose events a test makes; those of nodes have yet to begin.
func fakeCaches(t *testing.T) (whole, ours *informertest.FakeInformers, nodes *controllertest.FakeInformer) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	nodes = controllertest.NewFakeInformer()
	whole = &informertest.FakeInformers{Scheme: scheme, InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
		corev1.SchemeGroupVersion.WithKind("Node"): nodes}}
	return whole, &informertest.FakeInformers{Scheme: scheme}, nodes
}

func TestSourceFeedsTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole, ours, nodes := fakeCaches(t)
		c := New(optionsOf())
		s := &source{into: c, whole: whole, ours: ours}
		if s.NeedLeaderElection() {
			t.Error("the next leader would begin with nothing")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Start(ctx) }()
		synctest.Wait()
		feed := func(from *informertest.FakeInformers, kind client.Object) *controllertest.FakeInformer {
			informer, err := from.FakeInformerFor(ctx, kind)
			if err != nil {
				t.Fatal(err)
			}
			return informer
		}
		job, pod, quota := jobOf("j"), podOf("a", "1", on("n0")), quotaOf("q", "4")
		nodes.Add(nodeOf("n0"))
		feed(ours, &corev1.Pod{}).Add(pod)
		feed(whole, &schedulingv1.PriorityClass{}).Add(classOf("growth", -3))
		feed(whole, &corev1.Namespace{}).Add(&corev1.Namespace{})
		feed(ours, &v1alpha1.TrainingJob{}).Add(job)
		feed(ours, &corev1.ResourceQuota{}).Add(quota)
		seen := c.Snapshot()
		if len(seen.Jobs) != 1 || seen.Jobs[0].Fault != "" || freeCPU(t, seen, "n0") != 7000 || len(seen.Quotas) != 1 || seen.Quotas[0].Free[0] != 3000 {
			t.Errorf("%+v", seen)
		}
		time.Sleep(time.Minute)
		select {
		case <-c.synced:
			t.Error("not all nodes are known, and it is said that they are")
		default:
		}
		nodes.Synced()
		<-c.synced

		feed(ours, &corev1.Pod{}).Delete(pod)
		feed(ours, &corev1.ResourceQuota{}).Delete(quota)
		feed(whole, &schedulingv1.PriorityClass{}).Delete(classOf("growth", -3))
		if seen := c.Snapshot(); seen.Jobs[0].Fault == "" || freeCPU(t, seen, "n0") != 8000 || len(seen.Quotas) != 0 {
			t.Errorf("%+v", seen)
		}
		feed(ours, &v1alpha1.TrainingJob{}).Delete(job)
		nodes.Delete(nodeOf("n0"))
		if seen := c.Snapshot(); len(seen.Jobs) != 0 || seen.Nodes[0].Name != "" {
			t.Errorf("%+v", seen)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestSourceSaysWhatItCannotWatch(t *testing.T) {
	whole, ours, _ := fakeCaches(t)
	ours.Error = errors.New("forbidden")
	if err := (&source{into: New(optionsOf()), whole: whole, ours: ours}).Start(t.Context()); err == nil || !errors.Is(err, ours.Error) {
		t.Errorf("%v", err)
	}
}
