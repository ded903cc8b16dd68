package listing

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concertina-dev/concertina/api/v1alpha1"
	"github.com/concertina-dev/concertina/internal/fleet"
	"github.com/concertina-dev/concertina/internal/replay/recorded"
)

// Lister lists the objects of one cluster.
type Lister struct {
	Client client.Reader
	// Server is where the cluster is, for messages.
	Server string
}

// New makes a Lister. It asks the cluster nothing yet.
func New(config *rest.Config) (*Lister, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build the scheme: %w", err)
		}
	}
	config = rest.CopyConfig(config)
	// A few lists, many pages each.
	config.QPS, config.Burst = 100, 200
	// All kinds are known: discovery would only cost time.
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"), meta.RESTScopeRoot)
	for _, kind := range []string{"Pod", "ResourceQuota", "ConfigMap"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(v1alpha1.GroupVersion.WithKind("TrainingJob"), meta.RESTScopeNamespace)
	reader, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", config.Host, err)
	}
	return &Lister{Client: reader, Server: config.Host}, nil
}

// unfinished are the pods that hold something.
var unfinished = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))

// Cluster lists all that a plan looks at. Of kinds that may not be listed it returns all in one error, a
// Denied.
func (l *Lister) Cluster(ctx context.Context) (fleet.Objects, error) {
	var o fleet.Objects
	return o, l.each(ctx,
		func(ctx context.Context) error { return list(ctx, l, "nodes", &corev1.NodeList{}, &o.Nodes) },
		func(ctx context.Context) error {
			return list(ctx, l, "pods", &corev1.PodList{}, &o.Pods, client.MatchingFieldsSelector{Selector: unfinished})
		},
		func(ctx context.Context) error {
			return list(ctx, l, resourceJobs, &v1alpha1.TrainingJobList{}, &o.Jobs)
		},
		func(ctx context.Context) error {
			return list(ctx, l, "priorityclasses.scheduling.k8s.io", &schedulingv1.PriorityClassList{}, &o.Classes)
		},
		func(ctx context.Context) error {
			return list(ctx, l, "resourcequotas", &corev1.ResourceQuotaList{}, &o.Quotas)
		},
		func(ctx context.Context) error {
			return list(ctx, l, "namespaces", &corev1.NamespaceList{}, &o.Namespaces)
		},
	)
}

// Jobs lists jobs and their pods, of one namespace or, with an empty one, of all.
func (l *Lister) Jobs(ctx context.Context, namespace string) (fleet.Objects, error) {
	var o fleet.Objects
	in := client.InNamespace(namespace)
	return o, l.each(ctx,
		func(ctx context.Context) error {
			return list(ctx, l, resourceJobs, &v1alpha1.TrainingJobList{}, &o.Jobs, in)
		},
		func(ctx context.Context) error {
			return list(ctx, l, "pods", &corev1.PodList{}, &o.Pods, in, client.HasLabels{v1alpha1.LabelJob},
				client.MatchingFieldsSelector{Selector: unfinished})
		},
	)
}

// Past lists what a workload is made of: all nodes, and the jobs and pods of one namespace or, with an empty one, of all,
// those that are over as well. Of kinds that may not be listed it returns all in one error, a Denied.
func (l *Lister) Past(ctx context.Context, namespace string) (recorded.Objects, error) {
	var o recorded.Objects
	in := client.InNamespace(namespace)
	return o, l.each(ctx,
		func(ctx context.Context) error { return list(ctx, l, "nodes", &corev1.NodeList{}, &o.Nodes) },
		func(ctx context.Context) error { return list(ctx, l, "pods", &corev1.PodList{}, &o.Pods, in) },
		func(ctx context.Context) error {
			return list(ctx, l, resourceJobs, &v1alpha1.TrainingJobList{}, &o.Jobs, in)
		},
	)
}

// each does all at once. What is denied is told of all; any other error ends it.
func (l *Lister) each(ctx context.Context, all ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	refusals := make([]error, len(all))
	for i, one := range all {
		group.Go(func() error {
			err := one(ctx)
			if _, isDenied := errors.AsType[*Denied](err); isDenied {
				refusals[i] = err
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return together(refusals)
}

// pageSize is how many objects are fetched at a time, as kubectl does.
const pageSize = 500

// list lists one kind, page by page.
func list[T any](ctx context.Context, l *Lister, resource string, page client.ObjectList, into *[]*T, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	pages := pager.New(func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
		one := page.DeepCopyObject().(client.ObjectList)
		at := o
		at.Limit, at.Continue, at.Raw = raw.Limit, raw.Continue, &raw
		return one, l.Client.List(ctx, one, &at)
	})
	pages.PageSize = pageSize
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		one, ok := any(object).(*T)
		if !ok {
			return fmt.Errorf("list %s: the cluster returned a %T", resource, object)
		}
		*into = append(*into, one)
		return nil
	})
	return l.told("list", resource, o.Namespace, err)
}
