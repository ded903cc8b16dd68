package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/concertina-dev/concertina/internal/rendezvous"
)

const issuer = "https://cluster.example"

// apiServer publishes keys and reviews tokens, and counts both.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex
	keys    []jose.JSONWebKey
	away    bool
	asked   atomic.Int32
	reviews atomic.Int32
}

func newAPIServer(t *testing.T, published ...jose.JSONWebKey) *apiServer {
	t.Helper()
	s := &apiServer{keys: published}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	var answer any
	switch {
	case r.URL.Path == "/apis/authentication.k8s.io/v1/tokenreviews":
		s.reviews.Add(1)
		review := &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{Audience},
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:team:default", Extra: map[string]authenticationv1.ExtraValue{
				podNameKey: {"reviewed"}, podUIDKey: {"uid-reviewed"},
			}},
		}}
		review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
		answer = review
	case s.away:
		w.WriteHeader(http.StatusForbidden)
		return
	case r.URL.Path == discoveryPath:
		answer = map[string]string{"issuer": issuer}
	case r.URL.Path == keysPath:
		s.asked.Add(1)
		answer = jose.JSONWebKeySet{Keys: s.keys}
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *apiServer) publish(keys ...jose.JSONWebKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = keys
}

// authenticator checks tokens by a clock of its own.
func (s *apiServer) authenticator(t *testing.T, now *atomic.Pointer[time.Time]) *Authenticator {
	t.Helper()
	a, err := New(&rest.Config{Host: s.URL}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	a.keys.now = func() time.Time { return *now.Load() }
	return a
}

func clock() *atomic.Pointer[time.Time] {
	now := &atomic.Pointer[time.Time]{}
	at := time.Now()
	now.Store(&at)
	return now
}

func pass(now *atomic.Pointer[time.Time], d time.Duration) {
	at := now.Load().Add(d)
	now.Store(&at)
}

func rsaKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func public(id string, key crypto.Signer, algorithm jose.SignatureAlgorithm) jose.JSONWebKey {
	return jose.JSONWebKey{Key: key.Public(), KeyID: id, Algorithm: string(algorithm), Use: "sig"}
}

// podClaims are those of a token of pod a.
func podClaims(now time.Time) map[string]any {
	return map[string]any{
		"iss": issuer, "aud": []string{Audience}, "sub": "system:serviceaccount:team:default",
		"exp": now.Add(time.Hour).Unix(), "nbf": now.Unix(), "iat": now.Unix(),
		"kubernetes.io": map[string]any{"namespace": "team", "pod": map[string]string{"name": "a", "uid": "uid-a"}},
	}
}

func sign(t *testing.T, id string, algorithm jose.SignatureAlgorithm, key any, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokensAreCheckedWithoutAReview(t *testing.T) {
	one, two := rsaKey(t), ecKey(t)
	s := newAPIServer(t, public("one", one, jose.RS256), public("two", two, jose.ES256))
	now := clock()
	a := s.authenticator(t, now)
	for id, token := range map[string]string{
		"one": sign(t, "one", jose.RS256, one, podClaims(*now.Load())), "two": sign(t, "two", jose.ES256, two, podClaims(*now.Load())),
	} {
		who, err := a.Authenticate(t.Context(), token)
		if err != nil || who.Namespace != "team" || who.PodName != "a" || who.PodUID != "uid-a" ||
			who.Expires.Unix() != now.Load().Add(time.Hour).Unix() {
			t.Errorf("signed by %s: %+v, %v", id, who, err)
		}
		if claimed, err := a.Claim(token); err != nil || claimed != who {
			t.Errorf("signed by %s: it claims %+v, %v", id, claimed, err)
		}
	}
	if asked, reviews := s.asked.Load(), s.reviews.Load(); asked != 1 || reviews != 0 {
		t.Errorf("the keys were asked for %d times, and %d tokens were reviewed", asked, reviews)
	}
	var counted dto.Metric
	if err := a.checks.WithLabelValues("keys").Write(&counted); err != nil || counted.GetCounter().GetValue() != 2 {
		t.Errorf("%v tokens are counted, %v", counted.GetCounter().GetValue(), err)
	}
}

// Nothing of this is worth a review either.
func TestTokensThatAreRefusedHere(t *testing.T) {
	key, other := rsaKey(t), rsaKey(t)
	s := newAPIServer(t, public("one", key, jose.RS256))
	now := clock()
	a := s.authenticator(t, now)
	with := func(change func(map[string]any)) string {
		said := podClaims(*now.Load())
		change(said)
		return sign(t, "one", jose.RS256, key, said)
	}
	valid := with(func(map[string]any) {})
	parts := strings.Split(valid, ".")
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	for name, c := range map[string]struct{ token, says string }{
		"nothing":                    {"", "not a service account token"},
		"a word":                     {"let-me-in", "not a service account token"},
		"the shape of a token":       {"a.b.c", "not a service account token"},
		"much too long":              {strings.Repeat("a", maxTokenBytes) + ".b.c", "has 16388 bytes"},
		"no algorithm":               {encode([]byte(`{"alg":"none","kid":"one"}`)) + "." + parts[1] + ".", "not a service account token"},
		"the public key as a secret": {sign(t, "one", jose.HS256, der, podClaims(*now.Load())), "not a service account token"},
		"another algorithm":          {sign(t, "one", jose.PS256, key, podClaims(*now.Load())), "not a service account token"},
		"another's signature":        {sign(t, "one", jose.RS256, other, podClaims(*now.Load())), "signature is not the cluster's"},
		"an algorithm of other keys": {sign(t, "one", jose.ES256, ecKey(t), podClaims(*now.Load())), "its key is for RS256, not for ES256"},
		"other claims":               {parts[0] + "." + strings.Split(with(func(c map[string]any) { c["sub"] = "x" }), ".")[1] + "." + parts[2], "signature is not the cluster's"},
		"expired":                    {with(func(c map[string]any) { c["exp"] = now.Load().Add(-2 * time.Minute).Unix() }), "has expired"},
		"without an end":             {with(func(c map[string]any) { delete(c, "exp") }), "never expires"},
		"not valid yet":              {with(func(c map[string]any) { c["nbf"] = now.Load().Add(2 * time.Minute).Unix() }), "not valid before"},
		"for the API server":         {with(func(c map[string]any) { c["aud"] = []string{issuer} }), "not meant for the audience"},
		"for nobody":                 {with(func(c map[string]any) { delete(c, "aud") }), "not meant for the audience"},
		"bound to no pod":            {with(func(c map[string]any) { c["kubernetes.io"] = map[string]any{"namespace": "team"} }), "not bound to a pod"},
		"bound to a pod without a uid": {with(func(c map[string]any) {
			c["kubernetes.io"] = map[string]any{"namespace": "team", "pod": map[string]string{"name": "a"}}
		}), "not bound to a pod"},
	} {
		t.Run(name, func(t *testing.T) {
			who, err := a.Authenticate(t.Context(), c.token)
			if !errors.Is(err, rendezvous.ErrUnauthenticated) || !strings.Contains(err.Error(), c.says) || who != (rendezvous.Identity{}) {
				t.Errorf("%+v, %v; want an error with %q", who, err, c.says)
			}
		})
	}
	if reviews := s.reviews.Load(); reviews != 0 {
		t.Errorf("%d tokens were reviewed", reviews)
	}
}

// A token of a key that is not published, or of an issuer that is not, is for the API server to judge; how
// often the keys are asked for does not depend on what tokens say.
func TestWhatIsNotPublishedIsReviewed(t *testing.T) {
	key, fresh := rsaKey(t), rsaKey(t)
	s := newAPIServer(t, public("one", key, jose.RS256))
	now := clock()
	a := s.authenticator(t, now)
	reviewed := func(token string) bool {
		t.Helper()
		who, err := a.Authenticate(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		return who.PodUID == "uid-reviewed"
	}
	elsewhere := podClaims(*now.Load())
	elsewhere["iss"] = "https://elsewhere.example"
	if !reviewed(sign(t, "one", jose.RS256, key, elsewhere)) {
		t.Error("a token of an issuer that is not published was not reviewed")
	}
	for i := range 100 {
		if !reviewed(sign(t, fmt.Sprint("unknown-", i), jose.ES256, ecKey(t), podClaims(*now.Load()))) {
			t.Errorf("a token of the unknown key %d was not reviewed", i)
		}
	}
	if asked := s.asked.Load(); asked != 1 {
		t.Errorf("the keys were asked for %d times within a moment", asked)
	}
	s.publish(public("one", key, jose.RS256), public("fresh", fresh, jose.RS256))
	pass(now, askEvery)
	if reviewed(sign(t, "fresh", jose.RS256, fresh, podClaims(*now.Load()))) {
		t.Error("a new key is not looked up")
	}
	// A key that the cluster has taken back is forgotten.
	s.publish(public("fresh", fresh, jose.RS256))
	pass(now, refreshEvery)
	_ = reviewed(sign(t, "fresh", jose.RS256, fresh, podClaims(*now.Load())))
	if !reviewed(sign(t, "one", jose.RS256, key, podClaims(*now.Load()))) {
		t.Error("a key that was taken back is believed")
	}
}

func TestKeysOutliveTheirServerForAWhile(t *testing.T) {
	key := rsaKey(t)
	s := newAPIServer(t, public("one", key, jose.RS256))
	now := clock()
	a := s.authenticator(t, now)
	reviewed := func() bool {
		t.Helper()
		who, err := a.Authenticate(t.Context(), sign(t, "one", jose.RS256, key, podClaims(*now.Load())))
		if err != nil {
			t.Fatal(err)
		}
		return who.PodUID == "uid-reviewed"
	}
	if reviewed() {
		t.Fatal("the key is not used")
	}
	s.mu.Lock()
	s.away = true
	s.mu.Unlock()
	for _, step := range []struct {
		after time.Duration
		want  bool
	}{{refreshEvery, false}, {keepKeys - refreshEvery - time.Second, false}, {time.Second, true}} {
		pass(now, step.after)
		if got := reviewed(); got != step.want {
			t.Errorf("%s later: reviewed is %t", step.after, got)
		}
	}
}

// Many that come at once wait for one answer.
func TestKeysAreAskedForOnce(t *testing.T) {
	key := rsaKey(t)
	s := newAPIServer(t, public("one", key, jose.RS256))
	now := clock()
	a := s.authenticator(t, now)
	token := sign(t, "one", jose.RS256, key, podClaims(*now.Load()))
	s.mu.Lock() // nobody is answered
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := a.Authenticate(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	all.Go(func() { _, _ = a.Authenticate(over, token) }) // who gives up takes the others with it in no case
	s.mu.Unlock()
	all.Wait()
	if asked, reviews := s.asked.Load(), s.reviews.Load(); asked != 1 || reviews != 0 {
		t.Errorf("the keys were asked for %d times, and %d tokens were reviewed", asked, reviews)
	}
}

func TestNonsenseIsNoKeySet(t *testing.T) {
	private := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: ecKey(t), KeyID: "private"}, {Key: []byte("secret"), KeyID: "secret"}}}
	text, err := json.Marshal(private)
	if err != nil {
		t.Fatal(err)
	}
	document := []byte(`{"issuer":"x"}`)
	read, err := readPublished(document, text)
	if err != nil || len(read.keys) != 0 {
		t.Errorf("keys %v, %v", slices.Collect(maps.Keys(read.keys)), err)
	}
	for _, c := range [][2]string{{"", "{}"}, {"{}", "{}"}, {string(document), "x"}} {
		if _, err := readPublished([]byte(c[0]), []byte(c[1])); err == nil {
			t.Errorf("%q is read", c)
		}
	}
}
