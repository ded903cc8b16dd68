package rendezvous

import (
	"context"
	"errors"
	"time"
)

// Identity is who an agent is, as its token proves.
type Identity struct {
	Namespace string
	PodName   string
	PodUID    string
	// Expires is when the token ends; its session ends with it.
	Expires time.Time
}

// ErrUnauthenticated is returned by an Authenticator when the token proves nothing. Its text is
// sent to the agent.
var ErrUnauthenticated = errors.New("not authenticated")

// Authenticator finds out who sent a bearer token.
type Authenticator interface {
	// Claim returns the pod that the token says it is bound to, without any proof, and at once. Errors:
	// ErrUnauthenticated when it can be no token of a pod for us.
	Claim(token string) (Identity, error)
	// Authenticate returns the pod that the token is bound to. Errors: ErrUnauthenticated when the
	// token is not valid or not bound to a pod; any other error means that it could not be checked
	// now.
	Authenticate(ctx context.Context, token string) (Identity, error)
}
