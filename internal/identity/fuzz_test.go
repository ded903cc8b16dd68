package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

// nobody knows no token.
type nobody struct{ v1.TokenReviewInterface }

func (nobody) Create(context.Context, *authenticationv1.TokenReview, metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	return &authenticationv1.TokenReview{}, nil
}

// FuzzToken sends tokens that nobody has signed: none of them is anybody's, and the keys are asked for
// once at most.
func FuzzToken(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public("one", key, jose.ES256)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("")
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIiwia2lkIjoib25lIn0.e30.")
	f.Add("eyJhbGciOiJFUzI1NiIsImtpZCI6Im9uZSJ9.e30.AAAA")
	f.Add("eyJhbGciOiJFUzI1NiIsImtpZCI6Im9uZSJ9.eyJleHAiOjFlNDAsImF1ZCI6W119.AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		asked := 0
		a := &Authenticator{keys: keys{now: time.Now, fetch: func(context.Context) (discovery, keys []byte, err error) {
			asked++
			return []byte(`{"issuer":"` + issuer + `"}`), set, nil
		}}, fallback: &Reviewer{reviews: nobody{}}, checks: newChecks()}
		claimed, err := a.Claim(token)
		if err != nil && (!errors.Is(err, rendezvous.ErrUnauthenticated) || claimed != (rendezvous.Identity{})) {
			t.Errorf("%q claims %+v, %v", token, claimed, err)
		}
		if err == nil && (claimed.PodUID == "" || claimed.Namespace == "" || claimed.Expires.IsZero()) {
			t.Errorf("%q claims %+v", token, claimed)
		}
		who, err := a.Authenticate(t.Context(), token)
		if err == nil || who != (rendezvous.Identity{}) || asked > 1 {
			t.Errorf("%q is of %+v, %v, after %d requests", token, who, err, asked)
		}
	})
}
