package controller

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/gang"
)

// inGroup makes a pod wait in a group.
func inGroup(name string) podChange {
	return func(pod *corev1.Pod) { pod.Labels[schedv1alpha1.PodGroupLabel] = name }
}

func TestGroupsInWhichPodsWait(t *testing.T) {
	job := jobWith(scheduled)
	refill := func(pod *corev1.Pod) { pod.Annotations[annotationRefill] = "3-2" }
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want []string
	}{
		"a gang without nodes": {want: []string{"digits-1"},
			pods: []*corev1.Pod{podOf(job, 1, 0, inGroup("digits-1")), podOf(job, 1, 1, inGroup("digits-1"))}},
		"a gang that has its nodes": {
			pods: []*corev1.Pod{podOf(job, 1, 0, inGroup("digits-1"), onNode("n1")), podOf(job, 1, 1, inGroup("digits-1"), onNode("n1"))}},
		"a refill": {want: []string{"digits-1-r3"},
			pods: []*corev1.Pod{podOf(job, 1, 0, inGroup("digits-1"), onNode("n1")),
				podOf(job, 1, 3, inGroup("digits-1-r3"), refill), podOf(job, 1, 4, inGroup("digits-1-r3"), refill)}},
		"pods that go":               {pods: []*corev1.Pod{podOf(job, 1, 0, inGroup("digits-1"), deletedAt(start))}},
		"a group that is not ours":   {pods: []*corev1.Pod{podOf(job, 1, 0, inGroup("theirs")), podOf(job, 1, 1, inGroup("digits-1-r7"), refill)}},
		"growth, which has no group": {pods: []*corev1.Pod{podOf(job, 1, 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, group := range waitingGroups(stateOf(job, c.pods...)) {
				got = append(got, group.Key.Name)
				if cpu := group.MinResources[corev1.ResourceCPU]; group.MinMember != 2 || cpu.MilliValue() != 1000 {
					t.Errorf("%s wants %d pods and %s CPUs together", group.Key.Name, group.MinMember, cpu.String())
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("pods wait in %v, want %v", got, c.want)
			}
		})
	}
	waits := stateOf(job, podOf(job, 1, 0, inGroup("digits-1")))
	if next := nextLook(waits, &Plan{}); next != groupCheck {
		t.Errorf("looks again after %s", next)
	}
	if next := nextLook(stateOf(job, podOf(job, 1, 0, trainerRuns)), &Plan{}); next != 0 {
		t.Errorf("looks again after %s although nothing waits", next)
	}
}

func TestWhatIsKeptOfAJobGoesWithIt(t *testing.T) {
	var all memories
	name := types.NamespacedName{Namespace: "team", Name: "digits"}
	keep := func(uid types.UID) { all.update(uid, func(m *Memory) { m.Since = start }) }
	all.meet(name, "first")
	keep("first")
	// The deletion of the first was never seen.
	all.meet(name, "second")
	keep("second")
	if len(all.jobs) != 1 {
		t.Errorf("kept: %v", all.jobs)
	}
	if uid := all.part(name); uid != "second" || len(all.jobs) != 0 || len(all.uids) != 0 {
		t.Errorf("parted from %q; kept: %v %v", uid, all.jobs, all.uids)
	}
	if uid := all.part(name); uid != "" {
		t.Errorf("parted from %q twice", uid)
	}
}

// asks counts what is asked of a gang scheduler.
type asks struct {
	gang.Scheduler
	lists, deletes int
}

func (a *asks) List(context.Context, client.Object, map[string]string) ([]types.NamespacedName, error) {
	a.lists++
	return nil, nil
}

func (a *asks) Exists(context.Context, client.Object, types.NamespacedName) (bool, error) {
	return true, nil
}

func (a *asks) Delete(context.Context, client.Object, types.NamespacedName) error {
	a.deletes++
	return nil
}

func TestGroupsOfAJobThatIsOverAreDeletedOnce(t *testing.T) {
	for name, over := range map[string]func(*v1alpha1.TrainingJob){
		"finished": func(job *v1alpha1.TrainingJob) {
			job.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue}}
		},
		"suspended": func(job *v1alpha1.TrainingJob) { job.Spec.Suspend = ptr.To(true) },
	} {
		t.Run(name, func(t *testing.T) {
			job, scheduler := jobWith(scheduled, over), &asks{}
			job.Status.Workers.Target = ptr.To[int32](0)
			r := &Reconciler{Gang: scheduler}
			for range 3 {
				state := stateOf(job)
				state.Memory = r.memory.of(job.UID)
				if err := r.gatherGroup(t.Context(), state); err != nil {
					t.Fatal(err)
				}
				if plan := NewPlan(state, settings); plan.Actions.DeleteGroup {
					if err := r.deleteGroups(t.Context(), state); err != nil {
						t.Fatal(err)
					}
				}
			}
			if scheduler.lists != 1 || scheduler.deletes != 1 {
				t.Errorf("%d lists and %d deletions", scheduler.lists, scheduler.deletes)
			}
		})
	}
}
