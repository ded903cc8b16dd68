// Package identity tells which pod a service account token belongs to, by asking the API server.
package identity

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// Audience is what a token must be meant for. Tokens for the API server itself are refused: an
// agent must not hand those out.
const Audience = "training.concertina.dev/rendezvous"

const (
	podNameKey       = "authentication.kubernetes.io/pod-name"
	podUIDKey        = "authentication.kubernetes.io/pod-uid"
	serviceAccount   = "system:serviceaccount:"
	maxTokenBytes    = 16 << 10
	jsonWebTokenDots = 2
)

// Reviewer authenticates agents with TokenReviews. It implements rendezvous.Authenticator.
type Reviewer struct {
	reviews v1.TokenReviewInterface
}

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create

// NewReviewer returns a Reviewer that asks the API server of config. Its requests are not throttled
// on this side: after a restart of the operator every agent of the cluster comes back at once, and
// the API server's own fairness is the better judge.
func NewReviewer(config *rest.Config) (*Reviewer, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.RateLimiter = nil
	client, err := v1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for TokenReviews: %w", err)
	}
	return &Reviewer{reviews: client.TokenReviews()}, nil
}

// Authenticate asks the API server about the token. Errors: rendezvous.ErrUnauthenticated when the
// token is not valid for Audience or not bound to a pod; any other error means that the API server
// could not be asked.
func (r *Reviewer) Authenticate(ctx context.Context, token string) (rendezvous.Identity, error) {
	// What cannot be a service account token is not worth a request.
	if len(token) > maxTokenBytes || strings.Count(token, ".") != jsonWebTokenDots {
		return rendezvous.Identity{}, refused("the bearer token is not a service account token")
	}
	review, err := r.reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return rendezvous.Identity{}, fmt.Errorf("create TokenReview: %w", err)
	}
	return podOf(&review.Status, token)
}

// podOf reads the identity out of a review and the token that was reviewed.
func podOf(status *authenticationv1.TokenReviewStatus, token string) (rendezvous.Identity, error) {
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
	expires, err := expiry(token)
	if err != nil {
		return rendezvous.Identity{}, refused("the token cannot be read: %v", err)
	}
	return rendezvous.Identity{Namespace: namespace, PodName: name, PodUID: uid, Expires: expires}, nil
}

func only(values authenticationv1.ExtraValue) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// expiry reads the claim exp of a token that the API server has found valid.
func expiry(token string) (time.Time, error) {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return time.Time{}, fmt.Errorf("decode its claims: %w", err)
	}
	var claims struct {
		Expires *int64 `json:"exp"`
	}
	if err := json.Unmarshal(text, &claims); err != nil {
		return time.Time{}, fmt.Errorf("decode its claims: %w", err)
	}
	if claims.Expires == nil {
		return time.Time{}, fmt.Errorf("it has no claim exp")
	}
	return time.Unix(*claims.Expires, 0), nil
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", rendezvous.ErrUnauthenticated, fmt.Sprintf(format, args...))
}
