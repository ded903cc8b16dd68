package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
)

// simKind is a kind of object of the simulated API server.
type simKind string

const (
	simJob   simKind = "trainingjobs"
	simPod   simKind = "pods"
	simGroup simKind = "podgroups"
	simNode  simKind = "nodes"
	simQuota simKind = "resourcequotas"
	simClass simKind = "priorityclasses"

	simNamespace simKind = "namespaces"
)

// simKinds is the order in which a fleet takes in what is there already.
var simKinds = []simKind{simClass, simNamespace, simQuota, simNode, simJob, simPod, simGroup}

func simKindOf(object client.Object) simKind {
	switch object.(type) {
	case *v1alpha1.TrainingJob:
		return simJob
	case *corev1.Pod:
		return simPod
	case *schedv1alpha1.PodGroup:
		return simGroup
	case *corev1.Node:
		return simNode
	case *corev1.ResourceQuota:
		return simQuota
	case *schedulingv1.PriorityClass:
		return simClass
	case *corev1.Namespace:
		return simNamespace
	}
	panic(fmt.Sprintf("the simulated API server knows no %T", object))
}

type simObjects map[simKind]map[types.NamespacedName]client.Object

func newSimObjects() simObjects {
	all := simObjects{}
	for _, kind := range simKinds {
		all[kind] = map[types.NamespacedName]client.Object{}
	}
	return all
}

// simServer is the API server: objects in memory that never change once they are stored.
type simServer struct {
	sim     *fleetSim
	objects simObjects
	version int
	uids    int
	// watches are told of each change, in order.
	watches []func(kind simKind, before, after client.Object)
	// sorted are the pods by name, as they were at a version.
	sorted   []*corev1.Pod
	sortedAt int
	// names are the pods that there ever were, by job and name.
	names map[string]bool
}

func (a *simServer) pod(key types.NamespacedName) *corev1.Pod {
	pod, _ := a.objects[simPod][key].(*corev1.Pod)
	return pod
}

func (a *simServer) job(key types.NamespacedName) *v1alpha1.TrainingJob {
	job, _ := a.objects[simJob][key].(*v1alpha1.TrainingJob)
	return job
}

// pods are all pods, by name.
func (a *simServer) pods() []*corev1.Pod {
	if a.sortedAt != a.version {
		a.sorted, a.sortedAt = simSorted[*corev1.Pod](a.objects[simPod]), a.version
	}
	return a.sorted
}

func (a *simServer) jobs() []*v1alpha1.TrainingJob {
	return simSorted[*v1alpha1.TrainingJob](a.objects[simJob])
}

func (a *simServer) nodes() []*corev1.Node { return simSorted[*corev1.Node](a.objects[simNode]) }

// put stores a new version of an object, and tells of it.
func (a *simServer) put(object client.Object) {
	kind, key := simKindOf(object), client.ObjectKeyFromObject(object)
	before := a.objects[kind][key]
	a.version++
	object.SetResourceVersion(fmt.Sprint(a.version))
	a.objects[kind][key] = object
	a.tell(kind, before, object)
}

// remove takes an object away, and tells of it.
func (a *simServer) remove(object client.Object) {
	kind, key := simKindOf(object), client.ObjectKeyFromObject(object)
	before := a.objects[kind][key]
	if before == nil || before.GetUID() != object.GetUID() {
		return
	}
	a.version++
	delete(a.objects[kind], key)
	gone := before.DeepCopyObject().(client.Object)
	gone.SetResourceVersion(fmt.Sprint(a.version))
	a.tell(kind, gone, nil)
}

func (a *simServer) tell(kind simKind, before, after client.Object) {
	for _, watch := range a.watches {
		watch(kind, before, after)
	}
}

// changePod stores a changed copy of a pod, if it is there.
func (a *simServer) changePod(pod *corev1.Pod, change func(*corev1.Pod)) {
	if now := a.pod(client.ObjectKeyFromObject(pod)); now != nil && now.UID == pod.UID {
		next := now.DeepCopy()
		change(next)
		a.put(next)
	}
}

func simGroupResource(kind simKind) schema.GroupResource {
	return schema.GroupResource{Resource: string(kind)}
}

func simSecond() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }

