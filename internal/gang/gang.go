// Package gang has batches of pods placed together or not at all. There is one interface, and one
// file per scheduler that can do it.
package gang

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrNotInstalled means that the cluster does not know the kind of object that the scheduler needs.
var ErrNotInstalled = errors.New("the kind is not installed")

// ErrForeign means that somebody else's object has the group's name. It is never taken over nor deleted.
var ErrForeign = errors.New("it does not belong to this job")

// Group is a batch of pods that start together.
type Group struct {
	// Key names the group's object. Every batch has a fresh name.
	Key types.NamespacedName
	// Owner is the object that the group belongs to and goes away with.
	Owner client.Object
	// Labels are set on the group's object.
	Labels map[string]string
	// SchedulerName is the name under which the scheduler runs.
	SchedulerName string
	// MinMember is how many pods must be placed together.
	MinMember int32
	// MinResources is what they request together, overhead included.
	MinResources corev1.ResourceList
}

// Scheduler places groups of pods together.
type Scheduler interface {
	// Ensure makes the group's object; one of the same owner that is there already is left alone.
	// Errors: ErrNotInstalled, when the cluster does not know the kind; ErrForeign.
	Ensure(ctx context.Context, group Group) error
	// Exists says whether the group's object is there and the owner's, and not about to go, from a live
	// read. Errors: ErrNotInstalled.
	Exists(ctx context.Context, owner client.Object, key types.NamespacedName) (bool, error)
	// Decorate makes the pod a member of the group.
	Decorate(pod *corev1.Pod, group Group)
	// List names the owner's groups that carry the labels, from a live read; none when the kind is not
	// there.
	List(ctx context.Context, owner client.Object, labels map[string]string) ([]types.NamespacedName, error)
	// Delete removes the group's object if it is the owner's; it is no error if that is gone already.
	Delete(ctx context.Context, owner client.Object, key types.NamespacedName) error
	// Retry has the scheduler look once more at all groups that wait for room, of which this is one;
	// it is no error if that is gone. Errors: ErrNotInstalled.
	Retry(ctx context.Context, key types.NamespacedName) error
	// Why says in words why pods of a group have no node yet; empty when they all have one. It
	// looks at the pods alone: no scheduler's group status is reliable enough.
	Why(pods []*corev1.Pod) string
	// Install says how to get what the scheduler needs into a cluster.
	Install() string
}
