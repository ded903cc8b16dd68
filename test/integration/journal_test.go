package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// errKilled is what every call of a killed operator ends with.
var errKilled = errors.New("the operator was killed")

// journal is everything that one operator does to the outside, a line each, in order: its writes to
// the API server, what it tells the rendezvous, and its events.
type journal struct {
	mu     sync.Mutex
	lines  []string
	killed bool
	// before is asked before a write; its error is the answer to that write. nil for none.
	before func(ctx context.Context, line string) error
	// killAfter is the number of writes to the API server after which the operator is killed; 0 for
	// never.
	killAfter, writes int
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// settled is the journal without the writes that were in vain because the cache lagged: whatever was
// decided then was decided anew.
func (j *journal) settled() []string {
	return slices.DeleteFunc(j.all(), func(line string) bool { return line == "write status: Conflict" })
}

// count is how often a line was written.
func (j *journal) count(line string) int {
	n := 0
	for _, written := range j.all() {
		if written == line {
			n++
		}
	}
	return n
}

// add notes something that is no write.
func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.killed {
		j.lines = append(j.lines, fmt.Sprintf(format, args...))
	}
}

// write does a write and notes it, with the reason of a failure behind it.
func (j *journal) write(ctx context.Context, line string, do func() error) error {
	j.mu.Lock()
	before, killed := j.before, j.killed
	j.mu.Unlock()
	if killed {
		return errKilled
	}
	if before != nil {
		if err := before(ctx, line); err != nil {
			j.add("%s: %s", line, reasonOf(err))
			return err
		}
	}
	err := do()
	if err != nil {
		j.add("%s: %s", line, reasonOf(err))
	} else {
		j.add("%s", line)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes++
	if j.killAfter != 0 && j.writes == j.killAfter {
		j.killed = true
		return errKilled
	}
	return err
}

func (j *journal) isKilled() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.killed
}

// answer sets what is asked before each write from now on.
func (j *journal) answer(before func(ctx context.Context, line string) error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.before = before
}

func reasonOf(err error) string {
	if reason := apierrors.ReasonForError(err); reason != "" {
		return string(reason)
	}
	return err.Error()
}

// intercept notes every write of a client.
func (j *journal) intercept() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			if asks(opts) {
				return j.write(ctx, "ask about "+nameOf(c, object), func() error { return c.Create(ctx, object, opts...) })
			}
			return j.write(ctx, "create "+nameOf(c, object), func() error { return c.Create(ctx, object, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			return j.write(ctx, "delete "+nameOf(c, object), func() error { return c.Delete(ctx, object, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return j.write(ctx, "apply "+appliedName(object), func() error { return c.Apply(ctx, object, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return j.write(ctx, "patch "+nameOf(c, object)+annotated(object, patch), func() error { return c.Patch(ctx, object, patch, opts...) })
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, object runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			return j.write(ctx, "write "+sub, func() error { return c.SubResource(sub).Apply(ctx, object, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			line := "patch " + sub + " of " + nameOf(c, object) + conditioned(object, patch)
			return j.write(ctx, line, func() error { return c.SubResource(sub).Patch(ctx, object, patch, opts...) })
		},
	}
}

// asks says whether nothing is to be made.
func asks(opts []client.CreateOption) bool {
	var options client.CreateOptions
	options.ApplyOptions(opts)
	return len(options.DryRun) > 0
}

func nameOf(c client.Client, object client.Object) string {
	kind := "object"
	if gvk, err := apiutil.GVKForObject(object, c.Scheme()); err == nil {
		kind = gvk.Kind
	}
	return kind + " " + object.GetName()
}

func appliedName(object runtime.ApplyConfiguration) string {
	named, ok := object.(interface {
		GetKind() *string
		GetName() *string
	})
	if !ok || named.GetKind() == nil || named.GetName() == nil {
		return fmt.Sprintf("%T", object)
	}
	return *named.GetKind() + " " + *named.GetName()
}

// annotated tells which annotations a patch of a pod writes, by the last part of their names.
func annotated(object client.Object, patch client.Patch) string {
	var written struct {
		Metadata struct{ Annotations map[string]*string }
	}
	data, err := patch.Data(object)
	if _, isPod := object.(*corev1.Pod); !isPod || err != nil || json.Unmarshal(data, &written) != nil {
		return ""
	}
	text := ""
	for _, name := range slices.Sorted(maps.Keys(written.Metadata.Annotations)) {
		text += " " + name[strings.LastIndexByte(name, '/')+1:]
	}
	return text
}

// conditioned tells which conditions a patch of a status writes, by the last part of their names.
func conditioned(object client.Object, patch client.Patch) string {
	var written struct {
		Status struct{ Conditions []struct{ Type string } }
	}
	data, err := patch.Data(object)
	if err != nil || json.Unmarshal(data, &written) != nil {
		return ""
	}
	text := ""
	for _, c := range written.Status.Conditions {
		text += " " + c.Type[strings.LastIndexByte(c.Type, '/')+1:]
	}
	return text
}
