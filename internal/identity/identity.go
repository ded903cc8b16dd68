// Package identity tells which pod a service account token belongs to: by the keys that the cluster
// publishes, or else by asking the API server.
package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const (
	podNameKey     = "authentication.kubernetes.io/pod-name"
	podUIDKey      = "authentication.kubernetes.io/pod-uid"
	serviceAccount = "system:serviceaccount:"

	discoveryPath = "/.well-known/openid-configuration"
	keysPath      = "/openid/v1/jwks"
)

// Authenticator checks tokens here, with the keys that the API server publishes, and has the API server
// review those for which no key is known. It implements rendezvous.Authenticator. A token of a pod or of a
// service account that was deleted is valid here until it expires: the rendezvous asks for pods that are
// expected only.
type Authenticator struct {
	Claims
	keys     keys
	fallback *Reviewer
	checks   *prometheus.CounterVec
}

// Describe implements prometheus.Collector.
func (a *Authenticator) Describe(out chan<- *prometheus.Desc) { a.checks.Describe(out) }

// Collect implements prometheus.Collector.
func (a *Authenticator) Collect(out chan<- prometheus.Metric) { a.checks.Collect(out) }

func newChecks() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "concertina_rendezvous_token_checks_total",
		Help: "Tokens of expected pods that were checked, by what: keys (those that the cluster publishes) or review (a TokenReview).",
	}, []string{"by"})
}

// +kubebuilder:rbac:urls=/.well-known/openid-configuration;/openid/v1/jwks,verbs=get

// New returns an Authenticator that asks the API server of config, and says to the logger when its keys
// cannot be had.
func New(config *rest.Config, logger logr.Logger) (*Authenticator, error) {
	client, err := connect(config)
	if err != nil {
		return nil, err
	}
	get := func(ctx context.Context, path string) ([]byte, error) {
		text, err := client.RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("read %s of the API server: %w", path, err)
		}
		return text, nil
	}
	return &Authenticator{
		keys: keys{now: time.Now, logger: logger, fetch: func(ctx context.Context) (discovery, set []byte, err error) {
			if discovery, err = get(ctx, discoveryPath); err != nil {
				return nil, nil, err
			}
			set, err = get(ctx, keysPath)
			return discovery, set, err
		}},
		fallback: &Reviewer{reviews: client.TokenReviews()},
		checks:   newChecks(),
	}, nil
}

// connect makes a client whose requests are not throttled on this side: after a restart of the operator
// every agent of the cluster comes back at once, and the API server's own fairness is the better judge.
func connect(config *rest.Config) (*v1.AuthenticationV1Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.RateLimiter = nil
	client, err := v1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for checking tokens: %w", err)
	}
	return client, nil
}

// Authenticate checks the token. Errors: rendezvous.ErrUnauthenticated when it is not valid for Audience or
// not bound to a pod; any other error means that no key was known and the API server could not be asked.
func (a *Authenticator) Authenticate(ctx context.Context, token string) (rendezvous.Identity, error) {
	parsed, said, err := read(token)
	if err != nil {
		return rendezvous.Identity{}, err
	}
	header := parsed.Headers[0]
	key, issuer, err := a.keys.find(ctx, header.KeyID)
	if ctx.Err() != nil {
		return rendezvous.Identity{}, fmt.Errorf("wait for the keys of the cluster: %w", ctx.Err())
	}
	if err != nil || said.Issuer != issuer {
		// A server may take tokens of issuers that it does not publish, and another server of the
		// cluster may know a key that is new.
		a.checks.WithLabelValues("review").Inc()
		return a.fallback.Authenticate(ctx, token)
	}
	a.checks.WithLabelValues("keys").Inc()
	if key.Algorithm != "" && key.Algorithm != header.Algorithm {
		return rendezvous.Identity{}, refused("the token is not valid: its key is for %s, not for %s", key.Algorithm, header.Algorithm)
	}
	if err := parsed.Claims(key.Key, said); err != nil {
		return rendezvous.Identity{}, refused("the token is not valid: its signature is not the cluster's")
	}
	if err := said.check(issuer, a.keys.now()); err != nil {
		return rendezvous.Identity{}, err
	}
	return said.identity(), nil
}

// Reviewer authenticates agents with TokenReviews. It implements rendezvous.Authenticator.
type Reviewer struct {
	Claims
	reviews v1.TokenReviewInterface
}

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create

// NewReviewer returns a Reviewer that asks the API server of config, for every token.
func NewReviewer(config *rest.Config) (*Reviewer, error) {
	client, err := connect(config)
	if err != nil {
		return nil, err
	}
	return &Reviewer{reviews: client.TokenReviews()}, nil
}

// Authenticate asks the API server about the token. Errors: rendezvous.ErrUnauthenticated when the
// token is not valid for Audience or not bound to a pod; any other error means that the API server
// could not be asked.
func (r *Reviewer) Authenticate(ctx context.Context, token string) (rendezvous.Identity, error) {
	// What cannot be a service account token is not worth a request.
	_, said, err := read(token)
	if err != nil {
		return rendezvous.Identity{}, err
	}
	review, err := r.reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return rendezvous.Identity{}, fmt.Errorf("create TokenReview: %w", err)
	}
	return podOf(&review.Status, said)
}

// podOf reads the identity out of a review and the claims of the token that was reviewed.
func podOf(status *authenticationv1.TokenReviewStatus, said *claims) (rendezvous.Identity, error) {
	if !status.Authenticated {
		reason := status.Error
		if reason == "" {
			reason = "the API server does not know it"
		}
		return rendezvous.Identity{}, refused("the token is not valid: %s", reason)
	}
	if !slices.Contains(status.Audiences, Audience) {
		return rendezvous.Identity{}, refused("the token is not meant for the audience %s", Audience)
	}
	account, isAccount := strings.CutPrefix(status.User.Username, serviceAccount)
	namespace, _, named := strings.Cut(account, ":")
	if !isAccount || !named || namespace == "" {
		return rendezvous.Identity{}, refused("the token belongs to %q, which is not a service account", status.User.Username)
	}
	name, uid := only(status.User.Extra[podNameKey]), only(status.User.Extra[podUIDKey])
	if name == "" || uid == "" {
		return rendezvous.Identity{}, refused("the token of service account %s is not bound to a pod: use a projected token", account)
	}
	if said.Expiry == nil {
		return rendezvous.Identity{}, refused("the token never expires")
	}
	return rendezvous.Identity{Namespace: namespace, PodName: name, PodUID: uid, Expires: said.Expiry.Time()}, nil
}

func only(values authenticationv1.ExtraValue) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}
