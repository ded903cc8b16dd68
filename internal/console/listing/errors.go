package listing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/clientcmd"
)

// resourceJobs are TrainingJobs, as roles name them.
const resourceJobs = "trainingjobs.training.concertina.dev"

// Denied is what somebody may not do.
type Denied struct {
	// Verb is such as list, Resources such as nodes.
	Verb      string
	Resources []string
	// Namespace is where; empty for all of the cluster.
	Namespace string
}

// Error implements error.
func (d *Denied) Error() string {
	where := "the whole cluster"
	if d.Namespace != "" {
		where = "namespace " + d.Namespace
	}
	return fmt.Sprintf("you may not %s %s in %s: ask an administrator for that right (docs/fleet.md, Rights)", d.Verb, strings.Join(d.Resources, ", "), where)
}

// together makes one error of all that is denied, by one verb in one place; nil of none.
func together(refusals []error) error {
	var all *Denied
	for _, err := range refusals {
		one, isDenied := errors.AsType[*Denied](err)
		switch {
		case !isDenied:
		case all == nil:
			all = one
		default:
			all.Resources = append(all.Resources, one.Resources...)
		}
	}
	if all == nil {
		return nil
	}
	slices.Sort(all.Resources)
	return all
}

// told puts an error of the cluster into words for the person at the terminal.
func (l *Lister) told(verb, resource, namespace string, err error) error {
	unreachable, isUnreachable := errors.AsType[*url.Error](err)
	where := ""
	if namespace != "" {
		where = " in namespace " + namespace
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case apierrors.IsForbidden(err):
		return &Denied{Verb: verb, Resources: []string{resource}, Namespace: namespace}
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the cluster at %s does not accept your credentials: log in again, or choose others with --context or --user", l.Server)
	case resource == resourceJobs && (apierrors.IsNotFound(err) || meta.IsNoMatchError(err)):
		return fmt.Errorf("the cluster at %s knows no TrainingJobs: install Concertina first (docs/install.md has the steps), "+
			"or choose another cluster with --context", l.Server)
	case isUnreachable:
		return fmt.Errorf("cannot reach the cluster at %s (%w): is it up, and is it the right one? Choose with --context or --kubeconfig", l.Server, reason(unreachable))
	default:
		return fmt.Errorf("%s %s%s: %w", verb, resource, where, err)
	}
}

// reason is why a server cannot be reached, without the address of a request that nobody knows.
func reason(err *url.Error) error {
	if inner, isNet := errors.AsType[*net.OpError](err); isNet {
		return inner.Err
	}
	return err.Err
}

// ErrNoCluster is what somebody is told who has no kubeconfig.
var ErrNoCluster = errors.New("no cluster is configured: set KUBECONFIG, or give --kubeconfig FILE")

// NoCluster puts into words why there is no configuration of a client.
func NoCluster(err error) error {
	switch {
	case err == nil:
		return nil
	case clientcmd.IsEmptyConfig(err):
		return ErrNoCluster
	case clientcmd.IsContextNotFound(err), strings.HasPrefix(err.Error(), "context "): // clientcmd has two errors for it
		return fmt.Errorf("%w: `kubectl config get-contexts` lists those there are", err)
	default:
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
}
