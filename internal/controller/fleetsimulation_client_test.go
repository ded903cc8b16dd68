package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	schedv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/record"
)

// errDead answers an operator that has crashed: nothing that it does matters any more.
var errDead = errors.New("this operator is dead")

// simClient is what one operator has of the API server. Calls take time, each another one, so that those
// which are made at once arrive in an order that only the seed decides.
type simClient struct {
	client.Client // what the operator does not use is not there
	op            *simOperator
	// live reads from the server, else from the operator's cache.
	live bool
}

func (c *simClient) Scheme() *runtime.Scheme { return c.op.sim.scheme }

func (c *simClient) Status() client.SubResourceWriter { return &simStatus{client: c} }

// from is where an object is read.
func (c *simClient) from(kind simKind) simObjects {
	if c.live || kind == simGroup {
		return c.op.sim.server.objects
	}
	return c.op.cache
}

func (c *simClient) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	kind := simKindOf(into)
	if err := c.remote(kind, "get", key); err != nil {
		return err
	}
	c.op.sim.mu.Lock()
	defer c.op.sim.mu.Unlock()
	found := c.from(kind)[kind][key]
	if found == nil {
		return apierrors.NewNotFound(simGroupResource(kind), key.Name)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(found.DeepCopyObject()).Elem())
	return nil
}

// remote takes the time of a read that goes to the server, which may fail.
func (c *simClient) remote(kind simKind, verb string, key client.ObjectKey) error {
	if !c.live && kind != simGroup {
		return nil
	}
	dice := c.op.dice(verb, kind, key)
	time.Sleep(simLatency(dice))
	c.op.sim.mu.Lock()
	defer c.op.sim.mu.Unlock()
	if c.op.dead {
		return errDead
	}
	if c.op.sim.training.isSilent() {
		return apierrors.NewTimeoutError("simulated, nobody answers", 1)
	}
	if c.op.sim.chaos && dice%1009 < 4 {
		return apierrors.NewInternalError(errors.New("simulated"))
	}
	return nil
}

func (c *simClient) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	selector := options.LabelSelector
	if selector == nil {
		selector = labels.Everything()
	}
	var kind simKind
	switch into.(type) {
	case *corev1.PodList:
		kind = simPod
	case *v1alpha1.TrainingJobList:
		kind = simJob
	case *corev1.ResourceQuotaList:
		kind = simQuota
	case *schedv1alpha1.PodGroupList:
		kind = simGroup
	default:
		return fmt.Errorf("no list of %T", into)
	}
	if err := c.remote(kind, "list", client.ObjectKey{Namespace: options.Namespace, Name: selector.String()}); err != nil {
		return err
	}
	c.op.sim.mu.Lock()
	defer c.op.sim.mu.Unlock()
	for _, object := range simSorted[client.Object](c.from(kind)[kind]) {
		if object.GetNamespace() != options.Namespace || !selector.Matches(labels.Set(object.GetLabels())) {
			continue
		}
		switch list := into.(type) {
		case *corev1.PodList:
			list.Items = append(list.Items, *object.(*corev1.Pod).DeepCopy())
		case *v1alpha1.TrainingJobList:
			list.Items = append(list.Items, *object.(*v1alpha1.TrainingJob).DeepCopy())
		case *corev1.ResourceQuotaList:
			list.Items = append(list.Items, *object.(*corev1.ResourceQuota).DeepCopy())
		case *schedv1alpha1.PodGroupList:
			list.Items = append(list.Items, *object.(*schedv1alpha1.PodGroup).DeepCopy())
		}
	}
	return nil
}

// write takes the time of a write, lets it fail, has no answer come of it, or has the operator crash before
// or after it.
func (c *simClient) write(verb string, kind simKind, key client.ObjectKey, effect func() error) error {
	dice := c.op.dice(verb, kind, key)
	time.Sleep(simLatency(dice))
	err := c.carryOut(verb, kind, key, dice, effect)
	time.Sleep(simLatency(dice / 7))
	c.op.sim.mu.Lock()
	defer c.op.sim.mu.Unlock()
	if c.op.dead {
		return errDead
	}
	return err
}

func (c *simClient) carryOut(verb string, kind simKind, key client.ObjectKey, dice uint64, effect func() error) error {
	s := c.op.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.op.dead {
		return errDead
	}
	if s.training.isSilent() {
		return apierrors.NewTimeoutError("simulated, nobody answers", 1)
	}
	s.wrote(verb, kind, key)
	if s.crashAt > 0 && s.writes == s.crashAt {
		return s.crashNow(dice%2 == 0, effect)
	}
	if !s.chaos {
		return effect()
	}
	switch fate := dice / 11 % 2000; {
	case fate < 4:
		return s.crashNow(fate%2 == 0, effect)
	case verb == "world" && fate >= 1700:
		return s.unclear(fate, effect)
	case fate < 12:
		s.say("    (an error)")
		return apierrors.NewInternalError(errors.New("simulated"))
	case fate < 18:
		_ = effect()
		s.say("    (a timeout)")
		s.counts["timeouts"]++
		s.timedOut = time.Now()
		return apierrors.NewTimeoutError("simulated, with effect", 1)
	case fate < 24 && verb == "status":
		return apierrors.NewConflict(simGroupResource(kind), key.Name, errors.New("simulated"))
	}
	return effect()
}

