package fleet

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// maxShared is how many lists of containers, and of resources, are remembered for sharing.
const maxShared = 4096

// shared are values by what they say. Tens of thousands of pods have the same few.
type shared[T any] struct {
	mu     sync.Mutex
	values map[string]T
}

var (
	sharedContainers = shared[[]corev1.Container]{values: map[string][]corev1.Container{}}
	sharedResources  = shared[corev1.ResourceList]{values: map[string]corev1.ResourceList{}}
)

// of is a value that says the same as this one, and that others may have too.
func (s *shared[T]) of(key string, value T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, there := s.values[key]; there {
		return known
	}
	if len(s.values) >= maxShared {
		clear(s.values) // those who have one keep it
	}
	s.values[key] = value
	return value
}

// shareContainers keeps of containers what they ask for. Others may have the same list: it is not to be changed.
func shareContainers(containers []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	var key strings.Builder
	slim := make([]corev1.Container, 0, len(containers))
	for i := range containers {
		c := &containers[i]
		kept := corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: corev1.ResourceRequirements{
			Requests: c.Resources.Requests, Limits: c.Resources.Limits, Claims: c.Resources.Claims,
		}}
		key.WriteString(c.Name)
		key.WriteByte('\n')
		key.WriteString(string(value(c.RestartPolicy)))
		key.WriteByte('\n')
		writeResources(&key, c.Resources.Requests)
		writeResources(&key, c.Resources.Limits)
		for j := range c.Resources.Claims {
			key.WriteString(c.Resources.Claims[j].String())
		}
		key.WriteByte('\n')
		slim = append(slim, kept)
	}
	return sharedContainers.of(key.String(), slim)
}

// shareResources is a list of resources that says the same. Others may have it too: it is not to be changed.
func shareResources(list corev1.ResourceList) corev1.ResourceList {
	if len(list) == 0 {
		return list
	}
	var key strings.Builder
	writeResources(&key, list)
	return sharedResources.of(key.String(), list)
}

// writeResources writes what a list says, by name.
func writeResources(key *strings.Builder, list corev1.ResourceList) {
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		amount := list[name]
		key.WriteString(string(name))
		key.WriteByte('=')
		key.WriteString(amount.String())
		key.WriteByte(',')
	}
	key.WriteByte('\n')
}
