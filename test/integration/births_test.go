package integration

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// births has an operator see its pods as old as they are by its own clock. The API server stamps them by the
// wall: after a jump of the clock a new pod would be as old as the jump is long.
type births struct {
	mu sync.Mutex
	at map[types.UID]time.Time
}

// made notes when a pod was made: when it was asked for, since who sees it there may set the clock before the answer is back.
func (b *births) made(object client.Object, at time.Time) {
	if _, pod := object.(*corev1.Pod); !pod || object.GetUID() == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at[object.GetUID()] = at
}

// correct sets the times of creation in a list that was read.
func (b *births) correct(list client.ObjectList) {
	pods, ok := list.(*corev1.PodList)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range pods.Items {
		if at, known := b.at[pods.Items[i].UID]; known {
			pods.Items[i].CreationTimestamp = metav1.NewTime(at.Truncate(time.Second))
		}
	}
}

// reader reads with the times corrected.
type reader struct {
	client.Reader
	births *births
}

// List implements client.Reader.
func (r reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := r.Reader.List(ctx, list, opts...)
	r.births.correct(list)
	return err
}