// unclear has no answer come of a write that lands, comes to nothing, or lands later, or has the operator die beside it.
func (s *fleetSim) unclear(fate uint64, effect func() error) error {
	switch {
	case fate < 1800:
		return s.crashNow(fate < 1750, effect)
	case fate < 1900:
		_ = effect()
	case fate < 1960:
		s.after(s.span(time.Millisecond, 10*time.Second), func() { _ = effect() })
	}
	s.say("    (a timeout)")
	s.counts["timeouts"]++
	return apierrors.NewTimeoutError("simulated, perhaps with effect", 1)
}

// crashNow has the operator die before or after what it was about to do.
func (s *fleetSim) crashNow(before bool, effect func() error) error {
	if !before {
		_ = effect()
	}
	s.crash()
	return errDead
}

func (c *simClient) Create(_ context.Context, object client.Object, opts ...client.CreateOption) error {
	kind, key := simKindOf(object), client.ObjectKeyFromObject(object)
	var options client.CreateOptions
	if options.ApplyOptions(opts); len(options.DryRun) > 0 {
		return c.ask(object.(*corev1.Pod))
	}
	return c.write("create", kind, key, func() error {
		made := object.DeepCopyObject().(client.Object)
		if pod, ok := made.(*corev1.Pod); ok {
			c.op.sim.checkCreation(pod)
		}
		err := c.op.sim.server.create(made)
		if err == nil {
			object.SetUID(made.GetUID())
			object.SetResourceVersion(made.GetResourceVersion())
			object.SetCreationTimestamp(made.GetCreationTimestamp())
		}
		return err
	})
}

// ask says what would be made of a pod.
func (c *simClient) ask(pod *corev1.Pod) error {
	if err := c.remote(simNode, "ask", client.ObjectKeyFromObject(pod)); err != nil {
		return err
	}
	c.op.sim.mu.Lock()
	defer c.op.sim.mu.Unlock()
	c.op.sim.counts["questions"]++
	return c.op.sim.server.admit(pod, true)
}

func (c *simClient) Delete(_ context.Context, object client.Object, opts ...client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	return c.write("delete", simKindOf(object), client.ObjectKeyFromObject(object), func() error {
		return c.op.sim.server.delete(object, options.Preconditions)
	})
}

// Patch knows merge patches of annotations, with or without a uid.
func (c *simClient) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	data, err := patch.Data(object)
	if err != nil {
		return err
	}
	var change struct {
		Metadata struct {
			UID         types.UID          `json:"uid"`
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(data, &change); err != nil {
		return err
	}
	kind, key := simKindOf(object), client.ObjectKeyFromObject(object)
	return c.write("patch", kind, key, func() error {
		if err := c.op.sim.server.annotate(kind, key, change.Metadata.UID, change.Metadata.Annotations); err != nil {
			return err
		}
		object.SetResourceVersion(c.op.sim.server.objects[kind][key].GetResourceVersion())
		return nil
	})
}

// annotate changes annotations; nil takes one away. What changes nothing is not stored.
func (a *simServer) annotate(kind simKind, key client.ObjectKey, uid types.UID, annotations map[string]*string) error {
	found := a.objects[kind][key]
	if found == nil {
		return apierrors.NewNotFound(simGroupResource(kind), key.Name)
	}
	if uid != "" && uid != found.GetUID() {
		return apierrors.NewInvalid(schema.GroupKind{Kind: string(kind)}, key.Name, nil) // metadata.uid is immutable
	}
	next := found.DeepCopyObject().(client.Object)
	all := merged(next.GetAnnotations(), nil)
	for name, text := range annotations {
		if text == nil {
			delete(all, name)
		} else {
			all[name] = *text
		}
	}
	next.SetAnnotations(all)
	if !apiequality.Semantic.DeepEqual(found.GetAnnotations(), all) {
		a.put(next)
	}
	return nil
}

// Apply knows annotations of pods.
func (c *simClient) Apply(_ context.Context, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	pod, ok := object.(*applycorev1.PodApplyConfiguration)
	if !ok {
		return fmt.Errorf("no apply of %T", object)
	}
	key := client.ObjectKey{Namespace: *pod.Namespace, Name: *pod.Name}
	annotations := map[string]*string{}
	for name, text := range pod.Annotations {
		annotations[name] = &text
	}
	return c.write("apply", simPod, key, func() error {
		return c.op.sim.server.annotate(simPod, key, *pod.UID, annotations)
	})
}

// simStatus writes the status of jobs, and marks.
type simStatus struct {
	client.SubResourceWriter
	client *simClient
}

// Patch knows strategic merge patches of a pod's mark.
func (w *simStatus) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	data, err := patch.Data(object)
	if err != nil {
		return err
	}
	var change struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Status corev1.PodStatus `json:"status"`
	}
	if err := json.Unmarshal(data, &change); err != nil {
		return err
	}
	if len(change.Status.Conditions) != 1 || change.Status.Conditions[0].Type != v1alpha1.PodLeaving {
		return fmt.Errorf("no patch %s", data)
	}
	c, key := w.client, client.ObjectKeyFromObject(object)
	return c.write("patch", simPod, key, func() error {
		found := c.op.sim.server.pod(key)
		if found == nil {
			return apierrors.NewNotFound(simGroupResource(simPod), key.Name)
		}
		if change.Metadata.UID != found.UID {
			return apierrors.NewInvalid(schema.GroupKind{Kind: string(simPod)}, key.Name, nil) // metadata.uid is immutable
		}
		mark, _ := fleet.MarkOf(&corev1.Pod{Status: change.Status}) // what deletes it says no status
		c.op.sim.checkMark(key, mark)
		next := found.DeepCopy()
		mark.Put(next)
		if !apiequality.Semantic.DeepEqual(found.Status.Conditions, next.Status.Conditions) {
			c.op.sim.server.put(next)
		}
		object.SetResourceVersion(c.op.sim.server.objects[simPod][key].GetResourceVersion())
		return nil
	})
}

