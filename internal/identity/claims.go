package identity

import (
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// Audience is what a token must be meant for. Tokens for the API server itself are refused: an
// agent must not hand those out.
const Audience = "training.concertina.dev/rendezvous"

const (
	maxTokenBytes = 16 << 10
	// clockSkew is how far the API server's clock and ours may be apart.
	clockSkew = time.Minute // what the API server itself allows for
)

// algorithms are those with which clusters sign the tokens of service accounts.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// claims are what a token says that the API server has bound to a pod.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// Claims reads what a token says, and proves nothing.
type Claims struct{}

// Claim returns the pod that the token says it is bound to. Errors: rendezvous.ErrUnauthenticated when it
// can be no token of a pod for Audience, or has expired.
func (Claims) Claim(token string) (rendezvous.Identity, error) {
	_, said, err := read(token)
	if err != nil {
		return rendezvous.Identity{}, err
	}
	if err := said.check("", time.Now()); err != nil {
		return rendezvous.Identity{}, err
	}
	return said.identity(), nil
}

// read takes a token apart. What cannot be a service account token is refused here.
func read(token string) (*jwt.JSONWebToken, *claims, error) {
	if len(token) > maxTokenBytes {
		return nil, nil, refused("the bearer token is not a service account token: it has %d bytes", len(token))
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, nil, refused("the bearer token is not a service account token")
	}
	said := &claims{}
	if err := parsed.UnsafeClaimsWithoutVerification(said); err != nil {
		return nil, nil, refused("the bearer token is not a service account token: its claims cannot be read")
	}
	return parsed, said, nil
}

// check says what is wrong with claims, whoever has signed them. An issuer of "" may be any.
func (c *claims) check(issuer string, now time.Time) error {
	pod := c.Kubernetes.Pod
	switch {
	case c.Expiry == nil:
		return refused("the token is not valid: it never expires")
	case issuer != "" && c.Issuer != issuer:
		return refused("the token is not valid: it was not issued by %s", issuer)
	case !c.Audience.Contains(Audience):
		return refused("the token is not valid: it is not meant for the audience %s", Audience)
	case now.After(c.Expiry.Time().Add(clockSkew)):
		return refused("the token is not valid: it has expired at %s", c.Expiry.Time().UTC().Format(time.RFC3339))
	case c.NotBefore != nil && now.Add(clockSkew).Before(c.NotBefore.Time()):
		return refused("the token is not valid before %s", c.NotBefore.Time().UTC().Format(time.RFC3339))
	case c.Kubernetes.Namespace == "" || pod.Name == "" || pod.UID == "":
		return refused("the token is not bound to a pod: use a projected token")
	}
	return nil
}

func (c *claims) identity() rendezvous.Identity {
	return rendezvous.Identity{
		Namespace: c.Kubernetes.Namespace, PodName: c.Kubernetes.Pod.Name, PodUID: c.Kubernetes.Pod.UID,
		Expires: c.Expiry.Time(),
	}
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", rendezvous.ErrUnauthenticated, fmt.Sprintf(format, args...))
}
