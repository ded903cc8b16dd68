package inspection

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/concertina-dev/concertina/internal/pki"
	"github.com/concertina-dev/concertina/internal/rendezvous"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// users knows two tokens.
type users struct {
	authenticationclient.TokenReviewInterface
	asked int
	// entered and leave, if not nil, hold requests up.
	entered, leave chan struct{}
}

func (u *users) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	if u.entered != nil {
		u.entered <- struct{}{}
		<-u.leave
	} else {
		u.asked++
	}
	if len(review.Spec.Audiences) > 0 {
		return nil, errors.New("a token of the API server's is meant")
	}
	switch review.Spec.Token {
	case "viewer", "other":
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
			Username: review.Spec.Token, Groups: []string{"people"}, Extra: map[string]authenticationv1.ExtraValue{"scopes": {"read"}},
		}}
	case "away":
		return nil, errors.New("the API server is away")
	}
	return review, nil
}

// rights lets the viewer read the status of jobs of its team.
type rights struct {
	authorizationclient.SubjectAccessReviewInterface
}

func (rights) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	what := *review.Spec.ResourceAttributes
	what.Name = ""
	review.Status.Allowed = review.Spec.User == "viewer" && len(review.Spec.Groups) == 1 && review.Spec.Extra["scopes"][0] == "read" &&
		what == authorizationv1.ResourceAttributes{Verb: "get", Group: "training.concertina.dev", Resource: "trainingjobs", Subresource: "status", Namespace: "team"}
	return review, nil
}

func inspect(job rendezvous.JobKey) (rendezvous.Inspection, bool) {
	if job.Name != "digits" {
		return rendezvous.Inspection{}, false
	}
	return rendezvous.Inspection{
		Attempt: 2, World: &rendezvous.WorldInspection{Round: 7}, Members: []rendezvous.MemberInspection{{UID: "uid-a", Connected: true}},
	}, true
}

func ask(p *Page, method, path, token string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, path, nil)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	recorder := httptest.NewRecorder()
	p.ServeHTTP(recorder, request)
	return recorder
}

func TestWhoMayLookAtAJob(t *testing.T) {
	known := &users{}
	page := newPage(inspect, known, rights{})
	for name, c := range map[string]struct {
		method, path, token string
		code                int
		says                string
	}{
		"a viewer":                     {"GET", "/debug/jobs/team/digits", "viewer", http.StatusOK, `"Round": 7`},
		"nobody":                       {"GET", "/debug/jobs/team/digits", "", http.StatusUnauthorized, "Bearer TOKEN"},
		"a guess":                      {"GET", "/debug/jobs/team/digits", "guess", http.StatusUnauthorized, "does not know this token"},
		"somebody else":                {"GET", "/debug/jobs/team/digits", "other", http.StatusForbidden, `"other" may not get trainingjobs/status of team/digits`},
		"a viewer of other jobs":       {"GET", "/debug/jobs/elsewhere/digits", "viewer", http.StatusForbidden, "may not get"},
		"an unknown job":               {"GET", "/debug/jobs/team/letters", "viewer", http.StatusNotFound, "no gang of job team/letters"},
		"an unknown job, and no right": {"GET", "/debug/jobs/team/letters", "other", http.StatusForbidden, "may not get"},
		"the API server is away":       {"GET", "/debug/jobs/team/digits", "away", http.StatusServiceUnavailable, "try again"},
		"a long token":                 {"GET", "/debug/jobs/team/digits", strings.Repeat("x", maxTokenBytes+1), http.StatusUnauthorized, "Bearer TOKEN"},
		"another method":               {"POST", "/debug/jobs/team/digits", "viewer", http.StatusMethodNotAllowed, ""},
		"another path":                 {"GET", "/debug/jobs/team", "viewer", http.StatusNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			answer := ask(page, c.method, c.path, c.token)
			if answer.Code != c.code || !strings.Contains(answer.Body.String(), c.says) {
				t.Errorf("%d %s, want %d with %q", answer.Code, answer.Body, c.code, c.says)
			}
			if c.code != http.StatusOK && strings.Contains(answer.Body.String(), "uid-a") {
				t.Errorf("%d tells all the same: %s", answer.Code, answer.Body)
			}
		})
	}
	var read rendezvous.Inspection
	if err := json.Unmarshal(ask(page, "GET", "/debug/jobs/team/digits", "viewer").Body.Bytes(), &read); err != nil || len(read.Members) != 1 || !read.Members[0].Connected {
		t.Errorf("%+v, %v", read, err)
	}
	before := known.asked
	_ = ask(page, "GET", "/debug/jobs/team/digits", "")
	if known.asked != before {
		t.Error("the API server is asked about no token")
	}
}

func TestFewLookAtOnce(t *testing.T) {
	slow := &users{entered: make(chan struct{}), leave: make(chan struct{})}
	page := newPage(inspect, slow, rights{})
	answers := make(chan int, maxAtOnce)
	for range maxAtOnce {
		go func() { answers <- ask(page, "GET", "/debug/jobs/team/digits", "viewer").Code }()
		<-slow.entered
	}
	if code := ask(page, "GET", "/debug/jobs/team/digits", "viewer").Code; code != http.StatusTooManyRequests {
		t.Errorf("one too many is answered with %d", code)
	}
	close(slow.leave)
	for range maxAtOnce {
		if code := <-answers; code != http.StatusOK {
			t.Errorf("one in time is answered with %d", code)
		}
	}
}

func TestServesOverTLS13Only(t *testing.T) {
	const name = "rendezvous.system.svc"
	authority, err := pki.Load(t.Context(), fake.NewClientBuilder().Build(), client.ObjectKey{Namespace: "system", Name: "authority"}, []string{name}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	server := &Server{TLS: authority.TLSConfig(), Page: newPage(inspect, &users{}, rights{})}
	go func() { ended <- server.serve(ctx, listener) }()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Bundle())
	get := func(newest uint16) (string, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12, MaxVersion: newest}}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+listener.Addr().String()+"/debug/jobs/team/digits", nil)
		if err != nil {
			return "", err
		}
		request.Header.Set("Authorization", "Bearer viewer")
		response, err := transport.RoundTrip(request)
		if err != nil {
			return "", err
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	if text, err := get(tls.VersionTLS13); err != nil || !strings.Contains(text, `"Round": 7`) {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := get(tls.VersionTLS12); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %s, %v", text, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