func (w *simStatus) Apply(_ context.Context, object runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	var options client.SubResourceApplyOptions
	options.ApplyOpts(opts)
	if options.FieldManager == record.FieldManager {
		return w.applyWorld(object)
	}
	written, ok := object.(interface {
		UnstructuredContent() map[string]any
		GetUID() types.UID
		GetName() string
		GetNamespace() string
		GetResourceVersion() string
		SetResourceVersion(string)
	})
	if !ok {
		return fmt.Errorf("no apply of the status of %T", object)
	}
	var next v1alpha1.TrainingJob
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(written.UnstructuredContent(), &next); err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: written.GetNamespace(), Name: written.GetName()}
	c := w.client
	return c.write("status", simJob, key, func() error {
		found := c.op.sim.server.job(key)
		if found == nil {
			return apierrors.NewNotFound(simGroupResource(simJob), key.Name)
		}
		if found.UID != written.GetUID() || found.ResourceVersion != written.GetResourceVersion() {
			c.op.sim.counts["conflicts"]++
			return apierrors.NewConflict(simGroupResource(simJob), key.Name, errors.New("the object has been modified"))
		}
		job := found.DeepCopy()
		next.Status.World = job.Status.World
		job.Status = next.Status
		if !apiequality.Semantic.DeepEqual(found.Status, job.Status) {
			c.op.sim.checkStatus(found, job)
			c.op.sim.server.put(job)
		}
		written.SetResourceVersion(c.op.sim.server.job(key).ResourceVersion)
		return nil
	})
}

// applyWorld writes what the rendezvous makes durable.
func (w *simStatus) applyWorld(object runtime.ApplyConfiguration) error {
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var next v1alpha1.TrainingJob
	if err := json.Unmarshal(data, &next); err != nil {
		return err
	}
	c, key := w.client, client.ObjectKeyFromObject(&next)
	return c.write("world", simJob, key, func() error {
		found := c.op.sim.server.job(key)
		if found == nil {
			return apierrors.NewNotFound(simGroupResource(simJob), key.Name)
		}
		if found.UID != next.UID || found.ResourceVersion != next.ResourceVersion {
			return apierrors.NewConflict(simGroupResource(simJob), key.Name, errors.New("the object has been modified"))
		}
		job := found.DeepCopy()
		job.Status.World = next.Status.World
		c.op.sim.server.put(job)
		return nil
	})
}

// dice is a number that depends on the seed, and on which call of its kind this one is.
func (op *simOperator) dice(verb string, kind simKind, key client.ObjectKey) uint64 {
	s := op.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	call := fmt.Sprintf("%s %s %s", verb, kind, key)
	op.calls[call]++
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%d %d %s %d", s.seed, op.number, call, op.calls[call])
	n := hash.Sum64()
	n ^= n >> 29
	n *= 0xbf58476d1ce4e5b9
	return n ^ n>>32
}

// simLatency is from 1 to 20 ms, and no two calls take the same time.
func simLatency(dice uint64) time.Duration {
	return time.Millisecond + time.Duration(dice%uint64(19*time.Millisecond))
}