// create is admission and storage of a new object.
func (a *simServer) create(object client.Object) error {
	kind, key := simKindOf(object), client.ObjectKeyFromObject(object)
	if a.objects[kind][key] != nil {
		return apierrors.NewAlreadyExists(simGroupResource(kind), key.Name)
	}
	if a.sim.gone(key.Namespace) {
		return apierrors.NewForbidden(simGroupResource(kind), key.Name,
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", key.Namespace))
	}
	stored := object.DeepCopyObject().(client.Object)
	if pod, ok := stored.(*corev1.Pod); ok {
		if err := a.admit(pod, false); err != nil {
			return err
		}
	}
	a.uids++
	stored.SetUID(types.UID(fmt.Sprintf("uid-%d", a.uids)))
	stored.SetCreationTimestamp(simSecond())
	stored.SetGeneration(1)
	a.put(stored)
	object.SetUID(stored.GetUID())
	object.SetResourceVersion(stored.GetResourceVersion())
	object.SetCreationTimestamp(stored.GetCreationTimestamp())
	return nil
}

// simPool is the taint of nodes that admission lets pods onto, as it does by the devices that they ask for, and simAccount a
// ServiceAccount that there is only when it is calm.
const (
	simPool    = "example.com/pool"
	simAccount = "later"
)

// admit sets what priority admission and others set, and refuses what a quota does not allow.
func (a *simServer) admit(pod *corev1.Pod, dry bool) error {
	value := int32(0)
	if class, ok := a.objects[simClass][types.NamespacedName{Name: pod.Spec.PriorityClassName}].(*schedulingv1.PriorityClass); ok {
		value = class.Value
	} else if pod.Spec.PriorityClassName != "" {
		return apierrors.NewForbidden(simGroupResource(simPod), pod.Name, fmt.Errorf("no PriorityClass with name %s was found", pod.Spec.PriorityClassName))
	}
	if a.sim.chaos && pod.Spec.ServiceAccountName == simAccount {
		return apierrors.NewForbidden(simGroupResource(simPod), pod.Name, fmt.Errorf("error looking up service account %s: not found", simAccount))
	}
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: simPool, Operator: corev1.TolerationOpExists})
	pod.Spec.Priority = &value
	pod.Status.Phase = corev1.PodPending
	if owner := metav1.GetControllerOf(pod); owner != nil && !dry {
		name := string(owner.UID) + "/" + pod.Name
		if a.names[name] {
			a.sim.fail("the name of pod %s is used twice", pod.Name)
		}
		a.names[name] = true
	}
	demand := fleet.Demand(pod)
	var charged []*corev1.ResourceQuota
	for _, quota := range simSorted[*corev1.ResourceQuota](a.objects[simQuota]) {
		if quota.Namespace != pod.Namespace {
			continue
		}
		next := quota.DeepCopy()
		for name, hard := range quota.Spec.Hard {
			used := next.Status.Used[name]
			used.Add(demand[name])
			if used.Cmp(hard) > 0 {
				a.sim.counts["quota refusals"]++
				return apierrors.NewForbidden(simGroupResource(simPod), pod.Name, fmt.Errorf("exceeded quota: %s, requested: %s", quota.Name, name))
			}
			next.Status.Used[name] = used
		}
		charged = append(charged, next)
	}
	if dry {
		return nil
	}
	for _, quota := range charged {
		a.put(quota)
	}
	return nil
}

// recount is the quota controller: some time after pods have gone it finds out what is used.
func (a *simServer) recount() {
	for _, quota := range simSorted[*corev1.ResourceQuota](a.objects[simQuota]) {
		next := quota.DeepCopy()
		next.Status.Hard, next.Status.Used = quota.Spec.Hard, corev1.ResourceList{}
		for name := range quota.Spec.Hard {
			next.Status.Used[name] = resource.Quantity{}
		}
		for _, pod := range a.pods() {
			if pod.Namespace != quota.Namespace || podEnded(pod) {
				continue
			}
			demand := fleet.Demand(pod)
			for name := range quota.Spec.Hard {
				used := next.Status.Used[name]
				used.Add(demand[name])
				next.Status.Used[name] = used
			}
		}
		same := len(quota.Status.Used) > 0
		for name, used := range next.Status.Used {
			before := quota.Status.Used[name]
			same = same && used.Cmp(before) == 0
		}
		if !same {
			a.put(next)
		}
	}
}

// delete is a deletion by whomever: graceful for a pod that has a node and runs.
func (a *simServer) delete(object client.Object, conditions *metav1.Preconditions) error {
	kind, key := simKindOf(object), client.ObjectKeyFromObject(object)
	found := a.objects[kind][key]
	if found == nil {
		return apierrors.NewNotFound(simGroupResource(kind), key.Name)
	}
	if conditions != nil && (conditions.UID != nil && *conditions.UID != found.GetUID() ||
		conditions.ResourceVersion != nil && *conditions.ResourceVersion != found.GetResourceVersion()) {
		return apierrors.NewConflict(simGroupResource(kind), key.Name, fmt.Errorf("the precondition does not hold"))
	}
	pod, ok := found.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || podEnded(pod) {
		a.remove(found)
		return nil
	}
	if pod.DeletionTimestamp == nil {
		seconds := value(pod.Spec.TerminationGracePeriodSeconds)
		until := metav1.NewTime(simSecond().Add(time.Duration(seconds) * time.Second))
		a.changePod(pod, func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &until, &seconds })
	}
	return nil
}

// collectGarbage deletes what belonged to a job.
func (a *simServer) collectGarbage(owner types.UID) {
	for _, kind := range []simKind{simPod, simGroup} {
		for _, object := range simSorted[client.Object](a.objects[kind]) {
			if of := metav1.GetControllerOf(object); of != nil && of.UID == owner {
				_ = a.delete(object, nil)
			}
		}
	}
}

// simShare is how much one pod asks for, by what nodes of the simulation run out of.
func simShare(pod *corev1.Pod) int64 {
	quantity := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[simDevice]
	return quantity.Value()
}

func simOffer(node *corev1.Node) int64 {
	quantity := node.Status.Allocatable[simDevice]
	return quantity.Value()
}

// ofOperator says whether the operator has made a pod.
func ofOperator(pod *corev1.Pod) bool {
	return pod.Labels[v1alpha1.LabelJob] != "" && !strings.HasPrefix(pod.Name, "foreign")
}

func jobOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelJob]}
}
